"""Classifiers on features.

``head="chunked"`` leaves the logits to the loss, which computes them in chunks of classes and only
those it needs (:mod:`tkpr.losses.chunked`): for so many classes that ``[B, C]`` does not fit in
memory. The weights have the same names and start from the same random numbers as with "dense".
"""

from torch import Tensor, nn

from tkpr.losses.chunked import ChunkedLogits
from tkpr.losses.inputs import choose

STORED_MODELS_MAY_BUILD = ("linear", "mlp")


class ChunkedLinear(nn.Linear):
    """A linear layer that returns :class:`~tkpr.losses.chunked.ChunkedLogits`.

    >>> import torch
    >>> logits = ChunkedLinear(4, 1_000)(torch.zeros(2, 4))
    >>> logits.shape
    (2, 1000)
    """

    def forward(self, features: Tensor) -> ChunkedLogits:  # type: ignore[override]
        """Return logits ``[B, C]`` that are yet to be computed."""
        return ChunkedLogits(features, self.weight, self.bias)


HEADS: dict[str, type[nn.Linear]] = {"dense": nn.Linear, "chunked": ChunkedLinear}


def linear(in_features: int, num_classes: int, *, head: str) -> nn.Module:
    """One linear layer.

    >>> linear(4, 3, head="dense")
    Linear(in_features=4, out_features=3, bias=True)
    """
    return choose(head, HEADS, "head")(in_features, num_classes)


def mlp(in_features: int, num_classes: int, *, hidden: int, dropout: float, head: str) -> nn.Module:
    """One hidden layer on normalised features.

    >>> sum(p.numel() for p in mlp(4, 3, hidden=8, dropout=0.5, head="dense").parameters())
    75
    """
    return nn.Sequential(
        nn.LayerNorm(in_features),
        nn.Linear(in_features, hidden),
        nn.GELU(),
        nn.Dropout(dropout),
        choose(head, HEADS, "head")(hidden, num_classes),
    )


def is_chunked(model: nn.Module) -> bool:
    """Whether a model leaves its logits to the loss.

    >>> is_chunked(nn.Linear(4, 3)), is_chunked(linear(4, 3, head="chunked"))
    (False, True)
    """
    return any(isinstance(module, ChunkedLinear) for module in model.modules())
