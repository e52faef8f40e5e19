"""Scores up to their order: every ranking of C labels, ties included, and the sets of ties."""

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any


def weak_orders(num_labels: int) -> Iterator[tuple[int, ...]]:
    """Yield one score vector for each ranking with ties: the scores are 0, 1, ... without gaps.

    Any statement that depends on the order of the scores alone holds for all scores if it holds
    for these. There are 1, 3, 13, 75, 541, ... of them.

    >>> sorted(weak_orders(2))
    [(0, 0), (0, 1), (1, 0)]
    """
    for scores in product(range(num_labels), repeat=num_labels):
        if max(scores) + 1 == len(set(scores)):
            yield scores


def worst_order(scores: Sequence[Any], values: Sequence[Any]) -> list[int]:
    """Return the labels from the highest score down, ties broken against ``values`` (Asm. 2).

    >>> worst_order([1, 1, 2], [0.6, 0.4, 0.1])
    [2, 1, 0]
    """
    return sorted(range(len(scores)), key=lambda label: (-scores[label], values[label]))


def tie_set(values: Sequence[Any], k: int, *, tolerance: float = 0.0) -> frozenset[int]:
    """Tie_k: the labels whose value equals the k-th largest one (Def. 4).

    >>> sorted(tie_set([3, 1, 1], 2))
    [1, 2]
    """
    threshold = sorted(values, reverse=True)[k - 1]
    return frozenset(i for i, value in enumerate(values) if abs(value - threshold) <= tolerance)


def preserves_ranking(
    scores: Sequence[Any], values: Sequence[Any], k: int, *, tolerance: float = 0.0
) -> bool:
    """RPT_K(scores, values): the top K keep their order *and* their ties (Def. 4).

    Tie_k of the scores must equal Tie_k of the values for k < K, and lie inside it for k = K.

    Args:
        scores: one per label.
        values: what the scores shall preserve, Delta in the paper.
        k: K; beyond the number of labels it counts as that number.
        tolerance: scores that differ by no more than this are tied; values tie only when equal.

    >>> preserves_ranking([2, 1, 0], [0.5, 0.3, 0.2], 2)
    True
    >>> preserves_ranking([2, 1, 0], [0.4, 0.4, 0.2], 2), preserves_ranking([1, 1, 0], [4, 4, 2], 2)
    (False, True)
    """
    k = min(k, len(scores))
    same = all(tie_set(scores, j, tolerance=tolerance) == tie_set(values, j) for j in range(1, k))
    return same and tie_set(scores, k, tolerance=tolerance) <= tie_set(values, k)


def follows_ranking(
    scores: Sequence[Any], values: Sequence[Any], k: int, *, tolerance: float = 0.0
) -> bool:
    """RPT_K without the demand that equal values get equal scores: inclusion at every k <= K.

    >>> follows_ranking([2, 1, 0], [0.4, 0.4, 0.2], 2)
    True
    """
    return all(
        tie_set(scores, j, tolerance=tolerance) <= tie_set(values, j)
        for j in range(1, min(k, len(scores)) + 1)
    )
