"""Several workers at one sweep or one folder: each run is trained once, by one of them."""

import json
import os
import signal
import time

import pytest

from tests.robustness.processes import finish, metrics, start
from tests.short_runs import SMALL, compose, train
from tkpr.runs.run import claim


def trained(folder):
    """How many epochs the log of a run holds, whoever trained them."""
    return (folder / "train.log").read_text().count("epoch 1/")


@pytest.mark.slow
def test_two_workers_on_one_folder(tmp_path):
    """Both are started at once; one trains, the other leaves."""
    words = [*SMALL, "dataset.train_size=400", "trainer.epochs=3", f"run_dir={tmp_path}"]
    words = [word for word in words if word != "dataset.train_size=40"]
    both = [finish(process) for process in [start(*words), start(*words)]]
    assert [code for code, _ in both] == [0, 0], both
    assert trained(tmp_path) == 1
    assert any("another process is training in" in said for _, said in both), both


@pytest.mark.slow
def test_a_sweep_shared_by_three_workers_of_which_one_dies(tmp_path):
    """Four runs; the others finish them all, none is begun again once it was whole."""
    words = ["-m", "loss=bce,tkpr_a2", "seed=0,1", *SMALL, "trainer.epochs=4"]
    dying = start(*words, cwd=tmp_path)
    end = time.monotonic() + 300
    while not list(tmp_path.rglob("last.ckpt")):
        assert time.monotonic() < end
        time.sleep(0.05)
    os.kill(dying.pid, signal.SIGSTOP)  # it holds its run until it dies
    workers = [start(*words, cwd=tmp_path) for _ in range(2)]
    while len(list(tmp_path.rglob("last.ckpt"))) < 3:  # both have skipped that run
        assert time.monotonic() < end
        time.sleep(0.05)
    dying.kill()
    dying.communicate()
    ended = [finish(worker) for worker in workers]
    assert [code for code, _ in ended] == [0, 0], ended
    assert any("retrying runs that other workers had locked" in said for _, said in ended), ended
    folders = [file.parent for file in tmp_path.rglob("metrics.json")]
    assert len(folders) == 4
    for folder in folders:
        last = (folder / "train.log").read_text().count("epoch 4/4")
        assert last == 1, folder


@pytest.mark.slow
def test_a_run_that_another_worker_still_has_is_left_to_it(tmp_path):
    """Of two runs one is held by this process; the sweep ends, and says so."""
    words = ["-m", "loss=bce,tkpr_a2", *SMALL, "trainer.epochs=2", f"hydra.sweep.dir={tmp_path}"]
    words += [f"run_dir={tmp_path}/${{hydra:runtime.choices.loss}}"]
    held = tmp_path / "bce"
    cfg = compose(*SMALL, "loss=bce", "trainer.epochs=2", folder=held)
    with claim(held, cfg) as mine:
        assert mine
        code, said = finish(start(*words))
    assert code == 0, said
    assert f"left to other workers: {held}; should one die, the same command ends its runs" in said
    assert said.count(f"another process is training in {held}: skipped") == 2
    assert (tmp_path / "tkpr_a2" / "metrics.json").exists()
    assert said.count("epoch 2/2") == 1
    assert not (held / "metrics.json").exists()


def test_a_run_rebuilt_from_its_record(tmp_path):
    """The configuration in metrics.json is all that is needed to get its numbers again."""
    from omegaconf import OmegaConf

    from tkpr.runs.run import run

    first = train(*SMALL, "trainer.epochs=2", "loss=asl", "seed=3", folder=tmp_path / "first")
    stored = json.loads((tmp_path / "first" / "metrics.json").read_text())["config"]
    cfg = OmegaConf.create(stored | {"run_dir": str(tmp_path / "again")})
    assert run(cfg)["metrics"] == first["metrics"]
    assert metrics(tmp_path / "again") == first["metrics"]


@pytest.mark.slow
def test_the_words_in_metrics_json_are_the_command(tmp_path):
    words = [
        *SMALL,
        "trainer.epochs=1",
        "trainer.warmup_epochs=0",
        "loss=bce",
        "trainer.num_workers=2",
    ]
    code, said = finish(start(*words, f"run_dir={tmp_path / 'one'}"))
    assert code == 0, said
    stored = json.loads((tmp_path / "one" / "metrics.json").read_text())
    told = [word for word in stored["overrides"] if not word.startswith("run_dir=")]
    assert told == words
    code, said = finish(start(*told, f"run_dir={tmp_path / 'two'}"))
    assert code == 0, said
    assert metrics(tmp_path / "two") == stored["metrics"]


def test_workers_of_the_loader_do_not_keep_the_lock(tmp_path):
    """A process that was forked while the folder was claimed holds nothing afterwards."""
    cfg = compose(*SMALL, folder=tmp_path)
    with claim(tmp_path, cfg) as mine:
        assert mine
        told, tells = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(tells, b"here")
            time.sleep(60)
            os._exit(0)
        assert os.read(told, 4) == b"here"
    try:
        with claim(tmp_path, cfg) as mine:
            assert mine
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
