"""The two-way multi-label loss: rank the labels of each sample, and the samples of each label."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tkpr.losses.label_lists import LabelLists
from tkpr.losses.partial_labels import PartialLabels, split


class TwoWay(nn.Module):
    r"""Two-way multi-label loss (Kobayashi, CVPR 2023).

    For a group G of entries, one row or one column of the batch,

    .. math::
        \ell(G) = \mathrm{softplus}\Big(T_- \log \sum_{j \in G^-} e^{s_j / T_-}
            + T_+ \log \sum_{i \in G^+} e^{-s_i / T_+}\Big)

    and the loss is the mean over the rows plus the mean over the columns. Groups without a relevant
    entry leave their mean; those without an irrelevant one stay in it with 0. The columns compare
    the samples of a batch, so its size matters, and each process sees its own share only.

    The original marks the entries of the other kind with -100, which outweighs a relevant label
    with a score above 400; here they are left out. A batch without any relevant label gives 0,
    where the original gives NaN.

    Unknown labels (`PartialLabels`) are in neither sum.

    Args:
        positive_temperature: T+.
        negative_temperature: T-.

    >>> loss = TwoWay(positive_temperature=1)
    >>> loss(torch.zeros(1, 2), torch.tensor([[1, 0]]))  # a row: log(2); a column without pairs: 0
    tensor(0.6931)
    """

    def __init__(
        self, *, positive_temperature: float = 4.0, negative_temperature: float = 1.0
    ) -> None:
        super().__init__()
        self.positive_temperature = positive_temperature
        self.negative_temperature = negative_temperature

    def forward(
        self,
        logits: Tensor,
        targets: Tensor | LabelLists | PartialLabels,
        index: Tensor | None = None,
    ) -> Tensor:
        """Return the loss of a batch ``[B, C]``; ``index`` is not used."""
        logits, relevant, irrelevant = split(logits, targets)
        rows, columns = (self._mean(logits, relevant, irrelevant, dim) for dim in (1, 0))
        return rows + columns

    def _mean(self, logits: Tensor, relevant: Tensor, irrelevant: Tensor, dim: int) -> Tensor:
        """Return the mean over the groups along one dimension that have a relevant entry."""
        highest = _soft_maximum(logits, irrelevant, self.negative_temperature, dim)
        lowest = _soft_maximum(-logits, relevant, self.positive_temperature, dim)
        # 0, with a gradient of 0, for groups without a pair
        loss = F.softplus(highest + lowest)
        return loss.sum() / relevant.any(dim).sum().clamp(min=1)


def _soft_maximum(scores: Tensor, chosen: Tensor, temperature: float, dim: int) -> Tensor:
    """Return T log sum exp(s / T) over the chosen entries, a huge negative number if none is."""
    scaled = (scores / temperature).masked_fill(~chosen, torch.finfo(scores.dtype).min)
    return temperature * scaled.logsumexp(dim)
