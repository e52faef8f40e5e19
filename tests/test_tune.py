"""Settings are chosen on held-out images, for every row by the same grid."""

import math
import runpy
import shlex
import subprocess
import sys
from argparse import Namespace
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from omegaconf import OmegaConf

from tests.fake_runs import write_run
from tkpr import records
from tkpr.config import experiment_settings
from tkpr.data.features import save_features
from tkpr.reporting.rows import load_runs
from tkpr.reporting.search import (
    at_an_edge,
    chosen_words,
    combinations,
    grid_words,
    matching,
    next_settings,
    ranked,
    superseded,
    widened,
    winner,
)
from tkpr.runs import sweep
from tkpr.runs.plan import PlannedRun, plan

ROOT = Path(__file__).parents[1]
CONFIGS = ROOT / "configs"
TABLE = "voc2012_mlml_ranking_resnet50"
BUDGETS = sorted(file.stem for file in (ROOT / "configs" / "budget").glob("*.yaml"))


@pytest.fixture(scope="module")
def tune():
    return runpy.run_path(str(ROOT / "scripts" / "tune.py"))


def script(monkeypatch, capsys, *words):
    monkeypatch.setattr(sys, "argv", ["tune.py", *map(str, words)])
    runpy.run_path(str(ROOT / "scripts" / "tune.py"), run_name="__main__")
    return capsys.readouterr()


def commands(monkeypatch, capsys, *words):
    lines = script(monkeypatch, capsys, *words, "--dry-run").out.splitlines()
    return [shlex.split(line) for line in lines]


def test_every_row_gets_the_same_grid(monkeypatch, capsys):
    words = [TABLE, "--budget", "small", "optimizer.lr=0.1,0.01", "loss.k=3,5"]
    lines = commands(monkeypatch, capsys, *words, "--methods", "rank", "u1", "tkml", "tkpr_a2")
    by_method = {line[5]: line[6:] for line in lines}
    for line in lines:
        assert line[:5] == ["python", "train.py", "-m", f"experiment={TABLE}", "budget=small"]
    both = ["split.holdout=0.2", "optimizer.lr=0.1,0.01"]
    warmup = "trainer.warmup_epochs=1,2,3"
    assert by_method == {
        "method=rank": both,  # its warm-up loss is itself
        "method=u1": [*both, warmup],
        "method=tkml": [*both, warmup, "loss.k=3,5"],
        "method=tkpr_a2": [*both, warmup, "loss.k=3,5"],
    }


def test_settings_after_a_list_are_settings(monkeypatch, capsys):
    words = [TABLE, "--budget", "smoke", "--methods", "u1", "trainer.epochs=5"]
    words += ["--seeds", "0", "1", "optimizer.lr=1e-2"]
    (line,) = commands(monkeypatch, capsys, *words)
    assert {"trainer.epochs=5", "optimizer.lr=1e-2", "method=u1"} <= set(line)
    assert line[-1] == "trainer.warmup_epochs=1,3"


def test_a_setting_of_one_loss_is_not_asked_of_the_others(monkeypatch, capsys):
    words = [TABLE, "--budget", "smoke", "--methods", "rank", "tkpr_a2", "loss.k=4"]
    rank, tkpr = commands(monkeypatch, capsys, *words)
    assert "loss.k=4" in tkpr
    assert not [word for word in rank if word.startswith("loss.k")]


def planned(settings=None, **options):
    """A row of a table."""
    known = {"method": "tkpr_a2", "row": "TKPR_a2", "runs": 1, "epochs": 80, "images": 100}
    return PlannedRun(**known | {"search": {}, "settings": settings or {}} | options)


