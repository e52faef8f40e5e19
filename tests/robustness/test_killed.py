"""A run that is stopped at any moment ends, after the same command again, as if it never was.

TKPR_KILLS sets how often the real process is killed.
"""

import builtins
import csv
import multiprocessing
import os
import random
import resource
import shutil
import signal
import time
from pathlib import Path

import pytest
import torch

from tests.robustness.processes import finish, metrics, start
from tests.short_runs import SMALL, train
from tkpr import atomic
from tkpr.training import state as checkpoint
from tkpr.training.trainer import Trainer

KILLS = int(os.environ.get("TKPR_KILLS", "20"))
# 3 epochs of 6 steps, the last of them on 3 samples, with a checkpoint after every step
RUN = [word for word in SMALL if word != "dataset.train_size=40"] + ["dataset.train_size=43"]
RUN += ["trainer.epochs=3", "trainer.warmup_epochs=1", "trainer.checkpoint_minutes=0"]


class Killed(BaseException):
    """Passes every ``except Exception``, as a kill would."""


@pytest.fixture(scope="module")
def untouched(tmp_path_factory):
    """The measures of a run that nothing happened to."""
    folder = tmp_path_factory.mktemp("untouched")
    train(*RUN, folder=folder)
    return metrics(folder)


def assert_as_if_untouched(folder, untouched):
    assert metrics(folder) == untouched
    rows = list(csv.DictReader((folder / "metrics.csv").open()))
    assert [row["epoch"] for row in rows] == ["1", "2", "3"]
    assert not list(folder.glob(".*.part"))


class Dice:
    """Raises at one call of a few functions, counted together."""

    def __init__(self, patch, targets):
        self.calls, self.at = 0, None
        for owner, name in targets:
            self.wrap(patch, owner, name)

    def wrap(self, patch, owner, name):
        original = getattr(owner, name)

        def maybe(*arguments, **options):
            self.calls += 1
            if self.calls == self.at:
                raise Killed(name)
            result = original(*arguments, **options)
            self.calls += 1
            if self.calls == self.at:
                raise Killed(f"after {name}")
            return result

        patch.setattr(owner, name, maybe)


def test_raised_at_random_points(untouched, tmp_path, monkeypatch):
    """In one process: before and after writes, renames, steps, evaluations, epochs."""
    targets = [
        *((os, "fsync"), (Path, "replace"), (torch, "save"), (atomic, "write")),
        *((Trainer, "save"), (Trainer, "predict"), (Trainer, "pause_if_asked")),
        *((Trainer, "begin_epoch"), (Trainer, "update_labels"), (checkpoint, "load")),
    ]
    dice = Dice(monkeypatch, targets)
    random.seed(0)
    stops = []
    for _ in range(60):
        dice.calls, dice.at = 0, random.randint(1, 120)
        try:
            train(*RUN, folder=tmp_path)
            break
        except Killed as killed:
            stops.append(str(killed))
    dice.at = None
    train(*RUN, folder=tmp_path)
    assert len(stops) >= 3, stops
    assert_as_if_untouched(tmp_path, untouched)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.99])
def test_stopped_while_a_checkpoint_is_written(share, untouched, tmp_path, monkeypatch):
    """A part of the file is on the disk; the previous checkpoint is what a rerun finds."""
    save, saves = torch.save, []

    def save_a_part(state, file):
        saves.append(1)
        if len(saves) < 9:
            return save(state, file)
        whole = builtins.open(os.devnull, "wb")  # noqa: SIM115 (measures the size only)
        save(state, whole)
        file.write(b"\0" * int(share * whole.tell()))
        file.flush()
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", save_a_part)
        patch.setattr(Path, "unlink", lambda *_, **__: None)  # the dead do not tidy up
        with pytest.raises(Killed):
            train(*RUN, folder=tmp_path)
    assert len(list(tmp_path.glob(".last.ckpt.*.part"))) == 1
    kept = checkpoint.load(tmp_path)
    assert (kept["epoch"], kept["step"]) == (1, 1)  # the 8th: 6 steps, the epoch, a step
    train(*RUN, folder=tmp_path)
    assert_as_if_untouched(tmp_path, untouched)


