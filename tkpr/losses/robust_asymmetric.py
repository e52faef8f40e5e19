"""RAL: the asymmetric loss with a Hill factor and a polynomial."""

import torch
from torch import Tensor, nn

from tkpr.losses.asymmetric import right_probability
from tkpr.losses.inputs import REDUCTIONS, choose
from tkpr.losses.label_lists import LabelLists
from tkpr.losses.partial_labels import PartialLabels, find_known, reduce_known


class RobustAsymmetricLoss(nn.Module):
    r"""Robust asymmetric loss (Park et al., ICCV workshops 2023), as its released code computes it.

    With p the sigmoid of the logit, q = min(1 - p + m, 1) and r(x) = max(x, eps),

    .. math::
        \ell^+ &= -(1 - p)^{\gamma_+} \big[\log r(p) + e_1 (1 - r(p))
            + \tfrac{e_2}{2} (1 - r(p))^2\big] \\
        \ell^- &= -(1 - q)^{\gamma_-} \big[\log r(q) + e_0\, r(q)\big]
            (\lambda - p)\, p^2\, (\lambda - q)

    The Hill factor takes the unshifted p, the focusing factor the shifted q. An irrelevant label
    costs at most 1.77 and is hardly pushed down beyond a logit of 10, where it may be a missed
    positive. Unknown labels (`PartialLabels`) have no term.

    Args:
        gamma_neg: focusing power of irrelevant labels.
        gamma_pos: focusing power of relevant labels.
        clip: m, the shift of the probability of irrelevant labels.
        lamb: lambda of the Hill factor.
        poly_neg: e0.
        poly_pos: e1.
        poly_pos_square: e2.
        eps: the lowest probability inside the logarithm.
        detach_focus: treat the focusing factors as constants in the backward pass.
        reduction: "sum" (the original's) or "mean" over all B * C entries.

    >>> RobustAsymmetricLoss()(torch.zeros(1, 1), torch.tensor([[1]]))  # log(2) - 1/2 + 1.25 / 4
    tensor(0.5056)
    """

    def __init__(
        self,
        *,
        gamma_neg: float = 4.0,
        gamma_pos: float = 0.0,
        clip: float = 0.05,
        lamb: float = 1.5,
        poly_neg: float = 0.0,
        poly_pos: float = 1.0,
        poly_pos_square: float = -2.5,
        eps: float = 1e-8,
        detach_focus: bool = False,
        reduction: str = "sum",
    ) -> None:
        super().__init__()
        if eps <= 0:
            raise ValueError(f"eps must be above 0; got {eps}")
        self.gamma_neg = gamma_neg
        self.gamma_pos = gamma_pos
        self.clip = clip
        self.lamb = lamb
        self.poly_neg = poly_neg
        self.poly_pos = poly_pos
        self.poly_pos_square = poly_pos_square
        self.eps = eps
        self.detach_focus = detach_focus
        self.reduction = choose(reduction, REDUCTIONS, "reduction")

    def forward(
        self,
        logits: Tensor,
        targets: Tensor | LabelLists | PartialLabels,
        index: Tensor | None = None,
    ) -> Tensor:
        """Return the sum (or mean) over all entries; ``index`` is not used."""
        logits, relevant, known = find_known(logits, targets)
        right, log_right = right_probability(logits, relevant, clip=self.clip, eps=self.eps)
        bounded = right.clamp(min=self.eps)
        miss = 1 - bounded
        positive = log_right + self.poly_pos * miss + self.poly_pos_square / 2 * miss.square()
        probability = logits.sigmoid()
        hill = (self.lamb - probability) * probability.square() * (self.lamb - right)
        negative = (log_right + self.poly_neg * bounded) * hill
        # not 0, where a power below 1 has no slope
        wrong = (1 - right).clamp(min=torch.finfo(right.dtype).tiny)
        focus = torch.where(relevant, wrong**self.gamma_pos, wrong**self.gamma_neg)
        if self.detach_focus:
            focus = focus.detach()
        entries = -focus * torch.where(relevant, positive, negative)
        return reduce_known(entries, known, self.reduction)
