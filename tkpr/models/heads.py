"""Classifiers on features."""

from torch import nn

STORED_MODELS_MAY_BUILD = ("linear", "mlp")


def linear(in_features: int, num_classes: int) -> nn.Module:
    """One linear layer.

    >>> linear(4, 3)
    Linear(in_features=4, out_features=3, bias=True)
    """
    return nn.Linear(in_features, num_classes)


def mlp(in_features: int, num_classes: int, *, hidden: int, dropout: float) -> nn.Module:
    """One hidden layer on normalised features.

    >>> sum(p.numel() for p in mlp(4, 3, hidden=8, dropout=0.5).parameters())
    75
    """
    return nn.Sequential(
        nn.LayerNorm(in_features),
        nn.Linear(in_features, hidden),
        nn.GELU(),
        nn.Dropout(dropout),
        nn.Linear(hidden, num_classes),
    )
