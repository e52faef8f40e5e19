"""Rank the labels of each row by score, with ties broken against the relevant labels.

Asm. 2 of the paper counts every tie as an error: among equal scores the irrelevant labels come
first. The outcome depends on the scores alone, never on the order of rows or columns.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

Array = Tensor | np.ndarray
# scores ranked at once: a working set of some tens of megabytes
CHUNK = 2**20


@dataclass(frozen=True)
class Ranking:
    """Where a ranking of C labels puts the relevant ones, entry by entry, ``[B, P]``.

    With ties broken, entry j = 1..P is the j-th relevant label from the top, P being the largest
    number of relevant labels of a row; with ties averaged, it is the j-th position, P = C. Either
    way entry j lies at position j or further down.

    Attributes:
        position: the position of each entry, from 1 up.
        relevance: y there: 0 or 1, or its mean over the orders of a tie.
        hits: y there times the number of relevant labels down to there, itself included.
        num_relevant: N, ``[B]``.
        num_irrelevant: M, ``[B]``; with N it makes C, less the labels that are left out.
        num_classes: C.
    """

    position: Tensor
    relevance: Tensor
    hits: Tensor
    num_relevant: Tensor
    num_irrelevant: Tensor
    num_classes: int

    def top(self, k: int) -> "Ranking":
        """Return the same with nothing relevant below position k."""
        position, inside = self.position[:, :k], self.position[:, :k] <= k
        relevance, hits = self.relevance[:, :k] * inside, self.hits[:, :k] * inside
        return replace(self, position=position, relevance=relevance, hits=hits)


def rank(scores: Tensor, targets: Tensor, *, ties: str = "worst") -> Ranking:
    """Rank the labels of each row from the highest score to the lowest.

    Args:
        scores: finite, or -inf for labels to leave out (:func:`leave_out`), floating point, on the
            CPU, ``[B, C]``.
        targets: True for relevant labels, ``[B, C]``.
        ties: "worst" puts the irrelevant labels of a tie first; "average" takes the mean over all
            orders of a tie, as scikit-learn's ``ndcg_score`` does.

    >>> rank(torch.tensor([[2.0, 1.0, 1.0]]), torch.tensor([[False, True, False]])).position
    tensor([[3.]], dtype=torch.float64)
    >>> scores, targets = torch.tensor([[2.0, 1.0, 1.0]]), torch.tensor([[False, True, False]])
    >>> rank(scores, targets, ties="average").relevance
    tensor([[0.0000, 0.5000, 0.5000]], dtype=torch.float64)
    """
    if ties not in ("worst", "average"):
        raise ValueError(f"unknown ties {ties!r}: choose one of worst, average")
    num_classes = scores.shape[1]
    num_relevant = targets.sum(1, dtype=torch.int32)
    ranked = (scores > -torch.inf).sum(1, dtype=torch.int32)
    counts = (num_relevant.double(), (ranked - num_relevant).double(), num_classes)
    if ties == "average":
        relevance, hits = _average_over_ties(scores, targets)
        position = torch.arange(1, num_classes + 1, dtype=torch.float64).expand_as(relevance)
        return Ranking(position, relevance, hits, *counts)

    width = max(1, int(num_relevant.max()))
    irrelevant = _sort_(torch.where(targets, -torch.inf, scores))
    relevant = _sort_(torch.where(targets, scores, -torch.inf))[:, -width:].flip(1)
    above = num_classes - torch.searchsorted(irrelevant, relevant)
    order = torch.arange(1, width + 1, dtype=torch.float64)
    relevance = (order <= num_relevant.unsqueeze(1)).double()
    return Ranking(above + order, relevance, relevance * order, *counts)


def check_matrices(scores: Array, targets: Array, *ks: int | None) -> tuple[Tensor, Tensor]:
    """Check shapes and values; return both as CPU tensors, the scores in floating point."""
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
    for chunk in chunks(scores):
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


def leave_out(scores: Tensor, targets: Tensor, unknown: Array | None) -> Tensor:
    """Return the scores with -inf, below all others, where a label is unknown.

    Args:
        scores: finite, ``[B, C]``.
        targets: 0 or 1, ``[B, C]``.
        unknown: True where it is not known whether a label is relevant, ``[B, C]``; None: nowhere.

    >>> leave_out(torch.zeros(1, 2), torch.tensor([[1, 0]]), torch.tensor([[False, True]]))
    tensor([[0., -inf]])
    """
    if unknown is None:
        return scores
    unknown = torch.as_tensor(unknown).cpu()
    if unknown.dtype != torch.bool or unknown.shape != scores.shape:
        raise ValueError(
            f"unknown must be bool of shape {tuple(scores.shape)}; "
            f"got {unknown.dtype} of shape {tuple(unknown.shape)}"
        )
    if targets[unknown].any():
        raise ValueError("targets must be 0 where a label is unknown")
    return scores.masked_fill(unknown, -torch.inf)


def rankings(scores: Tensor, targets: Tensor, ties: str) -> Iterator[Ranking]:
    """Rank the rows chunk by chunk, so that memory stays small."""
    for chunk in chunks(scores):
        part = scores[chunk].to(torch.promote_types(scores.dtype, torch.float32)).contiguous()
        yield rank(part, targets[chunk].bool().contiguous(), ties=ties)


def chunks(matrix: Tensor) -> Iterator[slice]:
    """Split a matrix into slices of rows."""
    rows = max(1, CHUNK // matrix.shape[1])
    return (slice(start, start + rows) for start in range(0, len(matrix), rows))


def _sort_(values: Tensor) -> Tensor:
    """Sort each row upwards, in place; NumPy takes a tenth of the time of torch for values."""
    values.numpy().sort(axis=1)
    return values


def _average_over_ties(scores: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the means of relevance and hits at each position over the orders of the ties."""
    ordered, order = scores.sort(dim=1, descending=True)
    first, last = _tie_bounds(ordered[:, 1:] == ordered[:, :-1])
    found = torch.nn.functional.pad(targets.gather(1, order).double().cumsum(1), (1, 0))
    before = found.gather(1, first - 1)
    inside = found.gather(1, last) - before
    size = last - first + 1
    relevance = inside / size
    # given a relevant label at k, the k - first places above it in the tie hold the other
    # inside - 1 relevant labels with equal chance (McSherry and Najork, 2008)
    position = torch.arange(1, scores.shape[1] + 1)
    above = (position - first) * (inside - 1) / (size - 1).clamp(min=1)
    return relevance, relevance * (before + 1 + above)


