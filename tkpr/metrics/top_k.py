"""Measures from the K best labels of each row, for label sets too large to keep all scores.

The relevant labels stay a sparse matrix: memory grows with the number of rows and of relevant
labels, not with rows times labels. :func:`tkpr.training.predict.keep_best` finds the best labels.
"""

from collections.abc import Iterable

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor

from tkpr.metrics.functions import mean_rows
from tkpr.metrics.table import find_measure, measure_names
from tkpr.ranking import Ranking


def evaluate_top(
    labels: Tensor,
    targets: csr_array,
    ks: Iterable[int] = (1, 3, 5),
    *,
    inverse_propensities: Tensor | None = None,
    empty: str = "skip",
) -> dict[str, float]:
    """All measures that need no more than the K best labels.

    Args:
        labels: the best labels of each row, best first, ``[N, K]``.
        targets: 1 at relevant labels, ``[N, C]``.
        ks: the cut-offs, K at most.
        inverse_propensities: 1 / p of each label, ``[C]``; None: no propensity-scored measures.
        empty: what becomes of rows without relevant labels: "skip" or "zero" (as the repository's
            scripts do). The propensity-scored measures do not depend on it.

    Returns:
        P@K R@K mAP@K NDCG@K TKPR_a1@K TKPR_a2@K TKPR_a3@K, and PSP@K PSnDCG@K, for each K.

    >>> targets = csr_array(np.array([[1, 0, 1], [0, 1, 0]]))
    >>> values = evaluate_top(torch.tensor([[0, 1], [1, 2]]), targets, ks=[1, 2])
    >>> values["P@1"], values["R@2"]
    (1.0, 0.75)
    """
    ks = tuple(ks)
    _check(labels, targets, ks)
    found = torch.from_numpy(_lookup(labels.numpy(), targets)).double()
    counts = torch.from_numpy(np.diff(targets.indptr)).double()
    position = torch.arange(1, found.shape[1] + 1, dtype=torch.float64).expand_as(found)
    classes = targets.shape[1]
    ranking = Ranking(position, found, found * found.cumsum(1), counts, classes - counts, classes)
    values = {}
    for name in measure_names(ks, ["image"]):
        measure, k = find_measure(name)
        if k is not None and measure.function is not None:
            values[name] = float(mean_rows(measure.function(ranking.top(k), k), empty))
    if inverse_propensities is not None:
        gains = found * inverse_propensities[labels]
        ideal = _ideal_gains(targets, inverse_propensities.numpy(), max(ks))
        for name in measure_names(ks, ["propensity"]):
            measure, k = find_measure(name)
            if measure.function is not None:
                values[name] = measure.function(gains, ideal, counts, k)
    return values


def _check(labels: Tensor, targets: csr_array, ks: tuple[int, ...]) -> None:
    rows, classes = targets.shape
    if labels.ndim != 2 or len(labels) != rows:
        raise ValueError(
            f"labels must be [N, K] with a row for each row of targets, {rows}; "
            f"got {tuple(labels.shape)}"
        )
    for k in ks:
        if not 1 <= k <= labels.shape[1]:
            raise ValueError(f"k must be from 1 to the {labels.shape[1]} labels known; got {k}")
    if labels.numel() and (labels.min() < 0 or labels.max() >= classes):
        raise ValueError(
            f"labels must be from 0 to {classes - 1}; "
            f"got {labels.min().item()} to {labels.max().item()}"
        )


def _lookup(labels: np.ndarray, targets: csr_array) -> np.ndarray:
    """Return where the labels are relevant, ``[N, K]``."""
    rows, classes = targets.shape
    entries = np.repeat(np.arange(rows), np.diff(targets.indptr)) * classes + targets.indices
    return np.isin(np.arange(rows)[:, None] * classes + labels, entries)


def _ideal_gains(targets: csr_array, weights: np.ndarray, k: int) -> Tensor:
    """Return the k largest weights of the relevant labels of each row, padded with 0."""
    counts = np.diff(targets.indptr)
    rows, gains = np.repeat(np.arange(len(counts)), counts), weights[targets.indices]
    order = np.lexsort((-gains, rows))
    places = np.arange(len(rows)) - np.repeat(targets.indptr[:-1], counts)
    kept = places < k
    ideal = np.zeros((len(counts), k))
    ideal[rows[kept], places[kept]] = gains[order][kept]
    return torch.from_numpy(ideal)