@pytest.mark.parametrize(
    ("table", "rates", "warmups", "batches"),
    [  # Sec. 6 and App. E
        ("coco_mlc_ranking_resnet101", "0.1 0.01 0.001 0.0001", "10 20 30 40 50 60", "32 64 128"),
        ("voc2007_mlc_sota_resnet101", "0.1 0.01 0.001 0.0001", "10 20 30 40 50 60", "32 64 128"),
        ("nuswide_mlc_sota_swin", "5e-5 1e-6", "5 10 15 20 25", None),
        ("voc2012_mlml_ranking_resnet50", "1e-4 1e-5", "2 4 6 8 10", None),
    ],
)
def test_at_full_scale_the_papers_spaces_are_searched(table, rates, warmups, batches):
    (row,) = plan(CONFIGS, table, ["method=tkpr_a2"])
    grid = dict(row.search)
    assert grid.pop("trainer.batch_size", None) == (batches.split() if batches else None)
    assert grid == {
        "optimizer.lr": rates.split(),
        "trainer.warmup_epochs": warmups.split(),
        "loss.k": ["2", "4", "6", "8", "10"],
    }
    if table == TABLE:
        (theirs,) = plan(CONFIGS, table, ["method=u1", "optimizer.lr=1e-4"], search={"loss.k": "3"})
        assert theirs.search == {"trainer.warmup_epochs": warmups.split()}


def test_at_full_scale_the_rates_of_authors_recipes_are_not_searched():
    """As the paper does; but whoever names values gets them for all rows."""
    (hill,) = plan(CONFIGS, "voc2012_mlml_sota_resnet50", ["method=hill"])
    assert "optimizer.lr" not in hill.search
    named = {"optimizer.lr": ["1e-3"], "loss.k": ["3"]}
    (hill,) = plan(CONFIGS, "voc2012_mlml_sota_resnet50", ["method=hill"], search=named)
    assert hill.search["optimizer.lr"] == ["1e-3"]
    assert "loss.k" not in hill.search


@pytest.mark.parametrize("budget", BUDGETS)
def test_the_loss_gets_its_turn_in_every_search(tune, budget):
    """E_w stays below the epochs, and K below the classes, in the default grid of each budget."""
    for table in (TABLE, "coco_mlc_sota_swin") if budget == "paper" else (TABLE,):
        (row,) = plan(CONFIGS, table, [f"budget={budget}", "method=tkpr_a2"])
        assert max(map(int, row.search["trainer.warmup_epochs"])) < row.epochs
        assert max(map(int, row.search["loss.k"])) < (10 if budget == "smoke" else 20)
    late = planned(epochs=6, search={"trainer.warmup_epochs": ["2", "6"]})
    with pytest.raises(ValueError, match=r"E_w = 6 leaves none of 6 epochs to the loss of TKPR_a2"):
        tune["tune"](late, [], Namespace(monitor="mAP@3", tries=None))


def test_what_cannot_be_searched(monkeypatch, capsys):
    with pytest.raises(SystemExit, match="no method asl in this table: it has rank, u1"):
        commands(monkeypatch, capsys, TABLE, "--methods", "asl")
    with pytest.raises(SystemExit, match="name several seeds with --seeds"):
        commands(monkeypatch, capsys, TABLE, "seed=0,1")
    with pytest.raises(SystemExit, match="no measure 'mAP@': choose one of"):
        commands(monkeypatch, capsys, TABLE, "--monitor", "mAP@")
    with pytest.raises(SystemExit, match="no budget 'huge': choose one of features"):
        commands(monkeypatch, capsys, TABLE, "--budget", "huge")
    words = ["voc2007_mlc_sota_resnet101", "--budget", "features", "--methods", "ccd", "asl"]
    printed = script(monkeypatch, capsys, *words, "--dry-run")
    assert printed.err == "CCD needs feature maps: not at this budget\n"
    assert [line.split()[5] for line in printed.out.splitlines()] == ["method=asl"]


GRID = {"optimizer.lr": ["1e-1", "1e-2"], "loss.k": ["2", "4", "6"]}


