"""The asymmetric loss; with other constants also focal loss, half-ASL and binary cross-entropy."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tkpr.losses.chunked import ChunkedLogits
from tkpr.losses.inputs import REDUCTIONS, choose
from tkpr.losses.label_lists import LabelLists
from tkpr.losses.partial_labels import PartialLabels, find_known, reduce_known


def right_probability(
    logits: Tensor, relevant: Tensor, *, clip: float, eps: float
) -> tuple[Tensor, Tensor]:
    """Return q, the probability of the right answer, and log max(q, eps).

    q is p for relevant labels and min(1 - p + clip, 1) for the others.

    Args:
        logits: raw scores, ``[B, C]``.
        relevant: bool, ``[B, C]``.
        clip: m, the shift of the probability of irrelevant labels; 0 for none.
        eps: the lowest probability inside the logarithm.

    >>> right_probability(torch.zeros(1, 2), torch.tensor([[True, False]]), clip=0.05, eps=1e-8)
    (tensor([[0.5000, 0.5500]]), tensor([[-0.6931, -0.5978]]))
    """
    probability = logits.sigmoid()
    right = torch.where(relevant, probability, (1 - probability + clip).clamp(max=1))
    log_right = right.clamp(min=eps).log()
    if clip == 0:
        # the same number, but 1 - p rounds to 0 beyond a logit of 17 in float32
        exact = F.logsigmoid(-logits).clamp(min=math.log(eps))
        log_right = torch.where(relevant, log_right, exact)
    return right, log_right


class AsymmetricLoss(nn.Module):
    r"""ASL (Ridnik et al., ICCV 2021).

    .. math::
        \ell^+ = -(1 - p)^{\gamma_+} \log \max(p, \epsilon), \qquad
        \ell^- = -p_m^{\gamma_-} \log \max(1 - p_m, \epsilon), \qquad p_m = \max(p - m, 0)

    with p the sigmoid of the logit. CCD (Liu et al., CVPR 2022) trains its head with the same loss
    and other constants: focal (gamma 1 / 1, no clip) and half-ASL (gamma_neg 1, gamma_pos 0, no
    clip).

    As in the original, the clamp at eps cuts the gradient of very wrong entries: a relevant label
    with p < eps (a logit below -18.4) no longer learns. An irrelevant label with p <= m has neither
    loss nor gradient. Unknown labels (`PartialLabels`) have no term.

    Args:
        gamma_neg: focusing power of irrelevant labels.
        gamma_pos: focusing power of relevant labels.
        clip: m, the shift of the probability of irrelevant labels; 0 for none.
        eps: the lowest probability inside the logarithm.
        detach_focus: treat the focusing factors as constants in the backward pass.
        reduction: "sum" (the original's) or "mean" over all B * C entries.

    >>> loss = AsymmetricLoss(gamma_neg=0, clip=0)  # binary cross-entropy
    >>> loss(torch.zeros(1, 2), torch.tensor([[1, 0]]))
    tensor(1.3863)
    """

    def __init__(
        self,
        gamma_neg: float = 4,
        gamma_pos: float = 0,
        clip: float = 0.05,
        eps: float = 1e-8,
        detach_focus: bool = True,
        reduction: str = "sum",
    ) -> None:
        super().__init__()
        if eps <= 0:
            raise ValueError(f"eps must be above 0; got {eps}")
        self.gamma_neg = gamma_neg
        self.gamma_pos = gamma_pos
        self.clip = clip
        self.eps = eps
        self.detach_focus = detach_focus
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
        right, log_right = right_probability(logits, relevant, clip=self.clip, eps=self.eps)
        # not 0, where a power below 1 has no slope
        wrong = (1 - right).clamp(min=torch.finfo(right.dtype).tiny)
        focus = torch.where(relevant, wrong**self.gamma_pos, wrong**self.gamma_neg)
        if self.detach_focus:
            focus = focus.detach()
        return reduce_known(-focus * log_right, known, self.reduction)
