import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from tkpr.losses.tkpr import TKPR
from tkpr.losses.univariate import Univariate
from tkpr.theory.bayes import delta, label_sets, pairwise_risk, random_distribution
from tkpr.theory.consistency import (
    TIE,
    Pairs,
    compare,
    conditional_risk,
    isotonic,
    kept_places,
    minimiser,
    pairwise_minimiser,
    ranking_weights,
    tail_is_lighter,
    train,
)
from tkpr.theory.orders import preserves_ranking

SURROGATES = ("square", "exponential", "logistic")
LOSS = {
    "square": (lambda t: (1 - t) ** 2, lambda t: -2 * (1 - t)),
    "exponential": (lambda t: np.exp(-t), lambda t: -np.exp(-t)),
    "logistic": (lambda t: np.logaddexp(0, -t), lambda t: -1 / (1 + np.exp(t))),
}


def risk(scores, values, k, surrogate):
    """Return K R(s), by the formula with two plain sums."""
    loss = LOSS[surrogate][0]
    top = sorted(scores, reverse=True)[: k + 1]
    return sum(v * loss(s - t) for v, s in zip(values, scores, strict=True) for t in top)


def recovers(scores, values, k):
    return preserves_ranking(list(scores), list(values), k, tolerance=TIE)


def random_deltas(count, *, seed):
    """Yield Delta without ties, sums to one, with a K below the number of labels."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        num_labels = int(rng.integers(2, 6))
        concentration = rng.choice([0.5, 2.0, 10.0])
        yield rng.dirichlet([concentration] * num_labels), int(rng.integers(1, num_labels))


def minimum_without_sorting(values, k, surrogate, rng):
    """The least risk in the box [0, 1], from a program that knows nothing of the order.

    The K + 1 largest of the losses l(s_i - s_j) over j sum to the minimum over t and u >= 0 of
    (K + 1) t + sum_j u_j subject to u_j >= l(s_i - s_j) - t.
    """
    loss, slope = LOSS[surrogate]
    size = len(values)
    rows, columns = np.divmod(np.arange(size**2), size)

    def split(x):
        return x[:size], x[size : 2 * size], x[2 * size :]

    def slack(x):
        s, t, u = split(x)
        return u + t[rows] - loss(s[rows] - s[columns])

    def slack_gradient(x):
        s, _, _ = split(x)
        gradient = np.zeros((size**2, len(x)))
        index = np.arange(size**2)
        change = slope(s[rows] - s[columns])
        np.add.at(gradient, (index, rows), -change)
        np.add.at(gradient, (index, columns), change)
        gradient[index, size + rows] = 1
        gradient[index, 2 * size + index] = 1
        return gradient

    cost = np.concatenate([np.zeros(size), (k + 1) * values, np.repeat(values, size)])
    solution = minimize(
        lambda x: cost @ x,
        np.concatenate([rng.random(size), np.zeros(size), np.full(size**2, 4.0)]),
        jac=lambda x: cost,
        bounds=[(0, 1)] * size + [(None, None)] * size + [(0, None)] * size**2,
        constraints={"type": "ineq", "fun": slack, "jac": slack_gradient},
        method="SLSQP",
        options={"maxiter": 500, "ftol": 1e-12},
    )
    return risk(solution.x[:size], values, k, surrogate)


@pytest.mark.parametrize("surrogate", SURROGATES)
def test_risk_is_the_expected_loss(surrogate):
    # the loss of the package on rows that occur as often as the distribution says
    distribution = {(0,): 3, (1, 2): 2, (0, 1, 3): 1}
    rows = [labels for labels, count in distribution.items() for _ in range(count)]
    targets = torch.tensor([[float(i in labels) for i in range(4)] for labels in rows])
    scores = torch.tensor([0.9, 0.2, 0.5, 0.1], dtype=torch.float64)
    for alpha in (1, 2, 3):
        loss = TKPR(alpha=alpha, k=2, surrogate=surrogate, scores="raw")
        expected = loss(scores.expand(len(rows), 4), targets.double()) * len(rows) * 2
        values = [float(v) for v in delta(distribution, 4, alpha=alpha, k=2)]
        value = conditional_risk(scores, torch.tensor(values), k=2, surrogate=surrogate)
        assert value.item() == pytest.approx(expected.item())
        assert value.item() == pytest.approx(risk(scores.tolist(), values, 2, surrogate))


@pytest.mark.parametrize("surrogate", SURROGATES)
def test_minimiser_reaches_the_minimum(surrogate):
    rng = np.random.default_rng(5)
    for values, k in random_deltas(8, seed=1):
        found = risk(minimiser(values, k=k, surrogate=surrogate), values, k, surrogate)
        expected = minimum_without_sorting(values, k, surrogate, rng)
        assert found == pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize("surrogate", SURROGATES)
def test_a_minimiser_never_inverts_a_pair(surrogate):
    for values, k in random_deltas(40, seed=2):
        assert compare(minimiser(values, k=k, surrogate=surrogate), values).inverted == 0
    # the appendix's case 3, on any scores: swapping an inverted pair lowers the risk
    rng = np.random.default_rng(3)
    for values, k in random_deltas(40, seed=4):
        scores = rng.random(len(values))
        i, j = rng.choice(len(values), 2, replace=False)
        if (values[i] - values[j]) * (scores[i] - scores[j]) < 0:
            swapped = scores.copy()
            swapped[[i, j]] = scores[[j, i]]
            assert risk(swapped, values, k, surrogate) < risk(scores, values, k, surrogate)


@pytest.mark.parametrize(("surrogate", "scale"), [("exponential", 0.5), ("logistic", 1.0)])
def test_free_minimisers_are_logarithms_of_the_isotonic_regression(surrogate, scale):
    for values, k in random_deltas(25, seed=6):
        ordered = np.sort(values)[::-1]
        means = isotonic([*ordered[:k], ordered[k:].sum()])
        scores = minimiser(ordered, k=k, surrogate=surrogate, width=math.inf)
        expected = scale * np.log(means / means[-1])
        assert scores[: k + 1] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("surrogate", SURROGATES)
def test_when_a_minimiser_recovers_the_bayes_ranking(surrogate):
    inside = 0
    for values, k in random_deltas(60, seed=7):
        scores = minimiser(values, k=k, surrogate=surrogate)
        recovered = recovers(scores, values, k)
        if not tail_is_lighter(values, k):
            assert not recovered
        elif np.ptp(scores) < 1 - TIE:
            assert recovered
            inside += 1
        if np.ptp(scores) < 1 - TIE:
            kept = kept_places(values, k)
            top = np.argsort(-values)
            gaps = scores[top[:k]] - scores[top[-1]]
            assert (gaps > TIE).sum() == kept
    assert inside >= 5


def test_tail_condition_is_that_all_places_are_kept():
    for values, k in random_deltas(200, seed=8):
        assert tail_is_lighter(values, k) == (kept_places(values, k) == k)


@pytest.mark.parametrize("surrogate", SURROGATES)
def test_smallest_counter_example_below_k_of_c_minus_1(surrogate):
    # one label per sample: label 0 half of the time, labels 1 and 2 a quarter each; K = 1
    values = [2, 1, 1]
    assert minimiser(values, k=1, surrogate=surrogate) == pytest.approx([0, 0, 0], abs=TIE)
    equal = risk([0.3, 0.3, 0.3], values, 1, surrogate)
    for gap in np.linspace(0.01, 1, 50):
        assert risk([gap, 0, 0], values, 1, surrogate) > equal
    # a little more weight on label 0, and it is found
    assert recovers(minimiser([2.2, 1, 1], k=1, surrogate=surrogate), [2.2, 1, 1], 1)


@pytest.mark.parametrize(
    ("surrogate", "values"),
    [
        ("logistic", [8, 2, 1]),
        ("exponential", [18, 2, 1]),
        ("square", [71, 16, 2, 1]),
        ("exponential", [100, 90, 1]),  # a tie at the upper bound
    ],
)
def test_counter_examples_at_the_bounds_for_k_of_c_minus_1(surrogate, values):
    k = len(values) - 1
    scores = minimiser(values, k=k, surrogate=surrogate)
    assert not recovers(scores, values, k)
    assert tail_is_lighter(values, k)
    # any step inside the box that parts the tied labels costs
    best = risk(scores, values, k, surrogate)
    rng = np.random.default_rng(0)
    for _ in range(200):
        near = np.clip(scores + rng.normal(0, 0.02, len(values)), 0, 1)
        assert risk(near, values, k, surrogate) >= best - 1e-9


def test_square_loss_with_three_labels_and_k_2_always_recovers():
    # at the bounds the middle score is (3 D2 - D3) / (D1 + 2 D2 + D3), strictly between 0 and 1
    rng = np.random.default_rng(9)
    for _ in range(60):
        values = np.sort(rng.dirichlet([0.4] * 3))[::-1]
        scores = minimiser(values, k=2, surrogate="square")
        assert (np.diff(scores) < 0).all()
        if scores[0] > 1 - TIE:
            middle = (3 * values[1] - values[2]) / (values[0] + 2 * values[1] + values[2])
            assert scores[1] == pytest.approx(middle, abs=1e-5)


@pytest.mark.parametrize("surrogate", SURROGATES)
@pytest.mark.parametrize("num_relevant", [1, 2, 3])
def test_without_noise_k_must_reach_the_number_of_labels(surrogate, num_relevant):
    values = [1.0] * num_relevant + [0.0] * (5 - num_relevant)
    for k in range(1, 5):
        least = risk(minimiser(values, k=k, surrogate=surrogate), values, k, surrogate)
        constant = risk([0.5] * 5, values, k, surrogate)
        if k >= num_relevant:
            assert least < constant - 0.1
            assert recovers(minimiser(values, k=k, surrogate=surrogate), values, k)
        else:
            assert constant == pytest.approx(least, abs=1e-9)


def test_ties_as_errors_defeat_every_convex_surrogate_of_either_loss():
    # two labels, each alone half of the time: convex l gives equal scores
    even = {(0,): 1, (1,): 1}
    pairs, values = ranking_weights(even, 2)
    assert values.tolist() == [1, 1]
    for surrogate in SURROGATES:
        assert pairwise_minimiser(pairs, surrogate=surrogate) == pytest.approx([0, 0], abs=1e-8)
        assert np.ptp(minimiser([1, 1], k=1, surrogate=surrogate)) < TIE
    # both 0-1 losses count the tie as wrong for both labels
    assert pairwise_risk((0, 0), even, alpha=1, k=1) > pairwise_risk((1, 0), even, alpha=1, k=1)


@pytest.mark.parametrize("surrogate", SURROGATES)
def test_pairwise_surrogates_invert_a_pair(surrogate):
    # eight samples over three labels; by the ranking loss label 0 comes before label 1
    distribution = {(0,): 3, (0, 1): 3, (1, 2): 2}
    pairs, values = ranking_weights(distribution, 3)
    assert values.tolist() == [3, 2.5, 1]
    scores = pairwise_minimiser(pairs, surrogate=surrogate)
    assert scores[1] - scores[0] > 0.01
    # the same data, the TKPR surrogate: in order for every K
    for k in (1, 2):
        values = [float(v) for v in delta(distribution, 3, alpha=2, k=k)]
        assert compare(minimiser(values, k=k, surrogate=surrogate), values).inverted == 0


def test_compare_counts_the_pairs_that_matter_to_the_top():
    scores, values = [3.0, 1.0, 1.0, 2.0], [4, 3, 2, 1]
    assert compare(scores, values) == Pairs(inverted=2, tied=1, total=6)
    assert compare(scores, values, k=1) == Pairs(inverted=0, tied=0, total=3)
    assert compare(scores, values, k=2) == Pairs(inverted=1, tied=1, total=5)
    assert compare(scores, values, k=1) + compare(scores, values) == Pairs(2, 1, 9)


def test_ranking_weights_give_the_risk_of_every_order():
    rng = np.random.default_rng(0)
    distribution = random_distribution(4, rng)
    pairs, values = ranking_weights(distribution, 4)
    assert pairs - pairs.T == pytest.approx(values[:, None] - values[None])
    scores = rng.permutation(4)
    wrong = sum(
        pairs[i, j] for i in range(4) for j in range(4) if i != j and scores[i] <= scores[j]
    )
    direct = sum(
        mass
        * np.mean([scores[i] <= scores[j] for i in labels for j in set(range(4)) - set(labels)])
        for labels, mass in distribution.items()
        if len(labels) < 4
    )
    assert wrong == pytest.approx(direct)


def test_univariate_u2_sorts_as_the_ranking_loss_does():
    # the consistent competitor: exp gives s_i = ln(D_i / (W - D_i)) / 2, W the sum of the weights
    rng = np.random.default_rng(0)
    sets = [labels for labels in label_sets(4) if len(labels) < 4]
    counts = rng.integers(1, 4, len(sets))
    distribution = dict(zip(sets, counts.tolist(), strict=True))
    _, values = ranking_weights(distribution, 4)
    total = sum(n / (len(labels) * (4 - len(labels))) for labels, n in distribution.items())
    rows = [labels for labels, n in distribution.items() for _ in range(n)]
    targets = torch.tensor([[float(i in labels) for i in range(4)] for labels in rows]).double()
    scores = torch.tensor(np.log(values / (total - values)) / 2, requires_grad=True)
    Univariate("u2", base="exponential")(scores.expand(len(rows), 4), targets).backward()
    assert scores.grad.abs().max() < 1e-12


@pytest.mark.parametrize("surrogate", SURROGATES)
def test_training_behind_a_sigmoid_ends_near_the_minimum(surrogate):
    values = torch.tensor([[0.5, 0.3, 0.2], [0.4, 0.35, 0.25]], dtype=torch.float64)
    for k in (1, 2):
        scores = train(values, k=k, surrogate=surrogate, activation="sigmoid", steps=400)
        for row, row_values in zip(scores.tolist(), values.tolist(), strict=True):
            best = risk(minimiser(row_values, k=k, surrogate=surrogate), row_values, k, surrogate)
            assert best - 1e-9 <= risk(row, row_values, k, surrogate) < best + 5e-3
