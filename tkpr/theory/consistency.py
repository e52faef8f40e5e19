"""Thm. 3 and Cor. 3: does minimising the convex surrogate (OP_2) recover the Bayes ranking?

For one input, the surrogate risk depends on the label distribution through Delta alone:

    R(s) = 1/K sum_i Delta_i sum_{k <= K+1} l(s_i - s_[k]).

For l convex and decreasing on the margins that occur, R is convex. Three facts decide the matter.

1. No minimiser inverts a pair (the appendix's case 3): if Delta_i < Delta_j and s_i > s_j, swapping
   the two scores lowers R. So s_i <= s_j whenever Delta_i < Delta_j; only ties can spoil RPT_K.
2. A label below the top K + 1 gains by rising to s_[K+1] (if its Delta is positive). So, with
   Delta_1 >= ... >= Delta_C, R has the same minimum as the problem of K + 1 labels with the weights
   Delta_1, ..., Delta_K and T = Delta_{K+1} + ... + Delta_C, subject to s_1 >= ... >= s_{K+1}: the
   whole tail pulls at s_[K+1]. The first-order conditions of the appendix do not see this, because
   R is not differentiable where s_[K+1] ties.
3. In that problem the scores tie in blocks, and they grow with the mean weight of a block. The
   blocks are those of the decreasing isotonic regression of (Delta_1, ..., Delta_K, T), for every
   strictly convex l, if the bounds on the scores are not reached. As only T can be out of order,
   there is one block with T in it: it begins at the first k whose Delta_k is not above the mean of
   all that follows (:func:`kept_places`). So, for Delta without ties,

       RPT_K holds at the minimiser if and only if Delta_K > T = Delta_{K+1} + ... + Delta_C

   (:func:`tail_is_lighter`). For K >= C - 1 that is always so. For K < C - 1 it is not: with C = 3,
   K = 1 and Delta = (2, 1, 1) / 4 every convex l is minimised by three equal scores.

   Proof. Let block b have n_b labels of mean weight w_b and score s_b. Its first-order condition is
   w_b = B_b / A_b with A_b = sum_c n_c l'(s_b - s_c), B_b = sum_c n_c w_c l'(s_c - s_b), both
   negative. From a block to a higher one -A_b falls and -B_b grows: so does w_b. Inside a block the
   derivative of R by one score is A_b (w_i - w_b); the multipliers of the order constraints can
   balance it if and only if no first part of the block has a mean above w_b. These are the
   conditions of the isotonic regression, and R is convex.

Scores bounded to [0, 1] (Cor. 3) add ties of their own, at the bounds, for K = C - 1 too: labels
that want to be further apart than 1 pile up at 0 or at 1. With exp(-t) and log(1 + exp(-t)) the
minimisers inside the bounds are ln(m) / 2 and ln(m) up to a constant, m the isotonic regression, so
nothing piles up as long as the largest m is at most e^2 or e times the smallest.

On the whole line Thm. 3 speaks of no function: convex and bounded there means constant.

For one label set without noise, Delta = 1 on P and 0 elsewhere: RPT_K holds for K >= N; for K < N
equal scores for all labels are among the minimisers.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from tkpr.losses.surrogates import surrogate as find_surrogate

TIE = 1e-6  # two scores of a computed minimiser closer than this count as tied


def conditional_risk(scores: Tensor, delta: Tensor, *, k: int, surrogate: str) -> Tensor:
    """K R(s) of each row: sum_i Delta_i sum_{k <= K+1} l(s_i - s_[k]) (App. C.2).

    Args:
        scores: ``[..., C]``.
        delta: ``[..., C]``.
        k: K; the sum over k ends at C.
        surrogate: the name of l.

    >>> conditional_risk(torch.zeros(3), torch.tensor([2.0, 1, 1]), k=1, surrogate="square")
    tensor(8.)
    """
    top = scores.topk(min(k + 1, scores.shape[-1]), dim=-1).values
    losses = find_surrogate(surrogate)(scores.unsqueeze(-1) - top.unsqueeze(-2))
    return (delta.unsqueeze(-1) * losses).sum((-2, -1))


def tail_is_lighter(delta: Sequence[float], k: int) -> bool:
    """Whether Delta_[K] > Delta_[K+1] + ... + Delta_[C].

    >>> tail_is_lighter([0.5, 0.25, 0.25], 1), tail_is_lighter([0.5, 0.25, 0.25], 3)
    (False, True)
    """
    ordered = sorted(delta, reverse=True)
    return k >= len(ordered) or ordered[k - 1] > sum(ordered[k:])


def isotonic(weights: Sequence[float]) -> np.ndarray:
    """The decreasing sequence nearest to the weights in squared distance: blocks of means.

    >>> isotonic([4.0, 1.0, 3.0])
    array([4., 2., 2.])
    """
    blocks: list[tuple[float, int]] = []
    for weight in weights:
        total, size = float(weight), 1
        while blocks and blocks[-1][0] * size <= total * blocks[-1][1]:
            above, count = blocks.pop()
            total, size = total + above, size + count
        blocks.append((total, size))
    return np.concatenate([np.full(size, total / size) for total, size in blocks])


def kept_places(delta: Sequence[float], k: int) -> int:
    """How many of the top K places a minimiser inside its bounds keeps apart from what follows.

    >>> kept_places([0.95, 0.95, 0.95] + [0.01] * 77, 5)  # three sure labels of 80, K = 5
    3
    >>> kept_places([0.4, 0.3, 0.2, 0.1], 2), kept_places([0.4, 0.3, 0.2, 0.1], 3)
    (1, 3)
    """
    ordered = sorted(delta, reverse=True)
    if k >= len(ordered):
        return k
    means = isotonic([*ordered[:k], sum(ordered[k:])])
    return int((means[:k] > means[k]).sum())


def minimiser(delta: Sequence[float], *, k: int, surrogate: str, width: float = 1.0) -> np.ndarray:
    """Return scores in [0, width] that minimise the conditional surrogate risk.

    Solves the problem of fact 2 in the gaps between neighbours, a smooth convex problem with linear
    constraints, by sequential quadratic programming. ``width=inf`` leaves the scores free; the
    square loss, which rises for margins beyond 1, needs a width of at most 1.

    >>> minimiser([2, 1, 1], k=1, surrogate="exponential").round(4)
    array([0., 0., 0.])
    >>> minimiser([3, 1, 1], k=1, surrogate="exponential").round(4)  # ln(3 / 2) / 2
    array([0.2027, 0.    , 0.    ])
    """
    values = np.asarray(delta, dtype=float)
    order = np.argsort(-values, kind="stable")
    size = min(k + 1, len(values))
    weights = torch.tensor([*values[order][: size - 1], values[order][size - 1 :].sum()])
    loss = find_surrogate(surrogate)

    def scores_of(gaps: Tensor) -> Tensor:
        return torch.cat([gaps.flip(0).cumsum(0).flip(0), gaps.new_zeros(1)])

    def objective(gaps: np.ndarray) -> tuple[float, np.ndarray]:
        variable = torch.tensor(gaps, requires_grad=True)
        scores = scores_of(variable)
        risk = (weights.unsqueeze(1) * loss(scores.unsqueeze(1) - scores)).sum()
        (gradient,) = torch.autograd.grad(risk, variable)
        return risk.item(), gradient.numpy()

    within = {
        "type": "ineq",
        "fun": lambda gaps: width - gaps.sum(),
        "jac": lambda gaps: -np.ones_like(gaps),
    }
    solution = minimize(
        objective,
        np.full(size - 1, 0.1 / size),
        jac=True,
        bounds=[(0, None)] * (size - 1),
        constraints=[within] if np.isfinite(width) else [],
        method="SLSQP",
        options={"maxiter": 500, "ftol": 1e-14},
    )
    if not solution.success:
        raise RuntimeError(f"no minimum found for delta = {values.tolist()}: {solution.message}")
    scores = np.zeros(len(values))
    scores[order[: size - 1]] = scores_of(torch.tensor(solution.x))[:-1].clamp(min=0).numpy()
    return scores


def ranking_weights(
    distribution: Mapping[tuple[int, ...], Any], num_labels: int
) -> tuple[np.ndarray, np.ndarray]:
    """What the ranking loss sees of a label distribution.

    Returns:
        The matrix Delta_ij, the sum of P[y | x] / (N N_-) over the label sets with i and without j,
        ``[C, C]``: the weight of the pair (i, j). And Delta_i, the same over all sets with i: the
        ranking loss is least when the labels are sorted by it, since
        Delta_ij - Delta_ji = Delta_i - Delta_j.

    >>> ranking_weights({(0,): 4, (1, 2): 2}, 3)[1]
    array([2., 1., 1.])
    """
    pairs = np.zeros((num_labels, num_labels))
    labels_alone = np.zeros(num_labels)
    for labels, mass in distribution.items():
        present = np.isin(np.arange(num_labels), labels)
        if 0 < present.sum() < num_labels:
            share = float(mass) / (present.sum() * (~present).sum())
            pairs += share * np.outer(present, ~present)
            labels_alone += share * present
    return pairs, labels_alone


def pairwise_minimiser(pairs: np.ndarray, *, surrogate: str) -> np.ndarray:
    """Return scores that minimise sum_ij Delta_ij l(s_i - s_j), the surrogate of the ranking loss.

    The first score is held at 0, as only differences count.

    >>> pairwise_minimiser(np.array([[0, 1.0], [3.0, 0]]), surrogate="logistic").round(4)  # ln 3
    array([0.    , 1.0986])
    """
    weights = torch.tensor(pairs)
    loss = find_surrogate(surrogate)

    def objective(free: np.ndarray) -> tuple[float, np.ndarray]:
        variable = torch.tensor(free, requires_grad=True)
        scores = torch.cat([variable.new_zeros(1), variable])
        risk = (weights * loss(scores.unsqueeze(1) - scores)).sum() / weights.sum()
        (gradient,) = torch.autograd.grad(risk, variable)
        return risk.item(), gradient.numpy()

    start = np.zeros(len(pairs) - 1)
    options = {"maxiter": 1000, "ftol": 0.0, "gtol": 1e-10}
    solution = minimize(objective, start, jac=True, method="L-BFGS-B", options=options)
    return np.concatenate([[0.0], solution.x])


def train(delta: Tensor, *, k: int, surrogate: str, activation: str, steps: int = 1500) -> Tensor:
    """Minimise the conditional risk as training does: Adam on logits behind a bounded activation.

    The minimum may lie at the bounds, where no logit reaches it, or at a tie, where Adam trembles:
    this shows what a long training ends with, :func:`minimiser` what it tends to.

    Args:
        delta: one problem per row, ``[B, C]``.
        k: K.
        surrogate: the name of l.
        activation: "sigmoid" or "softmax".
        steps: how many.

    Returns:
        The scores, ``[B, C]``.
    """
    squashes: dict[str, Callable[[Tensor], Tensor]] = {
        "sigmoid": torch.sigmoid,
        "softmax": lambda logits: torch.softmax(logits, dim=-1),
    }
    squash = squashes[activation]
    logits = torch.randn(delta.shape, generator=torch.Generator().manual_seed(0)).double()
    logits.requires_grad_()
    optimizer = torch.optim.Adam([logits], lr=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        optimizer.zero_grad()
        conditional_risk(squash(logits), delta, k=k, surrogate=surrogate).sum().backward()
        optimizer.step()
        schedule.step()
    return squash(logits).detach()


@dataclass(frozen=True)
class Pairs:
    """How scores treat pairs of labels with different values.

    Attributes:
        inverted: pairs in the wrong order.
        tied: pairs with the same score.
        total: all pairs.
    """

    inverted: int
    tied: int
    total: int

    def __add__(self, other: "Pairs") -> "Pairs":
        return Pairs(
            self.inverted + other.inverted, self.tied + other.tied, self.total + other.total
        )


def compare(
    scores: Sequence[float],
    values: Sequence[float],
    *,
    k: int | None = None,
    tolerance: float = TIE,
) -> Pairs:
    """Count the pairs of labels that scores invert or tie, against values.

    Args:
        scores: one per label.
        values: one per label; pairs of equal values do not count.
        k: count only the pairs whose larger value is among the K largest, those that matter to
            RPT_K; None counts all.
        tolerance: scores that differ by no more than this are tied.

    >>> compare([1.0, 1.0, 2.0], [3, 2, 1])
    Pairs(inverted=2, tied=1, total=3)
    """
    top = sorted(range(len(values)), key=lambda label: -values[label])[:k]
    gaps = [scores[i] - scores[j] for i in top for j in range(len(scores)) if values[i] > values[j]]
    return Pairs(
        inverted=sum(gap < -tolerance for gap in gaps),
        tied=sum(abs(gap) <= tolerance for gap in gaps),
        total=len(gaps),
    )
