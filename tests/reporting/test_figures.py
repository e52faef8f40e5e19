"""Figures draw the right numbers, say what their axes are, and can be read without colour."""

import runpy
import sys
from dataclasses import replace
from itertools import combinations, product
from pathlib import Path
from types import SimpleNamespace

import hydra
import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.text import Text
from omegaconf import OmegaConf
from PIL import Image

from tests.data.miniature import make_csv
from tests.fake_runs import labels, predictions, write_run
from tkpr.data.mosaic import load_mosaic
from tkpr.losses.tkpr import TKPR
from tkpr.reporting.escape import for_figure
from tkpr.reporting.figures import (
    cases,
    consistency,
    decay,
    dots,
    gradient,
    overview,
    ranks,
    sensitivity,
    style,
)
from tkpr.reporting.figures.style import save, shown
from tkpr.reporting.rows import Run, group_rows, load_runs

ROOT = Path(__file__).parents[2]
TABLE = "voc2012_mlml_ranking_resnet50"
SKILLS = {"L_rank": 1.0, "L_u4": 1.5, "LSEP": 0.5, "TKPR_a2": 2.5}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for (row, skill), seed in product(SKILLS.items(), (0, 1)):
        write_run(folder, row, table=TABLE, skill=skill, seed=seed)
    return folder


@pytest.fixture(scope="module")
def rows(folder):
    return group_rows(load_runs(folder), list(SKILLS))


def tau(first, second):
    """Kendall's tau-b by its definition."""
    pairs = list(combinations(range(len(first)), 2))
    signs = [(np.sign(first[i] - first[j]), np.sign(second[i] - second[j])) for i, j in pairs]
    untied = [sum(sign[side] != 0 for sign in signs) for side in (0, 1)]
    return sum(a * b for a, b in signs) / np.sqrt(untied[0] * untied[1])


def test_consistency_is_the_mean_over_pairs_of_measures(rows):
    for group in rows.values():
        expected = []
        for run in group:
            curves = consistency.epoch_curves(run).iloc[2:]  # two epochs of warm-up
            assert curves.index.tolist() == [3, 4, 5]
            good = curves.assign(ranking_loss=-curves.ranking_loss)
            pairs = combinations(good.columns, 2)
            expected.append(np.mean([tau(good[a].tolist(), good[b].tolist()) for a, b in pairs]))
        assert consistency.row_consistency(group) == pytest.approx(np.mean(expected), rel=1e-12)


def test_normalised_curves_run_from_worst_to_best(rows):
    for run in rows["L_u4"]:
        curves = consistency.epoch_curves(run)
        normal = consistency.normalise(curves)
        for name, curve in curves.items():
            best = curve.idxmin() if name == "ranking_loss" else curve.idxmax()
            worst = curve.idxmax() if name == "ranking_loss" else curve.idxmin()
            assert (normal.loc[best, name], normal.loc[worst, name]) == (1, 0)
        # as printed in the paper, where less is better
        loss = curves.ranking_loss
        printed = (loss.max() - loss) / (loss.max() - loss.min())
        assert normal.ranking_loss.tolist() == pytest.approx(printed.tolist())
    constant = consistency.normalise(pd.DataFrame({"P@5": [0.2, 0.2]}))
    assert constant["P@5"].tolist() == [1, 1]


@pytest.mark.parametrize("after_warmup", [False, True])
def test_consistency_figure_shows_the_mean_of_the_seeds(rows, after_warmup):
    figure = consistency.draw(rows, after_warmup=after_warmup)
    assert len(figure.axes) == 4
    for panel, (row, group) in zip(figure.axes, rows.items(), strict=True):
        curves = sum(consistency.epoch_curves(run) for run in group) / 2
        normal = consistency.normalise(curves.iloc[2:] if after_warmup else curves)
        drawn = {line.get_label(): line for line in panel.lines if line.get_label()[0] != "_"}
        assert drawn["mAP@5"].get_ydata().tolist() == normal["mAP@5"].tolist()
        assert drawn["mAP@5"].get_xdata().tolist() == normal.index.tolist()
        assert f"{consistency.row_consistency(group):.2f}" in panel.get_title(), row
    assert_readable(figure)


