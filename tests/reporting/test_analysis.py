"""The analyses against plain loops and against data made by known variances."""

import runpy
import sys
from pathlib import Path
from statistics import fmean, variance

import numpy as np
import pandas as pd
import pytest

from tests.fake_runs import write_run
from tkpr.reporting.analysis import (
    by_settings,
    epoch_choice,
    epoch_gains,
    searches,
    side_by_side,
    variance_shares,
)
from tkpr.reporting.rows import Run, load_runs, of_table, on_searched_labels

ROOT = Path(__file__).parents[2]
TABLE = "voc2012_mlml_ranking_resnet50"


def made_up(rng, *, loss, setting, seed, rows=40, settings=12, seeds=6):
    """Runs whose mAP@3 has the given standard deviations."""
    runs = []
    for row in range(rows):
        level = 0.5 + loss * rng.normal()
        for k in range(settings):
            value = level + setting * rng.normal()
            runs.append(run_with(f"row {row}", value, k=k, holdout=0.2))
        for s in range(seeds):
            runs.append(run_with(f"row {row}", level + seed * rng.normal(), seed=s))
    return runs


def run_with(row, value, *, k=0, seed=0, holdout=0.0):
    config = {"row": row, "seed": seed, "split": {"holdout": holdout}, "loss": {"k": k}}
    return Run(Path(row), config, {"mAP@3": value}, 1.0)


@pytest.mark.parametrize(
    ("loss", "setting", "seed"), [(0.1, 0.1, 0.1), (0.2, 0.05, 0.01), (0.0, 0.1, 0.05)]
)
def test_known_variances_are_found(loss, setting, seed):
    runs = made_up(np.random.default_rng(0), loss=loss, setting=setting, seed=seed, rows=300)
    found = variance_shares(runs)
    total = loss**2 + setting**2 + seed**2
    for part, deviation in (("loss", loss), ("setting", setting), ("seed", seed)):
        assert found.share(part) == pytest.approx(deviation**2 / total, abs=0.05)
    assert sum(map(found.share, ("loss", "setting", "seed"))) == pytest.approx(1)
    assert (found.rows, found.searched) == (300, 3600)


def test_variances_by_their_formulas():
    runs = made_up(np.random.default_rng(1), loss=0.3, setting=0.1, seed=0.05, rows=4, seeds=3)
    final = {r.row: [] for r in runs}
    search = {r.row: [] for r in runs}
    for run in runs:
        (search if run.held_out else final)[run.row].append(run.metrics["mAP@3"])
    found = variance_shares(runs)
    assert found.seed == pytest.approx(fmean(map(variance, final.values())))
    assert found.setting == pytest.approx(fmean(map(variance, search.values())))
    between = variance([fmean(values) for values in final.values()])
    assert found.loss == pytest.approx(between - found.seed / 3)


def test_too_few_runs_are_refused():
    with pytest.raises(ValueError, match="two rows with two seeds each, and a search"):
        variance_shares([run_with("a", 0.5), run_with("b", 0.4)])


@pytest.fixture
def folder(tmp_path):
    for row, skill in (("L_rank", 1.0), ("TKPR_a2", 2.0)):
        for seed in (0, 1):
            write_run(tmp_path, row, table=TABLE, skill=skill, seed=seed)
        for k in (3, 5):
            write_run(
                tmp_path, row, table=TABLE, skill=skill + k / 5, loss__k=k, split__holdout=0.2
            )
    return tmp_path


