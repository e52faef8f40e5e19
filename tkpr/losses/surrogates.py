"""Surrogates of the 0-1 loss, as functions of the margin t (Cor. 3, App. E).

A pair is ranked rightly when its margin t, the score of the label that should be on top minus the
other's, is positive. Each surrogate falls with t.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from tkpr.losses.inputs import choose


def square(margin: Tensor) -> Tensor:
    """l_sq(t) = (1 - t)^2."""
    return (1 - margin).square()


def exponential(margin: Tensor) -> Tensor:
    """l_exp(t) = exp(-t).

    The exponent stops at 79.7 in float32 (700 in float64), nine below the one that overflows, so
    that sums of thousands of terms stay finite; a pair beyond that has no gradient.
    """
    return torch.exp(-margin.clamp(min=_lowest_margin(margin.dtype)))


def _lowest_margin(dtype: torch.dtype) -> float:
    """Return the margin at which the exponential stops to rise."""
    return 9 - math.log(torch.finfo(dtype).max)


def logistic(margin: Tensor) -> Tensor:
    """l_logit(t) = log(1 + exp(-t))."""
    # softplus turns linear beyond its threshold; 60 keeps that step exact in float64
    return F.softplus(-margin, threshold=60)


def arctan(margin: Tensor) -> Tensor:
    """l_arc(t) = -arctan(t): not convex, below zero for a pair in the right order."""
    return -torch.atan(margin)


def hinge(margin: Tensor) -> Tensor:
    """l_hinge(t) = max(0, 1 - t)."""
    return F.relu(1 - margin)


SURROGATES: dict[str, Callable[[Tensor], Tensor]] = {
    "square": square,
    "exponential": exponential,
    "logistic": logistic,
    "arctan": arctan,
    "hinge": hinge,
}


class OfGap(NamedTuple):
    """A surrogate as a function of the gap u = -t, for losses with a closed-form gradient.

    Attributes:
        value: u -> l(-u).
        slope: its derivative, which is never negative.
    """

    value: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor], Tensor]


# one operator less in each than by way of the margin
OF_GAP = {
    "square": OfGap(lambda gap: (1 + gap).square_(), lambda gap: (1 + gap).mul_(2)),
    "exponential": OfGap(
        lambda gap: exponential(-gap),
        lambda gap: exponential(-gap) * (gap <= -_lowest_margin(gap.dtype)),
    ),
    "logistic": OfGap(lambda gap: F.softplus(gap, threshold=60), torch.sigmoid),
}


def surrogate(name: str) -> Callable[[Tensor], Tensor]:
    """Return the surrogate of that name.

    >>> surrogate("square")(torch.tensor([0.0, 1.0, 3.0]))
    tensor([1., 0., 4.])
    """
    return choose(name, SURROGATES, "surrogate")
