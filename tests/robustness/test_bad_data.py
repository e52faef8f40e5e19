"""Images that break while a run is under way, and losses that are not finite."""

import json
import logging
import runpy

import numpy as np
import pytest
import torch

from tests.data.miniature import make_arff, make_csv
from tests.robustness.processes import ROOT
from tests.short_runs import SMALL, compose, train
from tkpr import records
from tkpr.config import build
from tkpr.data.dataset import Split
from tkpr.data.images import ImageDataset
from tkpr.losses import LSEP, TKPR
from tkpr.metrics import evaluate
from tkpr.runs.run import build_data, build_model
from tkpr.runs.saved_model import load_predictions
from tkpr.runs.settle import settle
from tkpr.training import state as checkpoint
from tkpr.training.preemption import Preemption
from tkpr.training.seeding import ResumableSampler, seed_everything
from tkpr.training.trainer import Trainer, train_stats


def on_photos(folder):
    """Settings for the miniature folder with a CSV file: 12 training and 6 test images."""
    return [
        *("dataset=csv", f"dataset.root={folder}", "model=tiny", "model.width=8"),
        *(
            "transform=shift48",
            "transform.size=32",
            "trainer.batch_size=4",
            "trainer.accelerator=cpu",
        ),
        *("trainer.ks=[1,2]", "trainer.monitor=mAP@1", "loss.k=2", "trainer.epochs=4"),
        *("trainer.accelerator=cpu", "trainer.channels_last=true"),
    ]


@pytest.fixture
def photos(tmp_path):
    return make_csv(tmp_path / "data") / "photos"


@pytest.fixture
def break_in_epoch_three(monkeypatch, photos):
    """Return a function that names the files to damage when epoch 3 begins."""
    names = []
    begin = Trainer.begin_epoch

    def begin_and_damage(trainer):
        if trainer.progress.epoch == 2:
            for name in names:
                (photos / name).write_bytes(b"\xff\xd8\xff not a picture any more")
        begin(trainer)

    monkeypatch.setattr(Trainer, "begin_epoch", begin_and_damage)
    return names.extend


@pytest.mark.parametrize("workers", [0, 2])
def test_a_corrupt_image_in_epoch_three_is_named_and_stops_the_run(
    workers, photos, break_in_epoch_three, tmp_path
):
    break_in_epoch_three(["03.jpg"])
    settings = [*on_photos(photos.parent), f"trainer.num_workers={workers}"]
    with pytest.raises(ValueError, match=r"^the image file .*photos/03\.jpg cannot be read") as got:
        train(*settings, folder=tmp_path / "run")
    assert "Traceback" not in str(got.value)
    assert checkpoint.load(tmp_path / "run")["epoch"] == 2
    assert not (tmp_path / "run" / "metrics.json").exists()


@pytest.mark.parametrize("workers", [0, 2])
def test_corrupt_images_can_be_skipped(workers, photos, break_in_epoch_three, tmp_path, caplog):
    """Two training images (of 12) and one test image (of 6) are left out, counted, named once."""
    break_in_epoch_three(["03.jpg", "07.jpg", "13.jpg"])
    settings = [*on_photos(photos.parent), "dataset.on_error=skip"]
    with caplog.at_level(logging.WARNING, logger="tkpr"):
        results = train(*settings, f"trainer.num_workers={workers}", folder=tmp_path / "run")
    assert results["counts"]["train_unreadable"] == 2
    assert results["counts"]["test_unreadable"] == 1
    assert results["counts"]["test_rows"] == 5
    named = [
        record.getMessage()
        for record in caplog.records
        if record.name == "tkpr.training.unreadable"
    ]
    wanted = [f"left out, because it cannot be read: photos/{n}.jpg" for n in ("03", "07", "13")]
    assert sorted(named) == wanted
    stored = load_predictions(tmp_path / "run")
    assert "photos/13.jpg" not in stored["ids"]
    again = evaluate(stored["logits"], stored["targets"], ks=[1, 2])
    assert again == pytest.approx(results["metrics"], rel=1e-12)


