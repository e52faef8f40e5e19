"""The optimizer and its parameter groups: weight decay and learning rates."""

import inspect
from collections.abc import Iterable
from typing import Any

import hydra.utils
from omegaconf import DictConfig
from timm.optim import param_groups_weight_decay
from torch import nn
from torch.optim import Optimizer

from tkpr.config import build
from tkpr.losses.protocol import LearnsFaster

FUSED_ON = ("cpu", "cuda", "mps", "xpu")  # devices for which torch has fused kernels


def build_optimizer(
    cfg: DictConfig, groups: list[dict[str, Any]], *, fused: bool = True
) -> Optimizer:
    """Build the optimizer that a configuration names, fused where torch has it.

    A fused optimizer updates all weights in one kernel and asks the device for no number.

    Args:
        cfg: its ``_target_`` is a class of optimizers; ``fused`` and ``foreach`` are left as set.
        groups: of :func:`parameter_groups`.
        fused: whether to ask for the fused kernel.

    >>> from omegaconf import OmegaConf
    >>> cfg = OmegaConf.create({"_target_": "torch.optim.SGD", "_partial_": True, "lr": 0.1})
    >>> groups = parameter_groups(nn.Linear(2, 2), [], lr=0.1, weight_decay=0)
    >>> build_optimizer(cfg, groups).defaults["fused"]
    True
    """
    known = inspect.signature(hydra.utils.get_object(cfg._target_)).parameters
    parameters = [parameter for group in groups for parameter in group["params"]]
    possible = (
        "fused" in known
        and not {"fused", "foreach"} & set(cfg)
        and all(p.is_floating_point() and p.device.type in FUSED_ON for p in parameters)
    )
    options: dict[str, Any] = {"fused": True} if fused and possible else {}
    return build(cfg, **options)(groups)


def parameter_groups(
    model: nn.Module,
    losses: Iterable[nn.Module],
    *,
    lr: float,
    weight_decay: float,
    head_lr_multiplier: float = 1.0,
) -> list[dict[str, Any]]:
    """Group the parameters of a model and of its losses for the optimizer.

    Biases and other 1-D parameters are not decayed, nor are the parameters of a loss, whose
    learning rate may be a multiple of the model's (:class:`~tkpr.losses.protocol.LearnsFaster`).

    Args:
        model: its classifier (timm's ``get_classifier``) is the head.
        losses: each with parameters gets a group of its own.
        lr: the learning rate.
        weight_decay: for parameters of two and more dimensions.
        head_lr_multiplier: learning rate of the head, as a multiple of ``lr``.

    >>> groups = parameter_groups(nn.Linear(3, 2), [], lr=0.1, weight_decay=0.01)
    >>> [(group["lr"], group["weight_decay"], len(group["params"])) for group in groups]
    [(0.1, 0.0, 1), (0.1, 0.01, 1)]
    """
    groups = [{"lr": lr, **group} for group in param_groups_weight_decay(model, weight_decay)]
    if head_lr_multiplier != 1:
        if not hasattr(model, "get_classifier"):
            raise ValueError(
                f"trainer.head_lr_multiplier={head_lr_multiplier} needs a model with a head "
                f"(get_classifier); {type(model).__name__} has none: set it to 1"
            )
        head = {id(p) for p in model.get_classifier().parameters()}  # type: ignore[operator]
        for group in list(groups):
            fast = [p for p in group["params"] if id(p) in head]
            group["params"] = [p for p in group["params"] if id(p) not in head]
            groups.append({**group, "params": fast, "lr": lr * head_lr_multiplier})
    for loss in losses:
        rate = lr * (loss.learning_rate_multiplier if isinstance(loss, LearnsFaster) else 1)
        groups.append({"params": list(loss.parameters()), "lr": rate, "weight_decay": 0.0})
    return [group for group in groups if group["params"]]
