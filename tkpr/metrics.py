"""Ranking measures of the paper (Sec. 3.2, Sec. 4) and the usual ones beside them.

Every measure is a function of ``(scores, targets)`` or ``(scores, targets, k)``: torch tensors or
NumPy arrays of shape ``[B, C]``; scores of any scale (only their order counts, but for the F1
scores' threshold), targets 0 or 1. Keyword arguments that most of them share:

* ``ties``: "worst" breaks ties against the relevant label (Asm. 2, the default); "average" takes
  the mean over the orders of a tie.
* ``empty``: what becomes of rows on which the measure says nothing, because they have no relevant
  label (for the ranking loss: or no irrelevant one): "skip" leaves them out of the mean (the
  default; :func:`count_empty` counts them), "zero" lets them count as 0.
* ``reduction``: "mean" returns a float; "none" one value per row, NaN where "skip" applies.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypedDict, Unpack

import numpy as np
import torch
from torch import Tensor

from tkpr.ranking import Ranking, alpha_weight, rank, top_labels

Array = Tensor | np.ndarray
# that many scores are ranked at once: some tens of megabytes in all
CHUNK = 2**20


class Options(TypedDict, total=False):
    """The keyword arguments that the measures share, described at the top of this file."""

    ties: str
    empty: str
    reduction: str


def precision_at_k(scores: Array, targets: Array, k: int, **options: Unpack[Options]) -> Any:
    """P@K = 1/K sum_{k<=K} y_sigma(k): the share of the top K that is relevant (Prop. 1).

    >>> precision_at_k(torch.tensor([[0.9, 0.8, 0.1]]), torch.tensor([[1, 0, 1]]), 2)
    0.5
    """
    return _measure(lambda top: _precision(top, k), scores, targets, k, **options)


def recall_at_k(scores: Array, targets: Array, k: int, **options: Unpack[Options]) -> Any:
    """R@K = 1/N sum_{k<=K} y_sigma(k): the share of the relevant labels in the top K (Prop. 1).

    >>> recall_at_k(torch.tensor([[0.9, 0.8, 0.1]]), torch.tensor([[1, 1, 1]]), 2, reduction="none")
    tensor([0.6667], dtype=torch.float64)
    """
    return _measure(lambda top: _recall(top, k), scores, targets, k, **options)


def average_precision_at_k(
    scores: Array, targets: Array, k: int, **options: Unpack[Options]
) -> Any:
    """AP@K = 1/N_K sum_{k<=K} y_sigma(k) P@k, N_K = min(K, N); its mean is the tables' mAP@K.

    >>> average_precision_at_k(torch.tensor([[0.9, 0.8, 0.1]]), torch.tensor([[1, 0, 1]]), 2)
    0.5
    """
    return _measure(lambda top: _average_precision(top, k), scores, targets, k, **options)


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
    return _measure(lambda top: _ndcg(top, k, discount), scores, targets, k, **options)


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
    return _measure(lambda top: _tkpr(top, k, alpha), scores, targets, k, **options)


def ranking_loss(scores: Array, targets: Array, **options: Unpack[Options]) -> Any:
    """L_rank = 1/(N N_-) #{(i, j): i relevant, j not, s_i <= s_j} (Eq. ranking_loss).

    >>> ranking_loss(torch.tensor([[0.9, 0.8, 0.1]]), torch.tensor([[0, 1, 0]]))
    0.5
    """
    return _measure(_ranking_loss, scores, targets, **options)


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
    return _measure(_coverage, scores, targets, **options)


def rank_distribution(scores: Array, targets: Array, *, ties: str = "worst") -> np.ndarray:
    """How many relevant labels sit at rank 1, 2, ..., C, summed over the rows (Fig. 4).

    >>> rank_distribution(torch.tensor([[3.0, 2.0], [1.0, 2.0]]), torch.tensor([[1, 1], [1, 0]]))
    array([1., 2.])
    """
    total = torch.zeros(scores.shape[1] + 1, dtype=torch.float64)
    for ranking in _rankings(*_check(scores, targets), ties):
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
    _check(scores, targets)
    return average_precision_at_k(scores.T, targets.T, scores.shape[0], **options)


def overall_f1(
    scores: Array, targets: Array, *, threshold: float = 0.0, k: int | None = None
) -> float:
    """OF1: the F1 score over all entries of the matrix.

    The labels above ``threshold`` are predicted (0 suits logits, 0.5 probabilities), or with ``k``
    the top k of each row whatever their scores. What has no entry to divide by counts as 0.

    >>> overall_f1(torch.tensor([[2.0, -1.0], [3.0, 1.0]]), torch.tensor([[1, 0], [0, 1]]))
    0.8
    """
    return _overall_f1(*_class_counts(*_check(scores, targets, k), threshold, k))


def class_f1(
    scores: Array, targets: Array, *, threshold: float = 0.0, k: int | None = None
) -> float:
    """CF1: 2 CP CR / (CP + CR), CP and CR the means over classes of precision and recall.

    Predictions as in :func:`overall_f1`. A class never predicted has precision 0, one never present
    recall 0, and both stay in the mean, as is usual.

    >>> class_f1(torch.tensor([[2.0, -1.0], [3.0, 1.0]]), torch.tensor([[1, 0], [0, 1]]))
    0.8571428571428571
    """
    return _class_f1(*_class_counts(*_check(scores, targets, k), threshold, k))


def count_empty(targets: Array) -> dict[str, int]:
    """Count the rows on which some measure says nothing.

    >>> count_empty(torch.tensor([[0, 0], [1, 0], [1, 1]]))
    {'rows': 3, 'rows_without_relevant': 1, 'rows_without_irrelevant': 1}
    """
    num_relevant = torch.as_tensor(targets).sum(1)
    return {
        "rows": len(targets),
        "rows_without_relevant": int((num_relevant == 0).sum()),
        "rows_without_irrelevant": int((num_relevant == targets.shape[1]).sum()),
    }


def evaluate(
    scores: Array,
    targets: Array,
    ks: Iterable[int] = (3, 5),
    *,
    threshold: float = 0.0,
    ties: str = "worst",
    empty: str = "skip",
) -> dict[str, float]:
    """All measures of the paper's tables, and mAP, CF1, OF1, from one ranking of the rows.

    Args:
        scores: logits (``threshold`` 0) or probabilities (0.5), ``[B, C]``.
        targets: 0 or 1, ``[B, C]``.
        ks: the cut-offs K.
        threshold: above it a label is predicted; used by CF1 and OF1 only.
        ties: "worst" or "average".
        empty: "skip" or "zero".

    Returns:
        P@K R@K mAP@K NDCG@K TKPR_a1@K TKPR_a2@K TKPR_a3@K for each K, ranking_loss, mAP, CF1, OF1.

    >>> values = evaluate(torch.tensor([[0.9, 0.8, 0.1]]), torch.tensor([[1, 0, 1]]), ks=[1, 2])
    >>> values["P@1"], values["TKPR_a2@2"], values["ranking_loss"]
    (1.0, 0.5, 0.5)
    """
    ks = tuple(ks)
    scores, targets = _check(scores, targets, *ks)
    per_k: dict[str, Callable[[Ranking, int], Tensor]] = {
        "P": _precision,
        "R": _recall,
        "mAP": _average_precision,
        "NDCG": lambda top, k: _ndcg(top, k, "log2"),
        "TKPR_a1": lambda top, k: _tkpr(top, k, 1),
        "TKPR_a2": lambda top, k: _tkpr(top, k, 2),
        "TKPR_a3": lambda top, k: _tkpr(top, k, 3),
    }
    rows: dict[str, list[Tensor]] = {f"{name}@{k}": [] for name in per_k for k in ks}
    rows["ranking_loss"] = []
    for ranking in _rankings(scores, targets, ties):
        for k in ks:
            top = ranking.top(k)
            for name, function in per_k.items():
                rows[f"{name}@{k}"].append(function(top, k))
        rows["ranking_loss"].append(_ranking_loss(ranking))
    values = {name: float(_mean(torch.cat(parts), empty)) for name, parts in rows.items()}
    per_class = [
        _average_precision(ranking, len(scores)) for ranking in _rankings(scores.T, targets.T, ties)
    ]
    values["mAP"] = float(_mean(torch.cat(per_class), empty))
    counts = _class_counts(scores, targets, threshold, None)
    values["CF1"] = _class_f1(*counts)
    values["OF1"] = _overall_f1(*counts)
    return values


# One value per row, NaN where the measure says nothing.


def _precision(top: Ranking, k: int) -> Tensor:
    return _where_relevant(top, top.relevance.sum(1) / k)


def _recall(top: Ranking, k: int) -> Tensor:
    return top.relevance.sum(1) / top.num_relevant


def _average_precision(top: Ranking, k: int) -> Tensor:
    return (top.hits / top.position).sum(1) / top.num_relevant.clamp(max=k)


def _ndcg(top: Ranking, k: int, discount: str) -> Tensor:
    first = torch.arange(1, k + 1, dtype=torch.float64)
    if discount == "log2":
        gain, weights = top.relevance / (top.position + 1).log2(), 1 / (first + 1).log2()
    else:
        gain, weights = top.relevance * (k + 1 - top.position), k + 1 - first
    ideal = torch.cat([weights.new_zeros(1), weights.cumsum(0)])
    return gain.sum(1) / ideal[top.num_relevant.clamp(max=k).long()]


def _tkpr(top: Ranking, k: int, alpha: int) -> Tensor:
    gain = (top.relevance * (k + 1 - top.position)).sum(1)
    return _where_relevant(top, gain / (alpha_weight(top.num_relevant, alpha=alpha, k=k) * k))


def _ranking_loss(ranking: Ranking) -> Tensor:
    wrong_pairs = (ranking.relevance * ranking.position - ranking.hits).sum(1)
    num_irrelevant = ranking.num_classes - ranking.num_relevant
    return wrong_pairs / (ranking.num_relevant * num_irrelevant)


def _coverage(ranking: Ranking) -> Tensor:
    return _where_relevant(ranking, ((ranking.relevance > 0) * ranking.position).amax(1))


def _where_relevant(ranking: Ranking, values: Tensor) -> Tensor:
    return values.where(ranking.num_relevant > 0, torch.nan)


# One value for all rows, from how often each class was predicted rightly, predicted, and present.


def _overall_f1(hits: Tensor, predicted: Tensor, present: Tensor) -> float:
    return float(2 * hits.sum() / (predicted.sum() + present.sum()).clamp(min=1))


def _class_f1(hits: Tensor, predicted: Tensor, present: Tensor) -> float:
    precision = (hits / predicted.clamp(min=1)).mean()
    recall = (hits / present.clamp(min=1)).mean()
    return float(2 * precision * recall / (precision + recall)) if hits.sum() else 0.0


# What the measures share: checks, chunks of rows, the mean.


def _measure(
    function: Callable[[Ranking], Tensor],
    scores: Array,
    targets: Array,
    k: int | None = None,
    *,
    ties: str = "worst",
    empty: str = "skip",
    reduction: str = "mean",
) -> Any:
    """Apply a measure of a ranking, or with ``k`` of its top k, to all rows."""
    if reduction not in ("mean", "none"):
        raise ValueError(f"unknown reduction {reduction!r}: choose one of mean, none")
    rankings = _rankings(*_check(scores, targets, k), ties)
    values = torch.cat([function(ranking.top(k) if k else ranking) for ranking in rankings])
    if reduction == "mean":
        return float(_mean(values, empty))
    values = _fill(values, empty)
    return values.to(scores.device) if isinstance(scores, Tensor) else values.numpy()


def _rankings(scores: Tensor, targets: Tensor, ties: str) -> Iterator[Ranking]:
    """Rank the rows, some at a time so that memory stays small."""
    for chunk in _chunks(scores):
        part = scores[chunk].to(torch.promote_types(scores.dtype, torch.float32)).contiguous()
        yield rank(part, targets[chunk].bool().contiguous(), ties=ties)


def _chunks(matrix: Tensor) -> Iterator[slice]:
    """Cut a matrix into slices of rows."""
    rows = max(1, CHUNK // matrix.shape[1])
    return (slice(start, start + rows) for start in range(0, len(matrix), rows))


def _mean(values: Tensor, empty: str) -> Tensor:
    values = _fill(values, empty)
    if values.isnan().all():
        raise ValueError("no row has the relevant (and irrelevant) labels this measure needs")
    return values.nanmean()


def _fill(values: Tensor, empty: str) -> Tensor:
    if empty not in ("skip", "zero"):
        raise ValueError(f"unknown empty {empty!r}: choose one of skip, zero")
    return values.nan_to_num(nan=0.0) if empty == "zero" else values


def _check(scores: Array, targets: Array, *ks: int | None) -> tuple[Tensor, Tensor]:
    """Return both as tensors on the CPU, the scores in floating point, once all is well."""
    scores, targets = torch.as_tensor(scores).detach().cpu(), torch.as_tensor(targets).cpu()
    if scores.ndim != 2 or 0 in scores.shape:
        raise ValueError(f"scores must be [B, C] and not empty; got {tuple(scores.shape)}")
    if targets.shape != scores.shape:
        raise ValueError(
            f"targets must have the shape of scores, {tuple(scores.shape)}; "
            f"got {tuple(targets.shape)}"
        )
    for k in ks:
        if k is not None and (not isinstance(k, int | np.integer) or not 1 <= k <= scores.shape[1]):
            raise ValueError(f"k must be an integer from 1 to {scores.shape[1]}; got {k!r}")
    for chunk in _chunks(scores):
        lowest, highest = scores[chunk].aminmax()
        if not (lowest.isfinite() and highest.isfinite()):
            row, column = (~scores[chunk].isfinite()).nonzero()[0].tolist()
            value = scores[chunk][row, column].item()
            raise ValueError(
                f"scores must be finite; got {value} in row {chunk.start + row}, column {column}"
            )
        labels = targets[chunk]
        lowest, highest = labels.aminmax()
        whole = not labels.is_floating_point() or not labels.frac().any()
        if not (whole and lowest >= 0 and highest <= 1):
            wrong = labels[(labels != 0) & (labels != 1)][0].item()
            raise ValueError(f"targets must hold only 0 and 1; got {wrong:.6g}")
    return scores if scores.is_floating_point() else scores.double(), targets


def _class_counts(
    scores: Tensor, targets: Tensor, threshold: float, k: int | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return per class: how often predicted rightly, predicted, and present."""
    counts = torch.zeros(3, scores.shape[1], dtype=torch.float64)
    for chunk in _chunks(scores):
        present = targets[chunk].bool()
        if k is None:
            predicted = scores[chunk] > threshold
        else:
            predicted = torch.zeros_like(present)
            predicted.scatter_(1, top_labels(scores[chunk], present, k), True)
        # int64, the default, is several times slower
        for count, labels in zip(counts, (predicted & present, predicted, present), strict=True):
            count += labels.sum(0, dtype=torch.int32)
    hits, predicted, present = counts
    return hits, predicted, present
