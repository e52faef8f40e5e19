"""Settings are chosen on held-out images, for every row by the same grid."""

import json
import runpy
import shlex
import subprocess
import sys
from argparse import Namespace
from itertools import product
from pathlib import Path

import pytest

from tests.fake_runs import write_run
from tkpr.config import experiment_settings
from tkpr.runs.plan import PlannedRun, plan

ROOT = Path(__file__).parents[1]
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
    words = [TABLE, "--budget", "features", "--lr", "0.1", "0.01", "--k", "3", "5"]
    lines = commands(monkeypatch, capsys, *words, "--methods", "rank", "u1", "tkml", "tkpr_a2")
    by_method = {line[5]: line[6:] for line in lines}
    for line in lines:
        assert line[:5] == ["python", "train.py", "-m", f"experiment={TABLE}", "budget=features"]
    both = ["split.holdout=0.2", "optimizer.lr=0.1,0.01"]
    warmup = "trainer.warmup_epochs=2,4,8"
    assert by_method == {
        "method=rank": both,  # its warm-up loss is itself
        "method=u1": [*both, warmup],
        "method=tkml": [*both, warmup, "loss.k=3,5"],
        "method=tkpr_a2": [*both, warmup, "loss.k=3,5"],
    }


def planned(settings=None, **options):
    """A row of a table, with all that a grid can have."""
    known = {"method": "tkpr_a2", "row": "TKPR_a2", "runs": 1, "epochs": 80, "images": 100}
    known |= {"warms_up": True, "has_k": True, "recipe": "paper_mlml", "settings": settings or {}}
    return PlannedRun(**known | options)


def options(**given):
    """The command line's."""
    keys = ("optimizer.lr", "trainer.warmup_epochs", "trainer.batch_size", "loss.k")
    return Namespace(**dict.fromkeys(keys) | {"budget": "paper"} | given)


@pytest.mark.parametrize(
    ("recipe", "rates", "warmups", "batches"),
    [  # Sec. 6 and App. F
        ("paper_cnn", "0.1 0.01 0.001 0.0001", "10 20 30 40 50 60", "32 64 128"),
        ("paper_cnn_voc2007", "0.1 0.01 0.001 0.0001", "10 20 30 40 50 60", "32 64 128"),
        ("paper_swin", "5e-5 1e-6", "5 10 15 20 25", None),
        ("paper_mlml", "1e-4 1e-5", "2 4 6 8 10", None),
    ],
)
def test_at_full_scale_the_papers_spaces_are_searched(tune, recipe, rates, warmups, batches):
    grid = tune["grid_of"](planned(recipe=recipe, epochs=100), options())
    assert grid.pop("trainer.batch_size", None) == (batches.split() if batches else None)
    assert grid == {
        "optimizer.lr": rates.split(),
        "trainer.warmup_epochs": warmups.split(),
        "loss.k": ["2", "4", "6", "8", "10"],
    }


def test_at_full_scale_authors_recipes_are_not_searched(tune):
    """As the paper does; but whoever names values gets them for all rows."""
    theirs = planned(recipe="hill", warms_up=False, has_k=False, epochs=31)
    assert tune["grid_of"](theirs, options()) == {}
    named = options(**{"optimizer.lr": ["1e-3"], "loss.k": ["3"]})
    assert tune["grid_of"](theirs, named) == {"optimizer.lr": ["1e-3"]}


@pytest.mark.parametrize("budget", BUDGETS)
def test_the_loss_gets_its_turn_in_every_search(tune, budget):
    """E_w stays below the epochs, and K below the classes, in the default grid of each budget."""
    for table in (TABLE, "coco_mlc_sota_swin") if budget == "paper" else (TABLE,):
        (row,) = plan(ROOT / "configs", table, [f"budget={budget}", "method=tkpr_a2"])
        grid = tune["grid_of"](row, options(budget=budget))
        assert max(map(int, grid["trainer.warmup_epochs"])) < row.epochs
        assert max(map(int, grid["loss.k"])) < (10 if budget == "smoke" else 20)
    with pytest.raises(ValueError, match=r"E_w = 6 leaves none of 6 epochs to the loss of TKPR_a2"):
        tune["grid_of"](planned(epochs=6), options(**{"trainer.warmup_epochs": ["2", "6"]}))


def test_what_cannot_be_searched(monkeypatch, capsys):
    with pytest.raises(SystemExit, match="no method asl in this table: it has rank, u1"):
        commands(monkeypatch, capsys, TABLE, "--methods", "asl")
    with pytest.raises(SystemExit, match="seed has several values: only the options are searched"):
        commands(monkeypatch, capsys, TABLE, "seed=0,1")
    words = ["voc2007_mlc_sota_resnet101", "--budget", "features", "--methods", "ccd", "asl"]
    told = script(monkeypatch, capsys, *words, "--dry-run")
    assert told.err == "CCD needs feature maps: not at this budget\n"
    assert [line.split()[5] for line in told.out.splitlines()] == ["method=asl"]