def test_the_end_of_the_warm_up_is_drawn_where_another_loss_takes_over(tmp_path):
    write_run(tmp_path, "TKPR_a2", skill=3)
    write_run(tmp_path, "L_rank", skill=3, warmup={"k": 5})
    for run in load_runs(tmp_path):
        panel = consistency.draw({run.row: [run]}).axes[0]
        named = [line for line in panel.lines if line.get_label() == "warm-up ends"]
        assert [line.get_xdata()[0] for line in named] == ([2.5] if run.row == "TKPR_a2" else [])
        legend = [text.get_text() for text in panel.figure.legends[0].get_texts()]
        assert ("warm-up ends" in legend) == (run.row == "TKPR_a2")
        assert not panel.texts  # nothing covers the curves


def test_shares_of_ranks(rows):
    for group in rows.values():
        shares = ranks.rank_shares(group, last=3)
        expected = np.zeros(4)
        for run in group:
            with np.load(run.folder / "predictions.npz") as stored:
                logits, targets = stored["logits"], stored["targets"]
            for scores, row in zip(logits, targets, strict=True):
                for label in np.flatnonzero(row):
                    rank = int((scores > scores[label]).sum())
                    expected[min(rank, 3)] += 1 / targets.sum() / len(group)
        assert shares == pytest.approx(expected)
        assert shares.sum() == pytest.approx(1)


def test_ranks_figure(rows):
    figure = ranks.draw(rows, last=3)
    bars = figure.axes[0].containers
    for container, group in zip(bars, rows.values(), strict=True):
        heights = [bar.get_height() for bar in container]
        assert heights == pytest.approx(ranks.rank_shares(group, last=3).tolist())
    assert len({container[0].get_hatch() for container in bars}) == len(rows)
    assert_readable(figure)


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep")
    rows = ("TKPR_a1", "TKPR_a2")
    return [
        write_run(
            folder,
            row,
            table="voc2012_mlml_sensitivity",
            skill=2 + k / 5,
            loss__k=k,
            trainer__warmup_epochs=warmup,
        )
        for row, k, warmup in product(rows, (2, 4, 10), (2, 4))
    ], load_runs(folder)


@pytest.mark.parametrize(
    ("setting", "node", "key"), [("k", "loss", "k"), ("warmup", "trainer", "warmup_epochs")]
)
def test_sensitivity_gathers_what_varies_besides(sweep, setting, node, key):
    told, runs = sweep
    found = sensitivity.gather(runs, setting)
    assert list(found) == ["TKPR_a1", "TKPR_a2"]
    for row, values in found.items():
        assert list(values) == sorted({run["config"][node][key] for run in told})
        for value, points in values.items():
            expected = [
                run["metrics"][f"{row}@5"]
                for run in told
                if run["config"]["row"] == row and run["config"][node][key] == value
            ]
            assert sorted(points) == sorted(expected)
    figure = sensitivity.draw(runs, setting)
    ticks = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert ticks == [str(value) for value in found["TKPR_a1"]]
    assert_readable(figure)


def test_sensitivity_without_runs(rows):
    with pytest.raises(ValueError, match="run the sensitivity experiment first"):
        sensitivity.draw(rows["L_rank"], "k")


def brute_force_gains(runs, ours):
    """TKPR^{alpha_2}@5 of ours minus the best of the others, image by image."""
    values = {}
    for row, run in runs.items():
        with np.load(run.folder / "predictions.npz") as stored:
            logits, targets = stored["logits"], stored["targets"]
        values[row] = [
            sum(max(0, 5 - (scores > scores[label]).sum()) for label in np.flatnonzero(target))
            / (5 * min(5, target.sum()))
            for scores, target in zip(logits, targets, strict=True)
        ]
    others = np.max([values[row] for row in runs if row != ours], axis=0)
    return np.array(values[ours]) - others, targets


