"""The K best labels of each row, and measures from them, against loops and dense rankings."""

import math

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array

from tkpr.losses import ChunkedLogits, LabelLists
from tkpr.metrics import evaluate, evaluate_top, inverse_propensities
from tkpr.metrics.propensity import psndcg_at_k, psp_at_k
from tkpr.training.predict import keep_best


def random_rows(rows=40, classes=30, *, ties=False, seed=0):
    """Scores and targets; some rows have no relevant labels, some more than K."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(rows, classes, generator=generator)
    targets = torch.rand(rows, classes, generator=generator) < torch.linspace(0, 0.5, rows)[:, None]
    return (2 * scores).round() if ties else scores, targets


def best_labels(scores, targets, k):
    """The k best labels and their scores, which logits in chunks give as well."""
    lists = LabelLists.from_sparse(targets.float().to_sparse_csr())
    kept = keep_best(scores, lists, k=k)
    eye = torch.eye(scores.shape[1], dtype=scores.dtype)
    chunked = ChunkedLogits(scores, eye, torch.zeros_like(eye[0]), chunk=7)
    labels, values = kept[:, :k].long(), kept[:, k:]
    others = keep_best(chunked, lists, k=k)  # of equal scores and relevance, any label will do
    assert torch.equal(others[:, k:], values)
    assert torch.equal(lists.contain(others[:, :k].long()), lists.contain(labels))
    return labels, values


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("empty", ["skip", "zero"])
def test_measures_are_those_of_all_scores(ties, empty):
    scores, targets = random_rows(ties=ties)
    ks = [1, 3, 5]
    labels, values = best_labels(scores, targets, 5)
    assert torch.equal(values, scores.gather(1, labels))
    assert torch.equal(values, scores.topk(5).values)
    found = evaluate_top(labels, csr_array(targets.numpy()), ks, empty=empty)
    expected = evaluate(scores, targets, ks, empty=empty)
    assert len(found) == 7 * len(ks)
    assert found == pytest.approx({name: expected[name] for name in found}, rel=1e-12)


def test_ties_are_broken_against_relevant_labels():
    """However long the tie, and wherever its relevant labels are."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        targets = torch.rand(1, 20, generator=generator) < 0.5
        labels, _ = best_labels(torch.zeros(1, 20), targets, 4)
        wrong = min(4, int((~targets).sum()))
        assert targets[0, labels[0]].tolist() == [False] * wrong + [True] * (4 - wrong)
    labels, _ = best_labels(torch.tensor([[1.0, 2.0]]), torch.tensor([[True, True]]), 2)
    assert labels.tolist() == [[1, 0]]


def by_loops(scores, targets, weights, k):
    """PSP@K and PSnDCG@K, one label at a time."""
    sums = np.zeros((2, 2))
    for row, truth in zip(scores.tolist(), targets.tolist(), strict=True):
        order = sorted(range(len(row)), key=lambda label: -row[label])
        ideal = sorted(range(len(row)), key=lambda label: -truth[label] * weights[label])
        norm = sum(1 / math.log2(place + 2) for place in range(min(k, sum(truth))))
        for column, ranking in enumerate((order, ideal)):
            for place, label in enumerate(ranking[:k]):
                if truth[label]:
                    sums[0, column] += weights[label]
                    sums[1, column] += weights[label] / math.log2(place + 2) / norm
    return sums[:, 0] / sums[:, 1]


@pytest.mark.parametrize("k", [1, 3, 5])
def test_propensity_scored_measures_equal_loops(k):
    scores, targets = random_rows(seed=k)
    weights = inverse_propensities(targets.sum(0), 1000)
    labels, _ = best_labels(scores, targets, 5)
    found = evaluate_top(labels, csr_array(targets.numpy()), [k], inverse_propensities=weights)
    psp, psndcg = by_loops(scores, targets, weights.tolist(), k)
    assert found[f"PSP@{k}"] == pytest.approx(psp, rel=1e-12)
    assert found[f"PSnDCG@{k}"] == pytest.approx(psndcg, rel=1e-12)


