"""Settings at their bounds: the last value that is accepted, the first that is refused."""

from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from scipy.sparse import csr_array
from torch import nn

from tests.short_runs import compose
from tests.training.test_trainer import FEATURES, make_trainer
from tkpr.models.heads import ChunkedLinear
from tkpr.training import checks
from tkpr.training.checks import (
    RULES,
    check_against_data,
    check_chunked,
    check_classes,
    check_measured,
    check_model,
    check_settings,
    is_number,
)

SMALL, NAN, INF = 1e-9, float("nan"), float("inf")
BOUNDS = {  # accepted, refused
    "seed": ([0, 1], [-1, 0.5, True, "1", None]),
    "split.holdout": ([0, 0.0, 1 - SMALL], [-SMALL, 1, 1.0, NAN, True]),
    "split.limit": ([1, None], [0, 1.5]),
    "split.test_unknown": (["leave_out", "negative"], ["positive", None]),
    "transform.size": ([1, None], [0]),
    "optimizer.lr": ([0, 0.0, SMALL, 3], [-SMALL, INF, NAN, "1", None]),
    "optimizer.weight_decay": ([0, 0.0, SMALL], [-SMALL, INF, None]),
    "auto_epochs.samples": ([1], [0, 1.5, None]),
    "auto_epochs.fewest": ([1], [0, None]),
    "auto_epochs.most": ([1], [0, None]),
    "trainer.epochs": ([1, 2, "auto"], [0, 1.5, "all", True]),
    "trainer.stop_after": ([1, None], [0]),
    "trainer.warmup_epochs": ([0, 1], [-1, None]),
    "trainer.temperature": ([SMALL, 1], [0, 0.0, -1, INF]),
    "trainer.batch_size": ([1], [0]),
    "trainer.accumulate": ([1], [0]),
    "trainer.clip_norm": ([SMALL, None], [0, 0.0]),
    "trainer.drop_last": ([True, False], [0, 1, None]),
    "trainer.reset_optimizer": ([True, False], [0, 1, None]),
    "trainer.head_lr_multiplier": ([SMALL, 1], [0, None]),
    "trainer.ema_decay": ([SMALL, 1 - SMALL, None], [0, 0.0, 1, 1.0]),
    "trainer.eval_weights": (["raw", "ema"], ["last"]),
    "trainer.ks": ([[3], [1, 3]], [[], [0, 3], [3, 1.5], 3, None]),
    "trainer.patience": ([1, None], [0]),
    "trainer.accelerator": (["auto", "cpu", "gpu", "cuda", "mps"], ["tpu"]),
    "trainer.devices": ([1, "auto"], [0, 1.5, "all"]),
    "trainer.num_nodes": ([1], [0]),
    "trainer.precision": (["32-true", "bf16-mixed", "16-mixed", "auto"], ["64-true"]),
    "trainer.channels_last": ([True, False], ["auto"]),
    "trainer.random_weights": ([True, False], [1]),
    "trainer.compile": ([True, False], [0]),
    "trainer.checkpoint_minutes": ([0, 0.5], [-SMALL]),
    "trainer.timeout_minutes": ([SMALL], [0]),
    "trainer.num_workers": ([0, 1], [-1]),
}


@cache
def plain():
    words = ["split.holdout=0.2", "trainer.warmup_epochs=0", "trainer.epochs=3", "trainer.ks=[3,5]"]
    words += ["trainer.monitor=mAP@3", "trainer.ema_decay=0.9", "trainer.eval_weights=raw"]
    return compose(*words, folder="unused")


def changed(**settings):
    cfg = OmegaConf.create(OmegaConf.to_container(plain(), resolve=False))
    OmegaConf.set_struct(cfg, False)
    for key, value in settings.items():
        OmegaConf.update(cfg, key, value)
    return cfg


def test_every_rule_is_tried():
    assert BOUNDS.keys() == RULES.keys()


@pytest.mark.parametrize("key", BOUNDS)
def test_the_bounds_of_a_setting(key):
    accepted, refused = BOUNDS[key]
    for value in accepted:
        check_settings(changed(**{key: value}))
    for value in refused:
        with pytest.raises(ValueError, match=rf"^{key} must be .*; got ") as error:
            check_settings(changed(**{key: value}))
        assert (", or null; got " in str(error.value)) == (None in accepted)


def test_a_setting_may_refer_to_another():
    check_settings(changed(**{"trainer.ks": ["${trainer.accumulate}", 3]}))


def test_numbers_are_finite():
    found = [is_number(value) for value in (1, 1.5, True, NAN, INF, "1", None)]
    assert found == [True, True, False, False, False, False, False]


