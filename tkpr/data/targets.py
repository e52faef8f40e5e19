"""The targets of a batch: 0 and 1, or partial labels where some are unknown."""

import numpy as np
import torch
from torch import Tensor

from tkpr.losses.partial_labels import PartialLabels


def known_where(unknown: np.ndarray | None) -> Tensor | None:
    """Return where labels are known as a tensor; None: everywhere."""
    return None if unknown is None else torch.from_numpy(~unknown)


def take(targets: Tensor, known: Tensor | None, rows: Tensor) -> Tensor | PartialLabels:
    """Return the targets of some samples as losses take them.

    Args:
        targets: 0 and 1, ``[N, C]``.
        known: False where a label is unknown, ``[N, C]``; None: all are known.
        rows: of the samples, ``[B]``.

    >>> targets, known = torch.tensor([[1, 0, 0]]), torch.tensor([[True, True, False]])
    >>> take(targets, None, torch.tensor([0]))
    tensor([[1., 0., 0.]])
    >>> take(targets, known, torch.tensor([0])).irrelevant
    tensor([[False,  True, False]])
    """
    if known is None:
        return targets[rows].float()
    relevant = targets[rows].bool()
    return PartialLabels(relevant, known[rows] & ~relevant)