@pytest.fixture
def searched(tmp_path):
    """A search over K and the learning rate, with foreign runs in its folder; the runs, a row."""
    common = {"table": TABLE, "budget": "features", "split__holdout": 0.2}
    for k, lr in product((2, 4, 6), (0.1, 0.01)):
        skill = 2.5 - abs(k - 4) / 2 - (lr == 0.1) / 2
        record = write_run(
            tmp_path, "TKPR_a2", skill=skill, loss__k=k, optimizer={"lr": lr}, **common
        )
    # these would win: on the test set, another network, another number of epochs
    write_run(tmp_path, "TKPR_a2", table=TABLE, budget="features", skill=99, optimizer={"lr": 0.1})
    foreign = {"model": {"hidden": 512}, "trainer__epochs": 99}
    for key, value in foreign.items():
        write_run(
            *(tmp_path, "TKPR_a2"),
            **{"skill": 99, "loss__k": 2, "optimizer": {"lr": 0.1}, key: value} | common,
        )
    place = tmp_path / "runs" / TABLE / "features"
    place.parent.mkdir(parents=True)
    (tmp_path / TABLE / "features").rename(place)
    (place / "TKPR_a2").rename(place / "tkpr_a2")
    record["config"]["split"]["holdout"] = 0.0
    return tmp_path / "runs", planned(experiment_settings(record["config"]), search=GRID)


def chosen(row, runs, monitor="mAP@3", grid=None):
    """The words that a finished search leads to."""
    grid = grid or row.search
    return chosen_words(winner(row, grid, load_runs(runs), monitor), grid)


@pytest.mark.parametrize("monitor", ["mAP@3", "ranking_loss"])
def test_the_best_on_held_out_images_wins(searched, monitor):
    """Runs on the test set, and with other settings, have no say."""
    runs, row = searched
    assert chosen(row, runs, monitor) == ["optimizer.lr=1e-2", "loss.k=4"]
    with pytest.raises(FileNotFoundError, match=r"no finished search of tkpr_a2 with .*loss.k=7"):
        chosen(row, runs, grid=GRID | {"loss.k": ["7"]})
    # the other network's search is another one
    other = planned(row.settings | {"model.hidden": 512})
    words = chosen(other, runs, grid={"optimizer.lr": ["0.1"], "loss.k": ["2"]})
    assert words == ["optimizer.lr=0.1", "loss.k=2"]


def test_a_best_value_at_the_edge_is_named(searched):
    runs, row = searched
    best = winner(row, GRID, load_runs(runs), "mAP@3")
    assert at_an_edge(best, GRID) == []  # of two learning rates each is at an edge
    assert at_an_edge(best, {"loss.k": ["4", "6", "8"], "optimizer.lr": ["1e-2"]}) == ["loss.k"]
    trainer = best.run.config["trainer"]
    trainer["epochs"] = 10
    for warmup, values in ((0, "0 4 8"), (9, "0 4 9"), (2, "2 4 8"), (8, "2 4 8")):
        trainer["warmup_epochs"] = warmup
        edges = at_an_edge(best, {"trainer.warmup_epochs": values.split()})
        assert edges == ([] if warmup in (0, 9) else ["trainer.warmup_epochs"])


def test_a_word_that_is_no_setting_is_one_line(monkeypatch, capsys):
    with pytest.raises(SystemExit, match=r"error: .*expecting.*loss\.k=3=4"):
        script(monkeypatch, capsys, TABLE, "--budget", "smoke", "loss.k=3=4")


def test_a_setting_may_be_null(tmp_path):
    common = {"table": TABLE, "budget": "features", "split__holdout": 0.2}
    one = write_run(tmp_path, "LSEP", skill=1, loss__max_pairs=None, **common)
    row = planned(experiment_settings(one["config"] | {"split": {"holdout": 0.0}}))
    assert chosen(row, tmp_path, grid={"loss.max_pairs": ["null"]}) == ["loss.max_pairs=null"]


def test_a_search_that_is_there_twice_is_refused(searched):
    runs, row = searched
    again = {"loss__k": 4, "optimizer": {"lr": 0.01}, "split__holdout": 0.2}
    place = {"table": TABLE, "budget": "features", "skill": 1}
    one = write_run(runs.parent / "again", "TKPR_a2", seed=1, **place, **again)
    one["folder"].rename(runs / TABLE / "features" / "tkpr_a2" / "again")
    with pytest.raises(ValueError, match="tkpr_a2 was searched twice with the same settings"):
        chosen(row, runs)


