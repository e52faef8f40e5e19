"""Every wrong setting that can be known before training is refused before training."""

import numpy as np
import pytest
import torch

from tests.data.miniature import make_arff
from tests.short_runs import SMALL, compose, train
from tkpr.training.checks import OPTIONAL, RULES, check_settings
from tkpr.training.trainer import Trainer


@pytest.fixture(autouse=True)
def no_training(monkeypatch):
    """Fail a test whose settings are accepted."""
    monkeypatch.setattr(Trainer, "fit", lambda _: pytest.fail("training has begun"))


NONSENSE = {
    "trainer.accumulate=0": "trainer.accumulate must be a whole number of at least 1; got 0",
    "trainer.accumulate=-1": "trainer.accumulate must be a whole number of at least 1; got -1",
    "trainer.clip_norm=-1": "trainer.clip_norm must be a number above 0, or null; got -1",
    "trainer.head_lr_multiplier=-1": "head_lr_multiplier must be a number above 0; got -1",
    "trainer.ema_decay=1": "trainer.ema_decay must be a number above 0 and below 1, .*; got 1",
    "trainer.ema_decay=0": "trainer.ema_decay must be a number above 0 and below 1, .*; got 0",
    "trainer.eval_weights=ema": "trainer.eval_weights=ema needs trainer.ema_decay",
    "trainer.eval_weights=best": "trainer.eval_weights must be one of raw, ema; got 'best'",
    "trainer.ks=[0]": r"trainer.ks must be a list of whole numbers of at least 1, .* got \[0\]",
    "trainer.ks=[]": r"trainer.ks must be a list of whole numbers of at least 1, .* got \[\]",
    "trainer.ks=3": "trainer.ks must be a list of whole numbers of at least 1, .* got 3",
    "trainer.ks=[11]": r"trainer.monitor=mAP@3 needs 3 in trainer.ks; got \[11\]",
    "trainer.ks=[3,11]": r"trainer.ks=\[3, 11\] asks for more labels than the 10",
    "trainer.monitor=mAP@10": r"trainer.monitor=mAP@10 needs 10 in trainer.ks; got \[3, 5\]",
    "trainer.monitor=map@3": "trainer.monitor=map@3: no measure 'map@3': choose one of",
    "trainer.monitor=PSP@3": "trainer.monitor=PSP@3 is not measured on this data set",
    "trainer.epochs=0": "trainer.epochs must be a whole number of at least 1, or auto; got 0",
    "trainer.batch_size=0": "trainer.batch_size must be a whole number of at least 1; got 0",
    "trainer.patience=0": "trainer.patience must be a whole number of at least 1, or null; got 0",
    "trainer.precision=fp8": "trainer.precision must be one of 32-true, bf16-mixed, 16-mixed",
    "trainer.accelerator=tpu": "trainer.accelerator must be one of auto, cpu, gpu, cuda, mps",
    "trainer.devices=-1": "trainer.devices must be a whole number of at least 1, or auto; got -1",
    "trainer.devices=0": "trainer.devices must be a whole number of at least 1, or auto; got 0",
    "trainer.num_workers=-1": "trainer.num_workers must be a whole number of at least 0; got -1",
    "trainer.drop_last=maybe": "trainer.drop_last must be true or false; got 'maybe'",
    "trainer.timeout_minutes=0": "trainer.timeout_minutes must be a number above 0; got 0",
    "seed=1.5": "seed must be a whole number of at least 0; got 1.5",
    "seed=-1": "seed must be a whole number of at least 0; got -1",
    "seed=true": "seed must be a whole number of at least 0; got True",
    "optimizer.lr=abc": "optimizer.lr must be a number of at least 0; got 'abc'",
    "optimizer.lr=nan": "optimizer.lr must be a number of at least 0; got nan",
    "optimizer.lr=-0.1": "optimizer.lr must be a number of at least 0; got -0.1",
    "transform.size=0": "transform.size must be a whole number of at least 1, or null; got 0",
    "split.holdout=1": "split.holdout must be a number from 0 to below 1; got 1",
    "split.limit=0": "split.limit must be a whole number of at least 1, or null; got 0",
}


