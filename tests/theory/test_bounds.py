import math
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
import torch

from tkpr.losses.surrogates import surrogate
from tkpr.losses.tkpr import TKPR
from tkpr.metrics import (
    average_precision_at_k,
    ndcg_at_k,
    precision_at_k,
    ranking_loss,
    recall_at_k,
    tkpr_at_k,
)
from tkpr.theory.bounds import (
    ap_over_tkpr,
    ap_over_tkpr_range,
    placements,
    ranking_bound_holds,
    ranking_sides,
    rho_factors,
    rho_range_as_printed,
    top_pairs,
)
from tkpr.theory.orders import weak_orders

LOSSES = {
    "square": lambda t: (1 - t) ** 2,
    "exponential": lambda t: math.exp(-t),
    "logistic": lambda t: math.log1p(math.exp(-t)),
}


def one_hot(labels, num_labels):
    return np.isin(np.arange(num_labels), labels).astype(float)[None]


def worst_ranks(scores, relevant):
    """Return the ranks of the relevant labels, irrelevant ones first in a tie."""
    order = sorted(range(len(scores)), key=lambda i: (-scores[i], i in relevant))
    return [order.index(i) + 1 for i in relevant]


@pytest.mark.parametrize("relevant", [(0,), (0, 1), (0, 1, 2)])
@pytest.mark.parametrize("k", [1, 2, 4])
def test_the_forms_of_the_measures_propositions_1_and_2(relevant, k):
    orders = list(weak_orders(5))
    scores = np.array(orders, dtype=float)
    targets = np.repeat(one_hot(relevant, 5), len(orders), axis=0)
    ranks = np.array([worst_ranks(order, relevant) for order in orders])

    def agree(measure, expected, **options):
        values = measure(scores, targets, k, reduction="none", **options)
        np.testing.assert_allclose(values, expected, rtol=1e-12)

    hits = (ranks <= k).sum(1)
    agree(precision_at_k, hits / k)
    agree(recall_at_k, hits / len(relevant))
    pointwise = sum((ranks <= j).sum(1) for j in range(1, k + 1)) / k
    agree(tkpr_at_k, pointwise, alpha=1)
    agree(tkpr_at_k, pointwise / min(k, len(relevant)), alpha=2)
    linear = ndcg_at_k(scores, targets, k, discount="linear", reduction="none")
    agree(tkpr_at_k, linear / k, alpha=3)


def test_the_pairwise_form_as_printed_is_one_less_per_label_in_the_top():
    # Eq. (tkpr) counts s_y > s_[k] over k <= K, K - rank; the other two forms give K + 1 - rank
    scores, k = (2, 1, 0), 1
    pairwise = sum(scores[0] > score for score in sorted(scores, reverse=True)[:k]) / k
    assert pairwise == 0
    assert tkpr_at_k(np.array([scores]), one_hot([0], 3), k, alpha=1) == 1


def test_identity_of_proposition_3():
    # loss = N (K + 1) - sum (K + 1 - rank)+ but for ties between relevant labels, where it is more
    num_labels = 4
    for scores in weak_orders(num_labels):
        for size in range(1, num_labels + 1):
            for relevant in combinations(range(num_labels), size):
                ranks = worst_ranks(scores, relevant)
                for k in range(1, num_labels + 2):
                    gain = sum(max(0, k + 1 - rank) for rank in ranks)
                    difference = top_pairs(scores, relevant, k) - (size * (k + 1) - gain)
                    tied = any(
                        scores[i] == scores[j] and min(ranks[a], ranks[b]) <= k
                        for (a, i), (b, j) in combinations(enumerate(relevant), 2)
                    )
                    assert (difference > 0) == tied
                    assert difference >= 0


def test_smallest_case_where_the_loss_and_the_measure_disagree():
    # both relevant, K = 1: TKPR is 1 whatever the scores, the loss prefers them apart
    targets = one_hot([0, 1], 2)
    assert tkpr_at_k(np.array([[1.0, 0.0]]), targets, 1, alpha=1) == 1
    assert tkpr_at_k(np.array([[0.0, 0.0]]), targets, 1, alpha=1) == 1
    assert top_pairs((1, 0), (0, 1), 1) == 3
    assert top_pairs((0, 0), (0, 1), 1) == 4


@pytest.mark.parametrize("num_labels", [2, 3, 4, 5])
def test_condition_for_the_ranking_bound(num_labels):
    # proposition 3 for every ranking with ties, exactly; K may exceed the number of labels
    for num_relevant in range(1, num_labels):
        relevant = range(num_relevant)
        for k in range(1, num_labels + 3):
            holds = all(
                left <= right
                for left, right in (ranking_sides(s, relevant, k) for s in weak_orders(num_labels))
            )
            assert holds == ranking_bound_holds(k, num_relevant, num_labels - num_relevant)


def test_condition_for_the_ranking_bound_on_strict_rankings():
    # larger cases: the worst case has no ties, so it is enough to place the relevant labels
    for num_labels in range(6, 11):
        for num_relevant in range(1, num_labels):
            for k in range(1, num_labels + 2):
                holds = all(
                    left <= right
                    for left, right in (
                        ranking_sides(range(num_labels), relevant, k)
                        for relevant in combinations(range(num_labels), num_relevant)
                    )
                )
                expected = ranking_bound_holds(k, num_relevant, num_labels - num_relevant)
                assert holds == expected