def test_epochs_chosen_by_plain_loops(folder):
    """Warm-up epochs (two of them here) are never chosen; less is better for the ranking loss."""
    runs = load_runs(folder)
    found = epoch_choice(runs, ["mAP@3", "ranking_loss"]).set_index(["row", "measure"])
    for row in ("L_rank", "TKPR_a2"):
        final = [run for run in runs if run.row == row and not run.held_out]
        (held,) = [
            run for run in runs if run.row == row and run.held_out and run.config["loss"]["k"] == 5
        ]
        for measure, sign in (("mAP@3", 1), ("ranking_loss", -1)):
            column = pd.read_csv(held.folder / "metrics.csv")[measure].tolist()
            chosen = max((2, 3, 4), key=lambda i: sign * column[i])
            gains, test_gains, last = [], [], []
            for run in final:
                values = pd.read_csv(run.folder / "metrics.csv")[measure].tolist()
                last.append(values[-1])
                gains.append(sign * (values[chosen] - values[-1]))
                test_gains.append(max(sign * (value - values[-1]) for value in values[2:]))
            line = found.loc[(row, measure)]
            assert line["last epoch"] == pytest.approx(fmean(last))
            held_out, test = line[["chosen on held-out images adds", "chosen on the test set adds"]]
            assert held_out == pytest.approx(fmean(gains))
            assert test == pytest.approx(fmean(test_gains))
            assert test >= max(0, held_out) - 1e-12


def test_gains_of_tkpr_and_of_the_others():
    lines = [
        ("L_rank", 0.1, 0.2),
        ("TKPR_a2", -0.1, 0.0),
        ("TKPR_a3", 0.3, 0.1),
        ("LSEP", 0.0, 0.4),
    ]
    heads = ["row", "chosen on held-out images adds", "chosen on the test set adds"]
    (line,) = epoch_gains(pd.DataFrame(lines, columns=heads).assign(measure="mAP@3")).to_dict(
        "records"
    )
    assert line.pop("by") == "LSEP"
    assert line.pop("measure") == "mAP@3"
    assert list(line.values()) == pytest.approx([0.1, 0.05, 0.05, 0.3, 0.4])


def test_only_the_best_of_a_search_may_count():
    runs = [run_with(row, level, seed=s) for row, level in (("a", 0.5), ("b", 0.7)) for s in (0, 1)]
    for row in ("a", "b"):
        runs += [run_with(row, v, k=k, holdout=0.2) for k, v in enumerate((0.1, 0.6, 0.4, 0.2))]
    assert variance_shares(runs).setting == pytest.approx(variance([0.1, 0.6, 0.4, 0.2]))
    found = variance_shares(runs, best=0.5)
    assert found.setting == pytest.approx(variance([0.6, 0.4]))
    assert found.searched == 4


def test_what_a_search_found():
    runs = [run_with("a", v, k=k, holdout=0.2) for k, v in enumerate((0.1, 0.6, 0.4))]
    runs += [run_with("b", 0.9, holdout=0.2), run_with("b", 99.0)]
    adamw = ["optimizer._target_=torch.optim.AdamW", "optimizer.weight_decay=1e-2"]
    own = ["loss.k=1", "loss.surrogate=square", "trainer.temperature=4"]
    runs[1].overrides.extend(["experiment=t", *adamw, *own, "split.holdout=0.2"])
    found = searches(runs)
    assert found["row"].tolist() == ["b", "a"]
    assert found["settings tried"].tolist() == [1, 3]
    assert found["best held out"].tolist() == [0.9, 0.6]
    assert found["median"].tolist() == [0.9, 0.4]
    assert found["own"].tolist() == ["", "k 1, surrogate square"]
    assert found["decay"].tolist() == ["", "decoupled 1e-2"]
    assert found["T"].tolist() == ["", "4"]
    assert found["seconds"].tolist() == [2, 3]  # one each, final runs included


def test_of_equal_settings_the_one_that_was_trained_is_named():
    runs = [run_with("a", 0.5, k=k, holdout=0.2) for k in (1, 2, 3)] + [run_with("a", 0.4, k=2)]
    for run in runs:
        run.overrides.append(f"loss.k={run.config['loss']['k']}")
    assert searches(runs)["own"].tolist() == ["k 2"]
    assert searches(runs[:3])["own"].tolist() == ["k 1"]


