"""Runs are collected into the right rows, and averaged and marked rightly."""

import hashlib
import statistics
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from tests.fake_runs import write_run
from tkpr import records
from tkpr.losses import TKPR
from tkpr.metrics import measure_names
from tkpr.reporting.paper_numbers import PAPER, oddities, paper_efficiency, paper_table, table_names
from tkpr.reporting.rows import (
    averages,
    best_competitors,
    deviations,
    group_rows,
    load_runs,
    of_table,
    one_experiment,
    places,
)

MEASURES = measure_names(scopes=["image"])

TABLE = "voc2012_mlml_ranking_resnet50"
HASHES = {  # of the files with the paper's numbers
    "coco_mlc_ranking_resnet101": "6f0869b99281f8f8",
    "coco_mlc_sota_resnet101": "fb9141b03b7a4c7b",
    "coco_mlc_sota_swin": "61d3fd9af04b6dcf",
    "coco_mlml_ranking_resnet50": "b4d32b16b4725492",
    "coco_mlml_sota_resnet50": "296c08ac8e6aeade",
    "efficiency_a100": "216cf67f0212d75e",
    "nuswide_mlc_sota_swin": "f06fc7231da9651a",
    "voc2007_mlc_ranking_resnet101": "257a3cb586d85283",
    "voc2007_mlc_sota_resnet101": "5effa3e38d84e189",
    "voc2012_mlml_ranking_resnet50": "ba0b0db7c21ca622",
    "voc2012_mlml_sota_resnet50": "0a5b4c60d7e07a08",
}


def test_means_and_deviations_cell_by_cell(tmp_path):
    told = [
        write_run(tmp_path, row, table=TABLE, skill=skill, seed=seed)
        for row, skill in (("L_rank", 1), ("TKPR_a2", 2))
        for seed in (0, 1, 2)
    ]
    rows = group_rows(load_runs(tmp_path), ["L_rank", "L_u1", "TKPR_a2"])
    mean, std = averages(rows), deviations(rows)
    assert list(mean.index) == ["L_rank", "L_u1", "TKPR_a2"]
    assert list(mean.columns) == MEASURES
    assert len(MEASURES) == 15
    for row, measure in product(("L_rank", "TKPR_a2"), MEASURES):
        values = [run["metrics"][measure] for run in told if run["config"]["row"] == row]
        assert mean.loc[row, measure] == pytest.approx(statistics.mean(values), rel=1e-12)
        assert std.loc[row, measure] == pytest.approx(statistics.stdev(values), rel=1e-9)


def test_a_row_not_run_is_there_and_empty(tmp_path):
    write_run(tmp_path, "L_rank", table=TABLE, skill=1)
    rows = group_rows(load_runs(tmp_path), ["L_rank", "L_u1"])
    assert rows["L_u1"] == []
    assert averages(rows).loc["L_u1"].isna().all()
    assert deviations(rows).loc["L_rank"].isna().all()  # one seed has no spread


def test_only_runs_of_this_table_and_budget_on_the_test_set_count(tmp_path):
    write_run(tmp_path, "L_rank", table=TABLE, skill=1)
    write_run(tmp_path, "L_rank", table=TABLE, skill=1, budget="features")
    write_run(tmp_path, "L_rank", table="coco_mlml_ranking_resnet50", skill=1)
    write_run(tmp_path, "L_rank", table=TABLE, skill=1, split__holdout=0.2)
    found = of_table(load_runs(tmp_path), TABLE, "smoke")
    assert [run.folder.parent.name for run in found] == ["L_rank"]


def test_settings_are_never_mixed(tmp_path):
    for k, seed in product((3, 5), (0, 1)):
        write_run(tmp_path, "TKPR_a2", table=TABLE, skill=k, seed=seed, loss__k=k)
    rows = group_rows(load_runs(tmp_path), ["TKPR_a2"])
    assert list(rows) == ["TKPR_a2 (loss.k=3)", "TKPR_a2 (loss.k=5)"]
    assert [run.seed for run in rows["TKPR_a2 (loss.k=5)"]] == [0, 1]