def test_perfect_rankings_reach_one():
    _, targets = random_rows()
    weights = inverse_propensities(targets.sum(0), 1000)
    labels, _ = best_labels(targets * weights, targets, 5)
    found = evaluate_top(labels, csr_array(targets.numpy()), [1, 5], inverse_propensities=weights)
    for name in ("PSP@1", "PSP@5", "PSnDCG@1", "PSnDCG@5", "NDCG@5", "P@1"):
        assert found[name] == pytest.approx(1, rel=1e-12)


def test_wrong_input_gets_one_sentence():
    targets = csr_array(np.eye(3, 4))
    with pytest.raises(ValueError, match=r"a row for each row of targets, 3; got \(2, 2\)"):
        evaluate_top(torch.zeros(2, 2, dtype=torch.long), targets, [1])
    with pytest.raises(ValueError, match="k must be from 1 to the 2 labels known; got 3"):
        evaluate_top(torch.zeros(3, 2, dtype=torch.long), targets, [3])
    with pytest.raises(ValueError, match="labels must be from 0 to 3; got 4 to 4"):
        evaluate_top(torch.full((3, 2), 4), targets, [1])


def test_inverse_propensities_by_hand():
    counts, n, a, b = [0, 1, 7, 500], 1000, 0.6, 2.6
    c = (math.log(n) - 1) * (b + 1) ** a
    expected = [1 + c * math.exp(-a * math.log(count + b)) for count in counts]
    found = inverse_propensities(np.array(counts), n, a=a, b=b)
    assert found.tolist() == pytest.approx(expected, rel=1e-12)
    assert (found.diff() < 0).all()
    assert (found > 1).all()


def test_inverse_propensities_refuse_wrong_input():
    with pytest.raises(ValueError, match="at least 3 training samples; got 2"):
        inverse_propensities(torch.tensor([1]), 2)
    with pytest.raises(ValueError, match=r"class_counts must be \[C\]; got \(1, 1\)"):
        inverse_propensities(torch.tensor([[1]]), 9)
    with pytest.raises(ValueError, match=r"b above 0; got 0\.55 and 0"):
        inverse_propensities(torch.tensor([1]), 9, b=0)


def test_no_relevant_label_at_all():
    nothing = torch.zeros(2, 3)
    with pytest.raises(ValueError, match="no row has the relevant labels"):
        psp_at_k(nothing, nothing, torch.zeros(2), 2)
    with pytest.raises(ValueError, match="no row has the relevant labels"):
        psndcg_at_k(nothing, nothing, torch.zeros(2), 2)


@pytest.mark.parametrize(("a", "b"), [(0.55, 1.5), (0.5, 0.4), (0.6, 2.6), (0.0, 1.0)])
def test_inverse_propensities_for_published_constants(a, b):
    """1 + C (N_l + B)^-A with C = (log N - 1) (B + 1)^A, also for B below 1 (Wikipedia)."""
    found = inverse_propensities([0, 3, 50], 100, a=a, b=b)
    constant = (math.log(100) - 1) * (b + 1) ** a
    assert found.tolist() == pytest.approx([1 + constant * (n + b) ** -a for n in (0, 3, 50)])


@pytest.mark.parametrize(
    ("counts", "size", "constants"),
    [([[1]], 9, {}), ([1], 2, {}), ([1], 9, {"a": -0.1}), ([1], 9, {"b": 0})],
)
def test_propensities_that_are_undefined(counts, size, constants):
    with pytest.raises(ValueError, match=r"must be \[C\]|at least 3|0 or more and b above 0"):
        inverse_propensities(counts, size, **constants)


def test_cut_offs_by_default():
    labels, _ = best_labels(*random_rows(), 5)
    found = evaluate_top(labels, csr_array(random_rows()[1].numpy()))
    assert {int(name.partition("@")[2]) for name in found} == {1, 3, 5}


def test_propensities_of_the_fewest_samples():
    counts = torch.tensor([1, 2])
    assert (inverse_propensities(counts, 3) > 1).all()
    with pytest.raises(ValueError, match="at least 3 training samples; got 2"):
        inverse_propensities(counts, 2)


@pytest.mark.parametrize("measure", [psp_at_k, psndcg_at_k])
def test_one_label_with_a_propensity_of_one(measure):
    one = torch.ones(1, 1)
    assert measure(one, one, torch.tensor([1]), 1) == 1
    with pytest.raises(ValueError, match="no row has the relevant labels"):
        measure(0 * one, 0 * one, torch.tensor([0]), 1)
