"""AUTKC, the multiclass forerunner of TKPR, for several relevant labels."""

import torch
from torch import Tensor, nn

from tkpr.losses.inputs import Relevant, choose, find_relevant
from tkpr.losses.label_lists import LabelLists
from tkpr.losses.surrogates import surrogate as find_surrogate
from tkpr.losses.tkpr import SCORES


class AUTKC(nn.Module):
    r"""Area Under the Top-K Curve (Wang et al., TPAMI 2023).

    .. math::
        L(f, y) = \frac{1}{N K} \sum_{y \in P(y)} \sum_{k \le K+1} \ell(s_y - s^{(-y)}_{[k]})

    where s^{(-y)}_[k] is the k-th largest score among the labels *other than y*, unlike TKPR. The
    original knows one relevant label; here each relevant label is one multiclass problem and a row
    takes their mean, so a single label gives the original. Where fewer than K + 1 other classes
    exist all of them are used and the divisor stays K, as in the original. Rows without relevant
    labels add 0 and stay in the mean.

    Args:
        k: K.
        surrogate: l: "exponential" (the original's default), "square", "logistic" or "hinge".
        scores: "softmax" (the original's choice but for the hinge), "sigmoid" or "raw".

    >>> loss = AUTKC(k=1, surrogate="hinge", scores="raw")
    >>> loss(torch.tensor([[2.0, 1.0, 0.5, 4.0]]), torch.tensor([[1, 0, 0, 0]]))
    tensor(3.)
    """

    def __init__(self, *, k: int, surrogate: str = "exponential", scores: str = "softmax") -> None:
        super().__init__()
        if not isinstance(k, int) or k < 1:
            raise ValueError(f"k must be an integer of at least 1; got {k!r}")
        self.k = k
        self.surrogate = find_surrogate(surrogate)
        self.scores = choose(scores, SCORES, "scores")

    def forward(
        self, logits: Tensor, targets: Tensor | LabelLists, index: Tensor | None = None
    ) -> Tensor:
        """Return the mean over the batch of the loss of each row."""
        logits, labels = find_relevant(logits, targets)
        # the K + 1 largest of the others are among the K + 2 largest of all
        scores = self.scores(logits)
        top_scores, top = scores.topk(min(self.k + 2, logits.shape[1]), dim=1)
        if isinstance(labels, Relevant):
            total = self._of_lists(scores, top_scores, top, labels)
        else:
            total = self._of_dense(scores, top_scores, top, labels)
        return total / (self.k * len(logits))

    def _of_lists(
        self, scores: Tensor, top_scores: Tensor, top: Tensor, labels: Relevant
    ) -> Tensor:
        entries, rows, counts = labels
        own_scores = scores.flatten().index_select(0, entries).unsqueeze(1)
        pairs = self.surrogate(own_scores - top_scores.index_select(0, rows))
        others = top.index_select(0, rows) != (entries % scores.shape[1]).unsqueeze(1)
        counted = others & (others.cumsum(1) <= self.k + 1)
        return (pairs.where(counted, 0) / counts.index_select(0, rows)).sum()

    def _of_dense(self, scores: Tensor, top_scores: Tensor, top: Tensor, labels: Tensor) -> Tensor:
        first = top_scores[:, : self.k + 1]
        # a label below the K + 1 largest meets all of these
        below = torch.stack([self.surrogate(scores - one) for one in first.split(1, dim=1)]).sum(0)
        # one of them meets the K + 2 largest without itself
        pairs = self.surrogate(first.unsqueeze(2) - top_scores.unsqueeze(1))
        others = 1 - torch.eye(*pairs.shape[1:], dtype=pairs.dtype, device=pairs.device)
        sums = below.scatter(1, top[:, : self.k + 1], (pairs * others).sum(2))
        # a product, not a choice: NaN is not hidden, not even in a row without relevant labels
        return ((sums * labels).sum(1) / labels.sum(1).clamp(min=1)).sum()
