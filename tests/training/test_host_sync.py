"""A training step asks the device for no number; batches are copied while it computes."""

import types

import pytest
import torch
from torch import nn

from scripts.bench_trainer import make_trainer
from tests.losses.conftest import as_on_device
from tests.losses.test_device import SYNCS, Operators
from tests.short_runs import SMALL
from tkpr.losses.label_lists import LabelLists
from tkpr.training import loader
from tkpr.training.nonfinite import LossReading
from tkpr.training.optimizer import build_optimizer, parameter_groups

OPTIONS = {
    "sgd": ["optimizer=sgd", "scheduler=onecycle"],
    "adam, clipped": ["optimizer=adam", "trainer.clip_norm=1"],
    "adamw, averaged": ["optimizer=adamw", "scheduler=cosine", "trainer.ema_decay=0.9"],
    "accumulated": ["trainer.accumulate=2"],
    "bf16": ["trainer.precision=bf16-mixed", "trainer.channels_last=true"],
    "unreadable images skipped": ["+dataset.on_error=skip"],
}


def syncs(trainer, batches):
    """Count the host syncs of an epoch of some batches, its end included."""
    trainer.loader, trainer.steps = batches, len(batches)
    trainer.progress.step, trainer.progress.total_loss = 0, 0.0
    tolist, lists = torch.Tensor.tolist, []  # reads memory without an operator
    with Operators() as operators, pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "tolist", lambda tensor: lists.append(1) or tolist(tensor))
        trainer.train_epoch()
    assert operators.count["convolution"] or operators.count["mkldnn_convolution"]
    assert operators.count["convolution_backward"] or operators.count["mkldnn_convolution_backward"]
    operators.count["tolist"] = len(lists)
    return {name: operators.count[name] for name in (*SYNCS, "tolist") if operators.count[name]}


@pytest.mark.parametrize("options", OPTIONS)
def test_a_step_without_host_sync(options, tmp_path, monkeypatch):
    """Four steps have as many syncs as two: those of the epoch's end, none of a step."""
    as_on_device(monkeypatch)
    words = [*SMALL, "trainer.warmup_epochs=0", "trainer.epochs=2", *OPTIONS[options]]
    trainer = make_trainer(str(tmp_path), *words)
    trainer.begin_epoch()
    batches = list(trainer.loader)
    assert len(batches) == 5
    syncs(trainer, batches[:2])  # the optimizer makes its state
    assert syncs(trainer, batches[:2]) == syncs(trainer, batches[:4])


def test_the_count_sees_a_sync(tmp_path, monkeypatch):
    trainer = make_trainer(str(tmp_path), *SMALL, "trainer.warmup_epochs=0")
    trainer.begin_epoch()
    batches = list(trainer.loader)
    update = type(trainer).update_weights

    def curious(trainer):
        update(trainer)
        float(next(trainer.module.parameters()).sum())

    monkeypatch.setattr(type(trainer), "update_weights", curious)
    two, four = syncs(trainer, batches[:2]), syncs(trainer, batches[:4])
    assert four["_local_scalar_dense"] - two["_local_scalar_dense"] >= 2


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "Adagrad"])
def test_optimizers_are_fused(name):
    groups = parameter_groups(nn.Linear(3, 2), [], lr=0.1, weight_decay=0.01)
    from omegaconf import OmegaConf

    node = {"_target_": f"torch.optim.{name}", "_partial_": True, "lr": 0.1}
    assert build_optimizer(OmegaConf.create(node), groups).defaults["fused"]
    assert not build_optimizer(OmegaConf.create(node), groups, fused=False).defaults["fused"]
    chosen = build_optimizer(OmegaConf.create(node | {"foreach": True}), groups)
    assert not chosen.defaults["fused"]
    node["_target_"] = "torch.optim.RMSprop"
    assert "fused" not in build_optimizer(OmegaConf.create(node), groups).defaults