@pytest.mark.parametrize("losses", [False, True])
def test_cases_are_chosen_by_the_rule(rows, losses):
    runs = {row: group[0] for row, group in rows.items()}
    gains, targets = brute_force_gains(runs, "TKPR_a2")
    chosen = cases.choose(runs, count=5, losses=losses)
    sign = 1 if losses else -1
    order = sorted(
        range(len(gains)), key=lambda i: (round(sign * gains[i], 9), -int(targets[i].sum()), i)
    )
    assert [case.id for case in chosen.chosen] == [f"image-{i:03}" for i in order[:5]]
    assert [case.gain for case in chosen.chosen] == pytest.approx([gains[i] for i in order[:5]])
    assert chosen.better == pytest.approx((gains > 1e-9).mean())
    assert chosen.worse == pytest.approx((gains < -1e-9).mean())
    first = chosen.chosen[0]
    with np.load(runs["LSEP"].folder / "predictions.npz") as stored:
        top = np.argsort(-stored["logits"][order[0]])[:5]
    assert first.top["LSEP"] == [f"class {label}" for label in top]
    assert first.labels == [f"class {label}" for label in np.flatnonzero(targets[order[0]])]


@pytest.mark.parametrize(("losses", "title"), [(False, "largest gains"), (True, "smallest gains")])
def test_cases_say_which_end_they_show(tmp_path, losses, title):
    """Also where TKPR loses nowhere, so that its smallest gain is none."""
    targets = np.eye(8, dtype=np.uint8)
    for row, skill in (("L_rank", 0.1), ("TKPR_a2", 50.0)):
        write_run(tmp_path, row, table=TABLE, skill=skill, targets=targets)
    runs = {run.row: run for run in load_runs(tmp_path)}
    chosen = cases.choose(runs, count=2, losses=losses)
    assert chosen.worse == 0
    figure = cases.draw(chosen, {}, list(runs))
    assert figure.get_suptitle().startswith(title)


def test_cases_need_tkpr_and_a_competitor(rows):
    with pytest.raises(ValueError, match="a TKPR row and at least one competitor"):
        cases.choose({"L_rank": rows["L_rank"][0], "LSEP": rows["LSEP"][0]})


def test_cases_show_images_and_mark_right_labels(tmp_path):
    settings = {"train_size": 5, "test_size": 30, "image_size": 64, "seed": 0}
    data = load_mosaic(**settings)
    dataset = {"_target_": "tkpr.data.mosaic.load_mosaic", **settings}
    for row, skill in (("L_rank", 0.5), ("TKPR_a2", 3.0)):
        told = write_run(
            tmp_path, row, table=TABLE, skill=skill, targets=data.test.targets, dataset=dataset
        )
        with np.load(told["folder"] / "predictions.npz") as stored:
            arrays = dict(stored) | {"ids": np.array(data.test.ids)}
        np.savez_compressed(told["folder"] / "predictions.npz", **arrays)
    runs = {run.row: run for run in load_runs(tmp_path)}
    chosen = cases.choose(runs, count=3)
    images = cases.pictures(runs["TKPR_a2"])
    figure = cases.draw(chosen, images, list(runs))
    drawn = [panel.images[0].get_array() for panel in figure.axes if panel.images]
    for picture, case in zip(drawn, chosen.chosen, strict=True):
        row = data.test.ids.index(case.id)
        assert np.array_equal(picture, data.test.inputs[row])
    for panel in figure.axes[3:]:
        for text in panel.texts:
            ticked = "✓" in text.get_text()
            assert (text.get_color() == cases.GREEN) == ticked == (text.get_weight() == "bold")
    assert sum("✓" in text.get_text() for panel in figure.axes[3:] for text in panel.texts) > 0


def test_cases_without_images_show_the_id(rows):
    runs = {row: group[0] for row, group in rows.items()}
    assert cases.pictures(runs["TKPR_a2"]) == {}  # it was trained on features
    chosen = cases.choose(runs, count=2)
    figure = cases.draw(chosen, {}, list(runs))
    assert figure.axes[0].texts[0].get_text() == f"image\n{chosen.chosen[0].id}"


def test_cases_find_image_files(rows, tmp_path):
    """With all settings of a data set on disk, and with those that the user names instead."""
    make_csv(tmp_path)
    with hydra.initialize_config_dir(str(ROOT / "configs"), version_base="1.3"):
        words = ["dataset=csv", f"dataset.root={tmp_path}"]
        named = hydra.compose("train", words).dataset
    run = rows["TKPR_a2"][0]
    stored = replace(
        run, config=run.config | {"dataset": OmegaConf.to_container(named, resolve=True)}
    )
    for images in (cases.pictures(stored), cases.pictures(run, named)):
        assert images["03"] == images["photos/03.jpg"]
        split, row = images["03"]
        assert split.inputs[row] == tmp_path / "photos" / "03.jpg"


