"""The trainer's loop against a bare one, on a few features: seconds for many settings."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from lightning_fabric import Fabric
from omegaconf import OmegaConf
from torch import nn

from tests.short_runs import compose
from tkpr.config import build
from tkpr.data.dataset import MultiLabelData, Split
from tkpr.models.heads import ChunkedLinear
from tkpr.runs.run import build_data
from tkpr.training.loader import make_loader
from tkpr.training.trainer import Trainer, train_stats

SAMPLES, FEATURES, CLASSES, BATCH, EPOCHS = 18, 5, 6, 4, 3
STEPS = 5  # of an epoch: four batches of 4, one of 2


def samples(count: int, seed: int) -> Split:
    rng = np.random.default_rng(seed)
    inputs = rng.normal(size=(count, FEATURES)).astype(np.float32)
    targets = (rng.random((count, CLASSES)) < 0.3).astype(np.uint8)
    targets[:, 0] |= targets.sum(1) == 0
    return Split(inputs, targets, [f"{seed}-{number}" for number in range(count)])


@cache
def plain_settings():
    words = ["dataset=features", "recipe=tabular", "loss=bce", "loss@warmup=rank", "optimizer=sgd"]
    words += ["optimizer.weight_decay=0.1", "optimizer.lr=0.5", "scheduler=onecycle"]
    words += [f"trainer.batch_size={BATCH}", f"trainer.epochs={EPOCHS}", "trainer.warmup_epochs=1"]
    words += ["trainer.num_workers=0", "trainer.accelerator=cpu"]
    return compose(*words, folder="unused")


def make_trainer(folder: Path, model: nn.Module | None = None, **settings) -> Trainer:
    """A trainer of a linear model; settings replace those of ``cfg.trainer``, or a loss."""
    cfg = OmegaConf.create(OmegaConf.to_container(plain_settings(), resolve=False))
    cfg.run_dir = str(folder)
    for name in ("warmup", "loss"):
        cfg[name] = settings.pop(name, cfg[name])
    cfg.trainer.update(settings)
    fabric = Fabric(accelerator="cpu", devices=1)
    whole = MultiLabelData(
        [f"class {i}" for i in range(CLASSES)], samples(SAMPLES, 0), samples(7, 1)
    )
    data = build_data(cfg, data=whole)
    return Trainer(cfg, fabric, data, model or linear(), folder)


def linear() -> nn.Linear:
    torch.manual_seed(3)
    return nn.Linear(FEATURES, CLASSES)


def bare_run(trainer: Trainer, **settings):
    """What the trainer should do: weights, averaged weights, loss and rate of each epoch."""
    accumulate = settings.get("accumulate", 1)
    model, average = linear(), linear()
    decays = {True: 0.1, False: 0.0}  # weights are decayed, biases are not
    groups = [{"params": [p], "weight_decay": decays[p.ndim > 1]} for p in model.parameters()]
    optimizer = torch.optim.SGD(groups, lr=0.5, momentum=0.9, nesterov=True)
    steps = EPOCHS * -(-STEPS // accumulate)
    scheduler = build(trainer.cfg.scheduler)(optimizer, steps)
    loader = make_loader(
        trainer.data.train, trainer.fabric, batch_size=BATCH, shuffle_seed=trainer.cfg.seed
    )
    rows = []
    for epoch in range(EPOCHS):
        loader.sampler.set_epoch(epoch)
        if epoch == 1 and settings.get("reset_optimizer"):
            optimizer.state.clear()
        criterion = build(trainer.cfg.warmup if epoch < 1 else trainer.cfg.loss)
        values = []
        for step, (inputs, targets, _) in enumerate(loader, 1):
            loss = criterion(model(inputs) / settings.get("temperature", 1), targets)
            (loss / accumulate).backward()
            values.append(loss.item())
            if step % accumulate and step < STEPS:
                continue
            if norm := settings.get("clip_norm"):
                nn.utils.clip_grad_norm_(model.parameters(), norm)
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            decay = settings.get("ema_decay") or 0
            for ours, theirs in zip(average.parameters(), model.parameters(), strict=True):
                ours.data.lerp_(theirs.data, 1 - decay)
        rows.append((np.mean(values), scheduler.get_last_lr()[0]))
    return model, average, rows


SETTINGS = {
    "plain": {},
    "accumulated": {"accumulate": 2},
    "accumulated by epoch": {"accumulate": STEPS},
    "clipped": {"clip_norm": 0.05},
    "averaged": {"ema_decay": 0.8, "eval_weights": "ema"},
    "averaged, raw ones tested": {"ema_decay": 0.8, "eval_weights": "raw"},
    "temperature": {"temperature": 4.0},
    "moments of the main loss alone": {"reset_optimizer": True},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_the_loop_does_what_a_bare_one_does(name, tmp_path):
    trainer = make_trainer(tmp_path, **SETTINGS[name])
    expected, average, rows = bare_run(trainer, **SETTINGS[name])
    logits = trainer.fit()
    history = trainer.progress.history
    torch.testing.assert_close(trainer.module.state_dict(), expected.state_dict())
    found = [(row["train_loss"], row["lr"]) for row in history]
    np.testing.assert_allclose(found, rows, rtol=1e-5, atol=1e-8)
    tested = average if SETTINGS[name].get("eval_weights") == "ema" else expected
    inputs = torch.from_numpy(samples(7, 1).inputs)
    torch.testing.assert_close(logits, tested(inputs).detach())
    if trainer.ema:
        torch.testing.assert_close(trainer.ema.module.state_dict(), average.state_dict())
    assert [row["epoch"] for row in history] == [1, 2, 3]
    assert all(row["images_per_second"] > 0 for row in history)


def test_a_classifier_learns_faster_by_a_factor(tmp_path):
    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.body, self.head = nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, CLASSES)

        def get_classifier(self):
            return self.head

        def forward(self, features):
            return self.head(self.body(features))

    trainer = make_trainer(tmp_path, Network(), head_lr_multiplier=3)
    rates = {
        parameter: group["lr"]
        for group in trainer.optimizer.param_groups
        for parameter in group["params"]
    }
    assert rates[trainer.module.head.weight] == pytest.approx(3 * rates[trainer.module.body.weight])


class Scaled(nn.Module):
    """A loss with a parameter of its own."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, logits, targets, index=None):
        return (self.scale * logits - targets).square().mean()


