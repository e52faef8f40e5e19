"""The measures as functions of scores and targets, and the formulas per row behind them."""

from collections.abc import Callable
from typing import Any, TypedDict, Unpack

import numpy as np
import torch
from torch import Tensor

from tkpr.ranking import (
    Array,
    Ranking,
    alpha_weight,
    check_matrices,
    chunks,
    leave_out,
    rankings,
    top_labels,
)


class Options(TypedDict, total=False):
    """The keyword arguments that the measures share, described in :mod:`tkpr.metrics`."""

    ties: str
    empty: str
    reduction: str
    unknown: Array | None


def precision_at_k(scores: Array, targets: Array, k: int, **options: Unpack[Options]) -> Any:
    """P@K = 1/K sum_{k<=K} y_sigma(k): the share of the top K that is relevant (Prop. 1).

    >>> precision_at_k(torch.tensor([[0.9, 0.8, 0.1]]), torch.tensor([[1, 0, 1]]), 2)
    0.5
    """
    return apply_rows(lambda top: precision_rows(top, k), scores, targets, k, **options)


def recall_at_k(scores: Array, targets: Array, k: int, **options: Unpack[Options]) -> Any:
    """R@K = 1/N sum_{k<=K} y_sigma(k): the share of the relevant labels in the top K (Prop. 1).

    >>> recall_at_k(torch.tensor([[0.9, 0.8, 0.1]]), torch.tensor([[1, 1, 1]]), 2, reduction="none")
    tensor([0.6667], dtype=torch.float64)
    """
    return apply_rows(lambda top: recall_rows(top, k), scores, targets, k, **options)


def average_precision_at_k(
    scores: Array, targets: Array, k: int, **options: Unpack[Options]
) -> Any:
    """AP@K = 1/N_K sum_{k<=K} y_sigma(k) P@k, N_K = min(K, N); its mean is the tables' mAP@K.

    >>> average_precision_at_k(torch.tensor([[0.9, 0.8, 0.1]]), torch.tensor([[1, 0, 1]]), 2)
    0.5
    """
    return apply_rows(lambda top: average_precision_rows(top, k), scores, targets, k, **options)


def ndcg_at_k(
    scores: Array, targets: Array, k: int, *, discount: str = "log2", **options: Unpack[Options]
) -> Any:
    """NDCG@K = DCG@K / IDCG@K, DCG@K = sum_{k<=K} D(k) y_sigma(k).

    ``discount`` is "log2", D(k) = 1 / log2(k + 1), or "linear", D(k) = K + 1 - k.

    >>> ndcg_at_k(torch.tensor([[0.9, 0.8, 0.1]]), torch.tensor([[0, 1, 0]]), 2, discount="linear")
    0.5
    """
    if discount not in ("log2", "linear"):
        raise ValueError(f"unknown discount {discount!r}: choose one of log2, linear")
    return apply_rows(lambda top: ndcg_rows(top, k, discount), scores, targets, k, **options)


def tkpr_at_k(
    scores: Array, targets: Array, k: int, *, alpha: int = 2, **options: Unpack[Options]
) -> Any:
    """TKPR = 1/(alpha K) sum over relevant labels y of max(0, K + 1 - rank of y) (Prop. 2).

    This is the listwise form, DCG with the linear discount over alpha K. The pairwise form as
    printed in Eq. (tkpr) gives K - rank; its sum over k has to run to K + 1, as the loss's does.

    The example of Sec. 4.2, K = 4:

    >>> targets = torch.tensor([[1, 1, 0, 0, 0, 0]])
    >>> for scores in ([0.8, 0.8, 0.9, 0.9, 0.2, 0.2],
    ...                [0.9, 0.9, 0.8, 0.8, 0.2, 0.2],
    ...                [0.8, 0.1, 0.9, 0.2, 0.2, 0.2]):
    ...     print(tkpr_at_k(torch.tensor([scores]), targets, 4, alpha=1))
    0.75
    1.75
    0.75
    """
    if alpha not in (1, 2, 3):
        raise ValueError(f"alpha must be 1, 2 or 3; got {alpha!r}")
    return apply_rows(lambda top: tkpr_rows(top, k, alpha), scores, targets, k, **options)


def ranking_loss(scores: Array, targets: Array, **options: Unpack[Options]) -> Any:
    """L_rank = 1/(N N_-) #{(i, j): i relevant, j not, s_i <= s_j} (Eq. ranking_loss).

    >>> ranking_loss(torch.tensor([[0.9, 0.8, 0.1]]), torch.tensor([[0, 1, 0]]))
    0.5
    """
    return apply_rows(ranking_loss_rows, scores, targets, **options)