@pytest.mark.slow
def test_what_was_skipped_before_a_stop_is_still_counted_after_it(photos, tmp_path, monkeypatch):
    """A run that stops after its last epoch, before the results, must not forget the count."""
    (photos / "05.jpg").unlink()
    settings = [*on_photos(photos.parent), "dataset.on_error=skip", "dataset.check_files=false"]
    with monkeypatch.context() as patch:
        patch.setattr("tkpr.runs.run.write_results", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            train(*settings, folder=tmp_path / "run")
    results = train(*settings, folder=tmp_path / "run")
    assert results["counts"]["train_unreadable"] == 1
    assert records.read(tmp_path / "run" / "metrics.json") == results


@pytest.fixture
def seen(monkeypatch):
    """The losses of the training steps, in order."""
    values, forward = [], TKPR.forward

    def spy(self, *batch):
        loss = forward(self, *batch)
        if self.training:  # it is tried out before
            values.append(loss.item())
        return loss

    monkeypatch.setattr(TKPR, "forward", spy)
    return values


ALONE = ["dataset.on_error=skip", "trainer.batch_size=1", "trainer.warmup_epochs=0"]


@pytest.mark.parametrize(("accumulate", "steps_before_the_stop"), [(1, 8), (5, 10)])
def test_batches_without_a_readable_image_are_skipped(
    accumulate, steps_before_the_stop, photos, seen, tmp_path, monkeypatch
):
    """One image a batch: two of 12 training steps and one of 6 tests have nothing to compute.

    The last step of the first epoch is one of the two: with it, a part of an update is left.
    """
    order = list(ResumableSampler(range(12), num_replicas=1, rank=0, seed=0))
    for number in (order[2], order[-1], 13):
        (photos / f"{number:02d}.jpg").write_bytes(b"nothing")
    settings = [*on_photos(photos.parent), *ALONE, f"trainer.accumulate={accumulate}"]
    results = train(*settings, "trainer.epochs=2", folder=tmp_path / "whole")
    assert results["counts"]["train_unreadable"] == 2
    assert results["counts"]["test_rows"] == 5
    assert len(seen) == 2 * 10
    state = checkpoint.load(tmp_path / "whole")
    told = [row["train_loss"] for row in state["history"]]
    assert told == pytest.approx([np.mean(seen[:10]), np.mean(seen[10:])], rel=1e-5)

    save = Trainer.save
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "save", lambda trainer: save(trainer) or 1 / 0)
        late = 20 + steps_before_the_stop
        patch.setattr(Preemption, "poll", lambda *_, **__: (False, len(seen) == late))
        with pytest.raises(ZeroDivisionError):
            train(*settings, "trainer.epochs=2", folder=tmp_path / "parts")
    parts = train(*settings, "trainer.epochs=2", folder=tmp_path / "parts")
    assert parts["metrics"] == results["metrics"]
    for key, value in checkpoint.load(tmp_path / "parts")["model"].items():
        assert torch.equal(value, state["model"][key]), key


def test_a_training_set_of_which_nothing_can_be_read_is_an_error(photos, tmp_path):
    for number in range(12):
        (photos / f"{number:02d}.jpg").write_bytes(b"nothing")
    with pytest.raises(ValueError, match="not one training batch of epoch 1 could be read"):
        train(*on_photos(photos.parent), *ALONE, folder=tmp_path / "run")


def test_what_is_left_out_is_named_once_however_often_a_run_is_stopped(photos, tmp_path, caplog):
    (photos / "03.jpg").write_bytes(b"nothing")
    (photos / "13.jpg").write_bytes(b"nothing")
    settings = [*on_photos(photos.parent), *ALONE]
    with caplog.at_level(logging.WARNING, logger="tkpr"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                Trainer, "pause_if_asked", lambda trainer: 1 / (trainer.progress.epoch < 2)
            )
            with pytest.raises(ZeroDivisionError):
                train(*settings, folder=tmp_path / "run")
        train(*settings, folder=tmp_path / "run")
    named = [record.getMessage() for record in caplog.records]
    assert len(named) == 2, named