def test_cases_of_one_name_in_two_folders_are_not_mixed_up(rows, tmp_path, monkeypatch):
    """train/0.png is not test/0.png; a name that two images share finds neither."""
    paths = {part: [tmp_path / part / f"{i}.png" for i in range(2)] for part in ("train", "test")}
    splits = {
        part: SimpleNamespace(ids=[f"{part}/{i}.png" for i in range(2)], inputs=files)
        for part, files in paths.items()
    }
    monkeypatch.setattr(cases, "build_dataset", lambda _: SimpleNamespace(**splits))
    monkeypatch.setattr(cases, "check_targets", lambda *_, **__: None)
    run = replace(rows["TKPR_a2"][0], config=rows["TKPR_a2"][0].config | {"dataset": {}})
    images = cases.pictures(run)
    for part, files in paths.items():
        split, row = images[f"{part}/0.png"]
        assert split.inputs[row] == files[0]
    assert "0" not in images


NASTY = ["a$b$", "<b>", "x_y_", "back\\slash", "two\nlines", "$", "#%&~^{}", "=1+1"]


def test_names_are_drawn_as_they_are(tmp_path):
    """Dollars are no formulas, backslashes stay, a line break becomes a space."""
    for row, skill in (("L_rank", 0.1), ("TKPR_a2", 50.0)):
        record = write_run(tmp_path, row, table=TABLE, skill=skill)
        with np.load(record["folder"] / "predictions.npz") as stored:
            arrays = dict(stored) | {"class_names": np.array(NASTY)}
        arrays["ids"] = np.array([f"$i_{i}$ <img>" for i in range(len(arrays["ids"]))])
        np.savez_compressed(record["folder"] / "predictions.npz", **arrays)
    runs = {run.row: run for run in load_runs(tmp_path)}
    figure = cases.draw(cases.choose(runs, count=2), {}, list(runs))
    figure.savefig(tmp_path / "names.png")  # mathtext would fail on some of them
    texts = [text.get_text() for panel in figure.axes[2:] for text in panel.texts]
    drawn = {text[3:].removesuffix("  ✓").replace(r"\$", "$") for text in texts}
    assert drawn <= {name.replace("\n", " ") for name in NASTY}
    assert len(drawn) > 4
    assert figure.axes[0].texts[0].get_text().startswith(r"image" + "\n" + r"\$i_")
    for name in NASTY:
        _, is_math = Text()._preprocess_math(for_figure(name))
        assert is_math is False


def test_a_foreign_data_set_is_not_built(rows):
    run = rows["TKPR_a2"][0]
    run.config["dataset"]["_target_"] = "os.system"
    with pytest.raises(ValueError, match="foreign object"):
        cases.pictures(run)
    run.config["dataset"]["_target_"] = "tkpr.data.features.load_features"


def test_a_foreign_run_chooses_no_folder_to_write_to(rows, monkeypatch):
    built = []

    def note(settings):
        built.append(settings.cache_dir)
        raise FileNotFoundError

    monkeypatch.setattr(cases, "build_dataset", note)
    settings = {"_target_": "tkpr.data.coco.load_coco", "root": "data", "cache_dir": "/elsewhere"}
    run = replace(rows["TKPR_a2"][0], config={"dataset": settings})
    for named in (None, OmegaConf.create(settings)):  # the second one by the user
        with pytest.raises(FileNotFoundError):
            cases.pictures(run, named)
    assert built == [None, "/elsewhere"]


def assert_readable(figure):
    """Every axis has a label; curves differ in more than colour."""
    for panel in figure.axes:
        if panel.get_visible():
            assert panel.get_xlabel()
            others = panel.get_shared_y_axes().get_siblings(panel)
            assert any(other.get_ylabel() for other in others)
    looks = [
        (str(line.get_linestyle()), line.get_marker())
        for line in figure.axes[0].lines
        if line.get_label()[0] != "_" and line.get_label() != "warm-up ends"
    ]
    assert len(set(looks)) == len(looks)