def test_stopped_after_the_last_step_of_an_epoch(untouched, tmp_path, monkeypatch):
    """The state says that more samples are done than there are: the last batch is not full."""
    pause = Trainer.pause_if_asked

    def die_at_the_end(trainer):
        pause(trainer)
        if trainer.progress.position[:2] == (1, trainer.steps):
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "pause_if_asked", die_at_the_end)
        with pytest.raises(Killed):
            train(*RUN, folder=tmp_path)
    kept = checkpoint.load(tmp_path)
    assert (kept["epoch"], kept["step"]) == (1, 6)
    train(*RUN, folder=tmp_path)
    assert_as_if_untouched(tmp_path, untouched)


def sigterm_in(call, monkeypatch):
    """Send SIGTERM to this process at the start of one call of predict; return what it does."""
    predict, calls = Trainer.predict, []

    def told_to_stop(trainer, dataset, **options):
        calls.append([])
        if len(calls) == call:
            os.kill(os.getpid(), signal.SIGTERM)
        finish = trainer.data.finish
        hook = finish.register_forward_pre_hook(lambda *_: calls[-1].append("a batch"))
        try:
            return predict(trainer, dataset, **options)
        finally:
            hook.remove()

    monkeypatch.setattr(Trainer, "predict", told_to_stop)
    return calls


# predictions of this run: the training set, to give it labels, and the test set, after each epoch
LABELLED = [*RUN[:-1], "loss=em_apl", "labels=single_positive", "loss.warmup_epochs=1"]
LABELLED += ["trainer.warmup_epochs=0"]


@pytest.mark.parametrize(
    ("words", "call", "place"),
    [
        (RUN[:-1], 2, (1, 6)),
        (RUN[:-1], 3, (2, 6)),  # the last test
        (LABELLED, 1, (0, 6)),
        (LABELLED, 2, (0, 6)),  # the new labels are there
        (LABELLED, 4, (1, 6)),
    ],
)
def test_sigterm_in_an_evaluation_is_answered_at_once(words, call, place, tmp_path, monkeypatch):
    train(*words, folder=tmp_path / "whole")
    with monkeypatch.context() as patch:
        calls = sigterm_in(call, patch)
        with pytest.raises(SystemExit) as stopped:
            train(*words, folder=tmp_path / "run")
    assert stopped.value.code == 143
    assert (len(calls), len(calls[-1])) == (call, 1)
    kept = checkpoint.load(tmp_path / "run")
    assert (kept["epoch"], kept["step"]) == place
    train(*words, folder=tmp_path / "run")
    assert metrics(tmp_path / "run") == metrics(tmp_path / "whole")
    one, other = (checkpoint.load(tmp_path / name) for name in ("whole", "run"))
    for key, value in (one["model"] | one["losses"][1]).items():
        assert torch.equal(value, (other["model"] | other["losses"][1])[key]), key


def interrupt_in_step(position, monkeypatch, *, times=1):
    """Press Ctrl-C in a step of a run, and perhaps again, two seconds later."""
    update = Trainer.update_weights

    def pressed(trainer):
        if trainer.progress.position[:2] == position:
            for press in range(times):
                if press:
                    later = time.monotonic() + 2
                    monkeypatch.setattr(time, "monotonic", lambda later=later: later)
                os.kill(os.getpid(), signal.SIGINT)
        update(trainer)

    monkeypatch.setattr(Trainer, "update_weights", pressed)


def test_ctrl_c_saves_and_the_same_command_goes_on(untouched, tmp_path, monkeypatch, caplog):
    before = signal.getsignal(signal.SIGINT)  # a shell ignores it in background jobs
    words = [word for word in RUN if "checkpoint_minutes" not in word]
    with monkeypatch.context() as patch, caplog.at_level("INFO", logger="tkpr"):
        interrupt_in_step((1, 3), patch)
        with pytest.raises(SystemExit) as stopped:
            train(*words, folder=tmp_path)
    assert stopped.value.code == 130
    assert "stopped by Ctrl-C: the same command resumes from here" in caplog.text
    kept = checkpoint.load(tmp_path)
    assert (kept["epoch"], kept["step"]) == (1, 3)
    assert signal.getsignal(signal.SIGINT) is before
    train(*words, folder=tmp_path)
    assert_as_if_untouched(tmp_path, untouched)


def test_a_second_ctrl_c_ends_at_once(tmp_path, monkeypatch):
    words = [word for word in RUN if "checkpoint_minutes" not in word]
    interrupt_in_step((1, 3), monkeypatch, times=2)
    with pytest.raises(KeyboardInterrupt):
        train(*words, folder=tmp_path)
    kept = checkpoint.load(tmp_path)
    assert (kept["epoch"], kept["step"]) == (1, 0)


