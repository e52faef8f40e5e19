"""GR loss: soft pseudo-labels and weights for unobserved labels, on a schedule."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tkpr.losses.inputs import REDUCTIONS, choose, prepare
from tkpr.losses.single_positive import negative_log


class GeneralizedRobust(nn.Module):
    r"""GR loss for single positives (Chen et al., IJCAI 2024).

    With p the sigmoid of the logit, an observed positive costs -log(p + eps), an unobserved label

    .. math::
        v(p)\Big[k(p)\,\frac{1 - p^{q_2}}{q_2} + (1 - k(p))\,\frac{1 - (1 - p)^{q_3}}{q_3}\Big],
        \quad k(p) = \sigma(w p + b),
        \quad v(p) = \exp\Big(-\frac{(p - \mu)^2}{2 \sigma^2}\Big)

    k is a soft pseudo-label and v a weight; both are held constant in the backward pass. In epoch
    e = 1, ..., T, with n the epochs of initialisation, w and b move linearly from their first to
    their last value with (e - n - 1)+ / (T - n), mu and sigma with (e - n)+ / (T - n), as in the
    original: w and b stop one step short. The defaults are those of the released code; the paper
    has constants for each data set. The original freezes the backbone in the first n epochs.

    The powers are taken from the logarithm of p, which equals the original and keeps the gradient
    finite where p or 1 - p is 0 in float32. A positive with p far below eps hardly learns.

    Args:
        num_epochs: T.
        init_epochs: n, below T.
        slope: w in the first and the last epoch.
        offset: b, likewise.
        center: mu, likewise.
        width: sigma, likewise.
        q2: exponent of the pseudo-positive part, above 0.
        q3: exponent of the pseudo-negative part, above 0.
        eps: what is added to the probability of an observed positive.
        reduction: "mean" or "sum" over all B C entries; the original takes the mean.

    >>> loss = GeneralizedRobust(num_epochs=8)
    >>> loss(torch.zeros(1, 2), torch.tensor([[1, 0]]))
    tensor(0.6079)
    >>> loss.set_epoch(7)
    >>> loss(torch.zeros(1, 2), torch.tensor([[1, 0]]))
    tensor(0.5749)
    """

    schedule: Tensor

    def __init__(
        self,
        *,
        num_epochs: int,
        init_epochs: int = 0,
        slope: tuple[float, float] = (0.0, 2.0),
        offset: tuple[float, float] = (-2.0, -2.0),
        center: tuple[float, float] = (0.5, 0.8),
        width: tuple[float, float] = (2.0, 0.5),
        q2: float = 0.01,
        q3: float = 1.0,
        eps: float = 1e-7,
        reduction: str = "mean",
    ) -> None:
        super().__init__()
        if not 0 <= init_epochs < num_epochs:
            raise ValueError(
                f"init_epochs must be below the number of epochs, {num_epochs}; got {init_epochs}"
            )
        if q2 <= 0 or q3 <= 0:
            raise ValueError(f"q2 and q3 must be above 0; got {q2} and {q3}")
        self.num_epochs = num_epochs
        self.init_epochs = init_epochs
        self.ranges = (slope, offset, center, width)
        self.q2 = q2
        self.q3 = q3
        self.eps = eps
        self.reduction = choose(reduction, REDUCTIONS, "reduction")
        # a tensor: numbers that change with the epoch would make a compiled loss compile again
        self.register_buffer("schedule", torch.zeros(4), persistent=False)
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        """Set w, b, mu and sigma for the epoch, counted from 0."""
        steps = self.num_epochs - self.init_epochs
        early = max(epoch - self.init_epochs, 0) / steps
        late = max(epoch + 1 - self.init_epochs, 0) / steps
        values = [
            first + share * (last - first)
            for (first, last), share in zip(self.ranges, (early, early, late, late), strict=True)
        ]
        self.schedule.copy_(torch.tensor(values, dtype=torch.float64))

    def forward(self, logits: Tensor, targets: Tensor, index: Tensor | None = None) -> Tensor:
        """Return the mean (or sum) over all entries; ``index`` is not used."""
        logits, targets = prepare(logits, targets)
        slope, offset, center, width = self.schedule.to(logits.dtype).unbind()
        held = logits.sigmoid().detach()
        pseudo_label = torch.sigmoid(slope * held + offset)
        weight = torch.exp(-((held - center) / width).square() / 2)
        as_positive = -torch.expm1(self.q2 * F.logsigmoid(logits)) / self.q2
        as_negative = -torch.expm1(self.q3 * F.logsigmoid(-logits)) / self.q3
        unobserved = weight * (pseudo_label * as_positive + (1 - pseudo_label) * as_negative)
        observed = negative_log(logits, 1, eps=self.eps)
        return self.reduction(torch.where(targets == 1, observed, unobserved))