def test_early_stopping_ranks_by_the_best_epoch_and_retrains_for_it(tmp_path):
    """The same rule in tune.py and best.py; epochs of the warm-up do not count."""
    common = {"table": TABLE, "budget": "features", "split__holdout": 0.2}
    common |= {"trainer__patience": 5, "trainer__warmup_epochs": 2, "warmup": {"name": "other"}}
    curves = {2: [0.9, 0.9, 0.5, 0.7, 0.1], 4: [0.1, 0.1, 0.6, 0.6, 0.6], 6: [0.99] * 2 + [0.2] * 3}
    for k, curve in curves.items():
        one = write_run(tmp_path, "TKPR_a2", skill=1, loss__k=k, **common)
        write_curve(one["folder"], curve)
    settings = experiment_settings(one["config"] | {"split": {"holdout": 0.0}})
    row = planned(settings, search={"loss.k": ["2", "4", "6"]})
    assert chosen(row, tmp_path) == ["loss.k=2", "trainer.stop_after=4"]
    order = ranked(load_runs(tmp_path), "mAP@3")
    assert [(one.run.config["loss"]["k"], one.epoch) for one in order] == [(2, 4), (4, 3), (6, 3)]
    # the retrained run has no patience, and ends after the epochs found
    final = {"loss__k": 2, "trainer__stop_after": 4} | common | {"trainer__patience": None}
    write_run(tmp_path, "TKPR_a2", skill=1, **final | {"split__holdout": 0.0})
    settled = {"loss.k": ["2"], "trainer.stop_after": ["4"]}
    assert len(matching(row, settled, load_runs(tmp_path), held_out=False)) == 1


def write_curve(folder, curve):
    """Give a run other values of mAP@3 after each epoch."""
    history = pd.read_csv(folder / "metrics.csv")
    history["mAP@3"] = curve
    history.to_csv(folder / "metrics.csv", index=False)


def test_without_early_stopping_the_last_epoch_counts(tmp_path):
    common = {"table": TABLE, "budget": "features", "split__holdout": 0.2}
    for k, curve in {2: [0.9, 0.9, 0.9, 0.9, 0.1], 4: [0.1, 0.1, 0.1, 0.1, 0.2]}.items():
        one = write_run(tmp_path, "TKPR_a2", skill=1, loss__k=k, **common)
        write_curve(one["folder"], curve)
    settings = experiment_settings(one["config"] | {"split": {"holdout": 0.0}})
    assert chosen(planned(settings, search={"loss.k": ["2", "4"]}), tmp_path) == ["loss.k=4"]


def test_what_is_finished_is_not_started_again(searched, tune, monkeypatch):
    started = []
    monkeypatch.setattr(sweep, "train", lambda configs: started.append(sys.argv[2:]))
    runs, row = searched
    given = {"table": TABLE, "budget": "features", "monitor": "mAP@3", "runs": runs}
    given |= {"dry_run": False, "seeds": ["0", "1"], "tries": None, "again": []}
    tune["tune"](row, ["method=tkpr_a2"], Namespace(**given))
    last = ["method=tkpr_a2", "optimizer.lr=1e-2", "loss.k=4", "seed=0,1"]
    assert started == [last]  # the search is all there
    for seed in (0, 1):
        one = write_run(
            *(runs.parent / "last", "TKPR_a2"),
            **{"table": TABLE, "budget": "features", "skill": 1, "seed": seed},
            **{"loss__k": 4, "optimizer": {"lr": 0.01}},
        )
        one["folder"].rename(runs / TABLE / "features" / "tkpr_a2" / f"last{seed}")
    tune["tune"](row, ["method=tkpr_a2"], Namespace(**given))
    assert started == [last]
    tune["tune"](row, ["method=tkpr_a2"], Namespace(**given | {"again": ["labels.seed=1"]}))
    assert started == [last, [*last[:-1], "labels.seed=1", "seed=0,1"]]
    del started[1:]
    longer = planned(row.settings, search=GRID | {"loss.k": ["2", "4", "7"]})
    with pytest.raises(FileNotFoundError, match=r"loss\.k=7"):  # nobody trained it
        tune["tune"](longer, ["method=tkpr_a2"], Namespace(**given))
    words = ["split.holdout=0.2", "optimizer.lr=1e-1,1e-2", "loss.k=2,4,7"]
    assert started[1:] == [["method=tkpr_a2", *words]]


