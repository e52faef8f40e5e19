"""Prop. 3, Lem. 5 and Thm. 2: what TKPR says about the ranking loss and about AP@K.

The ranking loss. Prop. 3 states L_rank <= alpha/N L_K^alpha, that is

    1/(N N_-) sum_i #{j irrelevant: s_j >= s_i} <= 1/(N K) sum_i #{k <= K + 1: s_[k] >= s_i},

both sums over the N relevant labels i, whatever alpha. It holds for all scores if and only if
N >= d (d + 1) / 2 with d = max(0, K - N_-); in particular always when K <= N_- + 1.

Proof. Write M for N_-. Number the relevant labels from the highest score down and let n_i be the
number of irrelevant labels at or above label i; 0 <= n_1 <= ... <= n_N <= M. Label i has at least
n_i + i labels at or above it, itself included, and exactly so many if no two relevant labels tie.
So the worst case is F(n) = sum_i [min(n_i + i, K + 1) / K - n_i / M] < 0 for some such n. F is
concave, so its minimum is at a corner: j zeros, then N - j times M. Raising j by one changes K F by
K - M if M + j <= K + 1 (then K >= M), and by j - 1 (or K, for j > K + 1) otherwise, never below 0:
the minimum is at j = 0, all irrelevant labels on top. There K F = sum_i min(i - d', 1) with
d' = K - M, which is N for d' <= 0 and else N (N + 1 - 2 d') / 2 if N <= d' + 1, and
N - d' (d' + 1) / 2 beyond; for d' = 1, 2 and for d' >= 3 both say N >= d' (d' + 1) / 2.

Lem. 5 is the same with a surrogate l in place of the 0-1 loss. For every non-negative decreasing l
it holds if K <= N_- (the mean of the K largest of all l(s_i - s_j) is at least the mean over the
irrelevant j), and for K > N_- some l breaks it: put the irrelevant labels at 1, the others at 0;
the inequality then needs l(-1) (K - N_-) <= l(0) (K + 1 - N_-).

AP@K. With the relevant labels of the top K at places k_1 < ... < k_p, N_K AP@K = sum_i i / k_i and
N_K K TKPR^{alpha_2} = sum_i (K + 1 - k_i), so the ratio AP@K / TKPR^{alpha_2} is what Thm. 2 calls
rho's upper bound at its best. It lies between K / floor((K + 1)^2 / 4) and 2 K / (K + 1), and both
ends are taken: the first by one relevant label in the middle, the second by K of them.

Proof. Below: the ratio is at least the least of K (i / k_i) / (K + 1 - k_i), and i >= 1. Above:
G(k) = sum_i [2 (K + 1 - k_i) / (K + 1) - i / k_i] is concave, so look at the corners
1, ..., j, K - r + 1, ..., K with j + r = p. The first j terms add to j (K - j) / (K + 1), the
others to r (r + 1) / (K + 1) minus at most r p / K; together that is at least
(K - p) (j + r / K) / (K + 1) >= 0.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from itertools import combinations
from typing import Any


def ranking_bound_holds(k: int, num_relevant: int, num_irrelevant: int) -> bool:
    """Whether L_rank <= alpha/N L_K^alpha for all scores (Prop. 3), by the condition above.

    >>> ranking_bound_holds(5, num_relevant=1, num_irrelevant=79)
    True
    >>> ranking_bound_holds(4, num_relevant=4, num_irrelevant=1)
    False
    """
    excess = max(0, k - num_irrelevant)
    return num_relevant >= excess * (excess + 1) // 2


def zero_one(margin: float) -> int:
    """The 0-1 loss, 1 for a margin of at most 0.

    >>> zero_one(0.0), zero_one(0.1)
    (1, 0)
    """
    return int(margin <= 0)


def ranking_sides(
    scores: Sequence[Any],
    relevant: Sequence[int],
    k: int,
    *,
    loss: Callable[[Any], Any] = zero_one,
) -> tuple[Fraction | float, Fraction | float]:
    """Return L_rank^l and alpha/N L_K^{alpha,l}, the two sides of Prop. 3 and Lem. 5.

    Where K + 1 exceeds the number of labels, the sum over k ends there.

    Args:
        scores: one per label.
        relevant: the relevant labels; neither none nor all.
        k: K.
        loss: l, the 0-1 loss for Prop. 3; exact for integer scores.

    >>> ranking_sides([0, 0, 0, 0, 1], [0, 1, 2, 3], 4)  # ties among the relevant labels help
    (Fraction(1, 1), Fraction(5, 4))
    >>> ranking_sides([3, 2, 1, 0, 4], [0, 1, 2, 3], 4)
    (Fraction(1, 1), Fraction(7, 8))
    """
    irrelevant = [scores[j] for j in range(len(scores)) if j not in relevant]
    top = sorted(scores, reverse=True)[: k + 1]
    pairs = sum(loss(scores[i] - other) for i in relevant for other in irrelevant)
    pairs_at_top = sum(loss(scores[i] - other) for i in relevant for other in top)
    return (
        _divide(pairs, len(relevant) * len(irrelevant)),
        _divide(pairs_at_top, len(relevant) * k),
    )


def top_pairs(scores: Sequence[Any], relevant: Sequence[int], k: int) -> int:
    """The sum over relevant labels and k <= K + 1 of the 0-1 loss, alpha K L_K^alpha (Prop. 3).

    The proof of Prop. 3 puts it equal to N plus the sum over relevant labels of
    #{k <= K: rank > k}, which is N (K + 1) - alpha K TKPR. That holds unless two relevant labels
    tie, one of them in the top K: the tie costs nothing in the measure, but a pair in the loss.

    >>> top_pairs([1, 0], [0, 1], 1), top_pairs([0, 0], [0, 1], 1)
    (3, 4)
    """
    top = sorted(scores, reverse=True)[: k + 1]
    return sum(zero_one(scores[i] - other) for i in relevant for other in top)


def placements(k: int) -> Iterator[tuple[int, ...]]:
    """Yield every set of places of relevant labels in the top K but the empty one.

    >>> list(placements(2))
    [(1,), (2,), (1, 2)]
    """
    for size in range(1, k + 1):
        yield from combinations(range(1, k + 1), size)


def ap_over_tkpr(places: Sequence[int], k: int) -> Fraction:
    """AP@K / TKPR^{alpha_2}: the largest rho with rho TKPR^{alpha_2} <= AP@K there (Thm. 2).

    >>> ap_over_tkpr((1, 2, 3), 3), ap_over_tkpr((2,), 3)
    (Fraction(3, 2), Fraction(3, 4))
    """
    precision = _sum(Fraction(i, place) for i, place in enumerate(places, 1))
    return precision * k / sum(k + 1 - place for place in places)


def ap_over_tkpr_range(k: int) -> tuple[Fraction, Fraction]:
    """The least and the largest AP@K / TKPR^{alpha_2} over all placements, by the proof above.

    >>> ap_over_tkpr_range(3)
    (Fraction(3, 4), Fraction(3, 2))
    """
    return Fraction(k, (k + 1) ** 2 // 4), Fraction(2 * k, k + 1)


def rho_factors(places: Sequence[int], k: int) -> tuple[Fraction, float]:
    """U_1 and U_2 of Rem. 2; their product is the appendix's bound on rho (Thm. 2).

    U_1 = C_1 / (K + 1 - C_2), C_1 the mean of 1..p weighted by 1/k_i, C_2 the mean of the places;
    U_2 = ln((K + 1) / (K + 1 - p)) / P@K. (In its last paragraphs the appendix calls U_1 "U_2".)

    >>> rho_factors((1, 2), 10)[0], rho_factors((1, 3), 10)[0]  # the appendix's example
    (Fraction(8, 57), Fraction(5, 36))
    """
    p = len(places)
    inverse = _sum(Fraction(1, place) for place in places)
    c1 = _sum(Fraction(i, place) for i, place in enumerate(places, 1)) / inverse
    c2 = Fraction(sum(places), p)
    return c1 / (k + 1 - c2), k / p * math.log((k + 1) / (k + 1 - p))


def rho_range_as_printed(k: int) -> tuple[float, float]:
    """[1 / (K + 1), K ln(K + 1)], where Thm. 2 puts U_1 U_2.

    >>> rho_range_as_printed(1)
    (0.5, 0.6931471805599453)
    """
    return 1 / (k + 1), k * math.log(k + 1)


def _sum(terms: Iterable[Fraction]) -> Fraction:
    """Add up fractions."""
    return sum(terms, Fraction(0))


def _divide(total: Any, count: int) -> Fraction | float:
    """Divide exactly where the total is an integer."""
    return Fraction(total, count) if isinstance(total, int) else total / count
