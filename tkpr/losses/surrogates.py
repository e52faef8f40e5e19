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
    that sums of thousands of terms stay finite; beyond that there is no gradient.
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


class OverTop(NamedTuple):
    """The sum over the n largest scores of a row, of l(s_y - s_[k]), for one label y.

    Attributes:
        of_scores: (scores s_y ``[B, Y]``, largest scores s_[k] ``[B, n]``) -> sums ``[B, Y]``, with
            as few tensors of the size of all pairs as possible.
        of_gaps: gaps u_k = s_[k] - s_y ``[R, n]`` -> sums ``[R, 1]``.
        slopes: gaps -> the derivatives of that sum by the u_k, never negative, ``[R, n]``.
    """

    of_scores: Callable[[Tensor, Tensor], Tensor]
    of_gaps: Callable[[Tensor], Tensor]
    slopes: Callable[[Tensor], Tensor]


def _square_over_top(scores: Tensor, top: Tensor) -> Tensor:
    """With m the mean of the s_[k]: n (1 - s_y + m)^2 + sum_k (s_[k] - m)^2; nothing cancels."""
    mean = top.mean(1, keepdim=True)
    spread = (top - mean).square().sum(1, keepdim=True)
    return top.shape[1] * (1 + mean - scores).square() + spread


def _exponential_over_top(scores: Tensor, top: Tensor) -> Tensor:
    """exp(log sum_k exp(s_[k]) - s_y)."""
    return exponential(scores - top.logsumexp(1, keepdim=True))


def _logistic_over_top(scores: Tensor, top: Tensor) -> Tensor:
    """The sum itself, one s_[k] after the other: it does not separate."""
    return torch.stack([logistic(scores - one) for one in top.split(1, dim=1)]).sum(0)


def _exponential_slopes(gaps: Tensor) -> Tensor:
    lowest = _lowest_margin(gaps.dtype)
    return exponential(-gaps) * (gaps.logsumexp(1, keepdim=True) <= -lowest)


OVER_TOP = {
    "square": OverTop(
        _square_over_top,
        lambda gaps: (1 + gaps).square_().sum(1, keepdim=True),
        lambda gaps: (1 + gaps).mul_(2),
    ),
    "exponential": OverTop(
        _exponential_over_top,
        lambda gaps: exponential(-gaps.logsumexp(1, keepdim=True)),
        _exponential_slopes,
    ),
    "logistic": OverTop(
        _logistic_over_top,
        lambda gaps: F.softplus(gaps, threshold=60).sum(1, keepdim=True),
        torch.sigmoid,
    ),
}


def surrogate(name: str) -> Callable[[Tensor], Tensor]:
    """Return the surrogate of that name.

    >>> surrogate("square")(torch.tensor([0.0, 1.0, 3.0]))
    tensor([1., 0., 4.])
    """
    return choose(name, SURROGATES, "surrogate")
