"""Prop. 4, Cor. 2 and Prop. 14: the rankings that are best for a known label distribution.

A label distribution P[y | x] is a mapping from label sets to weights, ``{(0, 2): 3, (1,): 2}``: the
labels 0 and 2 together three times in five, label 1 alone twice. Integers and fractions keep
everything exact; weights need not sum to one.

Two readings of the risk of Sec. 5.1 differ when scores tie. The proof of Prop. 4 ranks the labels
and breaks ties against Delta (:func:`ranking_risk`); (OP_1) as printed takes the 0-1 loss of score
differences (:func:`pairwise_risk`), where each tie counts as an error both ways.

What holds, for every label distribution and all scores:

* Ranking risk: f is optimal if and only if Tie_k(f) lies inside Tie_k(Delta) for every k <= K
  (:func:`~tkpr.theory.orders.follows_ranking`). RPT_K asks for more, equality for k < K; so it is
  sufficient, and necessary where Delta has no ties among the top K - 1 values. With Delta = (1, 1),
  K = 2 the scores (1, 0) are optimal, but do not satisfy RPT_2.
* Pairwise risk: the same as long as Delta has no ties at the top K values. With Delta = (1, 1),
  K = 1 the tied scores satisfy RPT_1 but have risk 4, the scores (1, 0) risk 3.
"""

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import partial
from itertools import combinations, combinations_with_replacement, permutations
from typing import Any

import numpy as np

from tkpr.ranking import alpha_weight
from tkpr.theory.orders import worst_order

Distribution = Mapping[tuple[int, ...], Any]


def delta(distribution: Distribution, num_labels: int, *, alpha: int, k: int) -> list[Any]:
    """Delta_i, the sum of P[y | x] / alpha over the label sets with i (Prop. 4).

    For alpha_1 this is eta, for alpha_2 and K at least the largest label set eta' (Cor. 2).

    >>> delta({(0, 2): 3, (1,): 2}, 3, alpha=2, k=2)
    [Fraction(3, 2), Fraction(2, 1), Fraction(3, 2)]
    """
    return _label_sums(distribution, num_labels, lambda n: alpha_weight(n, alpha=alpha, k=k))


def eta(distribution: Distribution, num_labels: int) -> list[Any]:
    """Return eta_i = P[y_i = 1 | x], what P@K sorts by (Prop. 14).

    >>> eta({(0, 2): 3, (1,): 2}, 3)
    [Fraction(3, 1), Fraction(2, 1), Fraction(3, 1)]
    """
    return _label_sums(distribution, num_labels, lambda n: 1)


def eta_prime(distribution: Distribution, num_labels: int) -> list[Any]:
    """eta'_i = E[y_i / N(y) | x], what R@K sorts by (Prop. 14).

    >>> eta_prime({(0, 2): 3, (1,): 2}, 3)
    [Fraction(3, 2), Fraction(2, 1), Fraction(3, 2)]
    """
    return _label_sums(distribution, num_labels, lambda n: n)


def precision(order: Sequence[int], labels: tuple[int, ...], k: int) -> Fraction:
    """P@K of a ranking, for one label set.

    >>> precision([2, 0, 1], (0,), 2)
    Fraction(1, 2)
    """
    return Fraction(len(set(order[:k]) & set(labels)), k)


def recall(order: Sequence[int], labels: tuple[int, ...], k: int) -> Fraction:
    """R@K of a ranking, for one label set; 0 if it is empty.

    >>> recall([2, 0, 1], (0,), 2)
    Fraction(1, 1)
    """
    return Fraction(len(set(order[:k]) & set(labels)), max(len(labels), 1))


def tkpr(order: Sequence[int], labels: tuple[int, ...], k: int, *, alpha: int) -> Fraction:
    """TKPR of a ranking, for one label set; 0 if it is empty (Prop. 2).

    >>> tkpr([2, 0, 1], (0,), 2, alpha=1)
    Fraction(1, 2)
    """
    if not labels:
        return Fraction(0)
    gain = sum(k - place for place, label in enumerate(order[:k]) if label in labels)
    return Fraction(gain, k) / alpha_weight(len(labels), alpha=alpha, k=k)


def expectation(distribution: Distribution, measure: Callable[[tuple[int, ...]], Any]) -> Any:
    """The weighted sum of a measure over the label sets.

    >>> expectation({(0, 1): 1, (2,): 1}, len)
    3
    """
    return sum(mass * measure(labels) for labels, mass in distribution.items())


