"""Thm. 1: for K > 1, TKPR is statistically more discriminating than P@K and R@K.

A prediction is a placement: the set of the positions 1..K that hold a relevant label. With b
relevant labels among the top K, K P@K = b; K TKPR = a, the sum of K + 1 - k over their positions,
so a is a sum of b distinct integers from 1..K. R@K orders the predictions for one sample as P@K
does, and so does TKPR for any alpha: one count answers all.

Every number here is an exact integer.

Why the theorem holds (a proof that does without the closed form of the appendix). As in the
appendix, 2 (|P| - |S|) = sum_b C(K, b)^2 - sum_a pn_K(a)^2. The first sum is C(2K, K), the mean
over t in [0, 2 pi] of g(t)^K with g(t) = |1 + e^{it}|^2; the second is the mean of
g(t) g(2t) ... g(Kt), because pn_K(a) are the coefficients of (1 + x)(1 + x^2)...(1 + x^K). Each
g(kt) has the same K-th moment as g, so Hölder's inequality gives |P| >= |S|, with equality only if
all g(kt) are proportional, that is for K = 1.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import combinations


@cache
def partition_numbers(k: int) -> tuple[tuple[int, ...], ...]:
    """pn_K(a, b) for all a and b: the ways to write a as b distinct integers from 1..K.

    By the recurrence of App. B.2, pn_K(a, b) = pn_{K-1}(a - b, b) + pn_{K-1}(a - b, b - 1), started
    from pn_0(0, 0) = 1. (As printed, pn_K(0, 0) is 0; then the recurrence fails at pn_1(1, 1), and
    the printed count of P is not an integer.)

    Returns:
        A table to be read as ``table[b][a]``, 0 <= b <= K, 0 <= a <= K (K + 1) / 2.

    >>> partition_numbers(3)
    ((1, 0, 0, 0, 0, 0, 0), (0, 1, 1, 1, 0, 0, 0), (0, 0, 0, 1, 1, 1, 0), (0, 0, 0, 0, 0, 0, 1))
    """
    if k == 0:
        return ((1,),)
    smaller = partition_numbers(k - 1)
    return tuple(
        tuple(
            _look_up(smaller, a - b, b) + _look_up(smaller, a - b, b - 1) for a in range(_sums(k))
        )
        for b in range(k + 1)
    )


def iterated_as_printed(k: int, a: int, b: int, *, steps: int) -> int:
    """The appendix's expansion of pn_K(a, b) after a number of steps of the recurrence.

    sum_t C(steps, t) pn_{K-steps}(a - steps b, b - t). One step is the recurrence. From the second
    on it differs: where a step has lowered b to b - 1, the next one takes b - 1 off a, not b.

    >>> partition_numbers(3)[2][3], iterated_as_printed(3, 3, 2, steps=2)
    (1, 0)
    """
    smaller = partition_numbers(k - steps)
    return sum(
        math.comb(steps, t) * _look_up(smaller, a - steps * b, b - t) for t in range(steps + 1)
    )


def closed_form_as_printed(k: int, a: int) -> int:
    """pn_K(a) as printed: C(K - 1, (a - K) / (K - 1)) if a = b (K - 1) + 1 for a b >= 1, else 0.

    The right closed form is that of the generating function: sum_a pn_K(a, b) x^a is
    x^{b (b + 1) / 2} times the Gaussian binomial coefficient of K over b.

    >>> [closed_form_as_printed(3, a) for a in range(7)], [sum_count(3, a) for a in range(7)]
    ([0, 0, 0, 1, 0, 2, 0], [1, 1, 1, 2, 1, 1, 1])
    """
    if k == 1:
        return int(a == 1)
    b, rest = divmod(a - 1, k - 1)
    return math.comb(k - 1, b - 1) if rest == 0 and b >= 1 else 0


def sum_count(k: int, a: int) -> int:
    """pn_K(a): the number of placements with K TKPR = a.

    >>> sum_count(3, 3)  # 3 and 2 + 1
    2
    """
    return sum(row[a] for row in partition_numbers(k))


@dataclass(frozen=True)
class Discriminancy:
    """The two counts of Def. 1 for m_1 = TKPR and m_2 = P@K (or R@K).

    Attributes:
        finer: the size of P: pairs that TKPR tells apart and P@K does not.
        coarser: the size of S: pairs that P@K tells apart and TKPR does not.
    """

    finer: int
    coarser: int

    @property
    def degree(self) -> Fraction | float:
        """Dis = P / S; infinity where S is empty and P is not, NaN where both are."""
        if self.coarser == 0:
            return math.inf if self.finer else math.nan
        return Fraction(self.finer, self.coarser)


def discriminancy(k: int, *, fewest: int = 0, most: int | None = None) -> Discriminancy:
    """Count P and S from the partition numbers (Thm. 1).

    Args:
        k: K.
        fewest: the least number b of relevant labels in the top K; the proof has 0. For a sample
            with N relevant and N_- irrelevant labels it is max(0, K - N_-).
        most: the largest b; the proof has K, a sample min(K, N).

    >>> discriminancy(3)
    Discriminancy(finer=6, coarser=1)
    >>> discriminancy(2).degree
    inf
    """
    rows = partition_numbers(k)[fewest : (k if most is None else most) + 1]
    same_both = sum(count**2 for row in rows for count in row)
    same_precision = sum(sum(row) ** 2 for row in rows)
    same_tkpr = sum(sum(column) ** 2 for column in zip(*rows, strict=True))
    return Discriminancy((same_precision - same_both) // 2, (same_tkpr - same_both) // 2)


def discriminancy_by_enumeration(k: int) -> Discriminancy:
    """Count P and S by going through all pairs of placements.

    >>> discriminancy_by_enumeration(3) == discriminancy(3)
    True
    """
    measures = [
        (sum(k + 1 - place for place in places), b)
        for b in range(k + 1)
        for places in combinations(range(1, k + 1), b)
    ]
    finer = sum(m1 > n1 and m2 == n2 for m1, m2 in measures for n1, n2 in measures)
    coarser = sum(m1 == n1 and m2 > n2 for m1, m2 in measures for n1, n2 in measures)
    return Discriminancy(finer, coarser)


def degree_for_large_k(k: int) -> float:
    """Dis by the local limit theorem, for comparison; it tends to K / sqrt(3).

    The three sums behind P and S are numbers of pairs of random placements that agree in b, in a,
    in both; b's and a's differences have the covariance K/2, K^2/4, K^3/6 to leading order.

    >>> round(degree_for_large_k(30), 1), round(float(discriminancy(30).degree), 1)
    (21.6, 22.2)
    """
    same_precision = 1 / math.sqrt(math.pi * k)
    same_tkpr = math.sqrt(3 / (math.pi * k**3))
    same_both = 2 * math.sqrt(3) / (math.pi * k**2)
    return (same_precision - same_both) / (same_tkpr - same_both)


def _sums(k: int) -> int:
    """Return how many values a can take: 0 to K (K + 1) / 2."""
    return k * (k + 1) // 2 + 1


def _look_up(table: tuple[tuple[int, ...], ...], a: int, b: int) -> int:
    """Return pn(a, b), 0 outside the table."""
    return table[b][a] if 0 <= b < len(table) and 0 <= a < len(table[0]) else 0
