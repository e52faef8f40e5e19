"""From scores to decisions: calibrated probabilities, thresholds per class, their mistakes."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import expit


def probabilities(logits: np.ndarray, temperature: float = 1.0) -> np.ndarray:
    """Return sigmoid(logit / T), float64.

    >>> probabilities(np.array([0.0, 2.0]), 2.0).round(3)
    array([0.5  , 0.731])
    """
    return expit(np.asarray(logits, dtype=np.float64) / temperature)


def fit_temperature(logits: np.ndarray, targets: np.ndarray) -> float:
    """Return the temperature T > 0 with the least binary cross-entropy of sigmoid(logit / T).

    Temperature scaling (Guo et al., ICML 2017), one T for all classes: it changes probabilities,
    not the order of labels.

    Args:
        logits: ``[N, C]``, of samples that the model was not trained on.
        targets: 0 or 1, ``[N, C]``.

    >>> logits = np.array([[4.0], [4.0], [4.0], [-4.0]])  # three of four are right:
    >>> round(fit_temperature(logits, np.array([[1], [1], [0], [0]])), 3)  # 4 / log(3)
    3.641
    """
    logits = np.asarray(logits, dtype=np.float64)
    signed = np.where(np.asarray(targets) > 0, -logits, logits)

    def cross_entropy(log_temperature: float) -> float:
        return float(np.logaddexp(0, signed / np.exp(log_temperature)).mean())

    return float(np.exp(minimize_scalar(cross_entropy, bounds=(-5, 5), method="bounded").x))


def choose_thresholds(
    scores: np.ndarray, targets: np.ndarray, *, precision: float | None = None
) -> tuple[np.ndarray, list[int]]:
    """Choose a threshold per class: a label is given where its score is at least that.

    A threshold is the middle between two neighbouring scores of the class, so that a score is never
    on it.

    Args:
        scores: probabilities ``[N, C]``, of samples that the model was not trained on.
        targets: 0 or 1, ``[N, C]``.
        precision: the precision wanted, at which recall is the highest possible; None: the highest
            F1, 2 TP / (labels given + labels present), is chosen.

    Returns:
        The thresholds ``[C]``, and the classes that could not be decided: without a positive sample
        (0.5), or of which no threshold has the precision wanted (above all their scores).

    >>> scores = np.array([[0.9, 0.6], [0.4, 0.2], [0.2, 0.7]])
    >>> choose_thresholds(scores, np.array([[1, 0], [1, 0], [0, 0]]))
    (array([0.3, 0.5]), [1])
    """
    thresholds, undecided = np.full(scores.shape[1], 0.5), []
    for label in range(scores.shape[1]):
        order = np.argsort(-scores[:, label], kind="stable")
        ranked, hits = scores[order, label], np.cumsum(np.asarray(targets)[order, label])
        positives, given = hits[-1], np.arange(1, len(ranked) + 1)
        # a cut is possible only between different scores
        below = np.append(ranked[1:], 0.0)
        possible = ranked > below
        quality = 2 * hits / (given + positives)
        if precision is not None:
            possible &= hits >= precision * given
            quality = hits / max(positives, 1)
        if not positives:
            undecided.append(label)
        elif not possible.any():
            undecided.append(label)
            thresholds[label] = (1 + ranked[0]) / 2
        else:
            best = int(np.argmax(np.where(possible, quality, -1)))
            thresholds[label] = (ranked[best] + below[best]) / 2
    return thresholds, undecided


def class_report(
    scores: np.ndarray, targets: np.ndarray, thresholds: np.ndarray, names: Sequence[str]
) -> list[dict[str, Any]]:
    """Return precision, recall, F1 and support of each class at its threshold.

    A ratio without a denominator is 0.

    >>> report = class_report(np.array([[0.9], [0.6], [0.2]]), np.array([[1], [0], [1]]),
    ...                       np.array([0.5]), ["cat"])
    >>> report[0]["precision"], report[0]["recall"], report[0]["f1"], report[0]["support"]
    (0.5, 0.5, 0.5, 2)
    """
    given, present = scores >= thresholds, np.asarray(targets) > 0
    hits, all_given, all_present = (x.sum(0) for x in (given & present, given, present))
    return [
        {
            "class": name,
            "precision": float(hits[c] / max(all_given[c], 1)),
            "recall": float(hits[c] / max(all_present[c], 1)),
            "f1": float(2 * hits[c] / max(all_given[c] + all_present[c], 1)),
            "support": int(all_present[c]),
            "threshold": float(thresholds[c]),
        }
        for c, name in enumerate(names)
    ]


def confusions(
    scores: np.ndarray,
    targets: np.ndarray,
    thresholds: np.ndarray,
    names: Sequence[str],
    *,
    limit: int = 10,
) -> list[dict[str, Any]]:
    """Return the most frequent pairs of a label that was missed and another given in its place.

    A sample counts for a pair where the first label is present but not given, and the second given
    but not present.

    >>> confusions(np.array([[0.1, 0.9]]), np.array([[1, 0]]), np.full(2, 0.5), ["cat", "dog"])
    [{'missed': 'cat', 'given': 'dog', 'images': 1}]
    """
    given, present = scores >= thresholds, np.asarray(targets) > 0
    missed, wrong = (present & ~given).astype(np.float64), (given & ~present).astype(np.float64)
    counts = (missed.T @ wrong).astype(int)
    order = np.argsort(-counts, axis=None, kind="stable")[:limit]
    return [
        {"missed": names[a], "given": names[b], "images": int(counts[a, b])}
        for a, b in zip(*np.unravel_index(order, counts.shape), strict=True)
        if counts[a, b]
    ]