@pytest.mark.parametrize("tries", [None, 6])
def test_finished_runs_of_a_search_keep_no_checkpoint(tries, searched, tune, monkeypatch):
    """Hundreds of them fill a disk; final runs and runs with other settings keep theirs."""
    runs, row = searched
    place = {"table": TABLE, "budget": "features", "skill": 1, "loss__k": 4}
    final = write_run(runs, "TKPR_a2", optimizer={"lr": 0.01}, **place)["folder"]
    final.rename(final := runs / TABLE / "features" / "tkpr_a2" / "final")
    of_the_search = [run.folder for run in load_runs(runs) if run.held_out]
    unfinished, hidden = of_the_search[0], "metrics.json.away"
    (unfinished / "metrics.json").rename(unfinished / hidden)
    for folder in (final, *of_the_search):
        (folder / "last.ckpt").touch()
    seen = []

    def finish(*_):
        seen.append([folder for folder in of_the_search if (folder / "last.ckpt").exists()])
        if (unfinished / hidden).exists():
            (unfinished / hidden).rename(unfinished / "metrics.json")

    monkeypatch.setattr(sweep, "train", finish)
    monkeypatch.setattr(sweep, "train_here", finish)
    given = {"table": TABLE, "budget": "features", "monitor": "mAP@3", "runs": runs}
    given |= {"dry_run": False, "seeds": ["0"], "tries": tries, "again": []}
    tune["tune"](row, ["method=tkpr_a2"], Namespace(**given))
    assert seen[0] == of_the_search
    left = [folder for folder in of_the_search if (folder / "last.ckpt").exists()]
    assert len(left) == 2  # of other settings, which are none of this search's
    assert (final / "last.ckpt").exists()


def test_a_search_of_few_settings_climbs_to_the_best():
    """As many runs for every row, none twice; the random half depends on the grid alone."""
    wide = {name: list("123456789") for name in ("optimizer.lr", "loss.k", "trainer.temperature")}
    for grid in (wide, {"optimizer.lr": list("123456789"), "loss.kind": ["a", "b"]}):
        tried = {}
        while settings := next_settings(grid, tried, 30):
            assert not set(settings) & set(tried)
            for values in settings:
                tried[values] = -sum(abs(one - 4) for one in values if isinstance(one, float))
        assert len(tried) == min(30, 729 if grid is wide else 18)
        assert max(tried.values()) == 0
    first = next_settings(wide, {}, 30)
    assert len(first) == 15
    assert first == next_settings(wide, {(1.0, 1.0, 1.0): 5.0}, 30)
    assert next_settings(wide, {}, 20) == first[:10]


def test_final_runs_of_an_earlier_choice_are_named(searched, tune, monkeypatch, capsys):
    """A search that goes on may find something better; a table would mix the two."""
    runs, row = searched
    final = {"table": TABLE, "budget": "features", "skill": 1}
    names = {}
    for k in (2, 4):  # an earlier choice, and the present one
        for draw in ({}, {"labels": {"seed": 1}}):
            for seed in (0, 1):
                made = write_run(
                    runs, "TKPR_a2", seed=seed, loss__k=k, optimizer={"lr": 0.01}, **draw, **final
                )
            names[k, *draw] = runs / TABLE / "features" / "tkpr_a2" / f"K = {k} {draw}"
            made["folder"].parent.rename(names[k, *draw])
    best = winner(row, GRID, load_runs(runs), "mAP@3")
    assert superseded(row, best, GRID, load_runs(runs)) == [names[2,]]
    again = ["labels.seed=1"]
    both = sorted([names[2,], names[2, "labels"]])
    assert superseded(row, best, GRID, load_runs(runs), again) == both
    monkeypatch.setattr(sweep, "train", lambda configs: None)
    given = {"table": TABLE, "budget": "features", "monitor": "mAP@3", "runs": runs}
    given |= {"dry_run": False, "seeds": ["0", "1"], "tries": 6, "again": again}
    tune["tune"](row, ["method=tkpr_a2"], Namespace(**given))
    notes = [line for line in capsys.readouterr().out.splitlines() if "no longer" in line]
    assert [Path(note.partition("delete before tables.py: ")[2]) for note in notes] == both