def warmup(epochs, *, of=3, stop=None, same=False):
    settings = {"trainer.warmup_epochs": epochs, "trainer.epochs": of, "trainer.stop_after": stop}
    cfg = changed(**settings)
    if same:
        cfg.warmup = cfg.loss
    return cfg


def test_a_warm_up_leaves_an_epoch_to_the_loss():
    for cfg in (warmup(2), warmup(3, same=True), warmup(99, of="auto"), warmup(1, stop=2)):
        check_settings(cfg)
    for cfg, epochs in ((warmup(3), 3), (warmup(4), 3), (warmup(2, stop=2), 2)):
        with pytest.raises(ValueError, match=rf"leaves none of the {epochs} epochs to the main"):
            check_settings(cfg)


def test_early_stopping_and_averaged_weights_need_each_a_setting():
    check_settings(changed(**{"trainer.patience": 3}))
    check_settings(changed(**{"split.holdout": 0}))
    with pytest.raises(ValueError, match=r"^early stopping may not look at the test set: set spli"):
        check_settings(changed(**{"trainer.patience": 3, "split.holdout": 0}))
    check_settings(changed(**{"trainer.ema_decay": None}))
    with pytest.raises(ValueError, match=r"^trainer.eval_weights=ema needs trainer.ema_decay"):
        check_settings(changed(**{"trainer.ema_decay": None, "trainer.eval_weights": "ema"}))


def test_what_may_be_monitored_follows_the_measures():
    check_settings(changed(**{"trainer.monitor": "ranking_loss"}))  # has no K
    check_settings(changed(**{"trainer.monitor": "mAP@5"}))
    with pytest.raises(ValueError, match=r"needs 4 in trainer.ks; got \[3, 5\]"):
        check_settings(changed(**{"trainer.monitor": "mAP@4"}))
    with pytest.raises(ValueError, match=r"^trainer.monitor=accuracy: no measure 'accuracy'"):
        check_settings(changed(**{"trainer.monitor": "accuracy"}))


@pytest.mark.parametrize(
    ("monitor", "dense", "sparse"),
    [
        ("mAP@3", True, True),
        ("PSP@3", False, True),
        ("ranking_loss", True, False),
        ("train_loss", True, True),
    ],
)
def test_what_is_measured_depends_on_the_data_set(monitor, dense, sparse):
    for kind, known in ((False, dense), (True, sparse)):
        if known:
            check_measured(monitor, sparse=kind)
        else:
            with pytest.raises(ValueError, match=f"^trainer.monitor={monitor} is not measured on"):
                check_measured(monitor, sparse=kind)


def test_two_classes_and_as_many_labels_as_classes_are_enough():
    check_classes(["cat", "dog"], [1, 2])
    with pytest.raises(ValueError, match=r"^the data set has one class, 'cat': ranking needs two"):
        check_classes(["cat"], [1])
    with pytest.raises(ValueError, match=r"asks for more labels than the 2 of the data set"):
        check_classes(["cat", "dog"], [3, 1])


class Curious(nn.Module):
    """A loss that notes what it is tried on, or refuses it."""

    def __init__(self, answer=None):
        super().__init__()
        self.answer, self.seen = answer, []

    def forward(self, logits, targets, index):
        if self.answer:
            raise ValueError(self.answer)
        self.seen.append((self.training, logits, targets, index))
        return logits.sum()


def curious(answer=None):
    return {"_target_": f"{__name__}.Curious", "answer": answer}


def test_losses_are_tried_on_the_first_sample(tmp_path):
    trainer = make_trainer(tmp_path, loss=curious(), warmup=curious())
    check_against_data(trainer)
    for loss in trainer.losses:
        ((training, logits, targets, index),) = loss.seen
        assert not training
        assert logits.tolist() == [[0.0] * 6]
        assert targets.tolist() == trainer.data.train_targets[:1].tolist()
        assert index.tolist() == [0]


def test_a_loss_that_does_not_fit_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"^loss does not fit the data set: no$"):
        check_against_data(make_trainer(tmp_path / "1", loss=curious("no")))
    with pytest.raises(ValueError, match=r"^warmup does not fit the data set: no$"):
        check_against_data(make_trainer(tmp_path / "2", warmup=curious("no")))
    check_against_data(make_trainer(tmp_path / "3", warmup=curious("no"), warmup_epochs=0))


