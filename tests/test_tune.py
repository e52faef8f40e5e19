"""Settings are chosen on held-out images, for every row by the same grid."""

import runpy
import shlex
import sys
from argparse import Namespace
from itertools import product
from pathlib import Path

import pytest

from tests.made_up import write_run

ROOT = Path(__file__).parents[1]
TABLE = "voc2012_mlml_ranking_resnet50"


@pytest.fixture(scope="module")
def tune():
    return runpy.run_path(str(ROOT / "scripts" / "tune.py"))


def commands(monkeypatch, capsys, *words):
    monkeypatch.setattr(sys, "argv", ["tune.py", *words, "--dry-run"])
    runpy.run_path(str(ROOT / "scripts" / "tune.py"), run_name="__main__")
    return [shlex.split(line) for line in capsys.readouterr().out.splitlines()]


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


def test_unknown_method(monkeypatch, capsys):
    with pytest.raises(SystemExit, match="no method asl in this table: it has rank, u1"):
        commands(monkeypatch, capsys, TABLE, "--methods", "asl")


@pytest.mark.parametrize(("monitor", "expected"), [("mAP@3", "4"), ("ranking_loss", "4")])
def test_the_best_on_held_out_images_wins(tmp_path, tune, monitor, expected):
    """Runs on the test set, and with other settings, have no say."""
    place = tmp_path / "runs" / TABLE / "features"
    for k, lr in product((2, 4, 6), (0.1, 0.01)):
        skill = 2.5 - abs(k - 4) / 2 - (lr == 0.1) / 2
        write_run(
            *(tmp_path, "TKPR_a2"),
            **{"table": TABLE, "budget": "features", "skill": skill, "split__holdout": 0.2},
            **{"loss__k": k, "optimizer": {"lr": lr}},
        )
    write_run(tmp_path, "TKPR_a2", table=TABLE, budget="features", skill=99, optimizer={"lr": 0.1})
    place.parent.mkdir(parents=True)
    (tmp_path / TABLE / "features").rename(place)
    (place / "TKPR_a2").rename(place / "tkpr_a2")
    told = Namespace(table=TABLE, budget="features", monitor=monitor, runs=tmp_path / "runs")
    grid = {"optimizer.lr": ["1e-1", "1e-2"], "loss.k": ["2", "4", "6"]}
    assert tune["best"]("tkpr_a2", grid, told) == ["optimizer.lr=1e-2", f"loss.k={expected}"]
    with pytest.raises(FileNotFoundError, match=r"no finished search of tkpr_a2 with .*loss.k=7"):
        tune["best"]("tkpr_a2", grid | {"loss.k": ["7"]}, told)