def test_files(rows, tmp_path):
    files = save(ranks.draw(rows), tmp_path / "new" / "ranks")
    assert [file.name for file in files] == ["ranks.pdf", "ranks.png"]
    assert files[0].read_bytes().startswith(b"%PDF")
    with Image.open(files[1]) as picture:
        assert min(picture.size) > 400
        grey = np.asarray(picture.convert("L"))
    assert grey.std() > 5  # something is drawn
    again = save(ranks.draw(rows), tmp_path / "ranks")
    assert again[0].read_bytes() == files[0].read_bytes()


def script(monkeypatch, capsys, *words):
    monkeypatch.setattr(sys, "argv", ["figures.py", *map(str, words)])
    runpy.run_path(str(ROOT / "scripts" / "figures.py"), run_name="__main__")
    return capsys.readouterr()


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """Runs for every figure of the paper; the names, in folders and tables, of its own."""
    folder = tmp_path_factory.mktemp("many")
    ranking = ("L_rank", "L_u1", "L_u4", "LSEP", "TKPR_a1", "TKPR_a2", "TKPR_a3")
    sota = ("ASL", "DB-Loss", "CCD", "Hill", "SPLC", "TKPR_a1", "TKPR_a2", "TKPR_a3")
    for dataset, rows in (("coco", ranking), ("voc2007", ranking)):
        for i, row in enumerate(rows):
            write_run(folder, row, table=f"{dataset}_mlc_ranking_resnet101", skill=1 + i / 5)
    for dataset in ("coco", "nuswide"):
        for i, row in enumerate(sota):
            write_run(folder, row, table=f"{dataset}_mlc_sota_swin", skill=1 + i / 5)
    for row, k, warmup in product(("TKPR_a1", "TKPR_a3"), (2, 4), (1, 3)):
        sweep = {"loss__k": k, "trainer__warmup_epochs": warmup}
        write_run(folder, row, table="voc2012_mlml_sensitivity", skill=k, **sweep)
    for row, k, seed in product(("TKPR_a1", "TKPR_a2"), (3, 5), (0, 1)):
        write_run(folder, row, table="voc2007_mlc_sensitivity", skill=k, seed=seed, loss__k=k)
    return folder


SWIN = ["ASL", "DB-Loss", "CCD", "Hill", "SPLC"]
OURS = ["TKPR_a1", "TKPR_a2", "TKPR_a3"]


@pytest.mark.parametrize(
    ("figure", "table", "texts"),
    [
        ("fig2", "voc2007_mlc_ranking_resnet101", ["L_rank", "TKPR_a2"]),
        ("fig3a", "coco_mlc_ranking_resnet101", list(ranks.ROWS)),
        ("fig3b", "voc2007_mlc_ranking_resnet101", list(ranks.ROWS)),
        ("fig4", "voc2007_mlc_ranking_resnet101", list(consistency.ROWS)),
        ("fig5", "voc2012_mlml_sensitivity", ["TKPR_a1", "TKPR_a3", "$K$ of the loss"]),
        ("fig6", "voc2012_mlml_sensitivity", ["TKPR_a1", "TKPR_a3", "$E_w$ (warm-up epochs)"]),
        ("fig7", "voc2007_mlc_sensitivity", ["TKPR_a1", "TKPR_a2", "$K$ of the loss"]),
        ("fig8", "coco_mlc_sota_swin", [*OURS, *SWIN]),
        ("fig9", "nuswide_mlc_sota_swin", [*OURS, *SWIN]),
    ],
)
def test_every_figure_of_the_paper(many, tmp_path, monkeypatch, capsys, figure, table, texts):
    """By its name alone: the right table, and the rows that the paper shows."""
    drawn = []
    monkeypatch.setattr(style, "save", lambda figure, path: drawn.append(figure) or [path])
    words = [figure, "--budget", "smoke", "--runs", many, "--output", tmp_path]
    told = script(monkeypatch, capsys, *words)
    assert told.out == f"written: {tmp_path / f'{figure}-{table}-smoke'}\n"
    panels = drawn[0].axes
    labels = {text for panel in panels for text in (panel.get_title(), panel.get_ylabel())}
    labels |= {panel.get_title(loc="left") for panel in panels}
    labels |= {text.get_text() for legend in drawn[0].legends for text in legend.get_texts()}
    for text in texts:
        assert any(style.NAMES.get(text, text) in label for label in labels), text
    for row in ("L_rank", "L_u1", "L_u4", "LSEP", "TKPR_a1", "TKPR_a2", "TKPR_a3", *SWIN):
        if row not in texts:
            assert not any(shown(row) in label for label in labels), row