def test_unknown_labels_and_lists_are_tried_as_they_come(tmp_path, monkeypatch):
    trainer = make_trainer(tmp_path, loss=curious(), warmup_epochs=0)
    matrix = trainer.data.train_targets
    trainer.data = replace(trainer.data, train_unknown=matrix == 0)
    check_against_data(trainer)
    (_, _, partial, _) = trainer.losses[1].seen.pop()
    assert not partial.irrelevant.any()
    assert partial.relevant.int().tolist() == matrix[:1].tolist()
    trainer.data = replace(trainer.data, train_targets=csr_array(matrix))
    monkeypatch.setattr(checks, "has_lists", lambda part: part is trainer.data.train)
    check_against_data(trainer)
    (_, _, lists, _) = trainer.losses[1].seen.pop()
    assert lists.num_rows == 1
    assert lists.columns.tolist() == np.flatnonzero(matrix[0]).tolist()


def test_the_measure_of_a_data_set_of_lists_is_checked(tmp_path, monkeypatch):
    trainer = make_trainer(tmp_path, monitor="ranking_loss")
    check_against_data(trainer)
    monkeypatch.setattr(checks, "has_lists", lambda part: part is trainer.data.test)
    with pytest.raises(ValueError, match=r"trainer\.monitor=ranking_loss is not measured"):
        check_against_data(trainer)


def test_losses_of_a_chunked_head_are_tried_on_chunks(tmp_path):
    trainer = make_trainer(tmp_path, ChunkedLinear(FEATURES, 6), loss=curious(), warmup_epochs=0)
    with pytest.raises(ValueError, match=r"a sparse gradient: set optimizer\.momentum=0 optimiz"):
        check_against_data(trainer)
    trainer.cfg.optimizer.update({"momentum": 0, "weight_decay": 0})
    trainer.losses[1].forward = lambda logits, *_: trainer.losses[1].seen.append(logits.dense())
    check_against_data(trainer)
    assert trainer.losses[1].seen[0].tolist() == [[0.0] * 6]


@pytest.mark.parametrize(
    ("optimizer", "clip", "processes", "change"),
    [
        ({"_target_": "torch.optim.SGD"}, None, 1, None),
        ({"_target_": "tkpr.training.lazy_adam.LazyAdam"}, None, 1, None),
        (
            {"_target_": "torch.optim.Adam"},
            None,
            1,
            "optimizer=lazy_adam, or optimizer=sgd without",
        ),
        ({"momentum": 0.9}, None, 1, "optimizer.momentum=0$"),
        ({"momentum": 0.9, "nesterov": False}, None, 1, "optimizer.momentum=0$"),
        (
            {"momentum": 0.9, "nesterov": True},
            None,
            1,
            "optimizer.momentum=0 optimizer.nesterov=false$",
        ),
        ({"weight_decay": 0.1}, None, 1, "optimizer.weight_decay=0$"),
        ({}, 1.0, 1, "trainer.clip_norm=null$"),
        ({}, None, 2, "trainer.devices=1$"),
    ],
)
def test_what_a_sparse_gradient_does_not_allow(optimizer, clip, processes, change):
    node = {"_target_": "torch.optim.SGD", "weight_decay": 0} | optimizer
    cfg = OmegaConf.create({"optimizer": node, "trainer": {"clip_norm": clip}})
    if change is None:
        check_chunked(cfg, processes)
    else:
        with pytest.raises(
            ValueError, match=f"^model.head=chunked has a sparse gradient: set {change}"
        ):
            check_chunked(cfg, processes)


@pytest.mark.parametrize("training", [True, False])
def test_a_model_is_tried_in_evaluation_mode_and_left_as_it_was(training):
    modes = []
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3)).train(training)
    model.register_forward_hook(lambda module, *_: modes.append(module.training))
    check_model(model, (4,), 3)
    assert modes == [False]
    assert model.training == training
    assert model[0].num_batches_tracked == 0
    with pytest.raises(
        ValueError, match=r"^the model does not take inputs of shape \(5,\) \(.+\): "
    ):
        check_model(model, (5,), 3)
    assert model.training == training
    with pytest.raises(
        ValueError, match=r"gives scores of shape \(1, 3\) for one input; with 4 cla"
    ):
        check_model(model, (4,), 4)


@pytest.mark.parametrize(
    ("error", "reason"), [(TypeError(), r"TypeError\(\)"), (RuntimeError("a\nb"), "a")]
)
def test_why_a_model_does_not_take_its_inputs(error, reason):
    def fail(*_):
        raise error

    model = nn.Linear(2, 2)
    model.register_forward_pre_hook(fail)
    with pytest.raises(ValueError, match=rf"inputs of shape \(2,\) \({reason}\): choose another"):
        check_model(model, (2,), 2)


def test_scores_of_two_inputs_are_no_scores_of_one():
    model = SimpleNamespace(training=False, train=lambda _: None)
    model.eval = lambda: lambda inputs: torch.zeros(2 * len(inputs), 3)
    with pytest.raises(ValueError, match=r"gives scores of shape \(2, 3\)"):
        check_model(model, (4,), 3)
