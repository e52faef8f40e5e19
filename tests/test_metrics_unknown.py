"""Measures with unknown labels: those of the known labels alone, computed by cutting the rest."""

import numpy as np
import pytest
import torch

from tkpr.metrics import (
    class_f1,
    count_empty,
    coverage_error,
    evaluate,
    evaluate_one,
    label_ranking_average_precision,
    mean_average_precision,
    measure_names,
    overall_f1,
    per_image,
    rank_distribution,
)

KS = (1, 3)


@pytest.fixture
def batch():
    """Scores with ties; each row knows at least three of eight labels."""
    rng = np.random.default_rng(0)
    scores = rng.integers(-3, 4, size=(40, 8)).astype(float)
    unknown = rng.random((40, 8)) < 0.4
    unknown[:, :3] = False
    targets = ((rng.random((40, 8)) < 0.35) & ~unknown).astype(int)
    return scores, targets, unknown


@pytest.mark.parametrize("measure", measure_names(KS, ["image"]))
def test_measures_of_images_are_those_of_their_known_labels(batch, measure):
    scores, targets, unknown = batch
    expected = [
        per_image(measure, scores[[row]][:, known], targets[[row]][:, known])[0]
        for row, known in enumerate(~unknown)
    ]
    np.testing.assert_allclose(per_image(measure, scores, targets, unknown), expected)
    plain = per_image(measure, scores, targets)
    assert not np.array_equal(plain, expected, equal_nan=True)


@pytest.mark.parametrize("measure", [coverage_error, label_ranking_average_precision])
@pytest.mark.parametrize("ties", ["worst", "average"])
def test_other_measures_take_the_same_option(batch, measure, ties):
    scores, targets, unknown = batch
    found = measure(scores, targets, unknown=unknown, reduction="none", ties=ties)
    for row, known in enumerate(~unknown):
        part = scores[[row]][:, known], targets[[row]][:, known]
        np.testing.assert_allclose(found[row], measure(*part, reduction="none", ties=ties)[0])


def test_average_precision_of_a_class_is_that_of_the_images_that_know_it(batch):
    scores, targets, unknown = batch
    found = mean_average_precision(scores, targets, reduction="none", unknown=unknown)
    for column, known in enumerate(~unknown.T):
        part = scores[known][:, [column]], targets[known][:, [column]]
        np.testing.assert_allclose(found[column], mean_average_precision(*part))
    values = evaluate(scores, targets, KS, unknown=unknown)
    assert values["mAP"] == pytest.approx(np.nanmean(found))
    assert values["mAP"] == pytest.approx(evaluate_one("mAP", scores, targets, unknown))


@pytest.mark.parametrize("k", [None, 2])
def test_f1_counts_no_unknown_label_as_given(batch, k):
    scores, targets, unknown = batch
    lowest = np.where(unknown, -99, scores)  # never above the threshold, nor among the two best
    for measure in (class_f1, overall_f1):
        found = measure(scores, targets, k=k, unknown=unknown)
        assert found == measure(lowest, targets, k=k)
        assert found != measure(scores, targets, k=k)
    values = evaluate(scores, targets, KS, unknown=unknown)
    assert values["OF1"] == overall_f1(lowest, targets)
    assert (
        values["CF1"] == evaluate_one("CF1", scores, targets, unknown) == class_f1(lowest, targets)
    )


def test_an_unknown_label_is_not_predicted_where_fewer_than_k_are_known():
    """Of two labels per row, the first row has one to offer: 2 of 3 predictions are right."""
    scores, targets = np.array([[3.0, 1, 2], [1, 2, 3]]), np.array([[1, 0, 0], [0, 1, 0]])
    unknown = np.array([[False, True, True], [False, False, False]])
    assert overall_f1(scores, targets, k=2, unknown=unknown) == pytest.approx(2 * 2 / (3 + 2))
    precision, recall = (1 + 1 + 0) / 3, (1 + 1 + 0) / 3
    expected = 2 * precision * recall / (precision + recall)
    assert class_f1(scores, targets, k=2, unknown=unknown) == pytest.approx(expected)


def test_ranks_and_empty_rows(batch):
    scores, targets, unknown = batch
    lowest = np.where(unknown, -99, scores)
    found = rank_distribution(scores, targets, unknown=unknown)
    np.testing.assert_array_equal(found, rank_distribution(lowest, targets))
    targets, unknown = np.array([[1, 1, 0], [0, 0, 0]]), np.array([[0, 0, 1], [1, 1, 1]]) == 1
    assert count_empty(targets, unknown) == {
        "rows": 2,
        "rows_without_relevant": 1,
        "rows_without_irrelevant": 2,
    }


def test_scores_of_unknown_labels_have_no_influence(batch):
    scores, targets, unknown = batch
    moved = scores + 50 * unknown
    options = {"ks": KS, "unknown": torch.from_numpy(unknown)}
    assert evaluate(torch.tensor(moved), torch.tensor(targets), **options) == evaluate(
        torch.tensor(scores), torch.tensor(targets), **options
    )


def test_wrong_marks_are_refused(batch):
    scores, targets, unknown = batch
    with pytest.raises(ValueError, match=r"unknown must be bool of shape \(40, 8\); got .*\(8,"):
        evaluate(scores, targets, KS, unknown=unknown.T)
    with pytest.raises(ValueError, match="unknown must be bool of shape"):
        evaluate(scores, targets, KS, unknown=unknown.astype(int))
    with pytest.raises(ValueError, match="targets must be 0 where a label is unknown"):
        evaluate(scores, targets, KS, unknown=targets == 1)