def test_values_of_a_sweep_by_its_settings():
    runs = [
        run_with(row, k / 10 + seed / 100, k=k, seed=seed)
        for row in ("a", "b")
        for k in (3, 1)
        for seed in (0, 1, 2)
    ]
    runs.append(run_with("a", 99.0, k=3, holdout=0.2))  # a search is no result
    found = by_settings(runs, ["loss.k"]).set_index(["row", "loss.k"])
    assert list(found.index) == [("a", 1), ("a", 3), ("b", 1), ("b", 3)]
    for (_, k), line in found.iterrows():
        assert line["mean"] == pytest.approx(k / 10 + 0.01)
        assert line["deviation"] == pytest.approx(0.01)
        assert (line["lowest"], line["highest"]) == pytest.approx((k / 10, k / 10 + 0.02))
        assert line["runs"] == 3


def test_values_of_a_sweep_side_by_side():
    runs = [
        run_with(row, k / 10 + seed / 100, k=k, seed=seed)
        for row, k, seeds in (("a", 3, 2), ("a", 12, 2), ("b", 3, 1))
        for seed in range(seeds)
    ]
    found = side_by_side(by_settings(runs, ["loss.k"]), "loss.k")
    assert list(found.columns) == ["row", "loss.k=3", "loss.k=12"]
    assert found.loc[0].tolist() == ["a", "0.3050 ± 0.0071", "1.2050 ± 0.0071"]
    assert found.loc[1, "loss.k=3"] == "0.3000"  # one seed has no deviation
    assert pd.isna(found.loc[1, "loss.k=12"])


def test_another_draw_of_labels_is_no_seed():
    def run(seed, labels, holdout=0.0):
        config = {"row": "a", "seed": seed, "split": {"holdout": holdout}, "labels": labels}
        config |= {"table": TABLE, "budget": "smoke"}
        return Run(Path(str(seed)), config, {"mAP@3": 0.5}, 1.0)

    first, second = {"seed": 1200}, {"seed": 1}
    runs = [run(0, first, 0.2), run(0, first), run(1, first), run(0, second), run(1, second)]
    assert on_searched_labels(runs) == runs[:3]
    assert on_searched_labels(runs[1:]) == runs[1:]  # a sweep without a search
    assert of_table(runs, TABLE, "smoke") == runs[1:3]
    assert of_table(runs[1:], TABLE, "smoke") == runs[1:]


def test_script(folder, tmp_path, monkeypatch, capsys):
    def run(*words):
        monkeypatch.setattr(sys, "argv", ["analyse.py", *map(str, words)])
        runpy.run_path(str(ROOT / "scripts" / "analyse.py"), run_name="__main__")

    words = ["--budget", "smoke", "--runs", folder, "--output", tmp_path / "out"]
    run(TABLE, *words)
    table = pd.read_csv(tmp_path / "out" / f"{TABLE}-smoke-variance.csv")
    assert table[["loss", "setting", "seed"]].sum(axis=1).tolist() == pytest.approx([1], abs=2e-4)
    assert "chosen on the test set" in capsys.readouterr().out
    run(TABLE, *words, "--by", "loss.k", "--measures", "mAP@3", "ranking_loss")
    sweep = pd.read_csv(tmp_path / "out" / f"{TABLE}-smoke-sweep.csv")
    assert set(sweep["measure"]) == {"mAP@3", "ranking_loss"}
    assert set(sweep["table"]) == {"Tab. 13"}
    run(TABLE, TABLE, *words)  # several tables: one file of each kind
    both = pd.read_csv(tmp_path / "out" / "smoke-search.csv")
    assert both["table"].tolist() == ["Tab. 13"] * 4
    with pytest.raises(SystemExit, match=r"first python scripts/tune\.py coco"):
        run("coco_mlc_ranking_resnet101", *words)
    with pytest.raises(SystemExit, match="no measure 'speed'"):
        run(TABLE, *words, "--measures", "speed")
    with pytest.raises(SystemExit, match=r"L_rank.* has no mAP@9: name another with --measures"):
        run(TABLE, *words, "--measures", "mAP@9")
    for best in ("0", "2", "nan"):
        with pytest.raises(SystemExit, match="--best must be above 0 and at most 1"):
            run(TABLE, *words, "--best", best)