def test_a_loader_worker_that_dies_is_named(tmp_path, monkeypatch):
    """As the system does it when memory runs out."""
    begin = Trainer.begin_epoch

    def kill_a_worker(trainer):
        begin(trainer)
        if trainer.progress.epoch == 1:
            os.kill(multiprocessing.active_children()[0].pid, signal.SIGKILL)

    monkeypatch.setattr(Trainer, "begin_epoch", kill_a_worker)
    answer = r"^DataLoader worker \(pid.*; out of memory is the usual cause: lower trainer.num_wo"
    with pytest.raises(ChildProcessError, match=answer) as died:
        train(*RUN, "trainer.num_workers=2", folder=tmp_path)
    assert "\n" not in str(died.value)
    assert checkpoint.load(tmp_path)["epoch"] == 1


def test_the_time_of_all_sessions_is_counted(tmp_path, monkeypatch):
    """As if 1000 seconds had been spent when the second epoch was at its third step, 50 in it."""
    pause = Trainer.pause_if_asked

    def die(trainer):
        pause(trainer)
        if trainer.progress.position[:2] == (1, 3):
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "pause_if_asked", die)
        with pytest.raises(Killed):
            train(*RUN, folder=tmp_path)
    state = checkpoint.load(tmp_path)
    spent, began = state["seconds"]
    assert 0 < began < spent < 100
    checkpoint.save(tmp_path, state | {"seconds": (1000.0, 950.0)})
    results = train(*RUN, folder=tmp_path)
    assert 1000 < results["seconds"] < 1100
    rows = [float(row["seconds"]) for row in csv.DictReader((tmp_path / "metrics.csv").open())]
    assert 50 < rows[1] < 150
    assert rows[0] < 50
    assert rows[2] < 50


def test_another_number_of_processes_is_refused(tmp_path, monkeypatch):
    """Its batches, and so its place in the epoch and its learning rates, would be others."""
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "begin_epoch", lambda trainer: trainer.save() or 1 / 0)
        with pytest.raises(ZeroDivisionError):
            train(*RUN, folder=tmp_path)
    state = checkpoint.load(tmp_path)
    checkpoint.save(tmp_path, state | {"total_loss": [0.0, 0.0]})
    with pytest.raises(ValueError, match=r"holds a run of 2 processes, this one has 1: go on with"):
        train(*RUN, folder=tmp_path)


class Second:
    """The second of two processes, which the first tells what it has found."""

    global_rank = 1

    def __init__(self, told):
        self.told = told

    def broadcast(self, _):
        return self.told


def test_a_process_waits_for_the_state_that_the_first_has_found(tmp_path, monkeypatch):
    """A shared file system shows it nothing, then the state before, then the right one."""
    states = [None, {"epoch": 0, "step": 5}, {"epoch": 1, "step": 2}]
    found = iter(states)
    monkeypatch.setattr(checkpoint, "load", lambda _: next(found))
    monkeypatch.setattr(time, "sleep", lambda _: None)
    assert checkpoint.load_together(tmp_path, Second("epoch 1, step 2")) == states[2]
    monkeypatch.setattr(checkpoint, "load", lambda _: states[1])
    with pytest.raises(
        FileNotFoundError,
        match=r"process 1 finds epoch 0, step 5 in .*last\.ckpt, the first process epoch 1, step 2",
    ):
        checkpoint.load_together(tmp_path, Second("epoch 1, step 2"), patience=0)


