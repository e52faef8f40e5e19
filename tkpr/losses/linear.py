"""A linear classifier fused with its loss, where logits [B, C] would not fit in memory.

Both modules here own the weights of the classifier and take features. They process the classes in
chunks, so no tensor of size B C is ever allocated.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tkpr.losses.inputs import REDUCTIONS, choose
from tkpr.losses.label_lists import LabelLists
from tkpr.losses.tkpr import TKPR
from tkpr.ranking import on_host


class ChunkedLinear(nn.Module):
    """A linear classifier that processes its classes in chunks.

    Args:
        in_features: D.
        num_classes: C.
        chunk: the number of classes at a time.

    Attributes:
        weight: ``[C, D]``.
        bias: ``[C]``.

    >>> classifier = ChunkedLinear(4, 1000)
    >>> logits, classes = classifier.top(torch.randn(2, 4), k=5)
    >>> logits.shape, classes.shape
    (torch.Size([2, 5]), torch.Size([2, 5]))
    """

    def __init__(self, in_features: int, num_classes: int, *, chunk: int = 2048) -> None:
        super().__init__()
        if chunk < 1:
            raise ValueError(f"chunk must be at least 1; got {chunk}")
        bound = in_features**-0.5  # as nn.Linear starts
        self.weight = nn.Parameter(torch.empty(num_classes, in_features).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(num_classes).uniform_(-bound, bound))
        self.chunk = chunk

    @torch.no_grad()
    def top(self, features: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Return the k largest logits of each row in descending order, and their classes.

        Args:
            features: ``[B, D]``.
            k: at most C.

        Returns:
            Logits and classes, ``[B, k]`` each.
        """
        if not 1 <= k <= len(self.weight):
            raise ValueError(
                f"k must be from 1 to the number of classes, {len(self.weight)}; got {k}"
            )
        width = max(self.chunk, k)
        logits, classes = F.linear(features, self.weight[:width], self.bias[:width]).topk(k, dim=1)
        for start in range(width, len(self.weight), width):
            part = slice(start, start + width)
            new = F.linear(features, self.weight[part], self.bias[part])
            rows: Tensor | slice = slice(None)
            if on_host(new):
                # few rows have a logit above their k-th largest so far; "not below" keeps NaN
                rows = torch.from_numpy(np.flatnonzero(~(new.amax(1) <= logits[:, -1]).numpy()))
                if len(rows) == 0:
                    continue
            found, columns = new[rows].topk(min(k, new.shape[1]), dim=1)
            logits[rows], order = torch.cat([logits[rows], found], dim=1).topk(k, dim=1)
            classes[rows] = torch.cat([classes[rows], columns + start], dim=1).gather(1, order)
        return logits, classes

    def _check(self, features: Tensor, targets: Tensor | LabelLists) -> tuple[Tensor, LabelLists]:
        """Lift the features to the type of the weights, and make lists of other targets."""
        num_classes, in_features = self.weight.shape
        if features.ndim != 2 or features.shape[1] != in_features or len(features) == 0:
            raise ValueError(
                f"features must be [B, {in_features}] and not empty; got {tuple(features.shape)}"
            )
        if isinstance(targets, Tensor):
            if targets.shape != (len(features), num_classes):
                raise ValueError(
                    f"targets must be [B, C], ({len(features)}, {num_classes}); "
                    f"got {tuple(targets.shape)}"
                )
            targets = LabelLists.from_sparse(targets.to_sparse_csr())
        targets.entries((len(features), num_classes))
        return features.to(self.weight.dtype), targets


