"""The TKPR loss L_K^{alpha,l} (Sec. 5, OP_2): the paper's convex surrogate of the TKPR measure."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from tkpr.losses.inputs import choose, prepare, relevant_labels
from tkpr.losses.surrogates import surrogate as find_surrogate

SCORES: dict[str, Callable[[Tensor], Tensor]] = {
    "sigmoid": torch.sigmoid,
    "softmax": partial(torch.softmax, dim=1),
    "raw": lambda logits: logits,
}


def weighting(num_relevant: Tensor, *, alpha: int, k: int) -> Tensor:
    """Return the weighting term alpha of each row (Prop. 2).

    alpha_1 = 1, alpha_2 = N_K, alpha_3 = N_K (2K + 1 - N_K) / 2, with N_K = min(K, N).
    A row with no relevant label counts as one with a single relevant label, so that 0 / alpha is 0.

    Args:
        num_relevant: N, the number of relevant labels of each row, ``[B]``.
        alpha: 1, 2 or 3.
        k: K.

    >>> weighting(torch.tensor([1., 2., 9.]), alpha=3, k=4)
    tensor([ 4.,  7., 10.])
    """
    n_k = num_relevant.clamp(min=1, max=k)
    return {1: n_k / n_k, 2: n_k, 3: n_k * (2 * k + 1 - n_k) / 2}[alpha]


class TKPR(nn.Module):
    r"""Top-K Pairwise Ranking loss.

    .. math::
        L_K^{\alpha,\ell}(f, y) = \frac{1}{\alpha K}
            \sum_{y \in P(y)} \sum_{k \le K+1} \ell(s_y - s_{[k]})

    where s_[k] is the k-th largest score over *all* labels of the row, relevant ones included. A
    relevant label among the top K+1 meets itself there, which adds the constant l(0). The sum runs
    to K+1, as Prop. 3 needs. Sorting is not differentiated; the gradient flows into the relevant
    scores and into the K+1 largest ones. Rows without relevant labels add 0 and stay in the mean.

    The surrogates are consistent with TKPR for scores in [0, 1] (Cor. 3), hence ``scores``.

    Args:
        alpha: which weighting term: 1, 2 (N_K) or 3 (N_K (2K + 1 - N_K) / 2).
        k: K, the number of ranking positions of interest; K + 1 may not exceed the number of
            classes. At least the largest number of labels expected is a good choice.
        surrogate: l: "square", "exponential" or "logistic".
        scores: s: "sigmoid" or "softmax" of the logits, or the "raw" logits.

    >>> loss = TKPR(alpha=2, k=2, surrogate="logistic", scores="raw")
    >>> logits = torch.tensor([[3.0, 1.0, 2.0, 0.0]])
    >>> right = loss(logits, torch.tensor([[1, 0, 1, 0]]))
    >>> wrong = loss(logits, torch.tensor([[0, 1, 0, 1]]))
    >>> print(f"{right:.4f} < {wrong:.4f}")
    0.8633 < 2.6555
    """

    def __init__(
        self, *, k: int, alpha: int = 2, surrogate: str = "square", scores: str = "sigmoid"
    ) -> None:
        super().__init__()
        if alpha not in (1, 2, 3):
            raise ValueError(f"alpha must be 1, 2 or 3; got {alpha!r}")
        if not isinstance(k, int) or k < 1:
            raise ValueError(f"k must be an integer of at least 1; got {k!r}")
        if surrogate not in ("square", "exponential", "logistic"):
            raise ValueError(
                f"unknown surrogate {surrogate!r}: choose one of square, exponential, logistic"
            )
        self.alpha = alpha
        self.k = k
        self.surrogate = find_surrogate(surrogate)
        self.scores = choose(scores, SCORES, "scores")

    def forward(self, logits: Tensor, targets: Tensor, index: Tensor | None = None) -> Tensor:
        """Return the mean over the batch of the loss of each row."""
        logits, targets = prepare(logits, targets)
        if self.k + 1 > logits.shape[1]:
            raise ValueError(
                f"k + 1 may not exceed the number of classes, {logits.shape[1]}; got k = {self.k}"
            )
        columns, present = relevant_labels(targets)
        scores = self.scores(logits)
        top = scores.topk(self.k + 1, dim=1).values
        pairs = self.surrogate(scores.gather(1, columns).unsqueeze(2) - top.unsqueeze(1)).sum(2)
        alpha = weighting(targets.sum(1), alpha=self.alpha, k=self.k)
        return (pairs.where(present, 0).sum(1) / (alpha * self.k)).mean()