@pytest.mark.parametrize("kind", ["consistency", "ranks"])
def test_tables_without_ranking_losses_show_their_competitors(
    many, tmp_path, monkeypatch, capsys, kind
):
    drawn = []
    monkeypatch.setattr(style, "save", lambda figure, path: drawn.append(figure) or [path])
    words = ["--table", "coco_mlc_sota_swin", "--budget", "smoke", "--runs", many]
    told = script(monkeypatch, capsys, kind, *words, "--output", tmp_path)
    assert told.err == ""
    if kind == "ranks":
        rows = [*SWIN, "TKPR_a1", "TKPR_a2", "TKPR_a3"]
        bars = drawn[0].axes[0].containers
        assert [bar.get_label() for bar in bars] == [shown(row) for row in rows]
    else:
        titles = [panel.get_title() for panel in drawn[0].axes]
        for title, row in zip(titles, [*SWIN[:3], "TKPR_a2"], strict=True):
            assert f"optimize {shown(row)}:" in title


def test_usual_rows_that_are_missing_are_named(tmp_path, monkeypatch, capsys):
    part = tmp_path / "runs"
    for row in ("L_u4", "TKPR_a2"):
        write_run(part, row, table=TABLE, skill=1)
    words = ["ranks", "--table", TABLE, "--budget", "smoke", "--runs", part, "--output", tmp_path]
    told = script(monkeypatch, capsys, *words)
    assert told.err == "missing, not drawn: L_rank, LSEP, TKPR_a1, TKPR_a3\n"


@pytest.mark.parametrize("figure", ["consistency", "ranks", "cases"])
def test_script(folder, tmp_path, monkeypatch, capsys, figure):
    words = [figure, "--table", TABLE, "--budget", "smoke", "--runs", folder, "--output", tmp_path]
    script(monkeypatch, capsys, *words)
    name = f"{figure}-{TABLE}-smoke"
    assert sorted(file.name for file in tmp_path.iterdir()) == [f"{name}.pdf", f"{name}.png"]


def test_settings_may_follow_options(folder, tmp_path, monkeypatch, capsys):
    words = ["cases", "--table", TABLE, "--budget", "smoke", "--runs", folder, "--output", tmp_path]
    script(monkeypatch, capsys, *words, "dataset.seed=0")
    assert (tmp_path / f"cases-{TABLE}-smoke.png").is_file()


def test_script_says_what_is_missing(folder, monkeypatch, capsys):
    words = ["--budget", "smoke", "--runs", folder]
    with pytest.raises(SystemExit, match="no figure 'fig10'"):
        script(monkeypatch, capsys, "fig10", *words)
    with pytest.raises(SystemExit, match=r"python train\.py -m experiment=voc2007_mlc_sensitivity"):
        script(monkeypatch, capsys, "fig7", *words)
    with pytest.raises(SystemExit, match="no finished runs of TKML; there are"):
        script(monkeypatch, capsys, "ranks", "--table", TABLE, *words, "--rows", "TKML")
    with pytest.raises(SystemExit, match="needs --table"):
        script(monkeypatch, capsys, "ranks", *words)


def test_the_overview_shows_the_values_of_the_paper():
    """Sec. 4.2: P@4 is 2/4, 2/4, 1/4; TKPR with alpha_1 is 3/4, 7/4, 3/4."""
    found = [overview.values(scores) for scores in overview.SCORES.values()]
    assert [one["P@4"] for one in found] == [0.5, 0.5, 0.25]
    assert [one["TKPR_a1@4"] for one in found] == [0.75, 1.75, 0.75]
    assert [overview.order(scores)[:3] for scores in overview.SCORES.values()] == [
        [2, 3, 0],
        [0, 1, 2],
        [2, 0, 3],
    ]
    texts = [text.get_text() for text in overview.draw().axes[0].texts]
    for total in ("(2 + 1) / 4 = 0.75", "(4 + 3) / 4 = 1.75", "(3) / 4 = 0.75"):
        assert any(total in text for text in texts)