def test_seeds_of_different_features_are_not_averaged(tmp_path):
    for seed, file in enumerate(("lite0.npz", "lite0.npz", "resnet.npz")):
        write_run(tmp_path, "L_rank", table=TABLE, skill=1, seed=seed, dataset__file=file)
    rows = group_rows(load_runs(tmp_path), ["L_rank"])
    assert {name: len(group) for name, group in rows.items()} == {
        "L_rank (dataset.file=lite0.npz)": 2,
        "L_rank (dataset.file=resnet.npz)": 1,
    }


def test_runs_from_before_a_setting_was_known_are_the_same_experiment(tmp_path):
    """What is null acts as if it were not there; a table's K acts through that of the loss."""
    write_run(tmp_path, "TKPR_a2", table=TABLE, skill=1)
    later = {"trainer__stop_after": None, "tkpr_k": 6, "sweep": {"k": "2,4"}, "methods": "rank,u1"}
    write_run(tmp_path, "TKPR_a2", table=TABLE, skill=1, seed=1, **later)
    write_run(tmp_path, "TKPR_a2", table=TABLE, skill=1, seed=2, trainer__stop_after=3)
    rows = group_rows(load_runs(tmp_path), ["TKPR_a2"])
    assert [len(group) for group in rows.values()] == [2, 1]
    assert list(rows)[1] == "TKPR_a2 (trainer.stop_after=3)"


def test_the_same_run_twice_is_refused(tmp_path):
    write_run(tmp_path / "a", "L_rank", table=TABLE, skill=1)
    write_run(tmp_path / "b", "L_rank", table=TABLE, skill=1)
    with pytest.raises(ValueError, match="twice with the same seed"):
        group_rows(load_runs(tmp_path), ["L_rank"])


def test_folders_that_hold_nothing_readable(tmp_path):
    with pytest.raises(FileNotFoundError, match="train something first"):
        load_runs(tmp_path / "runs")
    (tmp_path / "metrics.json").write_text('{"metrics": {}}')
    with pytest.raises(ValueError, match=r"metrics.json is damaged \(it was not written by train"):
        load_runs(tmp_path)
    records.write(tmp_path / "metrics.json", {"metrics": {}})
    with pytest.raises(ValueError, match=r"was not written by train.py: it has no 'config'"):
        load_runs(tmp_path)


@pytest.mark.parametrize(
    ("table", "measure", "best", "second", "competitor"),
    [  # what is red, blue and underlined in the paper
        ("coco_mlc_ranking_resnet101", "mAP@3", "TKPR_a2", "TKPR_a1", "L_u4"),
        ("coco_mlc_ranking_resnet101", "ranking_loss", "TKPR_a2", "TKPR_a3", "L_u4"),
        ("coco_mlml_ranking_resnet50", "P@5", "TKPR_a3", "TKPR_a1", "L_u3"),
        ("coco_mlml_ranking_resnet50", "TKPR_a1@3", "TKPR_a3", "TKPR_a1", "L_u4"),
        ("coco_mlml_sota_resnet50", "ranking_loss", "TKPR_a2", "TKPR_a1", "LL-R"),
        ("coco_mlc_sota_swin", "ranking_loss", "TKPR_a2", "CCD", "CCD"),
        ("nuswide_mlc_sota_swin", "TKPR_a1@5", "TKPR_a2", "TKPR_a1", "CCD"),
        ("voc2012_mlml_ranking_resnet50", "ranking_loss", "TKPR_a1", "TKPR_a2", "L_u1"),
    ],
)
def test_marks_are_those_of_the_paper(table, measure, best, second, competitor):
    values = paper_table(table)
    place = places(values)[measure]
    assert place[place == 1].index.tolist() == [best]
    assert place[place == 2].index.tolist() == [second]
    assert best_competitors(values)[measure] == competitor


def test_marks_without_runs():
    values = pd.DataFrame({"P@3": [np.nan, np.nan]}, index=["L_rank", "TKPR_a2"])
    assert places(values).isna().all().all()
    assert best_competitors(values)["P@3"] is None