def label_ranking_average_precision(
    scores: Array, targets: Array, **options: Unpack[Options]
) -> Any:
    """LRAP: AP@K without a cut-off, K = C.

    scikit-learn's function of the same name gives 1 to rows with no or only relevant labels and
    the last position of a tie to all its labels; without ties and such rows the two agree.

    >>> label_ranking_average_precision(torch.tensor([[0.9, 0.8, 0.1]]), torch.tensor([[0, 1, 0]]))
    0.5
    """
    return average_precision_at_k(scores, targets, scores.shape[1], **options)


def coverage_error(scores: Array, targets: Array, **options: Unpack[Options]) -> Any:
    """How far down the ranking one must go to meet every relevant label.

    >>> coverage_error(torch.tensor([[0.9, 0.8, 0.1]]), torch.tensor([[1, 1, 0]]))
    2.0
    """
    return apply_rows(coverage_rows, scores, targets, **options)


def rank_distribution(
    scores: Array, targets: Array, *, ties: str = "worst", unknown: Array | None = None
) -> np.ndarray:
    """How many relevant labels sit at rank 1, 2, ..., C, summed over the rows (Fig. 3).

    >>> rank_distribution(torch.tensor([[3.0, 2.0], [1.0, 2.0]]), torch.tensor([[1, 1], [1, 0]]))
    array([1., 2.])
    """
    total = torch.zeros(scores.shape[1] + 1, dtype=torch.float64)
    checked, targets = check_matrices(scores, targets)
    for ranking in rankings(leave_out(checked, targets, unknown), targets, ties):
        real = ranking.relevance > 0
        total += torch.bincount(
            ranking.position[real].long(), ranking.relevance[real], minlength=len(total)
        )
    return total[1:].numpy()


def mean_average_precision(scores: Array, targets: Array, **options: Unpack[Options]) -> Any:
    """The per-class mAP of the literature: average precision over the images, mean over classes.

    ``reduction="none"`` gives one value per class. A class without positive images is left out of
    the mean unless ``empty="zero"``, which is what scikit-learn and the ASL line of code do.

    >>> scores = torch.tensor([[0.9, 0.1], [0.8, 0.7], [0.1, 0.6]])
    >>> mean_average_precision(scores, torch.tensor([[1, 0], [0, 1], [1, 0]]))
    0.9166666666666666
    """
    check_matrices(scores, targets)
    unknown = options.pop("unknown", None)
    options["unknown"] = None if unknown is None else unknown.T
    return average_precision_at_k(scores.T, targets.T, scores.shape[0], **options)


def overall_f1(
    scores: Array,
    targets: Array,
    *,
    threshold: float = 0.0,
    k: int | None = None,
    unknown: Array | None = None,
) -> float:
    """OF1: the F1 score over all entries of the matrix.

    The labels above ``threshold`` are predicted (0 suits logits, 0.5 probabilities), or with ``k``
    the top k of each row whatever their scores. What has no entry to divide by counts as 0.

    >>> overall_f1(torch.tensor([[2.0, -1.0], [3.0, 1.0]]), torch.tensor([[1, 0], [0, 1]]))
    0.8
    """
    scores, targets = check_matrices(scores, targets, k)
    scores = leave_out(scores, targets, unknown)
    return overall_f1_of_counts(*class_counts(scores, targets, threshold, k))


def class_f1(
    scores: Array,
    targets: Array,
    *,
    threshold: float = 0.0,
    k: int | None = None,
    unknown: Array | None = None,
) -> float:
    """CF1: 2 CP CR / (CP + CR), CP and CR the means over classes of precision and recall.

    Predictions as in :func:`overall_f1`. A class never predicted has precision 0, one never present
    recall 0, and both stay in the mean, as is usual.

    >>> class_f1(torch.tensor([[2.0, -1.0], [3.0, 1.0]]), torch.tensor([[1, 0], [0, 1]]))
    0.8571428571428571
    """
    scores, targets = check_matrices(scores, targets, k)
    scores = leave_out(scores, targets, unknown)
    return class_f1_of_counts(*class_counts(scores, targets, threshold, k))


def count_empty(targets: Array, unknown: Array | None = None) -> dict[str, int]:
    """Count the rows on which some measure says nothing.

    >>> count_empty(torch.tensor([[0, 0], [1, 0], [1, 1]]))
    {'rows': 3, 'rows_without_relevant': 1, 'rows_without_irrelevant': 1}
    """
    num_relevant = targets.sum(1)
    num_known = targets.shape[1] if unknown is None else (~unknown).sum(1)
    return {
        "rows": targets.shape[0],
        "rows_without_relevant": int((num_relevant == 0).sum()),
        "rows_without_irrelevant": int((num_relevant == num_known).sum()),
    }


# One value per row, NaN where the measure is not defined.


def precision_rows(top: Ranking, k: int) -> Tensor:
    """P@K of each row."""
    return _where_relevant(top, top.relevance.sum(1) / k)