def test_only_losses_that_are_used_are_optimized(tmp_path):
    scaled = {"_target_": f"{__name__}.Scaled"}

    def optimized(trainer):
        groups = trainer.optimizer.param_groups
        held = {id(parameter) for group in groups for parameter in group["params"]}
        return [id(loss.scale) in held for loss in trainer.losses]

    both = make_trainer(tmp_path / "1", warmup=scaled, loss=scaled)
    assert optimized(both) == [True, True]
    assert all(hasattr(one, "_forward_module") for one in both.criteria)  # wrapped by Fabric
    alone = make_trainer(tmp_path / "2", warmup=scaled, loss=scaled, warmup_epochs=0)
    assert optimized(alone) == [False, True]
    plain = make_trainer(tmp_path / "3")
    assert plain.criteria == plain.losses  # nothing to wrap


@pytest.mark.parametrize(
    ("settings", "chunked", "fused"),
    [
        ({}, False, True),
        ({"clip_norm": 1.0}, False, True),
        ({"precision": "16-mixed"}, False, True),
        ({"precision": "16-mixed", "clip_norm": 1.0}, False, False),
        ({}, True, False),  # sparse gradients
    ],
)
def test_optimizers_are_fused_where_they_can_be(settings, chunked, fused, tmp_path):
    model = ChunkedLinear(FEATURES, CLASSES) if chunked else None
    trainer = make_trainer(tmp_path, model, **settings)
    assert bool(trainer.optimizer.defaults["fused"]) == fused


@pytest.mark.parametrize("wanted", [True, False])
def test_the_network_is_compiled_and_laid_out_as_asked(wanted, tmp_path, monkeypatch):
    compiled = []
    monkeypatch.setattr(torch, "compile", lambda model: compiled.append(model) or model)
    network = nn.Sequential(nn.Unflatten(1, (FEATURES, 1, 1)), nn.Conv2d(FEATURES, 8, 3, padding=1))
    network = network.append(nn.Flatten()).append(nn.Linear(8, CLASSES))
    trainer = make_trainer(tmp_path, network, compile=wanted, channels_last=wanted)
    assert bool(compiled) == wanted
    weight = trainer.module[1].weight
    assert weight.is_contiguous(memory_format=torch.channels_last) == wanted


def test_training_stops_after_the_epochs_asked_for(tmp_path):
    """The schedule still spans all of them."""
    trainer = make_trainer(tmp_path, stop_after=2)
    _, _, rows = bare_run(trainer)
    trainer.fit()
    assert [row["lr"] for row in trainer.progress.history] == pytest.approx(
        [r[1] for r in rows[:2]]
    )


def test_patience_ends_a_run(tmp_path, monkeypatch):
    trainer = make_trainer(tmp_path, patience=1, warmup_epochs=0, epochs=9)
    scores = iter([0.5, 0.6, 0.55, 0.9])
    logits, measured = trainer.test()
    monkeypatch.setattr(trainer, "test", lambda: (logits, measured | {"mAP@3": next(scores)}))
    trainer.fit()
    assert [row["mAP@3"] for row in trainer.progress.history] == [0.5, 0.6, 0.55]


def test_batches_that_do_not_fill_one_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"18 training samples do not fill one batch: lower"):
        make_trainer(tmp_path, batch_size=19, drop_last=True)
    assert make_trainer(tmp_path, drop_last=True).steps == STEPS - 1


def test_a_finished_run_is_only_tested_again(tmp_path):
    """Stopped after the last epoch, before its results were written: as if it had not been."""
    first = make_trainer(tmp_path)
    logits = first.fit()
    again = make_trainer(tmp_path)
    torch.testing.assert_close(again.fit(), logits, rtol=0, atol=0)
    assert again.progress.epoch == EPOCHS
    same = [{k: v for k, v in row.items() if k != "seconds"} for row in first.progress.history]
    found = [{k: v for k, v in row.items() if k != "seconds"} for row in again.progress.history]
    assert found == same


def test_what_losses_may_ask_for(tmp_path):
    data = make_trainer(tmp_path).data
    stats = train_stats(data, num_epochs=7)
    targets = samples(SAMPLES, 0).targets
    assert (stats["num_samples"], stats["num_classes"], stats["num_epochs"]) == (18, 6, 7)
    assert stats["class_counts"].tolist() == targets.sum(0).tolist()
    assert stats["expected_positives"] == pytest.approx(targets.sum() / 18)
    assert stats["train_targets"].tolist() == targets.tolist()