@pytest.mark.parametrize(
    ("table", "row", "values"),
    [  # read off the paper's LaTeX, one row of each table: first, seventh and last two columns
        ("coco_mlc_ranking_resnet101", "L_u4", (0.615, 0.753, 0.159, 0.032)),
        ("coco_mlc_sota_resnet101", "DB-Loss", (0.676, 0.919, 0.182, 0.015)),
        ("coco_mlml_ranking_resnet50", "LSEP", (0.542, 0.696, 0.147, 0.0346)),
        ("coco_mlml_sota_resnet50", "EM+APL", (0.638, 0.879, 0.175, 0.0265)),
        ("voc2007_mlc_ranking_resnet101", "TKML", (0.422, 0.788, 0.171, 0.052)),
        ("voc2007_mlc_sota_resnet101", "CCD", (0.451, 0.960, 0.194, 0.009)),
        ("coco_mlc_sota_swin", "TKPR_a1", (0.712, 0.956, 0.192, 0.0096)),
        ("nuswide_mlc_sota_swin", "SPLC", (0.564, 0.833, 0.172, 0.0137)),
        ("voc2012_mlml_ranking_resnet50", "L_rank", (0.438, 0.917, 0.187, 0.0199)),
        ("voc2012_mlml_sota_resnet50", "LL-Ct", (0.427, 0.943, 0.191, 0.0128)),
    ],
)
def test_the_papers_numbers(table, row, values):
    numbers = paper_table(table).loc[row]
    assert tuple(numbers[["P@3", "NDCG@3", "TKPR_a3@5", "ranking_loss"]]) == values


def test_the_papers_numbers_are_never_touched():
    """The files were checked against the paper cell by cell: whoever mends one mends this too."""
    found = {
        file.stem: hashlib.sha256(file.read_bytes()).hexdigest()[:16]
        for file in sorted(Path(str(PAPER)).glob("*_*.csv"))
    }
    assert found == HASHES


def test_every_table_is_complete():
    sizes = [len(paper_table(name)) for name in table_names()]
    assert sizes == [10, 8, 10, 10, 10, 8, 8, 8, 10, 10]
    for name in table_names():
        table = paper_table(name)
        assert table.notna().all().all()
        assert table.index[-3:].tolist() == ["TKPR_a1", "TKPR_a2", "TKPR_a3"]
    timing = paper_efficiency()
    assert len(timing) == 2 * 4 * 7
    assert (
        timing.total_s - timing[["forward_s", "loss_s", "backward_s"]].sum(axis=1)
    ).abs().max() < 3e-4


def test_a_table_that_is_not_in_the_paper_has_no_numbers():
    assert paper_table("beyond_coco_mlml").empty


def test_oddities_are_true():
    """What a footnote calls impossible is so: AP@K never exceeds NDCG@K, and hits bound recall."""
    for k, n in product((3, 5), range(1, 8)):
        for hits in product((0, 1), repeat=k):
            if sum(hits) <= n:
                precision = sum(sum(hits[: i + 1]) / (i + 1) for i in range(k) if hits[i]) / min(
                    k, n
                )
                gain = sum(hit / np.log2(i + 2) for i, hit in enumerate(hits))
                ideal = sum(1 / np.log2(i + 2) for i in range(min(k, n)))
                assert precision <= gain / ideal + 1e-12
    coco, voc = paper_table("coco_mlc_sota_resnet101"), None
    assert coco.loc["TKPR_a1", "mAP@3"] > coco.loc["TKPR_a1", "NDCG@3"]
    voc = paper_table("voc2007_mlc_ranking_resnet101")
    assert voc.loc["TKPR_a3", "mAP@3"] > voc.loc["TKPR_a3", "NDCG@3"]
    # images of the test sets with 0, 1, 2, ... labels
    counts = {
        "coco_mlml_sota_resnet50": [
            0,
            8398,
            12327,
            8312,
            4734,
            2717,
            1630,
            922,
            531,
            286,
            146,
            71,
            42,
            14,
            5,
            2,
        ],
        "voc2012_mlml_sota_resnet50": [0, 3837, 1532, 378, 64, 12],
    }
    for table, histogram in counts.items():
        numbers = paper_table(table)
        for row in numbers.index:
            for k in (3, 5):
                low = smallest_precision(histogram, k, numbers.loc[row, f"R@{k}"] - 0.0005)
                impossible = numbers.loc[row, f"P@{k}"] + 0.0005 < low
                assert impossible == row.startswith("LL-")
        assert any(note.startswith("LL-R, LL-Ct, LL-Cp") for note in oddities(table))