@pytest.mark.parametrize("word", NONSENSE)
def test_nonsense_is_refused(word, tmp_path):
    words = [other for other in SMALL if other.split("=")[0] != word.split("=")[0]]
    with pytest.raises(ValueError, match=NONSENSE[word]) as refused:
        train(*words, word, folder=tmp_path / "run")
    assert "\n" not in str(refused.value)


def test_a_warm_up_of_half_the_epochs_leaves_one_epoch_to_the_loss(tmp_path):
    check_settings(compose("trainer.epochs=1", "trainer.warmup_epochs=auto", folder=tmp_path))


def test_every_setting_of_the_trainer_has_a_rule(tmp_path):
    cfg = compose(folder=tmp_path)
    check_settings(cfg)
    ruled = {key.removeprefix("trainer.") for key in RULES if key.startswith("trainer.")}
    assert ruled | {"monitor"} == set(cfg.trainer)
    assert set(RULES) >= OPTIONAL


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has one")
def test_an_accelerator_that_is_not_there_is_refused(tmp_path):
    words = [word for word in SMALL if "accelerator" not in word]
    answer = "trainer.accelerator=gpu with trainer.devices=1 is not possible on this machine: "
    with pytest.raises(ValueError, match=answer):
        train(*words, "trainer.accelerator=gpu", folder=tmp_path / "run")


def on_features(folder):
    make_arff(folder)
    return [
        *("dataset=arff", f"dataset.root={folder}", "dataset.name=mini", "loss.k=2"),
        *("trainer.ks=[1,2]", "trainer.monitor=mAP@1", "trainer.accelerator=cpu"),
    ]


def test_an_image_model_on_features_is_refused(tmp_path):
    answer = r"the model does not take inputs of shape \(6,\) .*: choose another model"
    with pytest.raises(ValueError, match=answer):
        train(*on_features(tmp_path / "data"), "model=tiny", folder=tmp_path / "run")


def test_a_head_rate_without_a_head_is_refused(tmp_path):
    words = ["model=ccd", "model.model_name=resnet18", "model.pretrained=false"]
    words += ["trainer.head_lr_multiplier=10", *(word for word in SMALL if "width" not in word)]
    with pytest.raises(ValueError, match="head_lr_multiplier=10 needs a model with a head"):
        train(*words, folder=tmp_path / "run")


def spoil(monkeypatch, **changes):
    """Change the data of a run after they are loaded."""
    from tkpr.data.dataset import MultiLabelData, Split
    from tkpr.runs import run

    load = run.build_dataset

    def changed(cfg):
        data = load(cfg)
        names = changes.get("class_names", data.class_names)
        rows = changes.get("rows", len(data.test))
        scale = changes.get("scale", 1)
        parts = [
            Split(part.inputs[:kept], factor * part.targets[:kept, : len(names)], part.ids[:kept])
            for part, kept, factor in ((data.train, None, 1), (data.test, rows, scale))
        ]
        return MultiLabelData(names, *parts)

    monkeypatch.setattr(run, "build_dataset", changed)


@pytest.mark.parametrize(
    ("changes", "answer"),
    [
        ({"rows": 0}, "the test set is empty"),
        ({"scale": np.uint8(0)}, "not one of the 23 test samples has a label"),
        ({"class_names": ["zero"]}, "the data set has one class, 'zero': ranking needs two"),
    ],
    ids=str,
)
def test_data_that_cannot_be_measured_on_are_refused(changes, answer, tmp_path, monkeypatch):
    spoil(monkeypatch, **changes)
    words = ["loss=bce", "trainer.warmup_epochs=0", "trainer.ks=[1]", "trainer.monitor=mAP@1"]
    with pytest.raises(ValueError, match=answer):
        train(*SMALL, *words, folder=tmp_path / "run")
