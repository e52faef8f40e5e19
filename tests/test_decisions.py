"""Thresholds, calibration and reports per class, against brute force and scikit-learn."""

import numpy as np
import pytest
from sklearn.metrics import f1_score, log_loss, precision_recall_fscore_support, precision_score

from tkpr.decisions import (
    choose_thresholds,
    class_report,
    confusions,
    fit_temperature,
    probabilities,
)


@pytest.fixture(params=[0, 1, 2])
def sample(request):
    """Scores with many ties, and labels that they know something of."""
    rng = np.random.default_rng(request.param)
    targets = (rng.random((60, 5)) < 0.3).astype(int)
    scores = np.round(np.clip(0.3 * targets + 0.7 * rng.random((60, 5)), 0.01, 0.99), 2)
    return scores, targets


def cuts(scores):
    """Every threshold that matters for a class."""
    return [*np.unique(scores), 1.0]


def test_no_threshold_has_a_higher_f1(sample):
    scores, targets = sample
    chosen, undecided = choose_thresholds(scores, targets)
    assert undecided == []
    for label in range(5):
        values = [f1_score(targets[:, label], scores[:, label] >= cut) for cut in cuts(scores)]
        mine = f1_score(targets[:, label], scores[:, label] >= chosen[label])
        assert mine == max(values)
        assert chosen[label] not in scores[:, label]


@pytest.mark.parametrize("wanted", [0.4, 0.7, 0.9])
def test_no_threshold_of_that_precision_has_a_higher_recall(wanted, sample):
    scores, targets = sample
    chosen, undecided = choose_thresholds(scores, targets, precision=wanted)
    for label in range(5):
        column, truth = scores[:, label], targets[:, label] > 0
        good = [
            (truth & (column >= cut)).sum()
            for cut in cuts(scores)
            if (column >= cut).any() and precision_score(truth, column >= cut) >= wanted
        ]
        given = column >= chosen[label]
        if label in undecided:
            assert not good
            assert not given.any()
        else:
            assert precision_score(truth, given) >= wanted
            assert (truth & given).sum() == max(good)


def test_the_temperature_has_the_least_cross_entropy(sample):
    scores, targets = sample
    logits = 5 * (scores - 0.6)
    best = fit_temperature(logits, targets)
    grid = np.exp(np.linspace(-4, 4, 2001))
    losses = [log_loss(targets.ravel(), probabilities(logits, t).ravel()) for t in grid]
    assert best == pytest.approx(grid[int(np.argmin(losses))], rel=0.01)
    truth = np.random.default_rng(0).random((20000, 1)) < probabilities(np.full((20000, 1), 1.0))
    logits = np.full((20000, 1), 3.0)  # three times too sure
    assert fit_temperature(logits, truth) == pytest.approx(3, rel=0.05)


def test_the_report_is_that_of_scikit_learn(sample):
    scores, targets = sample
    thresholds = np.linspace(0.3, 0.99, 5)
    report = class_report(scores, targets, thresholds, list("abcde"))
    expected = precision_recall_fscore_support(targets, scores >= thresholds, zero_division=0)
    for name, values in zip(("precision", "recall", "f1", "support"), expected, strict=True):
        assert [row[name] for row in report] == pytest.approx(values)


def test_confusions_by_a_double_loop(sample):
    scores, targets = sample
    thresholds = np.full(5, 0.5)
    found = {
        (pair["missed"], pair["given"]): pair["images"]
        for pair in confusions(scores, targets, thresholds, list("abcde"), limit=25)
    }
    for a in range(5):
        for b in range(5):
            count = sum(
                row[a] == 1 and score[a] < 0.5 and row[b] == 0 and score[b] >= 0.5
                for row, score in zip(targets, scores, strict=True)
            )
            assert found.get(("abcde"[a], "abcde"[b]), 0) == count
    counts = list(found.values())
    assert counts == sorted(counts, reverse=True)