def test_the_pull_of_tkpr_vanishes_where_the_sigmoid_saturates():
    """By finite differences, and by the factor p (1 - p)."""
    loss, step = TKPR(k=5), 0.05  # float32
    for logit in (-9.0, -2.0, 3.0):
        rows = torch.full((2, 20), 4.0, dtype=torch.float64)
        rows[:, 0] = torch.tensor([logit - step, logit + step])
        targets = torch.zeros_like(rows)
        targets[:, 0] = 1
        low, high = (loss(rows[[i]], targets[[i]]) for i in (0, 1))
        expected = float(low - high) / (2 * step)
        (got,) = gradient.pull(loss, [logit], rivals=4.0)
        assert got == pytest.approx(expected, rel=1e-2)
    weak, strong = gradient.pull(loss, [-12.0, -2.0], rivals=4.0)
    assert weak < 1e-3 * strong
    (cooled,) = gradient.pull(lambda s, y: loss(s / 4, y), [-12.0], rivals=4.0)
    assert cooled > 100 * weak
    labels = [text.get_text() for text in gradient.draw().legends[0].get_texts()]
    assert len(labels) == len(gradient.TEMPERATURES) + 2


@pytest.mark.parametrize("measure", ["mAP@3", "ranking_loss"])
def test_a_dot_for_each_loss_and_seed(rows, measure):
    figure = dots.draw(rows, measure=measure)
    panel = figure.axes[0]
    drawn = [line for line in panel.lines if line.get_marker() in "os"]
    found = [sorted(line.get_xdata()) for line in drawn]
    expected = [sorted(run.metrics[measure] for run in group) for group in rows.values()]
    assert sorted(found) == sorted(expected)
    means = [np.mean(values) for values in found]
    assert means == sorted(means, reverse=measure == "ranking_loss")  # the best on top
    assert panel.get_yticklabels()[-1].get_text() == shown("TKPR_a2")
    low, high = panel.get_ylim()
    assert low <= -0.5
    assert high >= len(rows) - 0.5
    assert_readable(figure)


def test_a_line_per_loss_and_kind_of_decay():
    runs = [
        Run(
            Path(row),
            {
                "row": row,
                "seed": seed,
                "split": {"holdout": 0.0},
                "optimizer": {"_target_": kind, "weight_decay": strength},
            },
            {"mAP@3": 0.9 + seed / 100 - (row == "Hill") * strength / 10},
            1.0,
        )
        for row in ("Hill", "TKPR_a2")
        for kind in decay.KINDS
        for strength in (1e-4, 1e-2, 1.0)
        for seed in (0, 1, 2)
    ]
    figure = decay.draw(runs)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["Hill", shown("TKPR_a2")]
    for panel in figure.axes:
        hill, tkpr = (container.lines[0] for container in panel.containers)
        assert hill.get_xdata().tolist() == [1e-4, 1e-2, 1.0]
        assert hill.get_ydata().tolist() == pytest.approx([0.90999, 0.909, 0.81])
        assert tkpr.get_ydata().tolist() == pytest.approx([0.91] * 3)
    assert_readable(figure)
    with pytest.raises(ValueError, match="no finished run has weight decay"):
        decay.draw([])


@pytest.mark.parametrize("figure", ["fig1", "gradient"])
def test_figures_that_need_no_runs(tmp_path, monkeypatch, capsys, figure):
    script(monkeypatch, capsys, figure, "--runs", tmp_path / "none", "--output", tmp_path)
    assert (tmp_path / f"{figure}.png").is_file()


def test_made_up_predictions_have_no_ties():
    """The loops above count strictly higher scores only."""
    targets = labels()
    logits = predictions(targets, 1.0)
    assert all(len(set(row)) == len(row) for row in logits.tolist())
