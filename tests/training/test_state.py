"""What a run knows of its progress, and the file that keeps it."""

import time

import pytest
import torch

from tkpr import records
from tkpr.training import state
from tkpr.training.state import Progress


def test_an_epoch_that_ends_resets_its_counters(clock):
    progress = Progress(started=clock.seconds)
    progress.begin_epoch()
    progress.step, progress.skipped, progress.total_loss = 5, 1, 2.5
    progress.labels_updated = True
    assert progress.position == (0, 5, True)
    clock.seconds += 8
    progress.end_epoch({"train_loss": 0.5})
    assert progress.history == [{"epoch": 1, "train_loss": 0.5, "seconds": 8}]
    assert progress.position == (1, 0, False)
    assert (progress.skipped, progress.total_loss) == (0, 0)
    clock.seconds += 2  # between two epochs
    progress.begin_epoch()
    clock.seconds += 3
    progress.end_epoch({})
    assert progress.history[1:] == [{"epoch": 2, "seconds": 3}]
    assert progress.seconds == 13


def test_a_resumed_epoch_goes_on_from_its_beginning(clock):
    """90 seconds before the stop, 20 of them in this epoch, and 4 after it."""
    progress = Progress(epoch=2, step=3, epoch_start=70, seconds_before_resume=90)
    progress.started = clock.seconds
    progress.begin_epoch()
    clock.seconds += 4
    assert progress.seconds == 94
    progress.end_epoch({})
    assert progress.history == [{"epoch": 3, "seconds": 24}]


def test_a_new_run_has_done_nothing():
    progress = Progress()
    assert progress.position == (0, 0, False)
    assert (progress.skipped, progress.total_loss, progress.epoch_start) == (0, 0, 0)
    assert progress.seconds_before_resume == 0
    assert progress.history == []


def saved(folder, **content):
    records.write(folder / "run.json", {"run": "1" * 32})
    state.save(folder, {"epoch": 2, "step": 3, "weight": torch.ones(2), **content})
    return state.path(folder)


def test_a_state_is_read_as_it_was_saved(tmp_path):
    assert state.load(tmp_path) is None
    saved(tmp_path)
    content = state.load(tmp_path)
    assert content["weight"].tolist() == [1, 1]
    assert state.position(content) == "epoch 2, step 3"


def test_a_file_that_holds_no_state_is_refused(tmp_path):
    file = saved(tmp_path, format=1)
    with pytest.raises(ValueError, match=r"last\.ckpt was written by another version"):
        state.load(tmp_path)
    torch.save([1, 2], file)
    with pytest.raises(ValueError, match=r"last\.ckpt was written by another version"):
        state.load(tmp_path)
    file.write_bytes(b"")
    with pytest.raises(ValueError, match=r"last\.ckpt cannot be read as a checkpoint \(.+\)"):
        state.load(tmp_path)


def test_a_state_of_format_2_is_read(tmp_path):
    """A higher number makes every run that is under way useless: change it with the content."""
    saved(tmp_path, format=2)
    assert state.load(tmp_path)["format"] == 2


@pytest.mark.parametrize(
    ("error", "reason"), [(EOFError(), r"EOFError\(\)"), (EOFError("too short\nat 3"), "too short")]
)
def test_a_state_that_cannot_be_read_says_why_in_one_line(error, reason, tmp_path, monkeypatch):
    saved(tmp_path)

    def fail(*_, **__):
        raise error

    monkeypatch.setattr(torch, "load", fail)
    with pytest.raises(
        ValueError, match=rf"last\.ckpt cannot be read as a checkpoint \({reason}\):"
    ):
        state.load(tmp_path)


def test_a_flipped_bit_in_a_state_is_noticed(tmp_path):
    file = saved(tmp_path, weight=torch.full((1000,), 0.5))
    content = bytearray(file.read_bytes())
    content[content.index(torch.full((9,), 0.5).numpy().tobytes()) + 100] ^= 1
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"cannot be read .*does not match its checksum"):
        state.load(tmp_path)


def test_a_state_of_another_run_is_refused(tmp_path):
    saved(tmp_path)
    records.write(tmp_path / "run.json", {"run": "2" * 32})
    with pytest.raises(ValueError, match=r"last\.ckpt and run\.json belong to different runs"):
        state.load(tmp_path)


class Second:
    """The second of two processes, which the first tells what it has found."""

    global_rank = 1

    def __init__(self, told):
        self.told = told

    def broadcast(self, _):
        return self.told


def test_a_process_waits_a_minute_for_the_state_of_the_first(tmp_path, clock, monkeypatch):
    """And looks once a second; the state appears after 59 seconds, or too late."""
    appears, looks = 1059, []

    def load(_):
        looks.append(clock.seconds)
        return {"epoch": 1, "step": 2} if clock.seconds >= appears else None

    def sleep(seconds):
        clock.seconds += seconds

    monkeypatch.setattr(state, "load", load)
    monkeypatch.setattr(time, "sleep", sleep)
    assert state.load_together(tmp_path, Second("epoch 1, step 2"))["epoch"] == 1
    assert looks == list(range(1000, 1060))
    appears = 2000
    with pytest.raises(FileNotFoundError, match="process 1 finds no state in"):
        state.load_together(tmp_path, Second("epoch 1, step 2"))
    assert clock.seconds == 1120  # the last look, at 1119, was still within the minute
