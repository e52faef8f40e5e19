from itertools import product

import pytest

from tkpr.theory.orders import follows_ranking, preserves_ranking, weak_orders, worst_order


@pytest.mark.parametrize(("num_labels", "fubini"), [(1, 1), (2, 3), (3, 13), (4, 75), (5, 541)])
def test_number_of_weak_orders(num_labels, fubini):
    orders = list(weak_orders(num_labels))
    assert len(orders) == len(set(orders)) == fubini


def test_every_score_vector_has_its_weak_order():
    orders = set(weak_orders(3))
    for scores in product((-1.5, 0.0, 2.0, 7.0), repeat=3):
        levels = sorted(set(scores))
        assert tuple(levels.index(score) for score in scores) in orders


def test_worst_order_breaks_ties_against_the_values():
    assert worst_order([1, 1, 1], [3, 1, 2]) == [1, 2, 0]
    assert worst_order([3, 1, 2], [0, 0, 0]) == [0, 2, 1]


def test_ranking_preservation_by_hand():
    assert preserves_ranking([9, 5, 1], [0.5, 0.3, 0.2], 3)
    assert not preserves_ranking([5, 9, 1], [0.5, 0.3, 0.2], 1)
    assert preserves_ranking([9, 5, 6], [0.5, 0.3, 0.2], 1)  # only the top counts
    assert not preserves_ranking([9, 9, 1], [0.5, 0.3, 0.2], 1)  # a tie the values do not have
    assert preserves_ranking([9, 9, 1], [0.5, 0.5, 0.2], 2)
    assert preserves_ranking([9, 8, 1], [0.5, 0.5, 0.2], 1)  # inclusion suffices at k = K
    assert not preserves_ranking([9, 8, 1], [0.5, 0.5, 0.2], 2)  # but not before
    assert follows_ranking([9, 8, 1], [0.5, 0.5, 0.2], 2)
    assert not follows_ranking([9, 9, 1], [0.5, 0.3, 0.2], 2)
    assert preserves_ranking([1.0, 0.5, 0.4999], [3, 2, 2], 3, tolerance=1e-3)