@pytest.mark.parametrize("unusual", [{"device": "meta"}, {"dtype": torch.complex64}], ids=str)
def test_weights_without_a_fused_kernel_get_the_plain_one(unusual):
    from omegaconf import OmegaConf

    node = {"_target_": "torch.optim.SGD", "_partial_": True, "lr": 0.1}
    groups = parameter_groups(nn.Linear(3, 2, **unusual), [], lr=0.1, weight_decay=0.01)
    assert not build_optimizer(OmegaConf.create(node), groups).defaults["fused"]


def test_the_fused_step_is_the_plain_one():
    from omegaconf import OmegaConf

    for node in (
        {"_target_": "torch.optim.SGD", "momentum": 0.9, "nesterov": True},
        {"_target_": "torch.optim.Adam"},
        {"_target_": "torch.optim.AdamW"},
    ):
        weights = []
        for fused in (True, False):
            torch.manual_seed(0)
            model = nn.Linear(5, 3)
            groups = parameter_groups(model, [], lr=0.1, weight_decay=0.01)
            cfg = OmegaConf.create({**node, "_partial_": True, "lr": 0.1})
            optimizer = build_optimizer(cfg, groups, fused=fused)
            for _ in range(3):
                optimizer.zero_grad()
                model(torch.randn(4, 5)).square().sum().backward()
                optimizer.step()
            weights.append(model.weight.detach())
        torch.testing.assert_close(*weights)


@pytest.mark.parametrize(
    ("loss", "logits", "expected"),
    [
        (0.5, [[1.0, 2.0]], (0.5, True)),
        (torch.inf, [[1.0, 2.0]], (torch.inf, False)),
        (0.5, [[-torch.inf, 2.0]], (0.5, False)),
    ],
)
def test_a_reading(loss, logits, expected):
    loss = torch.tensor(loss, requires_grad=True)
    reading = LossReading(loss, torch.tensor(logits))
    with torch.no_grad():
        loss.zero_()  # what was read stays
    assert reading.read() == expected


class Streams:
    """Note what happens on a GPU that is not there."""

    def __init__(self, monkeypatch):
        self.notes, self.inside = [], False
        monkeypatch.setattr(torch.cuda, "Stream", lambda device: "side")
        monkeypatch.setattr(torch.cuda, "stream", lambda stream: self)
        current = types.SimpleNamespace(wait_stream=lambda _: self.notes.append("wait"))
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: current)

    def __enter__(self):
        self.inside = True

    def __exit__(self, *_):
        self.inside = False


class Part:
    """A tensor of a batch that notes when its memory is kept for a stream."""

    def __init__(self, name, notes):
        self.name, self.notes = name, notes

    def record_stream(self, _):
        self.notes.append(f"keep {self.name}")


def test_a_batch_is_copied_while_the_one_before_is_in_use(monkeypatch):
    streams = Streams(monkeypatch)

    def to_device(batch):
        assert streams.inside
        streams.notes.append(f"copy {batch[0].name}")
        return batch

    fabric = types.SimpleNamespace(device=torch.device("cuda", 0), to_device=to_device)
    batches = [(Part(name, streams.notes),) for name in "abc"]
    for batch in loader.prefetch(batches, fabric):
        streams.notes.append(f"use {batch[0].name}")
    assert streams.notes == [
        *("copy a", "wait", "keep a"),
        *("copy b", "use a", "wait", "keep b"),
        *("copy c", "use b", "wait", "keep c"),
        "use c",
    ]
    streams.notes.clear()
    assert list(loader.prefetch([], fabric)) == []


def test_lists_of_labels_are_kept_for_a_stream():
    kept = []
    lists = LabelLists(torch.tensor([[1, 0]]))
    lists.rows, lists.columns = Part("rows", kept), Part("columns", kept)
    loader.record_stream((Part("bags", kept), lists), None)
    assert kept == ["keep bags", "keep rows", "keep columns"]
