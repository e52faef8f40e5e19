"""Losses robust to missing labels (Zhang et al., arXiv 2112.07368): Hill and SPLC."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tkpr.losses.chunked import ChunkedLogits
from tkpr.losses.inputs import REDUCTIONS, choose
from tkpr.losses.label_lists import LabelLists
from tkpr.losses.partial_labels import PartialLabels, find_known, reduce_known


class Hill(nn.Module):
    r"""Hill loss: a focal loss with a margin, and a negative loss that falls off near p = 1.

    .. math::
        \ell^+ = -(1 - q)^\gamma \log q, \quad q = \sigma(s - m), \qquad
        \ell^- = (\lambda - p)\, p^2, \quad p = \sigma(s)

    An unlabelled entry with p near 1 is likely a missed label and is hardly pushed down. The
    logarithm is taken as logsigmoid, which equals the original's log of a sigmoid and stays finite
    where that overflows (a relevant label with a logit below about -103 in float32). Unknown labels
    (`PartialLabels`) have no term.

    Args:
        lamb: lambda.
        margin: m, the margin of relevant labels.
        gamma: the focusing power of relevant labels.
        reduction: "sum" (the original's) or "mean" over all B * C entries.

    >>> Hill()(torch.tensor([[1.0, 0.0]]), torch.tensor([[1, 0]]))  # log(2) / 4 + 1 / 4
    tensor(0.4233)
    """

    def __init__(
        self,
        lamb: float = 1.5,
        margin: float = 1.0,
        gamma: float = 2.0,
        reduction: str = "sum",
    ) -> None:
        super().__init__()
        self.lamb = lamb
        self.margin = margin
        self.gamma = gamma
        self.reduction = choose(reduction, REDUCTIONS, "reduction")

    def forward(
        self,
        logits: Tensor | ChunkedLogits,
        targets: Tensor | LabelLists | PartialLabels,
        index: Tensor | None = None,
    ) -> Tensor:
        """Return the sum (or mean) over all entries."""
        if isinstance(logits, ChunkedLogits):
            return logits.add_up(self, targets, mean=self.reduction is torch.mean)
        logits, relevant, known = find_known(logits, targets)
        shifted = logits - self.margin
        positive = -((-shifted).sigmoid() ** self.gamma) * F.logsigmoid(shifted)
        probability = logits.sigmoid()
        negative = (self.lamb - probability) * probability.square()
        return reduce_known(torch.where(relevant, positive, negative), known, self.reduction)


class SPLC(nn.Module):
    r"""Self-paced loss correction: a focal margin loss that takes confident entries as relevant.

    .. math::
        \ell^+ = -(1 - \sigma(z))^\gamma \log \sigma(z), \qquad
        \ell^- = -\sigma(z)^\gamma \log(1 - \sigma(z))

    with z = s - m for given relevant labels and z = s for all others. From ``change_epoch`` on,
    every entry with sigmoid(z) > tau counts as relevant (without the margin, if it was not given as
    such). The choice is made anew at every step; no label is stored. Unknown labels
    (`PartialLabels`) have no term and are never taken as relevant.

    Args:
        tau: the threshold; the authors use 0.65 on COCO with 75 % of the labels.
        change_epoch: the first epoch (0-based) with correction.
        margin: m, the margin of given relevant labels.
        gamma: the focusing power.
        reduction: "sum" (the original's) or "mean" over all B * C entries.

    >>> loss = SPLC()
    >>> logits, targets = torch.tensor([[1.0, 3.0]]), torch.tensor([[1, 0]])
    >>> loss(logits, targets)
    tensor(2.9396)
    >>> loss.set_epoch(1)
    >>> loss(logits, targets)
    tensor(0.1734)
    """

    def __init__(
        self,
        tau: float = 0.6,
        change_epoch: int = 1,
        margin: float = 1.0,
        gamma: float = 2.0,
        reduction: str = "sum",
    ) -> None:
        super().__init__()
        self.tau = tau
        self.change_epoch = change_epoch
        self.margin = margin
        self.gamma = gamma
        self.reduction = choose(reduction, REDUCTIONS, "reduction")
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, counted from 0."""
        self.epoch = epoch

    def forward(
        self,
        logits: Tensor | ChunkedLogits,
        targets: Tensor | LabelLists | PartialLabels,
        index: Tensor | None = None,
    ) -> Tensor:
        """Return the sum (or mean) over all entries."""
        if isinstance(logits, ChunkedLogits):
            return logits.add_up(self, targets, mean=self.reduction is torch.mean)
        logits, relevant, known = find_known(logits, targets)
        shifted = logits - self.margin * relevant
        if self.epoch >= self.change_epoch:
            relevant = relevant | (shifted.sigmoid() > self.tau)
        margins = torch.where(relevant, shifted, -shifted)
        entries = -((-margins).sigmoid() ** self.gamma) * F.logsigmoid(margins)
        return reduce_known(entries, known, self.reduction)