@pytest.mark.slow
def test_killed_at_random_moments(untouched, tmp_path):
    """SIGKILL, again and again, to a real process; then the run is allowed to end."""
    words = [*RUN, "trainer.num_workers=2", f"run_dir={tmp_path / 'run'}"]
    saved, done = tmp_path / "run" / "last.ckpt", tmp_path / "run" / "metrics.json"
    dice, kills, states = random.Random(0), 0, set()
    begin, process = time.monotonic(), start(*words)
    wait_for(saved, process)
    starting = time.monotonic() - begin
    wait_for(done, process)
    between = (time.monotonic() - begin - starting) / 21  # checkpoints: 18 steps and 3 epochs
    assert finish(process)[0] == 0
    while kills < KILLS:
        if done.exists():  # it ended before its time: another round
            assert_as_if_untouched(tmp_path / "run", untouched)
            shutil.rmtree(tmp_path / "run")
        process = start(*words)
        if dice.random() < 0.1:
            time.sleep(dice.uniform(0, starting))
        else:
            wait_for_changes(saved, dice.randint(1, 9), process)
            time.sleep(dice.uniform(0, 3 * between))
        process.kill()
        process.communicate()
        kills += process.returncode == -signal.SIGKILL
        state = checkpoint.load(tmp_path / "run")  # what is there is whole
        states.add((state["epoch"], state["step"]) if state else None)
    code, said = finish(start(*words))
    assert code == 0, said
    assert "another process" not in said
    assert_as_if_untouched(tmp_path / "run", untouched)
    assert len(states) > min(KILLS, 20) // 5, states  # they died at different places


def wait_for_changes(file, count, process):
    """Wait until a process has replaced a file so many times, or has ended."""
    before = inode(file)
    while count and process.poll() is None:
        now = inode(file)
        count, before = count - (now != before), now
        time.sleep(0.001)


def inode(file):
    """What tells a file from the one that had its name before."""
    return file.stat().st_ino if file.exists() else None


def wait_for(file, process, seconds=300):
    """Wait until a process has made a file."""
    end = time.monotonic() + seconds
    while not file.exists():
        assert process.poll() is None, finish(process)
        assert time.monotonic() < end
        time.sleep(0.05)


LONG = [word for word in RUN if "checkpoint_minutes" not in word and "train_size" not in word]
LONG += ["dataset.train_size=1000", "trainer.checkpoint_minutes=0.02"]


@pytest.mark.slow
def test_sigterm_saves_and_the_same_command_goes_on(tmp_path):
    assert finish(start(*LONG, f"run_dir={tmp_path / 'whole'}"))[0] == 0
    words = [*LONG, "trainer.num_workers=2", f"run_dir={tmp_path / 'run'}"]
    process = start(*words, start_new_session=True)
    wait_for(tmp_path / "run" / "last.ckpt", process)
    os.killpg(process.pid, signal.SIGTERM)  # to the loader's workers as well, as Slurm does
    code, said = finish(process)
    assert code == 143, said
    assert "stopped by SIGTERM: the same command resumes from here" in said
    assert "saved after epoch" in said
    assert "Traceback" not in said
    assert not (tmp_path / "run" / "metrics.json").exists()
    code, said = finish(start(*words))
    assert code == 0, said
    assert "resuming after epoch" in said
    assert metrics(tmp_path / "run") == metrics(tmp_path / "whole")


@pytest.mark.slow
def test_ctrl_c_in_a_terminal_with_loader_workers(tmp_path):
    """A terminal sends it to the workers as well."""
    assert finish(start(*LONG, f"run_dir={tmp_path / 'whole'}"))[0] == 0
    words = [*LONG, "trainer.num_workers=2", f"run_dir={tmp_path / 'run'}"]
    process = start(*words, start_new_session=True)
    wait_for(tmp_path / "run" / "last.ckpt", process)
    os.killpg(process.pid, signal.SIGINT)
    code, said = finish(process)
    assert code == 130, said
    assert said.count("stopped by Ctrl-C: the same command resumes from here") == 1, said
    assert "Traceback" not in said
    assert "error" not in said
    code, said = finish(start(*words))
    assert code == 0, said
    assert "resuming after epoch" in said
    assert metrics(tmp_path / "run") == metrics(tmp_path / "whole")


@pytest.mark.slow
def test_a_full_disk_is_named_and_the_last_checkpoint_kept(untouched, tmp_path):
    """No file may grow beyond half a checkpoint; then there is room again."""
    words = [*RUN, f"run_dir={tmp_path}"]
    process = start(*words)
    wait_for(tmp_path / "last.ckpt", process)
    process.kill()
    process.communicate()
    before = (tmp_path / "last.ckpt").read_bytes()

    def small_disk():
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 2, len(before) // 2))

    code, said = finish(start(*words, preexec_fn=small_disk))
    assert code == 1
    errors = [line for line in said.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert "cannot be written" in errors[0]
    assert "Traceback" not in said
    assert (tmp_path / "last.ckpt").read_bytes() == before
    code, said = finish(start(*words))
    assert code == 0, said
    assert_as_if_untouched(tmp_path, untouched)
