"""What surrounds the trainer's loop: stops, unreadable images, other processes, revised labels."""

import io
import signal
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from torch import nn

from tests.training.test_trainer import (
    BATCH,
    CLASSES,
    EPOCHS,
    FEATURES,
    SAMPLES,
    STEPS,
    linear,
    make_trainer,
    samples,
)
from tkpr.training import state


@pytest.mark.parametrize("reset", [True, False])
def test_moments_are_forgotten_once_before_the_main_loss(reset, tmp_path):
    trainer = make_trainer(tmp_path, stop_after=1, reset_optimizer=reset)
    trainer.fit()
    moments = trainer.optimizer.optimizer.state
    trainer.progress.step = 2  # resumed within the first epoch of the main loss
    trainer.begin_epoch()
    assert moments
    trainer.progress.step = 0
    trainer.begin_epoch()
    assert bool(moments) != reset
    moments["kept"] = {}
    trainer.progress.epoch = 2
    trainer.begin_epoch()
    assert "kept" in moments


class Staged(nn.Linear):
    """A model whose second stage begins after the first epoch, from other weights."""

    context_epochs = 1

    def learn_confounders(self, batches, *, all_reduce_sum):
        self.seen = sum(len(targets) for _, targets in batches)

    def start_stage_two(self):
        self.staged = True


def test_the_schedule_of_a_model_with_stages_spans_the_second(tmp_path):
    trainer = make_trainer(tmp_path, Staged(FEATURES, CLASSES))
    assert trainer.scheduler.total_steps == (EPOCHS - 1) * STEPS


def test_the_second_stage_starts_once_from_the_whole_training_set(tmp_path):
    trainer = make_trainer(tmp_path, Staged(FEATURES, CLASSES), stop_after=1)
    first = trainer.optimizer
    trainer.fit()
    assert not hasattr(trainer.module, "staged")
    assert trainer.optimizer is first
    trainer.begin_epoch()
    assert (trainer.module.staged, trainer.module.seen) == (True, SAMPLES)
    second = trainer.optimizer
    assert second is not first
    trainer.progress.step = 2  # resumed within the epoch
    trainer.begin_epoch()
    trainer.progress.epoch, trainer.progress.step = 2, 0
    trainer.begin_epoch()
    assert trainer.optimizer is second


def test_gradients_of_several_processes_meet_once_per_update(tmp_path, monkeypatch):
    trainer = make_trainer(tmp_path, accumulate=2, stop_after=1)
    apart, no_backward_sync = [], trainer.fabric.no_backward_sync

    def note(model, enabled):
        apart.append(enabled)
        return no_backward_sync(model, enabled=enabled)

    monkeypatch.setattr(trainer.fabric, "no_backward_sync", note)
    trainer.fit()
    assert apart == [True, False, True, False, False]


class Terminal(io.StringIO):
    """Takes what would be written to a terminal."""

    def isatty(self):
        return True


def test_a_terminal_shows_how_far_an_epoch_is(tmp_path, monkeypatch):
    """Of 18 batches of one sample; loss and learning rate of the first group after the tenth."""
    trainer = make_trainer(tmp_path, batch_size=1, head_lr_multiplier=1, stop_after=1)
    values = iter(range(100, 118))
    monkeypatch.setattr(
        trainer.criteria[0], "forward", lambda logits, *_: logits.sum() * 0 + next(values)
    )
    trainer.scheduler.get_last_lr = lambda: [0.25, 0.75]
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr("tqdm.std.tqdm.monitor_interval", 0)
    monkeypatch.setenv("COLUMNS", "150")
    monkeypatch.setenv("LINES", "40")
    bar = trainer.progress_bar
    monkeypatch.setattr(trainer, "progress_bar", lambda: eager(bar()))
    trainer.progress.step = 2
    trainer.begin_epoch()
    trainer.train_epoch()
    lines = [line.strip() for line in screen.getvalue().split("\r")]
    shown = [line for line in lines if line.startswith("epoch 1/1:")]
    places = [int(line.split("|")[2].split("/")[0]) for line in shown]
    assert list(dict.fromkeys(places)) == list(range(2, 19))
    for place, line in zip(places, shown, strict=True):
        assert line.endswith("loss=107.0000, lr=2.50e-01]") == (place > 10 or "loss" in line)
    assert "loss" in shown[places.index(11)]
    assert "loss" not in shown[places.index(9)]
    assert lines[-1] == ""  # the bar is wiped