def recall_rows(top: Ranking, k: int) -> Tensor:
    """R@K of each row."""
    return top.relevance.sum(1) / top.num_relevant


def average_precision_rows(top: Ranking, k: int) -> Tensor:
    """AP@K of each row."""
    return (top.hits / top.position).sum(1) / top.num_relevant.clamp(max=k)


def ndcg_rows(top: Ranking, k: int, discount: str = "log2") -> Tensor:
    """NDCG@K of each row."""
    first = torch.arange(1, k + 1, dtype=torch.float64)
    if discount == "log2":
        gain, weights = top.relevance / (top.position + 1).log2(), 1 / (first + 1).log2()
    else:
        gain, weights = top.relevance * (k + 1 - top.position), k + 1 - first
    ideal = torch.cat([weights.new_zeros(1), weights.cumsum(0)])
    return gain.sum(1) / ideal[top.num_relevant.clamp(max=k).long()]


def tkpr_rows(top: Ranking, k: int, alpha: int) -> Tensor:
    """TKPR@K of each row."""
    gain = (top.relevance * (k + 1 - top.position)).sum(1)
    return _where_relevant(top, gain / (alpha_weight(top.num_relevant, alpha=alpha, k=k) * k))


def average_precision_columns(ranking: Ranking) -> Tensor:
    """AP of each class, from a ranking of all images for it."""
    return average_precision_rows(ranking, ranking.num_classes)


def ranking_loss_rows(ranking: Ranking) -> Tensor:
    """Ranking loss of each row."""
    wrong_pairs = (ranking.relevance * ranking.position - ranking.hits).sum(1)
    return wrong_pairs / (ranking.num_relevant * ranking.num_irrelevant)


def coverage_rows(ranking: Ranking) -> Tensor:
    """Coverage of each row."""
    return _where_relevant(ranking, ((ranking.relevance > 0) * ranking.position).amax(1))


def _where_relevant(ranking: Ranking, values: Tensor) -> Tensor:
    return values.where(ranking.num_relevant > 0, torch.nan)


# One value for all rows, from true positives, predictions and positives per class.


def overall_f1_of_counts(hits: Tensor, predicted: Tensor, present: Tensor) -> float:
    """OF1 from the counts per class."""
    return float(2 * hits.sum() / (predicted.sum() + present.sum()).clamp(min=1))


def class_f1_of_counts(hits: Tensor, predicted: Tensor, present: Tensor) -> float:
    """CF1 from the counts per class."""
    precision = (hits / predicted.clamp(min=1)).mean()
    recall = (hits / present.clamp(min=1)).mean()
    return float(2 * precision * recall / (precision + recall)) if hits.sum() else 0.0


# What the measures share.


def apply_rows(
    function: Callable[[Ranking], Tensor],
    scores: Array,
    targets: Array,
    k: int | None = None,
    *,
    ties: str = "worst",
    empty: str = "skip",
    reduction: str = "mean",
    unknown: Array | None = None,
) -> Any:
    """Apply a measure of a ranking, or with ``k`` of its top k, to all rows."""
    if reduction not in ("mean", "none"):
        raise ValueError(f"unknown reduction {reduction!r}: choose one of mean, none")
    checked, targets = check_matrices(scores, targets, k)
    ranked = rankings(leave_out(checked, targets, unknown), targets, ties)
    values = torch.cat([function(ranking.top(k) if k else ranking) for ranking in ranked])
    if reduction == "mean":
        return float(mean_rows(values, empty))
    values = _fill(values, empty)
    return values.to(scores.device) if isinstance(scores, Tensor) else values.numpy()


def mean_rows(values: Tensor, empty: str) -> Tensor:
    """Mean over the rows on which a measure is defined."""
    values = _fill(values, empty)
    if values.isnan().all():
        raise ValueError("no row has the relevant (and irrelevant) labels this measure needs")
    return values.nanmean()


def _fill(values: Tensor, empty: str) -> Tensor:
    if empty not in ("skip", "zero"):
        raise ValueError(f"unknown empty {empty!r}: choose one of skip, zero")
    return values.nan_to_num(nan=0.0) if empty == "zero" else values


def class_counts(
    scores: Tensor, targets: Tensor, threshold: float, k: int | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Count true positives, predictions and positives per class."""
    counts = torch.zeros(3, scores.shape[1], dtype=torch.float64)
    for chunk in chunks(scores):
        present = targets[chunk].bool()
        if k is None:
            predicted = scores[chunk] > threshold
        else:
            predicted = torch.zeros_like(present)
            predicted.scatter_(1, top_labels(scores[chunk], present, k), True)
            predicted &= scores[chunk] > -torch.inf  # not what is left out
        # int64, the default, is several times slower
        for count, labels in zip(counts, (predicted & present, predicted, present), strict=True):
            count += labels.sum(0, dtype=torch.int32)
    hits, predicted, present = counts
    return hits, predicted, present