def best_orders(
    distribution: Distribution,
    num_labels: int,
    measure: Callable[[Sequence[int], tuple[int, ...]], Any],
) -> list[tuple[int, ...]]:
    """All rankings with the largest expected measure, by exhaustive search.

    >>> best_orders({(0, 2): 3, (1,): 2}, 3, lambda order, labels: recall(order, labels, 1))
    [(1, 0, 2), (1, 2, 0)]
    """
    values = {
        order: expectation(distribution, partial(measure, order))
        for order in permutations(range(num_labels))
    }
    best = max(values.values())
    return [order for order, value in values.items() if value == best]


def best_top_sets(values: Sequence[Any], k: int) -> set[frozenset[int]]:
    """The sets of K labels with the largest sum: Top_K - Tie_K, filled up from Tie_K (Prop. 14).

    >>> [sorted(labels) for labels in best_top_sets([3, 2, 3], 2)]
    [[0, 2]]
    """
    threshold = sorted(values, reverse=True)[k - 1]
    above = [i for i, value in enumerate(values) if value > threshold]
    tied = [i for i, value in enumerate(values) if value == threshold]
    return {frozenset(above) | set(rest) for rest in combinations(tied, k - len(above))}


def ranking_risk(scores: Sequence[Any], distribution: Distribution, *, alpha: int, k: int) -> Any:
    """Minus the expected TKPR of the ranking by scores, ties broken against Delta (App. C.1).

    >>> ranking_risk([1, 0], {(0,): 2, (1,): 1}, alpha=1, k=1)
    Fraction(-2, 1)
    >>> ranking_risk([0, 0], {(0,): 2, (1,): 1}, alpha=1, k=1)
    Fraction(-1, 1)
    """
    order = worst_order(scores, delta(distribution, len(scores), alpha=alpha, k=k))
    return -expectation(distribution, lambda labels: tkpr(order, labels, k, alpha=alpha))


def pairwise_risk(scores: Sequence[Any], distribution: Distribution, *, alpha: int, k: int) -> Any:
    """K times the risk of (OP_1) as printed, with the 0-1 loss of score differences.

    It is sum_i Delta_i min(K + 1, #{j: s_j >= s_i}).

    >>> pairwise_risk([1, 0], {(0,): 1, (1,): 1}, alpha=1, k=1)
    Fraction(3, 1)
    >>> pairwise_risk([0, 0], {(0,): 1, (1,): 1}, alpha=1, k=1)
    Fraction(4, 1)
    """
    values = delta(distribution, len(scores), alpha=alpha, k=k)
    return sum(
        value * min(k + 1, sum(other >= score for other in scores))
        for value, score in zip(values, scores, strict=True)
    )


def differing_optima(num_labels: int, k: int, num_samples: int) -> Distribution | None:
    """Find a distribution on which no top-K set is best for both P@K and R@K.

    Goes through all multisets of ``num_samples`` label sets and returns the first.

    >>> differing_optima(3, 1, 4) is None
    True
    >>> differing_optima(3, 1, 5)
    {(0,): 2, (1, 2): 3}
    """
    for chosen in combinations_with_replacement(label_sets(num_labels), num_samples):
        distribution = {labels: chosen.count(labels) for labels in dict.fromkeys(chosen)}
        for_precision = best_top_sets(eta(distribution, num_labels), k)
        for_recall = best_top_sets(eta_prime(distribution, num_labels), k)
        if not for_precision & for_recall:
            return distribution
    return None


def random_distribution(
    num_labels: int, rng: np.random.Generator, *, concentration: float = 1.0
) -> dict[tuple[int, ...], float]:
    """Draw a Dirichlet distribution over all label sets but the empty one.

    Args:
        num_labels: C.
        rng: the source of randomness.
        concentration: 1 is uniform over all distributions; smaller puts the mass on fewer sets.

    >>> sorted(random_distribution(2, np.random.default_rng(0)))
    [(0,), (0, 1), (1,)]
    """
    sets = label_sets(num_labels)
    masses = rng.dirichlet([concentration] * len(sets))
    return dict(zip(sets, masses.tolist(), strict=True))


def label_sets(num_labels: int) -> list[tuple[int, ...]]:
    """All sets of labels but the empty one, small ones first.

    >>> label_sets(2)
    [(0,), (1,), (0, 1)]
    """
    sizes = range(1, num_labels + 1)
    return [labels for size in sizes for labels in combinations(range(num_labels), size)]


def _label_sums(
    distribution: Distribution, num_labels: int, divisor: Callable[[int], int | Fraction]
) -> list[Any]:
    """Sum mass / divisor(N) over the label sets of each label."""
    sums = [Fraction(0)] * num_labels
    for labels, mass in distribution.items():
        for label in labels:
            sums[label] += Fraction(mass) / divisor(len(labels))
    return sums