@pytest.fixture
def searched(tmp_path):
    """A search over K and the learning rate, with foreign runs in its folder; the runs, a row."""
    common = {"table": TABLE, "budget": "features", "split__holdout": 0.2}
    for k, lr in product((2, 4, 6), (0.1, 0.01)):
        skill = 2.5 - abs(k - 4) / 2 - (lr == 0.1) / 2
        told = write_run(
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
    told["config"]["split"]["holdout"] = 0.0
    return tmp_path / "runs", planned(experiment_settings(told["config"]))


GRID = {"optimizer.lr": ["1e-1", "1e-2"], "loss.k": ["2", "4", "6"]}


@pytest.mark.parametrize("monitor", ["mAP@3", "ranking_loss"])
def test_the_best_on_held_out_images_wins(searched, tune, monitor):
    """Runs on the test set, and with other settings, have no say."""
    runs, row = searched
    told = Namespace(table=TABLE, budget="features", monitor=monitor, runs=runs)
    assert tune["best"](row, GRID, told) == ["optimizer.lr=1e-2", "loss.k=4"]
    with pytest.raises(FileNotFoundError, match=r"no finished search of tkpr_a2 with .*loss.k=7"):
        tune["best"](row, GRID | {"loss.k": ["7"]}, told)
    # the other network's search is another one
    other = planned(row.settings | {"model.hidden": 512})
    chosen = tune["best"](other, {"optimizer.lr": ["0.1"], "loss.k": ["2"]}, told)
    assert chosen == ["optimizer.lr=0.1", "loss.k=2"]


def test_a_search_that_is_there_twice_is_refused(searched, tune):
    runs, row = searched
    told = Namespace(table=TABLE, budget="features", monitor="mAP@3", runs=runs)
    again = {"loss__k": 4, "optimizer": {"lr": 0.01}, "split__holdout": 0.2}
    place = {"table": TABLE, "budget": "features", "skill": 1}
    one = write_run(runs.parent / "again", "TKPR_a2", seed=1, **place, **again)
    one["folder"].rename(runs / TABLE / "features" / "tkpr_a2" / "again")
    with pytest.raises(ValueError, match="tkpr_a2 was searched twice with the same settings"):
        tune["best"](row, GRID, told)


def test_what_is_finished_is_not_started_again(searched, tune, monkeypatch):
    started = []
    monkeypatch.setattr(subprocess, "run", lambda words, check: started.append(words[3:]))
    runs, row = searched
    given = {"table": TABLE, "budget": "features", "monitor": "mAP@3", "runs": runs}
    given |= GRID | {"trainer.warmup_epochs": ["2"], "dry_run": False, "seeds": ["0", "1"]}
    row = planned(row.settings, warms_up=False)
    given["trainer.batch_size"] = None
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
    with pytest.raises(FileNotFoundError, match=r"loss\.k=7"):  # nobody trained it
        tune["tune"](row, ["method=tkpr_a2"], Namespace(**given | {"loss.k": ["2", "4", "7"]}))
    sweep = ["split.holdout=0.2", "optimizer.lr=1e-1,1e-2", "loss.k=2,4,7"]
    assert started[1:] == [["method=tkpr_a2", *sweep]]


def test_a_composed_row_knows_its_finished_search(tune, tmp_path):
    """The settings of a plan are those that a run stores, also one that knew fewer of them."""
    (row,) = plan(ROOT / "configs", TABLE, ["budget=features", "method=tkpr_a2"])
    stored = {key: value for key, value in row.settings.items() if "." not in key}
    for key, value in row.settings.items():
        node, _, name = key.partition(".")
        if name:
            stored.setdefault(node, {})[name] = value
    stored["split"] = {"holdout": 0.2, "limit": None}
    stored["loss"]["k"] = 3
    folder = tmp_path / TABLE / "features" / "tkpr_a2"
    one = write_run(tmp_path / "new", "TKPR_a2", skill=1)
    folder.parent.mkdir(parents=True)
    one["folder"].rename(folder)
    told = json.loads((folder / "metrics.json").read_text()) | {"config": stored | {"seed": 0}}
    (folder / "metrics.json").write_text(json.dumps(told))
    told = Namespace(table=TABLE, budget="features", monitor="mAP@3", runs=tmp_path)
    assert tune["best"](row, {"loss.k": ["3"]}, told) == ["loss.k=3"]