class LinearTKPR(ChunkedLinear):
    """A linear classifier and TKPR in one: the gradient at the weights is sparse.

    Equal to ``TKPR(...)(F.linear(features, weight, bias), targets)``. A pass over the classes in
    chunks finds the K + 1 largest logits of each row. With raw or sigmoid scores no class but
    these and the row's N relevant ones has a gradient: N + K + 1 of them, however many classes
    there are. So the gradients at weight and bias are sparse tensors, as of
    ``nn.Embedding(sparse=True)``: for ``torch.optim.SGD`` without momentum or weight decay, or for
    ``torch.optim.SparseAdam``. The gradient at the features is exact. With softmax scores every
    class has a gradient; they are not offered.

    Args:
        in_features: D.
        num_classes: C.
        k: K of :class:`TKPR`.
        alpha: as of :class:`TKPR`.
        surrogate: as of :class:`TKPR`.
        scores: "sigmoid" or "raw".
        chunk: the number of classes at a time; the result does not depend on it.

    >>> loss = LinearTKPR(4, 1000, k=3)
    >>> loss(torch.randn(2, 4), LabelLists(torch.tensor([[5, 999], [7, -1]]))).backward()
    >>> loss.weight.grad.is_sparse
    True
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        *,
        k: int,
        alpha: int = 2,
        surrogate: str = "square",
        scores: str = "sigmoid",
        chunk: int = 2048,
    ) -> None:
        super().__init__(in_features, num_classes, chunk=chunk)
        if scores == "softmax":
            raise ValueError(
                "softmax scores give every class a gradient: choose sigmoid or raw, "
                "or nn.Linear and TKPR"
            )
        self.loss = TKPR(k=k, alpha=alpha, surrogate=surrogate, scores=scores)
        if k + 1 > num_classes:
            raise ValueError(
                f"k + 1 may not exceed the number of classes, {num_classes}; got k = {k}"
            )

    def forward(
        self, features: Tensor, targets: Tensor | LabelLists, index: Tensor | None = None
    ) -> Tensor:
        """Return the mean over the batch of the loss of each row.

        Args:
            features: ``[B, D]``.
            targets: lists of labels; a matrix ``[B, C]``, dense or sparse, is turned into lists.
            index: not used.
        """
        features, lists = self._check(features, targets)
        _, top = self.top(features, self.loss.k + 1)
        rows = torch.arange(len(top), device=top.device).unsqueeze(1).expand_as(top).flatten()
        logits = _Entries.apply(
            features,
            self.weight,
            self.bias,
            torch.cat([rows, lists.rows]),
            torch.cat([top.flatten(), lists.columns]),
        )
        scores = logits.sigmoid() if self.loss.scores == "sigmoid" else logits
        top_scores, own_scores = scores.split([len(rows), len(lists.rows)])
        return self.loss.of_scores(
            own_scores,
            top_scores.view_as(top),
            lists.rows,
            lists.counts.to(scores.dtype).unsqueeze(1),
        )


class _Entries(torch.autograd.Function):
    """Some entries of features @ weight.T + bias; the gradients at weight and bias are sparse."""

    @staticmethod
    def forward(
        ctx: Any, features: Tensor, weight: Tensor, bias: Tensor, rows: Tensor, classes: Tensor
    ) -> Tensor:
        """Return the entries at (rows, classes), ``[n]``."""
        own_features, own_weight = features.index_select(0, rows), weight.index_select(0, classes)
        ctx.save_for_backward(own_features, own_weight, rows, classes)
        ctx.sizes = len(features), len(weight)
        return (own_features * own_weight).sum(1) + bias.index_select(0, classes)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients at features, weight and bias."""
        _refuse_second_derivatives()
        own_features, own_weight, rows, classes = ctx.saved_tensors
        batch, num_classes = ctx.sizes
        at_features = grad.new_zeros(batch, own_weight.shape[1])
        at_features.index_add_(0, rows, own_weight * grad.unsqueeze(1))
        places, at_weight = classes.unsqueeze(0), own_features * grad.unsqueeze(1)
        sizes = (num_classes, own_features.shape[1])
        return (
            at_features,
            torch.sparse_coo_tensor(places, at_weight, sizes, check_invariants=False),
            torch.sparse_coo_tensor(places, grad, sizes[:1], check_invariants=False),
            None,
            None,
        )


