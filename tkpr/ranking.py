"""Rank the labels of each row by score, with ties broken against the relevant labels.

Asm. 2 of the paper lets every tie go wrong: among equal scores the irrelevant labels come first.
The outcome depends on the scores alone, never on the order of rows or columns.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Ranking:
    """What a ranking of C labels makes of the relevant ones, at each position k = 1..C.

    Attributes:
        relevance: y at position k, ``[B, C]``: 0 or 1, or its mean over the orders of a tie.
        hits: y at position k times the number of relevant labels at positions 1..k, ``[B, C]``.
        num_relevant: N, ``[B]``.
    """

    relevance: Tensor
    hits: Tensor
    num_relevant: Tensor


def rank(scores: Tensor, targets: Tensor, *, ties: str = "worst") -> Ranking:
    """Rank the labels of each row from the highest score to the lowest.

    Args:
        scores: finite, ``[B, C]``.
        targets: 0 or 1, ``[B, C]``.
        ties: "worst" puts the irrelevant labels of a tie first; "average" takes the mean over all
            orders of a tie, as scikit-learn's ``ndcg_score`` does.

    >>> rank(torch.tensor([[2.0, 1.0, 1.0]]), torch.tensor([[0, 1, 0]])).relevance
    tensor([[0., 0., 1.]], dtype=torch.float64)
    >>> rank(torch.tensor([[2.0, 1.0, 1.0]]), torch.tensor([[0, 1, 0]]), ties="average").relevance
    tensor([[0.0000, 0.5000, 0.5000]], dtype=torch.float64)
    """
    if ties not in ("worst", "average"):
        raise ValueError(f"unknown ties {ties!r}: choose one of worst, average")
    ordered, order = scores.sort(dim=1, descending=True)
    relevance = targets.gather(1, order).double()
    num_relevant = relevance.sum(1)
    tied = ordered[:, 1:] == ordered[:, :-1]
    if not tied.any():
        return Ranking(relevance, relevance * relevance.cumsum(1), num_relevant)

    first, last = _tie_bounds(tied)
    found = torch.nn.functional.pad(relevance.cumsum(1), (1, 0))
    before = found.gather(1, first - 1)
    inside = found.gather(1, last) - before
    position = torch.arange(1, scores.shape[1] + 1, device=scores.device)
    if ties == "worst":
        relevance = (position > last - inside).double()
        return Ranking(relevance, relevance * relevance.cumsum(1), num_relevant)
    size = last - first + 1
    relevance = inside / size
    # given a relevant label at k, the k - first places above it in the tie hold the other
    # inside - 1 relevant labels with equal chance (McSherry and Najork, 2008)
    above = (position - first) * (inside - 1) / (size - 1).clamp(min=1)
    return Ranking(relevance, relevance * (before + 1 + above), num_relevant)


def _tie_bounds(tied: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first and the last position (from 1) of the tie that each position belongs to."""
    new = torch.nn.functional.pad(~tied, (1, 0), value=True)
    position = torch.arange(1, new.shape[1] + 1, device=tied.device).expand_as(new)
    first = position.where(new, 0).cummax(1).values
    ends = torch.nn.functional.pad(~tied, (0, 1), value=True)
    last = position.where(ends, new.shape[1]).flip(1).cummin(1).values.flip(1)
    return first, last


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

    As ``topk``, but faster for many classes: the k largest lie in the k groups of eight classes
    with the largest maxima, and taking maxima costs a fraction of a partial sort.

    >>> values, columns = largest(torch.tensor([[0.1, 0.7, 0.3, 0.9]]), 2)
    >>> columns.sort().values
    tensor([[1, 3]])
    """
    num_classes = scores.shape[1]
    if num_classes < 50 * k:
        return scores.topk(k, dim=1, sorted=False)
    grouped = num_classes - num_classes % 8
    maxima = scores[:, :grouped].unflatten(1, (8, -1)).amax(1)
    groups = maxima.topk(k, dim=1, sorted=False).indices
    # group g holds the classes g, g + G, g + 2 G, ...; the last few classes are in none
    members = torch.arange(0, grouped, grouped // 8, device=scores.device)
    columns = (groups.unsqueeze(1) + members.unsqueeze(1)).flatten(1)
    if grouped < num_classes:
        rest = torch.arange(grouped, num_classes, device=scores.device)
        columns = torch.cat([columns, rest.expand(len(scores), -1)], dim=1)
    values, places = scores.gather(1, columns).topk(k, dim=1, sorted=False)
    return values, columns.gather(1, places)
