"""A linear classifier on sparse features: the weights of the features present, added up."""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tkpr.losses.chunked import ChunkedLogits
from tkpr.losses.inputs import choose
from tkpr.models.heads import HEADS, ChunkedLinear

STORED_MODELS_MAY_BUILD = ("SparseLinear",)


class Bags(NamedTuple):
    """Sparse rows of features.

    Attributes:
        ids: the features of all rows, one row after another, int64 ``[R]``.
        offsets: where each row starts in ``ids``, int64 ``[B]``.
        weights: the values of the features, float32 ``[R]``.
    """

    ids: Tensor
    offsets: Tensor
    weights: Tensor


class SparseLinear(nn.Module):
    """W x + b, computed from the features that are present; with ``hidden``, V W x + b.

    Args:
        in_features: D.
        num_classes: C.
        hidden: H: the features are mapped to H numbers first, without a nonlinearity, so that there
            are H (D + C) weights; None: D C weights.
        head: "dense", or with ``hidden`` "chunked" (:mod:`tkpr.models.heads`).

    >>> model = SparseLinear(4, 3, hidden=None, head="dense")
    >>> bags = Bags(torch.tensor([1, 3, 0]), torch.tensor([0, 2]), torch.tensor([0.5, 2.0, 1.0]))
    >>> model(bags).shape
    torch.Size([2, 3])
    """

    def __init__(
        self, in_features: int, num_classes: int, *, hidden: int | None, head: str
    ) -> None:
        super().__init__()
        layer = choose(head, HEADS, "head")
        if head == "chunked" and hidden is None:
            raise ValueError("model.head=chunked needs model.hidden, for instance 128")
        bound = in_features**-0.5
        width = num_classes if hidden is None else hidden
        self.weight = nn.Parameter(torch.empty(in_features, width).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.zeros(num_classes))
        self.output = nn.Identity() if hidden is None else layer(width, num_classes, bias=False)

    def forward(self, features: Bags) -> Tensor | ChunkedLogits:
        """Return logits ``[B, C]``."""
        sums = F.embedding_bag(
            features.ids,
            self.weight,
            features.offsets,
            mode="sum",
            per_sample_weights=features.weights.to(self.weight.dtype),
        )
        if isinstance(self.output, ChunkedLinear):
            return ChunkedLogits(sums, self.output.weight, self.bias)
        return self.output(sums) + self.bias