class LinearEntrywise(ChunkedLinear):
    """A linear classifier and a sum over all entries in one, such as binary cross-entropy.

    Equal to ``loss(F.linear(features, weight, bias), targets)``, divided by B C if ``reduction`` is
    "mean". Every class has a gradient, so the gradient at the weights is dense, ``[C, D]``; it is
    computed with the loss, chunk by chunk, and the logits are never held.

    Args:
        in_features: D.
        num_classes: C.
        loss: adds up over the entries: AssumeNegative without weak negatives, AsymmetricLoss, Hill,
            SPLC, EntropyMaximisation, each with ``reduction="sum"``.
        reduction: "mean" or "sum" over all B C entries.
        chunk: the number of classes at a time.

    >>> from tkpr.losses import AssumeNegative
    >>> loss = LinearEntrywise(4, 1000, AssumeNegative(eps=0, reduction="sum"))
    >>> loss(torch.randn(2, 4), LabelLists(torch.tensor([[5, 999], [7, -1]]))).backward()
    >>> loss.weight.grad.shape
    torch.Size([1000, 4])
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        loss: nn.Module,
        *,
        reduction: str = "mean",
        chunk: int = 2048,
    ) -> None:
        super().__init__(in_features, num_classes, chunk=chunk)
        choose(reduction, REDUCTIONS, "reduction")
        self.loss = loss
        self.reduction = reduction

    def forward(
        self, features: Tensor, targets: Tensor | LabelLists, index: Tensor | None = None
    ) -> Tensor:
        """Return the mean (or sum) over all entries.

        Args:
            features: ``[B, D]``.
            targets: lists of labels; a matrix ``[B, C]``, dense or sparse, is turned into lists.
            index: not used.
        """
        features, lists = self._check(features, targets)
        scale = 1 / (len(features) * len(self.weight)) if self.reduction == "mean" else 1.0
        return _InChunks.apply(features, self.weight, self.bias, self, lists, scale)


class _InChunks(torch.autograd.Function):
    """The sum over the chunks of a loss times a factor, and its gradients, in one pass."""

    @staticmethod
    def forward(
        ctx: Any,
        features: Tensor,
        weight: Tensor,
        bias: Tensor,
        head: LinearEntrywise,
        lists: LabelLists,
        scale: float,
    ) -> Tensor:
        """Return the sum, and keep the gradients if they will be asked for."""
        needed = any(ctx.needs_input_grad)
        gradients = [torch.empty_like(tensor) for tensor in (weight, bias)] if needed else []
        at_features = torch.zeros_like(features)
        total = features.new_zeros(())
        for start in range(0, len(weight), head.chunk):
            part = slice(start, start + head.chunk)
            logits = F.linear(features, weight[part], bias[part])
            relevant = _in_range(lists, start, logits.shape[1])
            with torch.set_grad_enabled(needed):
                value = scale * head.loss(logits.requires_grad_(needed), relevant)
            total += value.detach()
            if needed:
                (at_logits,) = torch.autograd.grad(value, logits)
                at_features.addmm_(at_logits, weight[part])
                torch.mm(at_logits.T, features, out=gradients[0][part])
                torch.sum(at_logits, 0, out=gradients[1][part])
        ctx.gradients = at_features, *gradients
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Hand over the gradients at features, weight and bias, which are not held twice."""
        _refuse_second_derivatives()
        gradients, ctx.gradients = ctx.gradients, None
        if gradients is None:
            raise RuntimeError("LinearEntrywise can go backward only once: call the loss again")
        if not on_host(grad) or grad != 1:
            for gradient in gradients:
                gradient.mul_(grad)
        return *gradients, None, None, None


def _refuse_second_derivatives() -> None:
    if torch.is_grad_enabled():
        raise RuntimeError(
            "a head with its loss has no second derivatives: differentiate nn.Linear and a loss"
        )


def _in_range(lists: LabelLists, start: int, width: int) -> Tensor:
    """Return where labels from start to start + width - 1 are relevant, bool ``[B, width]``."""
    places = lists.columns - start
    # the other labels share a last place, which is cut off
    places = places.where((places >= 0) & (places < width), width)
    entries = lists.rows * (width + 1) + places
    matrix = torch.zeros(lists.num_rows, width + 1, dtype=torch.bool, device=places.device)
    return matrix.view(-1).index_fill_(0, entries, True).view_as(matrix)[:, :width]