def test_evaluate_counts_what_it_leaves_out(photos, tmp_path, monkeypatch, capsys, caplog):
    settings = [*on_photos(photos.parent), "dataset.on_error=skip"]
    train(*settings, folder=tmp_path / "run")
    (photos / "13.jpg").write_bytes(b"nothing")
    output = tmp_path / "measures.json"
    words = ["evaluate.py", str(tmp_path / "run"), "--output", str(output), "--ks", "1", "2"]
    monkeypatch.setattr("sys.argv", words)
    runpy.run_path(str(ROOT / "scripts" / "evaluate.py"))["main"]()
    assert "1 of 6 images cannot be read and are left out" in capsys.readouterr().out
    assert json.loads(output.read_text())["unreadable"] == 1
    assert "photos/13.jpg" in caplog.text


def test_there_are_two_ways_to_treat_images_that_cannot_be_read():
    split = Split([np.zeros((8, 8), np.uint8)], np.ones((1, 2), dtype=np.uint8), ["a"])
    with pytest.raises(ValueError, match="on_error must be raise or skip; got 'ignore'"):
        ImageDataset(split, size=8, on_error="ignore")


DIVERGES = ["optimizer=sgd", "optimizer.lr=1e30", "scheduler=constant", "trainer.warmup_epochs=0"]


def test_the_file_behind_a_loss_that_is_not_finite_reproduces_it(tmp_path, monkeypatch):
    """With the settings of the run: the same logits, with dropout, and the same loss."""
    make_arff(tmp_path / "data")
    settings = ["dataset=arff", f"dataset.root={tmp_path / 'data'}", "dataset.name=mini"]
    settings += ["model=mlp", "loss=lsep", "trainer.batch_size=5", "trainer.ks=[1,2]"]
    settings += ["trainer.monitor=mAP@1", "trainer.accelerator=cpu", *DIVERGES]
    with pytest.raises(FloatingPointError, match=r"loss is .* batch, weights and seed are in"):
        train(*settings, folder=tmp_path / "run")
    cfg = compose(*settings, folder=tmp_path / "run")
    settle(cfg)
    data = build_data(cfg)
    kept = torch.load(tmp_path / "run" / "bad_batch_rank0.pt", weights_only=True)
    assert kept["ids"] == [data.train.ids[row] for row in kept["index"].tolist()]
    assert (kept["epoch"], kept["step"], kept["stage"]) == (0, 2, 1)
    batch = kept["targets"], kept["index"]
    loss = build(cfg.loss, facts=train_stats(data, cfg.trainer.epochs))
    assert loss(build_model(cfg, data)(kept["inputs"]), *batch).isfinite()  # not of the batch alone
    loss.load_state_dict(kept["loss"])
    value = loss.train()(logits_again(kept, cfg, data), *batch)
    assert not value.isfinite()
    torch.testing.assert_close(value.item(), kept["loss_value"], equal_nan=True)

    forward, calls = LSEP.forward, []  # finite logits, in which dropout shows

    def overflow(self, *batch):
        calls.append(self.training)
        return forward(self, *batch) / (0.0 if sum(calls) == 4 else 1.0)

    monkeypatch.setattr(LSEP, "forward", overflow)
    with pytest.raises(FloatingPointError, match="loss is inf in epoch 2, step 1"):
        train(*settings, "optimizer.lr=0.1", folder=tmp_path / "other")
    kept = torch.load(tmp_path / "other" / "bad_batch_rank0.pt", weights_only=True)
    assert logits_again(kept, cfg, data).isfinite().all()


def logits_again(kept, cfg, data):
    """Compute the logits of a step from what it left; they must be the same to the last bit."""
    model = build_model(cfg, data)
    model.load_state_dict(kept["model"])
    seed_everything(*kept["seed"])
    logits = model.train()(kept["inputs"])
    torch.testing.assert_close(logits, kept["logits"], rtol=0, atol=0, equal_nan=True)
    return logits