@pytest.mark.parametrize("alpha", [2, 3])
def test_with_single_positives_the_alphas_are_one_loss(alpha):
    """As a footnote of the tables with missing labels says."""
    logits = torch.randn(6, 20, dtype=torch.float64)
    targets = torch.eye(6, 20, dtype=torch.float64)
    first = TKPR(alpha=1, k=5, surrogate="square", scores="sigmoid")(logits, targets)
    other = TKPR(alpha=alpha, k=5, surrogate="square", scores="sigmoid")(logits, targets)
    assert first.item() == pytest.approx(other.item() * (5 if alpha == 3 else 1), rel=1e-12)
    for name in table_names():
        same = any("alpha_3 = K" in note for note in oddities(name))
        assert same == ("mlml" in name)


def smallest_precision(histogram, k, recall):
    """The least P@k with which a mean R@k is possible: hits where each counts most for recall."""
    images = sum(histogram)
    left, hits = recall * images, 0.0
    for n, count in enumerate(histogram):
        if n:
            here = min(count * min(k, n), left * n)
            hits += here
            left -= here / n
    return hits / (k * images)


@pytest.mark.parametrize(
    ("key", "changed"),
    [
        ("fingerprint", {"fingerprint": "b"}),
        ("processes", {"processes": 2}),
        ("train_checksum", {"counts": {"train_checksum": "b", "test_checksum": "a"}}),
        ("test_checksum", {"counts": {"train_checksum": "a", "test_checksum": "b"}}),
    ],
)
def test_runs_of_other_data_are_not_averaged(tmp_path, key, changed):
    origin = {"fingerprint": "a", "processes": 1}
    origin["counts"] = {"train_checksum": "a", "test_checksum": "a"}
    for seed in (0, 1):
        record = write_run(tmp_path, "L_rank", table=TABLE, skill=1, seed=seed)
        kept = {name: record[name] for name in ("metrics", "config", "seconds", "seed")}
        kept |= origin | (changed if seed else {})
        records.write(record["folder"] / "metrics.json", kept)
    with pytest.raises(ValueError, match=rf"seed=0 and .*seed=1 do not belong .* their {key} diff"):
        group_rows(load_runs(tmp_path), ["L_rank"])
    with pytest.raises(ValueError, match=f"their {key} differ"):
        one_experiment(tmp_path)


def test_rows_of_other_labels_are_not_put_side_by_side(tmp_path):
    """Unless their settings say that the data differ; other weights are no other data."""
    for row, sum_, limit in (("L_rank", "a", None), ("TKPR_a2", "b", None)):
        record = write_run(tmp_path, row, table=TABLE, skill=1, split__limit=limit)
        kept = {name: record[name] for name in ("metrics", "config", "seconds", "seed")}
        kept |= {"counts": {"train_checksum": sum_}, "fingerprint": sum_}
        records.write(record["folder"] / "metrics.json", kept)
    with pytest.raises(ValueError, match="their train_checksum differ"):
        group_rows(load_runs(tmp_path), [])
    kept["config"]["split"]["limit"] = 10
    records.write(record["folder"] / "metrics.json", kept)
    assert list(group_rows(load_runs(tmp_path), [])) == ["L_rank", "TKPR_a2"]
    kept["config"]["split"]["limit"] = None
    kept["counts"]["train_checksum"] = "a"
    records.write(record["folder"] / "metrics.json", kept)
    assert list(group_rows(load_runs(tmp_path), [])) == ["L_rank", "TKPR_a2"]
