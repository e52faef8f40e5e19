"""Images that break while a run is under way, and losses that are not finite."""

import json
import logging

import numpy as np
import pytest
import torch

from tests.data.miniature import make_csv
from tests.runs import SMALL, train
from tkpr import checkpoint
from tkpr.data.core import Split
from tkpr.data.images import ImageDataset
from tkpr.finished import load_predictions
from tkpr.losses import TKPR
from tkpr.metrics import evaluate
from tkpr.trainer import Trainer


def on_photos(folder):
    """Settings for the miniature folder with a CSV file: 12 training and 6 test images."""
    return [
        *("dataset=csv", f"dataset.root={folder}", "model=tiny", "model.width=8"),
        *(
            "transform=small",
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

    def begin_and_damage(trainer, epoch):
        if epoch == 2:
            for name in names:
                (photos / name).write_bytes(b"\xff\xd8\xff not a picture any more")
        begin(trainer, epoch)

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
    named = [record.getMessage() for record in caplog.records if record.name == "tkpr.trainer"]
    wanted = [f"left out, because it cannot be read: photos/{n}.jpg" for n in ("03", "07", "13")]
    assert sorted(named) == wanted
    stored = load_predictions(tmp_path / "run")
    assert "photos/13.jpg" not in stored["ids"]
    again = evaluate(stored["logits"], stored["targets"], ks=[1, 2])
    assert again == pytest.approx(results["metrics"], rel=1e-12)


def test_what_was_skipped_before_a_stop_is_still_counted_after_it(photos, tmp_path, monkeypatch):
    """A run that stops after its last epoch, before the results, must not forget the count."""
    (photos / "05.jpg").unlink()
    settings = [*on_photos(photos.parent), "dataset.on_error=skip", "dataset.check_files=false"]
    with monkeypatch.context() as patch:
        patch.setattr("tkpr.run.write_results", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            train(*settings, folder=tmp_path / "run")
    results = train(*settings, folder=tmp_path / "run")
    assert results["counts"]["train_unreadable"] == 1
    assert json.loads((tmp_path / "run" / "metrics.json").read_text()) == results


def test_a_whole_batch_of_corrupt_images_is_an_error(tmp_path):
    paths = [tmp_path / f"{number}.jpg" for number in range(3)]
    for path in paths:
        path.write_bytes(b"nothing")
    split = Split(paths, np.ones((3, 2), dtype=np.uint8), ["a", "b", "c"])
    dataset = ImageDataset(split, size=8, on_error="skip")
    with pytest.raises(ValueError, match=r"not one image of a whole batch .*2\.jpg"):
        dataset.__getitems__([0, 1, 2])
    with pytest.raises(ValueError, match="on_error must be raise or skip; got 'ignore'"):
        ImageDataset(split, size=8, on_error="ignore")


def test_the_batch_behind_a_loss_that_is_not_finite_reproduces_it(tmp_path, monkeypatch):
    """From the file alone, and the last good checkpoint is the one before."""
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
    batch = torch.load(tmp_path / "bad_batch_rank0.pt", weights_only=True)
    assert set(batch) == {"inputs", "targets", "index", "logits"}
    assert batch["inputs"].shape == (8, 3, 32, 32)
    results = train(*settings, folder=tmp_path)  # the cause is gone: the run goes on
    assert results["epochs"] == 3


def test_weights_that_are_not_finite_never_reach_a_checkpoint(tmp_path, monkeypatch):
    """A gradient may overflow although the loss does not."""
    pause = Trainer.pause_if_asked

    def poison(trainer):
        if (trainer.epoch, trainer.step) == (1, 3):
            with torch.no_grad():
                trainer.module.fc.weight[0, 0] = torch.nan
        pause(trainer)

    monkeypatch.setattr(Trainer, "pause_if_asked", poison)
    monkeypatch.setattr(TKPR, "forward", lambda self, logits, *_: logits.nan_to_num().mean())
    settings = [*SMALL, "trainer.epochs=3", "trainer.warmup_epochs=0"]
    with pytest.raises(FloatingPointError, match=r"weights .* not finite in epoch 2.*last\.ckpt"):
        train(*settings, folder=tmp_path)
    state = checkpoint.load(tmp_path)
    assert state["epoch"] == 1
    assert all(value.isfinite().all() for value in state["model"].values())


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["loss.k=4"], r"loss does not fit the data set: k \+ 1 may not exceed .* 4; got k = 4"),
        (["loss@warmup=tkml"], "warmup does not fit the data set: k .* got k = 5"),
        (["trainer.ks=[3,5]"], r"trainer.ks=\[3, 5\] asks for more labels than the 4"),
    ],
)
def test_few_classes_are_noticed_before_the_first_epoch(words, answer, photos, tmp_path):
    settings = [*on_photos(photos.parent), "trainer.warmup_epochs=3", *words]
    with pytest.raises(ValueError, match=answer):
        train(*settings, folder=tmp_path / "run")
    assert not checkpoint.path(tmp_path / "run").exists()
    assert not (tmp_path / "run" / "metrics.csv").exists()