def test_logits_that_are_not_finite_stop_the_run_whatever_the_loss_says(tmp_path, monkeypatch):
    monkeypatch.setattr(TKPR, "forward", lambda self, logits, *_: logits.nan_to_num(0, 0, 0).sum())
    with pytest.raises(FloatingPointError, match=r"^the logits are not finite in epoch 1, step 2"):
        train(*SMALL, *DIVERGES, folder=tmp_path)
    assert not checkpoint.path(tmp_path).exists()


def test_a_loss_that_is_not_finite_leaves_the_last_good_checkpoint(tmp_path, monkeypatch):
    forward, calls = TKPR.forward, []

    def overflow(self, logits, targets, index=None):
        calls.append(self.training)  # it is tried out before
        return forward(self, logits, targets, index) / (0.0 if sum(calls) == 8 else 1.0)

    monkeypatch.setattr(TKPR, "forward", overflow)
    settings = [*SMALL, "trainer.warmup_epochs=0", "trainer.epochs=3", "loss=tkpr_a2"]
    with pytest.raises(
        FloatingPointError, match=r"loss is inf in epoch 2, step 3, .*train-"
    ) as got:
        train(*settings, folder=tmp_path)
    assert str(tmp_path / "last.ckpt") in str(got.value)
    assert checkpoint.load(tmp_path)["epoch"] == 1
    results = train(*settings, folder=tmp_path)  # the cause is gone: the run goes on
    assert results["epochs"] == 3


@pytest.mark.parametrize("clip", [[], ["trainer.clip_norm=1"]], ids=["free", "clipped"])
def test_an_infinite_gradient_of_a_finite_loss_stops_the_run(clip, tmp_path, monkeypatch):
    """The root of 0 has an infinite slope; clipping asks no device whether the norm is finite."""
    monkeypatch.setattr(TKPR, "forward", lambda self, logits, *_: (logits * 0).sqrt().sum())
    with pytest.raises(FloatingPointError, match="the loss is nan in epoch 1, step 2"):
        train(*SMALL, "trainer.warmup_epochs=0", *clip, folder=tmp_path)
    assert not checkpoint.path(tmp_path).exists()


@pytest.mark.parametrize(
    ("what", "name"),
    [
        ("weights", lambda trainer: trainer.module.fc.weight),
        ("weights", lambda trainer: next(b for b in trainer.module.buffers() if b.ndim)),
        ("averaged weights", lambda trainer: trainer.ema.module.fc.weight),
    ],
    ids=["a weight", "batch statistics", "an averaged weight"],
)
def test_weights_that_are_not_finite_never_reach_a_checkpoint(what, name, tmp_path, monkeypatch):
    """A gradient may overflow although the loss does not."""
    pause = Trainer.pause_if_asked

    def poison(trainer):
        if trainer.progress.position[:2] == (1, 5):
            with torch.no_grad():
                name(trainer).flatten()[0] = torch.nan
        pause(trainer)

    monkeypatch.setattr(Trainer, "pause_if_asked", poison)
    settings = [*SMALL, "trainer.epochs=3", "trainer.warmup_epochs=0", "trainer.ema_decay=0.9"]
    with pytest.raises(
        FloatingPointError, match=rf"the {what} \(.* not finite in epoch 2.*last\.ckpt"
    ):
        train(*settings, folder=tmp_path)
    state = checkpoint.load(tmp_path)
    assert state["epoch"] == 1
    for values in (state["model"] | state["ema"]).values():
        assert values.isfinite().all()


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["loss.k=4"], r"loss does not fit the data set: k \+ 1 may not exceed .* 4; got k = 4"),
        (["loss@warmup=tkml"], "warmup does not fit the data set: k .* got k = 5"),
        (
            ["trainer.ks=[3,5]", "trainer.monitor=mAP@3"],
            r"trainer.ks=\[3, 5\] asks for more labels than the 4",
        ),
    ],
)
def test_few_classes_are_noticed_before_the_first_epoch(words, answer, photos, tmp_path):
    settings = [*on_photos(photos.parent), "trainer.warmup_epochs=3", *words]
    with pytest.raises(ValueError, match=answer):
        train(*settings, folder=tmp_path / "run")
    assert not checkpoint.path(tmp_path / "run").exists()
    assert not (tmp_path / "run" / "metrics.csv").exists()
