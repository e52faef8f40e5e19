"""Learning-rate schedules, stepped once per optimizer step."""

from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LRScheduler, OneCycleLR


def onecycle(optimizer: Optimizer, total_steps: int, **options: Any) -> LRScheduler:
    """1-cycle policy: up to each group's learning rate, then down to almost 0, along cosines.

    >>> import torch
    >>> optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1, momentum=0.9)
    >>> schedule = onecycle(optimizer, 10, pct_start=0.2)
    >>> rates = []
    >>> for _ in range(9):
    ...     optimizer.step(); schedule.step(); rates.append(schedule.get_last_lr()[0])
    >>> max(rates), rates.index(max(rates)), rates[-1] < 1e-6
    (0.1, 0, True)
    """
    rates = [group["lr"] for group in optimizer.param_groups]
    # of fewer than ten steps the rise would have no length
    return OneCycleLR(optimizer, max_lr=rates, total_steps=max(total_steps, 10), **options)


def cosine(optimizer: Optimizer, total_steps: int) -> LRScheduler:
    """From each group's learning rate down to 0 along half a cosine."""
    return CosineAnnealingLR(optimizer, total_steps)


def constant(optimizer: Optimizer, total_steps: int) -> LRScheduler:
    """Each group's learning rate, throughout."""
    return LambdaLR(optimizer, lambda step: 1.0)