def test_a_search_goes_beyond_the_ends_of_its_grid():
    """The best learning rate is two steps above the grid; K, which has bounds, stays in it."""
    grid = {"optimizer.lr": ["1e-3", "3e-3", "1e-2"], "loss.k": ["2", "3", "5", "8", "10"]}
    tried = {}
    while settings := next_settings(grid, tried, 14):
        for lr, k in settings:
            tried[lr, k] = -abs(math.log(lr / 0.1)) + k
    assert len(tried) == 14
    assert max(tried, key=tried.get) == (pytest.approx(0.1), 10)
    assert grid_words(grid, (0.1, 10.0)) == ["optimizer.lr=0.1", "loss.k=10"]
    assert widened({"optimizer.weight_decay": ["0", "1e-4", "1e-2"]}) == {
        "optimizer.weight_decay": ["0", "1e-4", "1e-2"]
    }


OWN = {  # competitors' own parameters, where their ranges end
    "alpha": (0, math.inf),
    "delta_rel": (0, math.inf),
    "gamma_neg": (0, math.inf),
    "lamb": (0, math.inf),
    "neg_scale": (0, math.inf),
    "tau": (0, 1),
}


def test_a_search_goes_beyond_the_published_values_of_competitors_but_stays_in_range():
    found = set()
    for file in sorted((CONFIGS / "method").glob("*.yaml")):
        for key, values in (OmegaConf.load(file).get("plan") or {}).get("search", {}).items():
            name = key.removeprefix("loss.")
            if name in OWN and isinstance(values, str):
                found.add(name)
                named, wide = values.split(","), widened({key: values.split(",")})[key]
                assert wide[2:-2] == named
                numbers = [float(value) for value in wide]
                assert numbers == sorted(numbers)
                lowest, highest = OWN[name]
                assert lowest < min(numbers) < max(numbers) < highest, file.name
    assert found == OWN.keys()


def test_settings_that_diverge_count_as_the_worst(searched, tune, monkeypatch):
    """The search goes on without them; a row of nothing else is an error."""
    runs, row = searched
    grid = {"optimizer.lr": ["1e-1", "1e-2", "1e-3"], "loss.k": ["2", "4", "6"]}
    row = planned(row.settings, search=grid)
    trained = []

    def diverge(configs, words):
        trained.append(words[-2:])
        raise FloatingPointError("the loss is not finite")

    monkeypatch.setattr(sweep, "train_here", diverge)
    monkeypatch.setattr(sweep, "train", lambda configs: trained.append(sys.argv[-3:]))
    given = {"table": TABLE, "budget": "features", "monitor": "mAP@3", "runs": runs}
    given |= {"dry_run": False, "seeds": ["0"], "tries": 9, "again": []}
    tune["tune"](row, ["method=tkpr_a2"], Namespace(**given))
    assert sorted(trained[:-1]) == [("optimizer.lr=1e-3", f"loss.k={k}") for k in (2, 4, 6)]
    assert trained[-1] == ["optimizer.lr=1e-2", "loss.k=4", "seed=0"]
    everything = combinations(grid)
    with pytest.raises(FileNotFoundError, match="every setting of tkpr_a2 ended in a loss"):
        winner(row, grid, [], "mAP@3", diverged=everything)


def test_a_row_tries_as_many_settings_as_are_asked_for(searched, tune, monkeypatch):
    runs, row = searched
    started = []
    monkeypatch.setattr(sweep, "train", lambda configs: started.append(sys.argv[2:]))
    given = {"table": TABLE, "budget": "features", "monitor": "mAP@3", "runs": runs}
    given |= {"dry_run": False, "seeds": ["0"], "tries": 6, "again": []}
    tune["tune"](row, ["method=tkpr_a2"], Namespace(**given))
    assert started == [["method=tkpr_a2", "optimizer.lr=1e-2", "loss.k=4", "seed=0"]]
    grid = GRID | {"loss.k": ["2", "4", "6", "8", "10", "12"]}
    with pytest.raises(FileNotFoundError, match="no finished search of tkpr_a2 with"):
        winner(row, grid, load_runs(runs), "mAP@3", 8)  # six of them are there


