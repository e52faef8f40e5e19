import math
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest

from tkpr.metrics import precision_at_k, recall_at_k, tkpr_at_k
from tkpr.theory.discriminancy import (
    Discriminancy,
    closed_form_as_printed,
    degree_for_large_k,
    discriminancy,
    discriminancy_by_enumeration,
    iterated_as_printed,
    partition_numbers,
    sum_count,
)


@pytest.mark.parametrize("k", range(1, 9))
def test_partition_numbers_count_the_subsets(k):
    table = partition_numbers(k)
    for b in range(k + 1):
        sums = [sum(parts) for parts in combinations(range(1, k + 1), b)]
        assert list(table[b]) == [sums.count(a) for a in range(k * (k + 1) // 2 + 1)]


def test_partition_numbers_are_gaussian_binomials():
    # coefficients of x^(b(b+1)/2) [K over b]_x, from the product formula by polynomial division
    for k in range(1, 13):
        for b in range(k + 1):
            numerator, denominator = np.array([1], dtype=object), np.array([1], dtype=object)
            for i in range(b):
                numerator = np.convolve(numerator, [1] + [0] * (k - i - 1) + [-1])
                denominator = np.convolve(denominator, [1] + [0] * i + [-1])
            quotient, rest = [], list(numerator)
            while len(rest) >= len(denominator):
                lead = rest[0] // denominator[0]
                quotient.append(lead)
                for i, coefficient in enumerate(denominator):
                    rest[i] -= lead * coefficient
                rest.pop(0)
            assert not any(rest)
            row = partition_numbers(k)[b]
            start = b * (b + 1) // 2
            assert list(row[start : start + len(quotient)]) == quotient
            assert sum(row) == sum(quotient)


@pytest.mark.parametrize("k", range(1, 8))
def test_discriminancy_agrees_with_enumeration(k):
    assert discriminancy(k) == discriminancy_by_enumeration(k)


def test_discriminancy_agrees_with_the_measures():
    # all placements of 3 relevant labels among 7, from scores, against P@K and R@K, for each alpha
    k, num_labels, num_relevant = 4, 7, 3
    placements = list(combinations(range(num_labels), num_relevant))
    targets = np.zeros((len(placements), num_labels))
    for row, places in enumerate(placements):
        targets[row, list(places)] = 1
    scores = np.tile(np.arange(num_labels, 0, -1.0), (len(placements), 1))
    tops = {tuple(row[:k]) for row in targets.astype(int)}
    expected = discriminancy(k, fewest=0, most=3)
    for alpha in (1, 2, 3):
        for coarse_measure in (precision_at_k, recall_at_k):
            fine = np.round(tkpr_at_k(scores, targets, k, alpha=alpha, reduction="none"), 9)
            coarse = np.round(coarse_measure(scores, targets, k, reduction="none"), 9)
            values = {
                tuple(row[:k]): (float(f), float(c))
                for row, f, c in zip(targets.astype(int), fine, coarse, strict=True)
            }
            assert values.keys() == tops
            pairs = [(v, w) for v in values.values() for w in values.values()]
            finer = sum(v[0] > w[0] and v[1] == w[1] for v, w in pairs)
            coarser = sum(v[0] == w[0] and v[1] > w[1] for v, w in pairs)
            assert Discriminancy(finer, coarser) == expected


def test_the_example_of_section_4_2():
    targets = np.array([[1, 1, 0, 0, 0, 0]] * 3)
    scores = np.array(
        [
            [0.8, 0.8, 0.9, 0.9, 0.2, 0.2],
            [0.9, 0.9, 0.8, 0.8, 0.2, 0.2],
            [0.8, 0.1, 0.9, 0.2, 0.2, 0.2],
        ]
    )
    tkpr = tkpr_at_k(scores, targets, 4, alpha=1, reduction="none").tolist()
    precision = precision_at_k(scores, targets, 4, reduction="none").tolist()
    assert tkpr == [3 / 4, 7 / 4, 3 / 4]
    assert precision == [2 / 4, 2 / 4, 1 / 4]


def test_theorem_1_for_k_up_to_40():
    assert discriminancy(1) == Discriminancy(0, 0)
    assert discriminancy(2) == Discriminancy(1, 0)  # P / S is infinite
    assert discriminancy(2).degree == math.inf
    for k in range(3, 41):
        assert discriminancy(k).degree > 1
    assert discriminancy(3).degree == 6
    assert discriminancy(4).degree == discriminancy(5).degree == Fraction(13, 2)


def test_theorem_1_for_every_number_of_labels():
    # only b relevant labels from fewest to most fit; nothing to tell apart if b can only be 0 or K
    for k in range(2, 13):
        for fewest in range(k + 1):
            for most in range(fewest, k + 1):
                counts = discriminancy(k, fewest=fewest, most=most)
                degenerate = fewest == most and fewest in (0, k)
                assert (counts.finer > counts.coarser) == (not degenerate)


def test_difference_of_the_counts_is_the_proofs():
    for k in range(1, 21):
        counts = discriminancy(k)
        squares = sum(sum_count(k, a) ** 2 for a in range(k * (k + 1) // 2 + 1))
        assert 2 * (counts.finer - counts.coarser) == math.comb(2 * k, k) - squares


def test_holder_proof_in_numbers():
    # the mean over t of the product of g(kt) against that of g(t)^K; exact on enough points
    for k in range(1, 12):
        t = np.arange(k * (k + 1) + 1) * 2 * np.pi / (k * (k + 1) + 1)
        product = np.prod([2 + 2 * np.cos(j * t) for j in range(1, k + 1)], axis=0).mean()
        squares = sum(sum_count(k, a) ** 2 for a in range(k * (k + 1) // 2 + 1))
        assert product == pytest.approx(squares, rel=1e-10)
        assert ((2 + 2 * np.cos(t)) ** k).mean() == pytest.approx(math.comb(2 * k, k), rel=1e-10)


def test_where_the_printed_recurrence_holds():
    # one step is right; two steps, printed for K >= 3, fail at once
    wrong = []
    for k in range(2, 7):
        table = partition_numbers(k)
        for b in range(1, k + 1):
            for a in range(1, k * (k + 1) // 2 + 1):
                assert iterated_as_printed(k, a, b, steps=1) == table[b][a]
                if k > 2 and iterated_as_printed(k, a, b, steps=2) != table[b][a]:
                    wrong.append((k, b, a))
    assert min(wrong) == (3, 1, 1)
    assert (3, 2, 3) in wrong  # 3 = 2 + 1 is one way; the printed line has none
    assert {k for k, _, _ in wrong} == {3, 4, 5, 6}


def test_where_the_printed_closed_form_holds():
    right = {
        k: [
            a
            for a in range(k * (k + 1) // 2 + 1)
            if closed_form_as_printed(k, a) == sum_count(k, a)
        ]
        for k in range(1, 31)
    }
    # K = 2 misses a = 0 and 1; the 5 of K = 6, a = 11 agrees by chance
    assert {k: sums for k, sums in right.items() if sums} == {1: [1], 2: [2, 3], 6: [11]}
    assert (closed_form_as_printed(2, 1), sum_count(2, 1)) == (0, 1)
    assert (closed_form_as_printed(3, 3), sum_count(3, 3)) == (1, 2)
    # so the printed value of (II) is too small: for K = 3, 1 + 2^2 = 5 instead of 10
    assert sum(closed_form_as_printed(3, a) ** 2 for a in range(7)) == 5
    assert sum(sum_count(3, a) ** 2 for a in range(7)) == 10


def test_degree_for_large_k_is_near_and_tends_to_the_line():
    assert degree_for_large_k(40) == pytest.approx(float(discriminancy(40).degree), rel=0.03)
    assert degree_for_large_k(10**9) / 10**9 == pytest.approx(1 / math.sqrt(3), rel=1e-3)
