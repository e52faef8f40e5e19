"""ZLPR: a pairwise ranking loss with a threshold at zero."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tkpr.losses.label_lists import LabelLists
from tkpr.losses.partial_labels import PartialLabels, split


def log_one_plus_sum(scores: Tensor, weights: Tensor) -> Tensor:
    """Return log(1 + sum_c w_c exp(s_c)) of each row.

    Args:
        scores: ``[B, C]``.
        weights: 0 or more, of the same type, ``[B, C]``.

    >>> log_one_plus_sum(torch.zeros(1, 3), torch.tensor([[1.0, 0.0, 1.0]]))  # log(3)
    tensor([1.0986])
    """
    return F.pad(scores + weights.log(), (1, 0)).logsumexp(dim=1)


class ZLPR(nn.Module):
    r"""Zero-bounded log-sum-exp and pairwise rank-based loss (Su et al., arXiv 2208.02955).

    .. math::
        L(f, y) = \log\Big(1 + \sum_{j \in N} e^{s_j}\Big)
            + \log\Big(1 + \sum_{i \in P} e^{-s_i}\Big)

    The product of the two arguments holds LSEP's exp(s_j - s_i) of all pairs, and the terms of each
    label against a score of zero: labels with s > 0 are the prediction. The batch is averaged. In a
    row without relevant labels the second term is 0, likewise the first without irrelevant ones.

    Unknown labels (`PartialLabels`) are in neither sum.

    >>> ZLPR()(torch.zeros(1, 3), torch.tensor([[1, 0, 0]]))  # log(3) + log(2)
    tensor(1.7918)
    """

    def forward(
        self,
        logits: Tensor,
        targets: Tensor | LabelLists | PartialLabels,
        index: Tensor | None = None,
    ) -> Tensor:
        """Return the mean over the batch; ``index`` is not used."""
        logits, relevant, irrelevant = split(logits, targets)
        above = log_one_plus_sum(logits, irrelevant.to(logits.dtype))
        below = log_one_plus_sum(-logits, relevant.to(logits.dtype))
        return torch.mean(above + below)
