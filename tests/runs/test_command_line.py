"""train.py as a command: one run, a sweep, help, mistakes, several processes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.short_runs import SMALL, train
from tests.training.test_train import LOSSES, ONE_EPOCH, on_features
from tkpr.runs.saved_model import load_predictions

ROOT = Path(__file__).parents[2]


def command(*words, cwd, **environment):
    """Run a command line of ours."""
    return subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
    )


def test_command_line(tmp_path):
    """One run by hand: the table, the folder named by the settings, and the same again."""
    words = [ROOT / "train.py", *SMALL, *ONE_EPOCH, "loss=bce"]
    first = command(*words, cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    assert "TKPR_a2" in first.stdout
    folder = tmp_path / first.stdout.strip().splitlines()[-1].removeprefix("run folder: ")
    assert folder.parent == tmp_path / "runs" / "mosaic" / "bce"
    assert (folder / "metrics.json").exists()
    again = command(*words, cwd=tmp_path)
    assert "is finished: skipped" in again.stdout


@pytest.mark.slow
def test_sweep_from_the_command_line(tmp_path):
    words = ["-m", "loss=tkpr_a1,tkpr_a2", "loss.k=2,3", *ONE_EPOCH, *SMALL]
    done = command(ROOT / "train.py", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "runs").rglob("metrics.json"))) == 4


def test_help_lists_every_option_without_loading_torch(tmp_path):
    done = command("-X", "importtime", ROOT / "train.py", "--help", cwd=tmp_path)
    for name in LOSSES:
        assert f" {name} " in done.stdout
    assert "trainer.epochs=20" in done.stdout
    assert "torch" not in done.stderr


@pytest.mark.parametrize(
    ("word", "answer"),
    [
        ("loss=tkpr_a4", "no option 'tkpr_a4' in loss=: did you mean tkpr_a"),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in [
                ("trainer.epoch=3", "no setting 'trainer.epoch': did you mean trainer.epochs"),
                ("lose=bce", "did you mean loss"),
                ("loss.rows=valid", "write +loss.rows="),
                ("dataset=coco", "data/coco"),
                ("model=timm", "model.model_name"),
                ("loss.k=99", "k + 1 may not exceed the number of classes, 10"),
            ]
        ),
    ],
)
def test_mistakes_are_answered_in_one_line(word, answer, tmp_path):
    words = ["loss=rank"] if word.startswith("loss.rows") else []
    done = command(ROOT / "train.py", "recipe=debug", *words, word, cwd=tmp_path)
    assert done.returncode != 0
    assert answer in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 3])
def test_several_processes_evaluate_as_one(processes, tmp_path):
    """The test rows do not divide by 2 or 3; without batch statistics all agree."""
    settings = [*on_features(tmp_path / "data"), *ONE_EPOCH, "optimizer.lr=0"]
    settings += ["trainer.accelerator=cpu", "trainer.batch_size=2"]
    one = train(*settings, folder=tmp_path / "one")
    done = command(
        *("-m", "torch.distributed.run", f"--nproc-per-node={processes}", "--standalone"),
        *(ROOT / "train.py", *settings, f"run_dir={tmp_path / 'many'}"),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    many = json.loads((tmp_path / "many" / "metrics.json").read_text())
    mine, theirs = (load_predictions(tmp_path / name) for name in ("one", "many"))
    assert mine["ids"].tolist() == theirs["ids"].tolist()
    np.testing.assert_allclose(mine["logits"], theirs["logits"], rtol=1e-6, atol=1e-7)
    assert many["metrics"] == pytest.approx(one["metrics"], rel=1e-12)


@pytest.mark.slow
def test_devices_from_the_command_line(tmp_path):
    done = command(ROOT / "train.py", *SMALL, *ONE_EPOCH, "trainer.devices=2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "runs").rglob("metrics.json"))) == 1
