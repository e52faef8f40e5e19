"""The TKPR loss L_K^{alpha,l} (Sec. 5, OP_2): the paper's convex surrogate of the TKPR measure."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tkpr.losses.chunked import ChunkedLogits
from tkpr.losses.inputs import Relevant, choose, find_relevant
from tkpr.losses.label_lists import LabelLists
from tkpr.losses.partial_labels import PartialLabels, split
from tkpr.losses.surrogates import OVER_TOP, SURROGATES
from tkpr.ranking import alpha_weight, largest, largest_entries, on_host

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
    Unknown labels (`PartialLabels`) are no labels of their row: they are not among the K+1 largest,
    nor under the softmax, and a row with K known labels or fewer is compared with those alone.

    The surrogates are consistent with TKPR for scores in [0, 1] (Cor. 3; docs/theory.md has the
    conditions), hence ``scores``. With sigmoid scores p the gradient at a logit carries the factor
    p (1 - p), which is 0.25 at 0 and 0.0025 at 6. A network that was warmed up by another loss
    often has such logits, and TKPR then hardly moves a label that is ranked wrongly. Logits divided
    by a temperature T of 4, say (``trainer.temperature``), leave the flat part of the sigmoid; see
    docs/training.md.

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
        choose(surrogate, OVER_TOP, "surrogate")
        self.surrogate = surrogate
        choose(scores, SCORES, "scores")
        self.scores = scores

    def forward(
        self,
        logits: Tensor | ChunkedLogits,
        targets: Tensor | LabelLists | PartialLabels,
        index: Tensor | None = None,
    ) -> Tensor:
        """Return the mean over the batch of the loss of each row."""
        if isinstance(targets, PartialLabels):
            return self._of_known(*split(logits, targets))
        if isinstance(logits, ChunkedLogits):
            return self._of_chunks(logits, logits.lists(targets))
        logits, labels = find_relevant(logits, targets)
        self._check_k(logits.shape[1])
        if isinstance(labels, Relevant) and on_host(logits):
            return _TopPairs.apply(logits, labels, self)
        return self._loss(logits, labels)

    def _of_known(self, logits: Tensor, relevant: Tensor, irrelevant: Tensor) -> Tensor:
        """Return the loss as if each row had its known labels only, all pairs at once."""
        known = relevant | irrelevant
        scores = SCORES[self.scores](logits.masked_fill(~known, torch.finfo(logits.dtype).min))
        scores = scores.where(known, 0)
        # not more than there are: a row with K known labels or fewer has a shorter sum
        places = min(self.k + 1, logits.shape[1])
        _, top = largest(scores.detach().masked_fill(~known, -torch.inf), places)
        margins = scores.unsqueeze(2) - scores.gather(1, top).unsqueeze(1)
        pairs = SURROGATES[self.surrogate](margins).where(known.gather(1, top).unsqueeze(1), 0)
        sums = (pairs.sum(2) * relevant).sum(1, keepdim=True)
        counts = relevant.sum(1, keepdim=True).to(logits.dtype)
        return (sums / self._divisors(counts)).sum()

    def _loss(self, logits: Tensor, labels: Relevant | Tensor) -> Tensor:
        """Return the loss by operators that torch can differentiate, compile and transform."""
        scores = SCORES[self.scores](logits)
        top_scores, _ = largest(scores, self.k + 1)
        if isinstance(labels, Relevant):
            own_scores = scores.flatten().index_select(0, labels.entries)
            return self._of_scores(own_scores, top_scores, labels.rows, labels.counts)
        sums = OVER_TOP[self.surrogate].of_scores(scores, top_scores)
        # a product, not a choice: NaN is not hidden, not even in a row without relevant labels
        sums = (sums * labels).sum(1, keepdim=True)
        return (sums / self._divisors(labels.sum(1, keepdim=True))).sum()

    def _of_chunks(self, logits: ChunkedLogits, lists: LabelLists) -> Tensor:
        """Return the loss of logits that are too many to hold.

        With raw or sigmoid scores, the K + 1 largest logits of a row and its N relevant ones are
        all that has a gradient, however many classes there are.
        """
        self._check_k(logits.shape[1])
        if self.scores == "softmax":
            raise ValueError(
                "softmax scores give every class a gradient: set loss.scores to sigmoid or raw, or "
                "model.head=dense"
            )
        _, top = logits.topk(self.k + 1)
        rows = torch.arange(len(top), device=top.device).unsqueeze(1).expand_as(top).flatten()
        entries = logits.entries(
            torch.cat([rows, lists.rows]), torch.cat([top.flatten(), lists.columns])
        )
        top_scores, own_scores = SCORES[self.scores](entries).split([len(rows), len(lists.rows)])
        counts = lists.counts.to(entries.dtype).unsqueeze(1)
        return self._of_scores(own_scores, top_scores.view_as(top), lists.rows, counts)

    def _of_scores(
        self, own_scores: Tensor, top_scores: Tensor, rows: Tensor, counts: Tensor
    ) -> Tensor:
        """Return the loss from the few scores that it depends on.

        Args:
            own_scores: s_y of the R relevant labels of the batch, ``[R]``.
            top_scores: the K + 1 largest scores of each row, ``[B, K + 1]``.
            rows: the rows of the relevant labels, ``[R]``.
            counts: N, the number of relevant labels of each row, floating point, ``[B, 1]``.
        """
        gaps = top_scores.index_select(0, rows) - own_scores.unsqueeze(1)
        sums = OVER_TOP[self.surrogate].of_gaps(gaps)
        return (sums / self._divisors(counts).index_select(0, rows)).sum()

    def _check_k(self, num_classes: int) -> None:
        if self.k + 1 > num_classes:
            raise ValueError(
                f"k + 1 may not exceed the number of classes, {num_classes}; got k = {self.k}"
            )

    def _divisors(self, counts: Any) -> Any:
        """Return alpha K B for the numbers N of relevant labels, a tensor or array ``[B, 1]``."""
        return alpha_weight(counts, alpha=self.alpha, k=self.k) * (self.k * len(counts))


class _TopPairs(torch.autograd.Function):
    """The loss of a batch on the host whose relevant labels are known, and its gradient.

    With gaps u_yk = s_[k] - s_y, weights w_y = 1 / (alpha K B) and g_yk = w_y dl(-u)/du at u_yk,
    the gradient at the scores is zero but for

        dL/ds_y = -sum_k g_yk    and    dL/ds_[k] = sum_y g_yk,

    their sum where a relevant label is among the K+1 largest. At the logits it is dL/ds for raw
    scores, s (1 - s) dL/ds for the sigmoid and s (dL/ds - sum_j s_j dL/ds_j) for the softmax, the
    only one whose gradient reaches all C labels. All this is about R (K + 2) entries, which NumPy
    handles in a fraction of the time of torch's operators.
    """

    @staticmethod
    @np.errstate(invalid="ignore", over="ignore")  # silent, as torch is: the trainer checks
    def forward(ctx: Any, logits: Tensor, labels: Relevant, loss: TKPR) -> Tensor:
        """Return the loss of the logits for the relevant labels."""
        entries, rows, counts = (part.numpy() for part in labels)
        matrix = SCORES[loss.scores](logits.detach())
        scores = matrix.numpy()
        # the entries that each relevant label is compared with, [R, K + 1]
        others = largest_entries(scores, loss.k + 1).take(rows, axis=0)
        other_scores, own_scores = scores.take(others), scores.take(entries)
        gaps = torch.from_numpy(other_scores - own_scores[:, None])
        weights = 1 / loss._divisors(counts).take(rows)
        ctx.save_for_backward(logits, matrix if loss.scores == "softmax" else None)
        ctx.loss, ctx.labels = loss, labels
        ctx.found = others, other_scores, own_scores, gaps, weights
        return OVER_TOP[loss.surrogate].of_gaps(gaps).view(-1).dot(torch.from_numpy(weights))

    @staticmethod
    @np.errstate(invalid="ignore", over="ignore")
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient at the logits."""
        (logits, matrix), loss, labels = ctx.saved_tensors, ctx.loss, ctx.labels
        if torch.is_grad_enabled():  # the gradient is to be differentiated in turn
            value = loss._loss(logits, labels)
            (gradient,) = torch.autograd.grad(value, logits, grad, create_graph=True)
            return gradient, None, None
        others, other_scores, own_scores, gaps, weights = ctx.found
        slopes = OVER_TOP[loss.surrogate].slopes(gaps).numpy()
        slopes *= (weights * grad.numpy())[:, None]
        own_slopes = -slopes.sum(1)
        if loss.scores == "softmax":
            # sum_j s_j dL/ds_j = sum_yk g_yk u_yk
            totals = np.bincount(labels.rows.numpy(), (slopes * gaps.numpy()).sum(1), len(logits))
            gradient = matrix * torch.from_numpy(-totals).to(matrix.dtype).unsqueeze(1)
            slopes *= other_scores
            own_slopes *= own_scores
        else:
            gradient = torch.zeros_like(logits, memory_format=torch.contiguous_format)
        if loss.scores == "sigmoid":
            slopes *= other_scores * (1 - other_scores)
            own_slopes *= own_scores * (1 - own_scores)
        flat = gradient.view(-1).numpy()
        np.add.at(flat, others.ravel(), slopes.ravel())
        np.add.at(flat, labels.entries.numpy(), own_slopes)
        return gradient, None, None