def test_smallest_counter_examples_to_the_ranking_bound():
    # with K + 1 <= C: four relevant labels, one irrelevant label on top, K = 4
    assert ranking_sides((3, 2, 1, 0, 4), (0, 1, 2, 3), 4) == (1, Fraction(7, 8))
    failing = [
        (num_labels, n, k)
        for num_labels in range(2, 7)
        for n in range(1, num_labels)
        for k in range(1, num_labels + 1)
        if not ranking_bound_holds(k, n, num_labels - n)
    ]
    assert min(failing) == (3, 2, 3)
    assert min(case for case in failing if case[2] + 1 <= case[0]) == (5, 4, 4)


def test_ranking_sides_are_the_losses_of_the_package():
    rng = np.random.default_rng(0)
    for _ in range(20):
        scores = rng.integers(0, 4, 6).astype(float)
        relevant = sorted(rng.choice(6, rng.integers(1, 5), replace=False).tolist())
        targets = one_hot(relevant, 6)
        left, _ = ranking_sides(scores, relevant, 3)
        assert ranking_loss(scores[None], targets) == pytest.approx(float(left))
        for name, loss in LOSSES.items():
            module = TKPR(alpha=2, k=3, surrogate=name, scores="raw")
            value = module(torch.tensor(scores)[None], torch.tensor(targets)).item()
            n_k = min(3, len(relevant))
            _, right = ranking_sides(scores, relevant, 3, loss=loss)
            assert right == pytest.approx(value * n_k / len(relevant))


@pytest.mark.parametrize("name", LOSSES)
def test_lemma_5_holds_for_k_up_to_the_number_of_irrelevant_labels(name):
    rng = np.random.default_rng(1)
    for _ in range(300):
        num_labels = int(rng.integers(2, 8))
        n = int(rng.integers(1, num_labels))
        k = int(rng.integers(1, num_labels - n + 1))
        scores = rng.random(num_labels).round(rng.integers(0, 3))
        left, right = ranking_sides(scores, range(n), k, loss=LOSSES[name])
        assert left <= right + 1e-12


def test_lemma_5_fails_beyond_for_square_and_exponential():
    # C = 3, K = 2 = N_- + 1, where proposition 3 still holds: scores 0, 0 and 1 for the irrelevant
    assert ranking_bound_holds(2, 2, 1)
    sides = {name: ranking_sides((0, 0, 1), (0, 1), 2, loss=loss) for name, loss in LOSSES.items()}
    assert sides["square"] == (4, 3)
    assert sides["exponential"][0] > sides["exponential"][1]
    assert sides["logistic"][0] < sides["logistic"][1]
    # for the logistic loss K = N_- + 2 does it
    left, right = ranking_sides((0, 0, 0, 1), (0, 1, 2), 3, loss=LOSSES["logistic"])
    assert left > right


def test_ap_over_tkpr_is_the_ratio_of_the_measures():
    k, num_labels = 4, 9
    for places in placements(k):
        targets = one_hot([place - 1 for place in places], num_labels)
        scores = np.arange(num_labels, 0, -1.0)[None]
        ratio = average_precision_at_k(scores, targets, k) / tkpr_at_k(scores, targets, k, alpha=2)
        assert ratio == pytest.approx(float(ap_over_tkpr(places, k)))


@pytest.mark.parametrize("k", range(1, 12))
def test_theorem_2_over_all_placements(k):
    ratios = [ap_over_tkpr(places, k) for places in placements(k)]
    assert (min(ratios), max(ratios)) == ap_over_tkpr_range(k)
    low, high = rho_range_as_printed(k)
    for places, ratio in zip(placements(k), ratios, strict=True):
        u1, u2 = rho_factors(places, k)
        assert low < float(u1) * u2 <= high + 1e-12
        assert float(u1) * u2 <= ratio  # so rho <= U_1 U_2 is enough
        assert ratio <= k  # the right inequality, for alpha_2 and so for alpha_1


def test_u1_grows_when_a_label_is_added_below_but_not_in_general():
    for k in range(1, 10):
        for places in placements(k):
            for new in range(places[-1] + 1, k + 1):
                assert rho_factors((*places, new), k)[0] > rho_factors(places, k)[0]
    # a label added above lowers U_1 (K = 2) and can lower the product with U_2 (K = 3)
    assert rho_factors((1, 2), 2)[0] == Fraction(8, 9) < rho_factors((2,), 2)[0] == 1
    products = {places: math.prod(rho_factors(places, 3)) for places in ((3,), (1, 3))}
    assert products[(1, 3)] < products[(3,)]
    # U_2 depends on P@K alone and grows with it
    for k in range(2, 10):
        values = [rho_factors(range(1, p + 1), k)[1] for p in range(1, k + 1)]
        assert values == sorted(values)


def test_the_appendix_examples_of_u1():
    for k in range(2, 12):
        assert rho_factors((1,), k)[0] == Fraction(1, k) < rho_factors((2,), k)[0]
        assert rho_factors((2,), k)[0] == Fraction(1, k - 1)
    assert float(rho_factors((1, 2), 10)[0]) == pytest.approx(0.1404, abs=5e-5)
    assert float(rho_factors((1, 3), 10)[0]) == pytest.approx(0.1389, abs=5e-5)


def test_surrogates_here_and_in_the_package_agree():
    margins = torch.linspace(-1, 1, 9, dtype=torch.float64)
    for name, loss in LOSSES.items():
        expected = [loss(t) for t in margins.tolist()]
        assert surrogate(name)(margins).tolist() == pytest.approx(expected)
