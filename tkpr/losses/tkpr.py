"""The TKPR loss L_K^{alpha,l} (Sec. 5, OP_2): the paper's convex surrogate of the TKPR measure."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from tkpr.losses.inputs import Relevant, choose, find_relevant
from tkpr.losses.label_lists import LabelLists
from tkpr.losses.surrogates import OF_GAP, OfGap
from tkpr.ranking import alpha_weight, largest

SCORES: dict[str, Callable[[Tensor], Tensor]] = {
    "sigmoid": torch.sigmoid,
    "softmax": partial(torch.softmax, dim=1),
    "raw": lambda logits: logits,
}


class TKPR(nn.Module):
    r"""Top-K Pairwise Ranking loss.

    .. math::
        L_K^{\alpha,\ell}(f, y) = \frac{1}{\alpha K}
            \sum_{y \in P(y)} \sum_{k \le K+1} \ell(s_y - s_{[k]})

    where s_[k] is the k-th largest score over *all* labels of the row, relevant ones included. A
    relevant label among the top K+1 meets itself there, which adds the constant l(0). The sum runs
    to K+1, as Prop. 3 needs. Sorting is not differentiated; the gradient flows into the relevant
    scores and into the K+1 largest ones. Rows without relevant labels add 0 and stay in the mean.

    The surrogates are consistent with TKPR for scores in [0, 1] (Cor. 3; RESULTS.md says under
    which conditions), hence ``scores``.

    Args:
        alpha: which weighting term: 1, 2 (N_K) or 3 (N_K (2K + 1 - N_K) / 2).
        k: K, the number of ranking positions of interest; K + 1 may not exceed the number of
            classes. Choose at least the largest number of labels expected: where K is smaller, a
            constant score can be a minimiser.
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
        self.alpha = alpha
        self.k = k
        choose(surrogate, OF_GAP, "surrogate")
        self.surrogate = surrogate
        choose(scores, SCORES, "scores")
        self.scores = scores

    def forward(
        self, logits: Tensor, targets: Tensor | LabelLists, index: Tensor | None = None
    ) -> Tensor:
        """Return the mean over the batch of the loss of each row."""
        logits, relevant = find_relevant(logits, targets)
        batch, num_classes = logits.shape
        if self.k + 1 > num_classes:
            raise ValueError(
                f"k + 1 may not exceed the number of classes, {num_classes}; got k = {self.k}"
            )
        divisors = alpha_weight(relevant.counts, alpha=self.alpha, k=self.k) * (self.k * batch)
        divisors = divisors.index_select(0, relevant.rows)
        return _TopPairs.apply(
            logits, relevant, divisors, self.k, self.scores, OF_GAP[self.surrogate]
        )


class _TopPairs(torch.autograd.Function):
    """L = sum over relevant labels y of 1/a_y sum_{k<=K+1} l(-u_yk), with gaps u_yk = s_[k] - s_y.

    With g_yk = 1/a_y dl(-u)/du at u_yk, the gradient at the scores is zero but for

        dL/ds_y = -sum_k g_yk    and    dL/ds_[k] = sum_y g_yk,

    their sum where a relevant label is among the K+1 largest. At the logits it is dL/ds for raw
    scores, s (1 - s) dL/ds for the sigmoid and s (dL/ds - sum_j s_j dL/ds_j) for the softmax, the
    only one whose gradient reaches all C labels.
    """

    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        relevant: Relevant,
        divisors: Tensor,
        k: int,
        normalise: str,
        surrogate: OfGap,
    ) -> Tensor:
        """Return L for the divisors a ``[R, 1]``."""
        entries, rows, _ = relevant
        scores = SCORES[normalise](logits)
        top_scores, top = largest(scores, k + 1)
        own_scores = scores.take(entries)
        gaps = top_scores.index_select(0, rows).sub_(own_scores)
        ctx.save_for_backward(scores, entries, rows, divisors, own_scores, top, top_scores, gaps)
        ctx.normalise, ctx.slope = normalise, surrogate.slope
        return surrogate.value(gaps).div_(divisors).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient at the logits."""
        scores, entries, rows, divisors, own_scores, top, top_scores, gaps = ctx.saved_tensors
        slopes = ctx.slope(gaps).mul_(grad / divisors)
        own = slopes.sum(1, keepdim=True).neg_()
        others = torch.zeros_like(top_scores).index_add_(0, rows, slopes)
        if ctx.normalise == "sigmoid":
            own *= own_scores * (1 - own_scores)
            others *= top_scores * (1 - top_scores)
        if ctx.normalise == "softmax":
            own *= own_scores
            others *= top_scores
            total = others.sum(1, keepdim=True).index_add_(0, rows, own)
            gradient = scores * -total
        else:
            gradient = torch.zeros_like(scores)
        gradient.scatter_add_(1, top, others).put_(entries, own, accumulate=True)
        return gradient, None, None, None, None, None
