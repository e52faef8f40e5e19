"""The logits of a linear classifier with so many classes that ``[B, C]`` would not fit in memory.

:class:`ChunkedLogits` stands for features @ weight.T + bias without computing it. TKPR asks for the
few entries that it depends on, and losses that add up over the entries go over the classes in
chunks, so no tensor of size B C is ever allocated. Other losses refuse it.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from tkpr.losses.label_lists import LabelLists
from tkpr.ranking import on_host

Number = float  # the class has a method of that name
Loss = Callable[[Tensor, Tensor], Tensor]
# Classes at a time, by measurement (scripts/bench_head.py): as many as stay in the cache of a core;
# with several threads, or an accelerator, more of them, for each chunk is a wait for all threads
ONE_THREAD, MANY_THREADS = 2048, 16_384


class ChunkedLogits:
    """Logits ``[B, C]`` that are computed in chunks of classes when a loss asks for them.

    Args:
        features: ``[B, D]``, lifted to the type of the weights.
        weight: ``[C, D]``.
        bias: ``[C]``.
        chunk: the number of classes at a time; no result depends on it. None: 2,048 for one thread
            of a CPU, else 16,384.

    >>> from tkpr.losses import TKPR
    >>> weight = torch.randn(1000, 4, requires_grad=True)
    >>> logits = ChunkedLogits(torch.randn(2, 4), weight, torch.zeros(1000))
    >>> TKPR(k=3)(logits, LabelLists(torch.tensor([[5, 999], [7, -1]]))).backward()
    >>> weight.grad.is_sparse
    True
    """

    def __init__(
        self, features: Tensor, weight: Tensor, bias: Tensor, *, chunk: int | None = None
    ) -> None:
        if chunk is None:
            alone = weight.is_cpu and torch.get_num_threads() == 1
            chunk = ONE_THREAD if alone else MANY_THREADS
        if chunk < 1:
            raise ValueError(f"chunk must be at least 1; got {chunk}")
        if features.ndim != 2 or features.shape[1] != weight.shape[1] or len(features) == 0:
            raise ValueError(
                f"features must be [B, {weight.shape[1]}] and not empty; "
                f"got {tuple(features.shape)}"
            )
        self.features = features.to(weight.dtype)
        self.weight, self.bias, self.chunk = weight, bias, chunk

    @property
    def shape(self) -> tuple[int, int]:
        """(B, C)."""
        return len(self.features), len(self.weight)

    def float(self) -> "ChunkedLogits":
        """Return the same: they are computed in the type of the weights."""
        return self

    def __truediv__(self, temperature: Number) -> "ChunkedLogits":
        """Return logits / temperature."""
        if temperature == 1:
            return self
        features, bias = self.features / temperature, self.bias / temperature
        return ChunkedLogits(features, self.weight, bias, chunk=self.chunk)

    def chunks(self, width: int) -> Iterator[tuple[slice, Tensor]]:
        """Yield ranges of ``width`` classes and their logits, ``[B, width]``."""
        for start in range(0, len(self.weight), width):
            part = slice(start, start + width)
            yield part, F.linear(self.features, self.weight[part], self.bias[part])

    def dense(self) -> Tensor:
        """Return all logits, ``[B, C]``."""
        return F.linear(self.features, self.weight, self.bias)

    @torch.compiler.disable  # type: ignore[untyped-decorator] # a loop over many chunks
    @torch.no_grad()
    def topk(self, k: int) -> tuple[Tensor, Tensor]:
        """Return the k largest logits of each row in descending order, and their classes.

        Args:
            k: at most C.

        Returns:
            Logits and classes, ``[B, k]`` each, without a gradient.

        >>> eye = torch.eye(3)
        >>> ChunkedLogits(eye[:1], eye, torch.tensor([0.0, 2.0, -1.0])).topk(2)
        (tensor([[2., 1.]]), tensor([[1, 0]]))
        """
        if not 1 <= k <= len(self.weight):
            raise ValueError(
                f"k must be from 1 to the number of classes, {len(self.weight)}; got {k}"
            )
        chunks = self.chunks(max(self.chunk, k))
        logits, classes = next(chunks)[1].topk(k, dim=1)
        for part, new in chunks:
            rows: Tensor | slice = slice(None)
            if on_host(new):
                # few rows have a logit above their k-th largest so far; "not below" keeps NaN
                above = ~(new.numpy().max(1) <= logits[:, -1].numpy())
                rows = torch.from_numpy(np.flatnonzero(above))
                if len(rows) == 0:
                    continue
            found, columns = new[rows].topk(min(k, new.shape[1]), dim=1)
            logits[rows], order = torch.cat([logits[rows], found], dim=1).topk(k, dim=1)
            classes[rows] = torch.cat([classes[rows], columns + part.start], dim=1).gather(1, order)
        return logits, classes

    @torch.compiler.disable  # type: ignore[untyped-decorator] # its gradients are sparse
    def entries(self, rows: Tensor, classes: Tensor) -> Tensor:
        """Return the logits at (rows, classes), ``[n]``.

        The gradients at weight and bias are sparse tensors, as of ``nn.Embedding(sparse=True)``.
        """
        return _Entries.apply(self.features, self.weight, self.bias, rows, classes)

    @torch.compiler.disable  # type: ignore[untyped-decorator] # a loop over many chunks
    def add_up(self, loss: Loss, targets: Tensor | LabelLists, *, mean: bool) -> Tensor:
        """Return a loss that is a sum or a mean over all entries, chunk by chunk.

        Every class has a gradient, so the gradient at the weights is dense, ``[C, D]``; it is
        computed with the loss.

        Args:
            loss: called with the logits of a chunk and whether they are relevant.
            targets: lists of labels, or a matrix ``[B, C]``, which is turned into lists.
            mean: whether the loss is a mean.
        """
        lists = self.lists(targets)
        return _InChunks.apply(self.features, self.weight, self.bias, self.chunk, loss, lists, mean)

    def lists(self, targets: Tensor | LabelLists) -> LabelLists:
        """Return the targets as lists, if they fit; dense or sparse ones are ``[B, C]``."""
        if isinstance(targets, Tensor):
            if targets.shape != self.shape:
                raise ValueError(
                    f"targets must be [B, C], {self.shape}; got {tuple(targets.shape)}"
                )
            targets = LabelLists.from_sparse(targets.to_sparse_csr())
        targets.entries(self.shape)
        return targets


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


class _InChunks(torch.autograd.Function):
    """A loss that adds up over the entries, and its gradients, in one pass over the chunks."""

    @staticmethod
    def forward(
        ctx: Any,
        features: Tensor,
        weight: Tensor,
        bias: Tensor,
        chunk: int,
        loss: Loss,
        lists: LabelLists,
        mean: bool,
    ) -> Tensor:
        """Return the loss, and keep the gradients if they will be asked for."""
        needed = any(ctx.needs_input_grad)
        gradients = [torch.empty_like(tensor) for tensor in (weight, bias)] if needed else []
        at_features = torch.zeros_like(features)
        total = features.new_zeros(())
        whole = ChunkedLogits(features, weight, bias)
        for part, logits in whole.chunks(chunk):
            relevant = _in_range(lists, part.start, logits.shape[1])
            share = logits.shape[1] / len(weight) if mean else 1.0
            with torch.set_grad_enabled(needed):
                value = share * loss(logits.requires_grad_(needed), relevant)
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
            raise RuntimeError("logits in chunks can go backward only once: call the loss again")
        if not on_host(grad) or grad != 1:
            for gradient in gradients:
                gradient.mul_(grad)
        return *gradients, None, None, None, None


def _refuse_second_derivatives() -> None:
    if torch.is_grad_enabled():
        raise RuntimeError(
            "logits in chunks have no second derivatives: differentiate nn.Linear and a loss"
        )


def _in_range(lists: LabelLists, start: int, width: int) -> Tensor:
    """Return where labels from start to start + width - 1 are relevant, bool ``[B, width]``."""
    places = lists.columns - start
    # the other labels share a last place, which is cut off
    places = places.where((places >= 0) & (places < width), width)
    entries = lists.rows * (width + 1) + places
    matrix = torch.zeros(lists.num_rows, width + 1, dtype=torch.bool, device=places.device)
    return matrix.view(-1).index_fill_(0, entries, True).view_as(matrix)[:, :width]
