from fractions import Fraction
from functools import partial

import numpy as np
import pytest
import torch

from tkpr.metrics import precision_at_k, recall_at_k, tkpr_at_k
from tkpr.ranking import alpha_weight
from tkpr.theory import bayes
from tkpr.theory.bayes import (
    best_orders,
    best_top_sets,
    delta,
    differing_optima,
    eta,
    eta_prime,
    pairwise_risk,
    precision,
    random_distribution,
    ranking_risk,
    recall,
    tkpr,
)
from tkpr.theory.orders import follows_ranking, preserves_ranking, tie_set, weak_orders


def distributions(num_labels, count, *, seed=0):
    """Yield random distributions with small integer weights, so that ties are frequent."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        dense = random_distribution(num_labels, rng)
        weights = rng.integers(0, 3, len(dense))
        yield {labels: int(w) for labels, w in zip(dense, weights, strict=True) if w}


def test_measures_agree_with_the_package():
    rng = np.random.default_rng(0)
    for _ in range(30):
        order = rng.permutation(5).tolist()
        labels = tuple(rng.choice(5, rng.integers(1, 6), replace=False).tolist())
        scores = np.zeros((1, 5))
        scores[0, order] = np.arange(5, 0, -1)
        targets = np.isin(np.arange(5), labels)[None].astype(int)
        for k in (1, 3):
            assert precision(order, labels, k) == pytest.approx(precision_at_k(scores, targets, k))
            assert recall(order, labels, k) == pytest.approx(recall_at_k(scores, targets, k))
            for alpha in (1, 2, 3):
                value = tkpr_at_k(scores, targets, k, alpha=alpha)
                assert float(tkpr(order, labels, k, alpha=alpha)) == pytest.approx(value)


def test_weight_agrees_with_the_package():
    for alpha in (1, 2, 3):
        for k in (1, 2, 5):
            expected = alpha_weight(torch.arange(1.0, 8), alpha=alpha, k=k)
            assert [alpha_weight(n, alpha=alpha, k=k) for n in range(1, 8)] == expected.tolist()


@pytest.mark.parametrize("num_labels", [3, 4])
def test_proposition_14_by_exhaustive_search(num_labels):
    for distribution in distributions(num_labels, 15):
        for k in range(1, num_labels):
            for measure, values in ((precision, eta), (recall, eta_prime)):
                best = best_orders(distribution, num_labels, partial(_at, measure, k))
                sets = {frozenset(order[:k]) for order in best}
                assert sets == best_top_sets(values(distribution, num_labels), k)


@pytest.mark.parametrize("alpha", [1, 2, 3])
def test_best_rankings_for_tkpr_sort_by_delta(alpha):
    for distribution in distributions(4, 15, seed=alpha):
        for k in range(1, 5):
            best = best_orders(distribution, 4, partial(_tkpr, alpha, k))
            values = delta(distribution, 4, alpha=alpha, k=k)
            ordered = sorted(values, reverse=True)
            for order in best:
                assert [values[i] for i in order[:k]] == ordered[:k]


@pytest.mark.parametrize("alpha", [1, 2, 3])
def test_proposition_4_over_all_rankings_with_ties(alpha):
    """Which of the three conditions is necessary, which sufficient, in the ranking reading."""
    orders = list(weak_orders(4))
    for distribution in distributions(4, 6, seed=alpha):
        for k in range(1, 5):
            values = delta(distribution, 4, alpha=alpha, k=k)
            risks = [ranking_risk(scores, distribution, alpha=alpha, k=k) for scores in orders]
            optimal = {s for s, risk in zip(orders, risks, strict=True) if risk == min(risks)}
            assert optimal == {s for s in orders if follows_ranking(s, values, k)}
            preserving = {s for s in orders if preserves_ranking(s, values, k)}
            assert preserving <= optimal
            no_ties = all(len(tie_set(values, j)) == 1 for j in range(1, k))
            assert (preserving == optimal) == no_ties


@pytest.mark.parametrize("alpha", [1, 2, 3])
def test_proposition_4_with_the_loss_as_printed(alpha):
    orders = list(weak_orders(4))
    seen = set()
    for distribution in distributions(4, 10, seed=alpha):
        for k in range(1, 4):
            values = delta(distribution, 4, alpha=alpha, k=k)
            risks = [pairwise_risk(scores, distribution, alpha=alpha, k=k) for scores in orders]
            optimal = {s for s, risk in zip(orders, risks, strict=True) if risk == min(risks)}
            preserving = {s for s in orders if preserves_ranking(s, values, k)}
            if all(len(tie_set(values, j)) == 1 for j in range(1, k + 1)):
                assert preserving == optimal
                seen.add("no ties")
            elif min(values) > 0:
                assert not preserving <= optimal  # the tied scores are preserving, not optimal
                seen.add("ties")
    assert seen == {"no ties", "ties"}


def test_smallest_counter_examples_to_proposition_4():
    even = {(0,): 1, (1,): 1}
    # optimal in the ranking reading, but not RPT_2
    assert ranking_risk((1, 0), even, alpha=1, k=2) == ranking_risk((0, 0), even, alpha=1, k=2)
    assert not preserves_ranking((1, 0), delta(even, 2, alpha=1, k=2), 2)
    # RPT_1, but not optimal for the loss as printed
    assert preserves_ranking((0, 0), delta(even, 2, alpha=1, k=1), 1)
    assert pairwise_risk((0, 0), even, alpha=1, k=1) == 4
    assert pairwise_risk((1, 0), even, alpha=1, k=1) == 3


def test_corollary_2():
    for distribution in distributions(4, 10):
        assert delta(distribution, 4, alpha=1, k=2) == eta(distribution, 4)
        assert delta(distribution, 4, alpha=2, k=4) == eta_prime(distribution, 4)
    # "K large enough" is needed: with K = 1, alpha_2 is 1 and Delta is eta
    distribution = {(0,): 2, (1, 2): 3}
    assert delta(distribution, 3, alpha=2, k=1) == [2, 3, 3]
    assert eta_prime(distribution, 3) == [2, Fraction(3, 2), Fraction(3, 2)]


def test_smallest_distribution_with_differing_optima():
    # two labels never differ: eta and eta' have the same difference
    assert all(differing_optima(2, 1, n) is None for n in range(1, 8))
    assert all(differing_optima(3, 1, n) is None for n in range(1, 5))
    found = differing_optima(3, 1, 5)
    assert found == {(0,): 2, (1, 2): 3}
    by_precision = best_orders(found, 3, partial(_at, precision, 1))
    by_recall = best_orders(found, 3, partial(_at, recall, 1))
    assert {order[0] for order in by_precision} == {1, 2}
    assert {order[0] for order in by_recall} == {0}


def test_random_distribution_sums_to_one():
    distribution = random_distribution(4, np.random.default_rng(0), concentration=0.3)
    assert len(distribution) == 15
    assert sum(distribution.values()) == pytest.approx(1)
    assert min(map(len, distribution)) == 1


def test_expectation_is_the_weighted_sum():
    assert bayes.expectation({(0,): Fraction(1, 4), (0, 1): Fraction(3, 4)}, len) == Fraction(7, 4)


def _at(measure, k, order, labels):
    return measure(order, labels, k)


def _tkpr(alpha, k, order, labels):
    return tkpr(order, labels, k, alpha=alpha)
