"""The checks that every loss makes before it computes."""

from collections.abc import Callable, Mapping
from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T")
REDUCTIONS: dict[str, Callable[[Tensor], Tensor]] = {"sum": torch.sum, "mean": torch.mean}


def prepare(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Check one batch and lift it to float32 where it comes in half precision.

    The values of ``targets`` are checked on the CPU only: on an accelerator the answer would stall
    the queue at every step, and the data sets have checked them once already.

    Args:
        logits: raw scores, ``[B, C]``.
        targets: 1 for relevant labels, 0 for the others, ``[B, C]``.

    Returns:
        Both in one floating type, float32 or float64.

    >>> prepare(torch.zeros(2, 3), torch.zeros(2))
    Traceback (most recent call last):
    ValueError: targets must have the shape of logits, (2, 3); got (2,)
    """
    if logits.ndim != 2 or 0 in logits.shape:
        raise ValueError(f"logits must be [B, C] and not empty; got {tuple(logits.shape)}")
    if targets.shape != logits.shape:
        raise ValueError(
            f"targets must have the shape of logits, {tuple(logits.shape)}; "
            f"got {tuple(targets.shape)}"
        )
    if not logits.is_floating_point():
        raise ValueError(f"logits must be floating point; got {logits.dtype}")
    if targets.device.type == "cpu" and not torch.compiler.is_compiling():
        wrong = (targets != 0) & (targets != 1)
        if wrong.any():
            raise ValueError(f"targets must hold only 0 and 1; got {targets[wrong][0].item():.6g}")
    dtype = torch.promote_types(logits.dtype, torch.float32)
    return logits.to(dtype), targets.to(dtype)


def check_index(index: Tensor | None, batch: int, num_samples: int) -> Tensor:
    """Return the sample index of a batch, or say why a loss with per-sample state cannot use it.

    Args:
        index: positions of the batch's samples in the training set, ``[B]``.
        batch: B.
        num_samples: the size of the training set.
    """
    if index is None:
        raise ValueError("this loss keeps a state per sample: call it with the samples' index")
    if index.shape != (batch,):
        raise ValueError(f"index must have shape ({batch},); got {tuple(index.shape)}")
    if index.device.type == "cpu" and (index.min() < 0 or index.max() >= num_samples):
        raise ValueError(
            f"index must lie within the training set, 0 to {num_samples - 1}; "
            f"got {index.min().item()} to {index.max().item()}"
        )
    return index


def choose(name: str, options: Mapping[str, T], what: str) -> T:
    """Return ``options[name]``, or name the valid choices.

    >>> choose("cubic", {"square": 1, "hinge": 2}, "surrogate")
    Traceback (most recent call last):
    ValueError: unknown surrogate 'cubic': choose one of square, hinge
    """
    if name not in options:
        raise ValueError(f"unknown {what} {name!r}: choose one of {', '.join(options)}")
    return options[name]


def relevant_labels(targets: Tensor) -> tuple[Tensor, Tensor]:
    """Gather the few relevant labels of each row, so that no [B, C, C] tensor is needed.

    Args:
        targets: 1 for relevant labels, 0 for the others, ``[B, C]``.

    Returns:
        The columns of each row's relevant labels ``[B, N]``, where N is the largest number of them
        in the batch, and which of these N places are real ``[B, N]``; the rest is padding.

    >>> relevant_labels(torch.tensor([[0, 1, 0, 1], [0, 0, 1, 0]]))
    (tensor([[1, 3],
            [2, 0]]), tensor([[ True,  True],
            [ True, False]]))
    """
    width = int(targets.sum(1).max())
    present, columns = targets.sort(dim=1, descending=True, stable=True)
    return columns[:, :width], present[:, :width].bool()
