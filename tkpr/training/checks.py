"""Wrong settings: refused before training, each with one line that says what to set instead."""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from omegaconf import DictConfig, OmegaConf
from torch import nn

from tkpr.config import epochs_to_train
from tkpr.data.sparse import has_lists, label_lists
from tkpr.data.targets import known_where, take
from tkpr.losses.chunked import ChunkedLogits
from tkpr.metrics import find_measure
from tkpr.models.heads import is_chunked

if TYPE_CHECKING:
    from tkpr.training.trainer import Trainer


def whole(least: int) -> tuple[str, Callable[[Any], bool]]:
    """A whole number of at least ``least``."""
    return f"a whole number of at least {least}", lambda value: is_whole(value) and value >= least


def whole_or_auto(least: int) -> tuple[str, Callable[[Any], bool]]:
    """A whole number of at least ``least``, or the word auto."""
    wanted, holds = whole(least)
    return f"{wanted}, or auto", lambda value: value == "auto" or holds(value)


def is_whole(value: Any) -> bool:
    """Whether a value is a whole number; true and false are not.

    >>> is_whole(3), is_whole(True), is_whole(1.5), is_whole("3")
    (True, False, False, False)
    """
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Whether a value is a finite number."""
    return is_whole(value) or (isinstance(value, float) and math.isfinite(value))


ABOVE_0 = "a number above 0", lambda value: is_number(value) and value > 0
AT_LEAST_0 = "a number of at least 0", lambda value: is_number(value) and value >= 0
YES_OR_NO = "true or false", lambda value: isinstance(value, bool)


def one_of(*options: str) -> tuple[str, Callable[[Any], bool]]:
    """One of a few words."""
    return f"one of {', '.join(options)}", lambda value: value in options


# what each setting must be; null is allowed where OPTIONAL names the setting
RULES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "seed": whole(0),
    "split.holdout": (
        "a number from 0 to below 1",
        lambda value: is_number(value) and 0 <= value < 1,
    ),
    "split.limit": whole(1),
    "split.test_unknown": one_of("leave_out", "negative"),
    "transform.size": whole(1),
    "optimizer.lr": AT_LEAST_0,
    "optimizer.weight_decay": AT_LEAST_0,
    "auto_epochs.samples": whole(1),
    "auto_epochs.fewest": whole(1),
    "auto_epochs.most": whole(1),
    "trainer.epochs": whole_or_auto(1),
    "trainer.stop_after": whole(1),
    "trainer.warmup_epochs": whole_or_auto(0),
    "trainer.reset_optimizer": YES_OR_NO,
    "trainer.temperature": ABOVE_0,
    "trainer.batch_size": whole(1),
    "trainer.accumulate": whole(1),
    "trainer.clip_norm": ABOVE_0,
    "trainer.drop_last": YES_OR_NO,
    "trainer.head_lr_multiplier": ABOVE_0,
    "trainer.ema_decay": (
        "a number above 0 and below 1, for instance 0.9997",
        lambda value: is_number(value) and 0 < value < 1,
    ),
    "trainer.eval_weights": one_of("raw", "ema"),
    "trainer.ks": (
        "a list of whole numbers of at least 1, for instance [3,5]",
        lambda value: (
            isinstance(value, list) and len(value) > 0 and all(is_whole(k) and k > 0 for k in value)
        ),
    ),
    "trainer.patience": whole(1),
    "trainer.accelerator": one_of("auto", "cpu", "gpu", "cuda", "mps"),
    "trainer.devices": whole_or_auto(1),
    "trainer.num_nodes": whole(1),
    "trainer.precision": one_of("32-true", "bf16-mixed", "16-mixed", "auto"),
    "trainer.channels_last": YES_OR_NO,
    "trainer.random_weights": YES_OR_NO,
    "trainer.compile": YES_OR_NO,
    "trainer.checkpoint_minutes": AT_LEAST_0,
    "trainer.timeout_minutes": ABOVE_0,
    "trainer.num_workers": whole(0),
}
# optimizers that take sparse gradients
TAKE_SPARSE = ("torch.optim.SGD", "tkpr.training.lazy_adam.LazyAdam")
OPTIONAL = {
    *("split.limit", "transform.size", "trainer.stop_after", "trainer.clip_norm"),
    *("trainer.ema_decay", "trainer.patience"),
}


def check_settings(cfg: DictConfig) -> None:
    """Refuse settings that are nonsense or contradict each other.

    Args:
        cfg: the whole configuration.
    """
    for key, (wanted, holds) in RULES.items():
        value = OmegaConf.select(cfg, key)
        if OmegaConf.is_config(value):
            value = OmegaConf.to_container(value, resolve=True)
        if value is None and key in OPTIONAL:
            continue
        if not holds(value):
            null = ", or null" if key in OPTIONAL else ""
            raise ValueError(f"{key} must be {wanted}{null}; got {value!r}")
    trainer = cfg.trainer
    if trainer.patience and not cfg.split.holdout:
        raise ValueError(
            "early stopping may not look at the test set: set split.holdout=0.2 as well, or "
            "trainer.patience=null"
        )
    warmup = 0 if trainer.warmup_epochs == "auto" else trainer.warmup_epochs
    epochs = math.inf if trainer.epochs == "auto" else epochs_to_train(trainer)
    if warmup >= epochs and cfg.warmup != cfg.loss:
        raise ValueError(
            f"trainer.warmup_epochs={warmup} leaves none of the {epochs} epochs to the main loss: "
            "set fewer, or trainer.warmup_epochs=0"
        )
    if trainer.eval_weights == "ema" and not trainer.ema_decay:
        raise ValueError("trainer.eval_weights=ema needs trainer.ema_decay, for instance 0.9997")
    check_monitor(trainer.monitor, list(trainer.ks))


def check_monitor(monitor: Any, ks: list[int]) -> None:
    """Refuse to monitor what a run does not measure.

    >>> check_monitor("mAP@10", [3, 5])
    Traceback (most recent call last):
    ValueError: trainer.monitor=mAP@10 needs 10 in trainer.ks; got [3, 5]
    """
    try:
        _, k = find_measure(str(monitor))
    except ValueError as error:
        raise ValueError(f"trainer.monitor={monitor}: {error}") from error
    if k is not None and k not in ks:
        raise ValueError(f"trainer.monitor={monitor} needs {k} in trainer.ks; got {ks}")


def check_measured(monitor: str, *, sparse: bool) -> None:
    """Refuse to monitor what is not measured on this kind of data set.

    >>> check_measured("PSP@3", sparse=False)
    Traceback (most recent call last):
    ValueError: trainer.monitor=PSP@3 is not measured on this data set: choose for instance mAP@3
    """
    measure, k = find_measure(monitor)
    known = k is not None if sparse else measure.scope != "propensity"
    if not known and measure.scope != "training":
        raise ValueError(
            f"trainer.monitor={monitor} is not measured on this data set: choose for instance mAP@3"
        )


def check_classes(class_names: list[str], ks: list[int]) -> None:
    """Refuse too few classes, before anything is computed for them.

    >>> check_classes(["cat", "dog"], [3, 5])
    Traceback (most recent call last):
    ValueError: trainer.ks=[3, 5] asks for more labels than the 2 of the data set: set for instance
    'trainer.ks=[1,2]' trainer.monitor=mAP@1
    """
    classes = len(class_names)
    if classes < 2:
        raise ValueError(f"the data set has one class, {class_names[0]!r}: ranking needs two")
    if max(ks) > classes:
        raise ValueError(
            f"trainer.ks={ks} asks for more labels than the {classes} of the data set: "
            f"set for instance 'trainer.ks=[1,{classes}]' trainer.monitor=mAP@1"
        )


def check_against_data(trainer: "Trainer") -> None:
    """Refuse settings that do not fit the data now, not after the first epoch or the warm-up."""
    settings, data, fabric = trainer.settings, trainer.data, trainer.fabric
    classes = len(data.class_names)
    check_measured(settings.monitor, sparse=has_lists(data.test))
    targets: Any = data.train_targets[:1]
    first = torch.zeros(1, dtype=torch.long)
    if has_lists(data.train):
        targets = label_lists(targets, np.arange(1))
    else:
        targets = take(torch.from_numpy(targets), known_where(data.train_unknown), first)
    logits: Any = torch.zeros(1, classes, device=fabric.device)
    if is_chunked(trainer.module):
        check_chunked(trainer.cfg, fabric.world_size)
        logits = ChunkedLogits(logits[:, :1], logits.T, logits[0])
    sample = (logits, *fabric.to_device((targets, first)))
    for name, loss in zip(("warmup", "loss"), trainer.losses, strict=True):
        if name == "loss" or settings.warmup_epochs:
            try:
                loss.eval()(*sample)
            except ValueError as error:
                raise ValueError(f"{name} does not fit the data set: {error}") from error


def check_chunked(cfg: DictConfig, processes: int) -> None:
    """Refuse what the sparse gradient of a chunked head does not allow.

    Args:
        cfg: the whole configuration.
        processes: how many train together.

    >>> optimizer = {"_target_": "torch.optim.SGD", "momentum": 0.9, "weight_decay": 0}
    >>> trainer = {"clip_norm": None}
    >>> check_chunked(OmegaConf.create({"optimizer": optimizer, "trainer": trainer}), 1)
    Traceback (most recent call last):
    ValueError: model.head=chunked has a sparse gradient: set optimizer.momentum=0
    """
    optimizer, trainer, change = cfg.optimizer, cfg.trainer, None
    if optimizer._target_ not in TAKE_SPARSE:
        change = "optimizer=lazy_adam, or optimizer=sgd without momentum and weight decay"
    elif optimizer.get("momentum"):
        change = "optimizer.momentum=0" + " optimizer.nesterov=false" * bool(
            optimizer.get("nesterov")
        )
    elif optimizer.weight_decay:
        change = "optimizer.weight_decay=0"
    elif trainer.clip_norm:
        change = "trainer.clip_norm=null"
    elif processes > 1:
        change = "trainer.devices=1"
    if change:
        raise ValueError(f"model.head=chunked has a sparse gradient: set {change}")


@torch.no_grad()
def check_model(model: nn.Module, input_shape: tuple[int, ...], num_classes: int) -> None:
    """Refuse a model that does not take the inputs or does not give a score per class.

    Args:
        model: on the CPU.
        input_shape: of one input.
        num_classes: C.

    >>> check_model(nn.Linear(4, 3), (4,), 2)
    Traceback (most recent call last):
    ValueError: the model gives scores of shape (1, 3) for one input; with 2 classes it must give
    (1, 2)
    """
    training = model.training
    try:
        logits = model.eval()(torch.zeros(1, *input_shape))
    except (RuntimeError, ValueError, AssertionError, IndexError, TypeError) as error:
        reason = (str(error).strip() or repr(error)).splitlines()[0]
        raise ValueError(
            f"the model does not take inputs of shape {input_shape} ({reason}): choose another "
            "model, transform.size or data set"
        ) from error
    finally:
        model.train(training)
    if logits.shape != (1, num_classes):
        raise ValueError(
            f"the model gives scores of shape {tuple(logits.shape)} for one input; with "
            f"{num_classes} classes it must give (1, {num_classes})"
        )