def eager(bar):
    bar.mininterval = bar.miniters = 0
    return bar


def test_only_the_first_process_shows_a_bar(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    trainer = make_trainer(tmp_path)
    assert not trainer.progress_bar().disable
    trainer.fabric = SimpleNamespace(is_global_zero=False)
    assert trainer.progress_bar().disable


def test_images_per_second_are_those_since_the_epoch_was_begun_or_resumed(
    tmp_path, clock, monkeypatch
):
    """A step takes 2 seconds; of 5 steps for 18 samples, 2 are left after a resume."""
    trainer = make_trainer(tmp_path)
    update = trainer.update_weights

    def slow():
        update()
        clock.seconds += 2

    monkeypatch.setattr(trainer, "update_weights", slow)
    trainer.begin_epoch()
    assert trainer.train_epoch()["images_per_second"] == pytest.approx(SAMPLES / (5 * 2))
    trainer.progress.step = 3
    trainer.begin_epoch()
    assert trainer.train_epoch()["images_per_second"] == pytest.approx(2 * BATCH / (2 * 2))


def test_an_infinite_gradient_that_is_clipped_stops_the_run(tmp_path):
    trainer = make_trainer(tmp_path, clip_norm=1.0, batch_size=SAMPLES)
    trainer.module.weight.register_hook(lambda gradient: gradient * torch.inf)
    with pytest.raises(FloatingPointError, match=r"the weights \(weight\) are not finite in epoch"):
        trainer.fit()


# several processes


class TwoProcesses:
    """A Fabric of two processes of which the other one always holds the same."""

    world_size, global_rank, is_global_zero = 2, 1, False
    device = torch.device("cpu")

    def __init__(self):
        self.calls = []

    def to_device(self, tensor):
        return tensor

    def all_reduce(self, tensor, reduce_op):
        return tensor if reduce_op == "max" else 2 * tensor

    def barrier(self):
        self.calls.append("barrier")


def test_the_row_of_an_epoch_is_of_all_processes(tmp_path):
    """Both took 2 steps of 4 samples since a resume; of 5 batches of the epoch, one was empty."""
    trainer = make_trainer(tmp_path)
    trainer.scheduler.get_last_lr = lambda: [0.25, 0.75]
    trainer.fabric = TwoProcesses()
    trainer.progress.total_loss, trainer.progress.skipped = 6.0, 1
    row = trainer.summary(seconds=2.0, steps=2)
    assert row == {"train_loss": 6 / 4, "lr": 0.25, "images_per_second": 2 * BATCH * 2 / 2}


class Sharing(nn.Module):
    """A loss that keeps a number per sample."""

    def __init__(self):
        super().__init__()
        self.kept, self.merged = torch.tensor([1.0, 3.0]), []

    def merge_state(self, all_reduce_max):
        self.merged.append(all_reduce_max(self.kept).tolist())

    def forward(self, logits, targets, index=None):
        return (logits - targets).square().mean()


def test_what_losses_know_of_samples_is_brought_together(tmp_path):
    trainer = make_trainer(tmp_path, loss={"_target_": f"{__name__}.Sharing"})
    trainer.merge_losses()
    assert trainer.losses[1].merged == []  # there is one process only
    trainer.fabric = TwoProcesses()
    trainer.merge_losses()
    assert trainer.losses[1].merged == [[1, 3]]  # the maximum, not the sum


def test_losses_are_merged_before_a_batch_that_may_hold_samples_of_other_processes(
    tmp_path, monkeypatch
):
    """It is the last one: a sampler repeats a few samples so that all have equally many."""
    trainer = make_trainer(tmp_path)
    merged = []
    monkeypatch.setattr(trainer, "merge_losses", lambda: merged.append(trainer.progress.step))
    trainer.begin_epoch()
    assert len(list(trainer.training_batches())) == STEPS
    assert merged == [STEPS - 1]


@pytest.mark.parametrize("first", [True, False])
def test_the_first_process_writes_and_the_others_wait(first, tmp_path, monkeypatch):
    trainer = make_trainer(tmp_path)
    monkeypatch.setattr(state, "save", lambda *_: trainer.fabric.calls.append("save"))
    monkeypatch.setattr(state, "capture", lambda _: {})
    trainer.fabric = TwoProcesses()
    trainer.fabric.is_global_zero = first
    trainer.progress.step = 3
    trainer.save()
    assert trainer.fabric.calls == (["save"] if first else []) + ["barrier"]
    assert trainer.saved_position == (0, 3, False)


# unreadable images


def with_empty_batches(trainer, empty):
    """Let an epoch have the batches of the loader, some of them without a readable image."""
    trainer.begin_epoch()
    batches = [
        tuple(part[:0] for part in batch) if step in empty else batch
        for step, batch in enumerate(trainer.loader)
    ]
    trainer.loader = batches
    return [batch[2].tolist() for batch in batches]


def test_batches_without_a_readable_image_are_left_out(tmp_path):
    trainer = make_trainer(tmp_path)
    OmegaConf.update(trainer.cfg, "dataset.on_error", "skip", force_add=True)
    indices = with_empty_batches(trainer, {1, 4})
    assert [index.tolist() for *_, index in trainer.training_batches()] == [
        indices[step] for step in (0, 2, 3)
    ]
    assert (trainer.progress.skipped, trainer.progress.step) == (2, STEPS)


def test_nothing_is_left_out_unless_it_is_asked_for(tmp_path):
    trainer = make_trainer(tmp_path)
    indices = with_empty_batches(trainer, {1})
    assert [index.tolist() for *_, index in trainer.training_batches()] == indices
    assert trainer.progress.skipped == 0


def test_an_epoch_without_a_readable_image_is_an_error(tmp_path):
    trainer = make_trainer(tmp_path)
    OmegaConf.update(trainer.cfg, "dataset.on_error", "skip", force_add=True)
    with_empty_batches(trainer, set(range(STEPS)))
    with pytest.raises(ValueError, match="not one training batch of epoch 1 could be read"):
        list(trainer.training_batches())


# losses that revise labels


class Revising(nn.Module):
    """A loss that revises labels after the epochs 1 and 3."""

    def __init__(self):
        super().__init__()
        self.epoch, self.given = None, {}

    def set_epoch(self, epoch):
        self.epoch = epoch

    def wants_update(self):
        return self.epoch != 1

    def update_labels(self, logits):
        self.given[self.epoch] = logits

    def forward(self, logits, targets, index=None):
        return (logits - targets).square().mean()


REVISING = {"loss": {"_target_": f"{__name__}.Revising"}, "warmup_epochs": 0}


def test_labels_are_revised_by_the_logits_of_the_training_set(tmp_path):
    """Of the raw weights, not the averaged ones; what cannot be read is never among the lowest."""
    settings = {"temperature": 4.0, "ema_decay": 0.8, "eval_weights": "ema"}
    trainer = make_trainer(tmp_path, **REVISING, **settings)
    trainer.data.train.unreadable[2] = True
    trainer.fit()
    given = trainer.losses[1].given
    assert list(given) == [0, 2]
    expected = trainer.module(torch.from_numpy(samples(SAMPLES, 0).inputs)).detach() / 4
    expected[2] = torch.inf
    torch.testing.assert_close(given[2], expected)


def test_labels_are_revised_once_per_epoch(tmp_path):
    """A run that is resumed in the evaluation that follows does not revise them again."""
    trainer = make_trainer(tmp_path, **REVISING)
    trainer.begin_epoch()
    trainer.train_epoch()
    trainer.update_labels()
    assert trainer.progress.labels_updated
    first = trainer.losses[1].given.pop(0)
    assert first.shape == (SAMPLES, CLASSES)
    trainer.update_labels()
    assert trainer.losses[1].given == {}


# stops


class Told:
    """Tells the trainer to stop or save, and notes how it is asked."""

    def __init__(self, stop, late):
        self.answer, self.syncs, self.saves = (stop, late), [], 0

    def poll(self, *, sync):
        self.syncs.append(sync)
        return self.answer

    def saved(self):
        self.saves += 1


@pytest.mark.parametrize(
    ("stop", "late", "step", "saved_at", "saves"),
    [
        (0, False, 3, None, 0),
        (0, True, 3, None, 1),
        (0, True, 3, 3, 0),  # nothing is new
        (0, True, 3, 2, 1),
        (0, True, 0, None, 0),  # the end of an epoch is saved anyway
        (signal.SIGTERM, False, 3, None, 1),
        (signal.SIGTERM, False, 3, 3, 0),
        (signal.SIGINT, True, 0, None, 0),
    ],
)
def test_when_the_trainer_saves_and_stops(stop, late, step, saved_at, saves, tmp_path, caplog):
    trainer = make_trainer(tmp_path)
    trainer.preemption = Told(stop, late)
    trainer.progress.step = step
    trainer.saved_position = None if saved_at is None else (0, saved_at, False)
    trainer.save = trainer.preemption.saved
    with caplog.at_level("INFO", logger="tkpr"):
        if stop:
            with pytest.raises(SystemExit) as stopped:
                trainer.pause_if_asked()
            assert stopped.value.code == {signal.SIGTERM: 143, signal.SIGINT: 130}[stop]
            name = {signal.SIGTERM: "SIGTERM", signal.SIGINT: "Ctrl-C"}[stop]
            assert f"stopped by {name}: the same command resumes from here" in caplog.text
        else:
            trainer.pause_if_asked()
    assert trainer.preemption.saves == saves
    assert ("saved after epoch 0, step 3" in caplog.text) == bool(saves)
    assert trainer.preemption.syncs == [step == 0]  # all processes are between two epochs then


def test_the_last_row_is_of_the_test_that_is_repeated(tmp_path):
    """Whatever the stored one says: logits and measures of a run belong together."""
    first = make_trainer(tmp_path)
    first.fit()
    stored = state.load(tmp_path)
    stored["history"][-1] = stored["history"][-1] | {"mAP@3": -1.0}
    state.save(tmp_path, stored)
    again = make_trainer(tmp_path)
    again.fit()
    assert again.progress.history[-1]["mAP@3"] == first.progress.history[-1]["mAP@3"]


@pytest.mark.parametrize("step", [2, STEPS])
def test_a_run_stopped_within_an_epoch_goes_on_bit_for_bit(step, tmp_path):
    """With averaged weights, a schedule and clipped gradients."""
    settings = {"ema_decay": 0.8, "clip_norm": 0.5, "checkpoint_minutes": 1e6}
    whole = make_trainer(tmp_path / "whole", **settings)
    logits = whole.fit()
    first = make_trainer(tmp_path / "parts", **settings)
    update = first.update_weights

    def told_to_stop():
        update()
        if first.progress.position[:2] == (1, step):
            first.preemption.ask_to_stop(signal.SIGTERM)

    first.update_weights = told_to_stop
    with pytest.raises(SystemExit):
        first.fit()
    again = make_trainer(tmp_path / "parts", model=nn.Linear(FEATURES, CLASSES), **settings)
    assert again.progress.position == (1, step, False)
    torch.testing.assert_close(again.fit(), logits, rtol=0, atol=0)
    for part in ("module", "ema"):
        ours, theirs = (getattr(one, part).state_dict() for one in (again, whole))
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    rows = [[row["train_loss"], row["lr"]] for row in whole.progress.history]
    assert [[row["train_loss"], row["lr"]] for row in again.progress.history] == rows


def test_averaged_weights_that_are_not_finite_stop_a_run(tmp_path):
    trainer = make_trainer(tmp_path, ema_decay=0.8)
    trainer.check_weights()
    trainer.ema.module.bias.data[0] = torch.nan
    with pytest.raises(FloatingPointError, match=r"the averaged weights \(bias\) are not finite"):
        trainer.check_weights()
    assert make_trainer(tmp_path, linear()).ema is None


def test_labels_of_a_sparse_data_set_are_not_given_to_losses_as_a_matrix():
    from scipy.sparse import csr_array

    from tkpr.training.trainer import train_stats

    labels = csr_array(np.array([[1, 0, 1], [0, 0, 1]], dtype=np.uint8))
    stats = train_stats(SimpleNamespace(train_targets=labels, clean_targets=labels), 5)
    assert "train_targets" not in stats
    assert stats["class_counts"].tolist() == [1, 0, 2]
    assert stats["expected_positives"] == 1.5