def write_features(file, seed):
    """Forty samples whose labels can be read off their features."""
    random = np.random.default_rng(seed)
    labels = random.random((40, 8)) < 0.3
    labels[np.arange(40), np.arange(40) % 8] = True
    features = (labels + random.normal(0, 0.1, labels.shape)).astype(np.float32)
    ids, split = [f"{row}" for row in range(40)], ["train"] * 30 + ["test"] * 10
    names = [f"class {label}" for label in range(8)]
    save_features(file, features, labels=labels, ids=ids, split=split, class_names=names)


@pytest.mark.slow
def test_a_search_on_other_data_is_not_taken_over(tmp_path, monkeypatch, capsys):
    """The features were overwritten in between; the settings and the path are the same."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TKPR_FEATURES", str(tmp_path / "features.npz"))
    words = [TABLE, "--budget", "features", "--methods", "rank", "--seeds", "0", "--tries", "2"]
    words += ["trainer.epochs=1", "trainer.warmup_epochs=0", "trainer.accelerator=cpu"]
    write_features(tmp_path / "features.npz", 0)
    script(monkeypatch, capsys, *words)
    runs = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("metrics.json")}
    assert len(runs) == 3
    assert "train.py" not in script(monkeypatch, capsys, *words).out  # all is done
    write_features(tmp_path / "features.npz", 1)
    with pytest.raises(SystemExit, match=r"holds a run on other data \(.*differ"):
        script(monkeypatch, capsys, *words)
    one, two = (run for run in load_runs(tmp_path / "runs") if run.held_out)
    other = replace(two, origin=two.origin | {"train_checksum": "0"})
    with pytest.raises(ValueError, match="their train_checksum differ"):
        ranked([one, other], "mAP@3")
    assert runs == {file: file.stat().st_mtime_ns for file in tmp_path.rglob("metrics.json")}


@pytest.mark.slow
def test_a_search_with_patience_ends_in_a_retrained_run(tmp_path):
    """End to end on the mosaic: the search stops early, the final run takes the epochs found."""
    words = [sys.executable, ROOT / "scripts" / "tune.py", TABLE, "--budget", "smoke"]
    words += ["--methods", "tkpr_a2", "--seeds", "0", "--runs", tmp_path / "runs"]
    words += ["trainer.patience=1", "optimizer.lr=1e-2,0", "loss.k=3", "trainer.warmup_epochs=1"]
    words += ["dataset.train_size=60", "dataset.test_size=20", "scheduler=constant"]
    words += ["trainer.epochs=6"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    runs = load_runs(tmp_path / "runs")
    final = [run for run in runs if not run.held_out]
    assert len(runs) == 3
    assert len(final) == 1
    epochs = final[0].config["trainer"]["stop_after"]
    assert f"trainer.stop_after={epochs}" in done.stdout
    assert len(final[0].history()) == epochs
    frozen = next(run for run in runs if run.config["optimizer"]["lr"] == 0)
    assert len(frozen.history()) == 3  # one of warm-up, one of the loss, one without a gain


def test_a_composed_row_knows_its_finished_search(tmp_path):
    """The settings of a plan are those that a run stores, also one that knew fewer of them."""
    (row,) = plan(ROOT / "configs", TABLE, ["budget=features", "method=tkpr_a2"])
    stored = {key: value for key, value in row.settings.items() if "." not in key}
    for key, value in row.settings.items():
        node, _, name = key.partition(".")
        if name:
            stored.setdefault(node, {})[name] = value
    stored["split"] |= {"holdout": 0.2, "limit": None}
    stored["loss"]["k"] = 3
    folder = tmp_path / TABLE / "features" / "tkpr_a2"
    one = write_run(tmp_path / "new", "TKPR_a2", skill=1)
    folder.parent.mkdir(parents=True)
    one["folder"].rename(folder)
    record = records.read(folder / "metrics.json") | {"config": stored | {"seed": 0}}
    records.write(folder / "metrics.json", record)
    assert chosen(row, tmp_path, grid={"loss.k": ["3"]}) == ["loss.k=3"]
