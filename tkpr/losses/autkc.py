"""AUTKC, the multiclass forerunner of TKPR, for several relevant labels."""

from torch import Tensor, nn

from tkpr.losses.inputs import choose, prepare, relevant_labels
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

    >>> import torch
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

    def forward(self, logits: Tensor, targets: Tensor, index: Tensor | None = None) -> Tensor:
        """Return the mean over the batch of the loss of each row."""
        logits, targets = prepare(logits, targets)
        columns, present = relevant_labels(targets)
        scores = self.scores(logits)
        # the K + 1 largest of the others are among the K + 2 largest of all
        top, top_columns = scores.topk(min(self.k + 2, logits.shape[1]), dim=1)
        pairs = self.surrogate(scores.gather(1, columns).unsqueeze(2) - top.unsqueeze(1))
        others = top_columns.unsqueeze(1) != columns.unsqueeze(2)
        counted = others & (others.cumsum(2) <= self.k + 1) & present.unsqueeze(2)
        num_relevant = targets.sum(1).clamp(min=1)
        return (pairs.where(counted, 0).sum((1, 2)) / (num_relevant * self.k)).mean()