def _tie_bounds(tied: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first and the last position (from 1) of the tie that each position belongs to."""
    new = torch.nn.functional.pad(~tied, (1, 0), value=True)
    position = torch.arange(1, new.shape[1] + 1).expand_as(new)
    first = position.where(new, 0).cummax(1).values
    ends = torch.nn.functional.pad(~tied, (0, 1), value=True)
    last = position.where(ends, new.shape[1]).flip(1).cummin(1).values.flip(1)
    return first, last


def alpha_weight(num_relevant: Any, *, alpha: int, k: int) -> Any:
    """Return the weighting term alpha of each row (Prop. 2).

    alpha_1 = 1, alpha_2 = N_K, alpha_3 = N_K (2K + 1 - N_K) / 2, with N_K = min(K, N): always whole
    numbers, so exact for integers too. A row without relevant labels counts as one with a single
    relevant label, so that 0 / alpha is 0.

    Args:
        num_relevant: N, the number of relevant labels: a tensor, an array or an integer.
        alpha: 1, 2 or 3.
        k: K.

    >>> alpha_weight(torch.tensor([1., 2., 9.]), alpha=3, k=4)
    tensor([ 4.,  7., 10.])
    >>> alpha_weight(2, alpha=3, k=4)
    7
    """
    if isinstance(num_relevant, int):
        n_k: Any = min(max(num_relevant, 1), k)
    else:
        n_k = num_relevant.clip(1, k)
    if alpha == 1:
        return n_k // n_k
    if alpha == 2:
        return n_k
    if alpha == 3:
        return n_k * (2 * k + 1 - n_k) // 2
    raise ValueError(f"alpha must be 1, 2 or 3; got {alpha!r}")


def top_labels(scores: Tensor, targets: Tensor, k: int) -> Tensor:
    """Return the labels at positions 1..k, ``[B, k]``, ties broken against the relevant ones.

    >>> top_labels(torch.tensor([[1.0, 3.0, 3.0]]), torch.tensor([[0, 1, 0]]), 2)
    tensor([[2, 1]])
    """
    irrelevant_first = targets.sort(dim=1, stable=True).indices
    by_score = scores.gather(1, irrelevant_first).sort(dim=1, descending=True, stable=True).indices
    return irrelevant_first.gather(1, by_score[:, :k])


def largest(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k largest scores of each row and their columns, in any order, ``[B, k]`` each.

    As ``topk``, but faster for many classes: see :func:`largest_entries`.

    >>> values, columns = largest(torch.tensor([[0.1, 0.7, 0.3, 0.9]]), 2)
    >>> columns.sort().values
    tensor([[1, 3]])
    """
    num_classes = scores.shape[1]
    if on_host(scores):
        columns = torch.from_numpy(largest_entries(scores.detach().numpy(), k) % num_classes)
        return scores.gather(1, columns), columns
    if num_classes < 32 * k:
        return scores.topk(k, dim=1, sorted=False)
    grouped = num_classes - num_classes % 8
    _, groups = scores[:, :grouped].unflatten(1, (8, -1)).amax(1).topk(k, dim=1, sorted=False)
    members = torch.arange(0, grouped, grouped // 8, device=scores.device)
    columns = (groups.unsqueeze(1) + members.unsqueeze(1)).flatten(1)
    if grouped < num_classes:
        rest = torch.arange(grouped, num_classes, device=scores.device)
        columns = torch.cat([columns, rest.expand(len(scores), -1)], dim=1)
    values, places = scores.gather(1, columns).topk(k, dim=1, sorted=False)
    return values, columns.gather(1, places)


def largest_entries(scores: np.ndarray, k: int) -> np.ndarray:
    """Return where the k largest scores of each row are in the flattened matrix, ``[B, k]``.

    Of many classes, the k largest lie in the k groups of eight with the largest maxima, and taking
    maxima costs a fraction of a search. With C = 8 G + r, group g holds the classes g, g + G, ...,
    g + 7 G; the last r classes are in none.

    >>> largest_entries(np.array([[0.1, 0.7, 0.3, 0.9], [5.0, 4.0, 3.0, 2.0]]), 2)
    array([[1, 3],
           [4, 5]])
    """
    num_rows, num_classes = scores.shape
    # of a small matrix the search costs less than the steps that would save it
    if num_classes < 32 * k or scores.size < 2**15:
        return _search(scores, k)
    num_groups, rest = divmod(num_classes, 8)
    maxima = scores[:, : 8 * num_groups].reshape(num_rows, 8, num_groups).max(1)
    groups = _search(maxima, k)
    first = groups + groups // num_groups * (num_classes - num_groups)
    near = (first[:, :, None] + np.arange(0, 8 * num_groups, num_groups)).reshape(num_rows, -1)
    if rest:
        ends = np.arange(num_classes, scores.size + 1, num_classes)
        near = np.concatenate([near, ends[:, None] - np.arange(1, rest + 1)], axis=1)
    return near.take(_search(scores.take(near), k))


def _search(scores: np.ndarray, k: int) -> np.ndarray:
    """As :func:`largest_entries`: all that reach the k-th largest of their row."""
    # "not below" keeps NaN, which counts as the largest
    found = np.flatnonzero(~(scores < np.partition(scores, -k, axis=1)[:, -k, None]))
    if len(found) != k * len(scores):  # a tie with the k-th, broken as torch does
        first_of_row = np.arange(0, scores.size, scores.shape[1])[:, None]
        found = torch.from_numpy(scores).topk(k, dim=1, sorted=False).indices.numpy() + first_of_row
    return found.reshape(-1, k)


def on_host(tensor: Tensor) -> bool:
    """Whether the values of a tensor can be read without a host sync.

    They cannot on an accelerator, whose queue would stall, nor while code is compiled
    (``torch.compile``) or transformed (``torch.func``), when there are no values yet.

    >>> on_host(torch.zeros(3))
    True
    """
    return (
        tensor.is_cpu
        and not is_traced()
        and type(tensor) in (Tensor, torch.nn.Parameter)  # not a meta tensor
    )


def is_traced() -> bool:
    """Whether the code that runs is being compiled or transformed."""
    return torch.compiler.is_compiling() or is_transformed()


def is_transformed() -> bool:
    """Whether a transform of ``torch.func`` (grad, vmap, ...) is active."""
    return torch._C._are_functorch_transforms_active()
