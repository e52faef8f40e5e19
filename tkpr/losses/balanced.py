"""DB-Loss: binary cross-entropy rebalanced for long-tailed label distributions."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tkpr.losses.inputs import REDUCTIONS, choose, prepare


class DistributionBalancedLoss(nn.Module):
    r"""DB-Loss (Wu et al., ECCV 2020), as its released code computes it.

    With n_c the number of training samples of class c among T, for each entry

    .. math::
        z_c &= s_c - \tfrac{\kappa}{\lambda} \log(T / n_c - 1) \\
        w_c &= a + \sigma(b\,(r_c - m)), \qquad r_c = \frac{1 / n_c}{\sum_{j \in P} 1 / n_j} \\
        \ell^+ &= -\beta\, w_c (1 - q)^\gamma \log q, \quad q = \sigma(z_c) \\
        \ell^- &= -\tfrac{\beta}{\lambda} w_c (1 - q)^\gamma \log q, \quad q = \sigma(-\lambda z_c)

    The weight w_c serves relevant and irrelevant labels of the row alike. In a row without relevant
    labels r_c is infinite and w_c = a + 1. The focusing factor is differentiated. The defaults are
    the constants of the authors' COCO configuration.

    Args:
        class_counts: n_c, samples of the training set that have the class, ``[C]``.
        num_samples: T, the size of the training set.
        neg_scale: lambda, the scale of the logits of irrelevant labels.
        init_bias: kappa, the weight of the class prior in the bias.
        map_alpha: a, the lowest weight.
        map_beta: b, the slope of the map from r to the weight.
        map_gamma: m, the r in the middle of the map.
        focal_balance: beta, a constant factor.
        focal_gamma: gamma, the focusing power.
        reduction: "mean" (the original's) or "sum" over all B * C entries.

    >>> loss = DistributionBalancedLoss([50, 5], num_samples=100)
    >>> loss(torch.zeros(1, 2), torch.tensor([[0, 1]]))
    tensor(0.2479)
    >>> DistributionBalancedLoss([50, 0], num_samples=100)
    Traceback (most recent call last):
    ValueError: DB-Loss needs class_counts from 1 to num_samples - 1 = 99; got 0 for class 1:
        leave the class out or choose another loss
    """

    class_counts: Tensor

    def __init__(
        self,
        class_counts: Tensor | Sequence[float],
        num_samples: int,
        neg_scale: float = 2.0,
        init_bias: float = 0.05,
        map_alpha: float = 0.1,
        map_beta: float = 10.0,
        map_gamma: float = 0.2,
        focal_balance: float = 2.0,
        focal_gamma: float = 2.0,
        reduction: str = "mean",
    ) -> None:
        super().__init__()
        counts = torch.as_tensor(class_counts).detach().clone()
        if counts.ndim != 1:
            raise ValueError(f"class_counts must be [C]; got {tuple(counts.shape)}")
        for number, count in enumerate(counts.tolist()):
            if not 1 <= count <= num_samples - 1:
                raise ValueError(
                    f"DB-Loss needs class_counts from 1 to num_samples - 1 = {num_samples - 1}; "
                    f"got {count} for class {number}: leave the class out or choose another loss"
                )
        self.register_buffer("class_counts", counts)
        self.num_samples = num_samples
        self.neg_scale = neg_scale
        self.init_bias = init_bias
        self.map_alpha = map_alpha
        self.map_beta = map_beta
        self.map_gamma = map_gamma
        self.focal_balance = focal_balance
        self.focal_gamma = focal_gamma
        self.reduction = choose(reduction, REDUCTIONS, "reduction")

    def forward(self, logits: Tensor, targets: Tensor, index: Tensor | None = None) -> Tensor:
        """Return the mean (or sum) over all entries."""
        logits, targets = prepare(logits, targets)
        if len(self.class_counts) != logits.shape[1]:
            raise ValueError(
                f"class_counts must have one entry per class, {logits.shape[1]}; "
                f"got {len(self.class_counts)}"
            )
        counts = self.class_counts.to(logits.dtype)
        rarity = 1 / counts
        ratio = rarity / (targets * rarity).sum(1, keepdim=True)
        weights = self.map_alpha + torch.sigmoid(self.map_beta * (ratio - self.map_gamma))

        bias = self.init_bias / self.neg_scale * torch.log(self.num_samples / counts - 1)
        shifted = logits - bias
        relevant = targets == 1
        margins = torch.where(relevant, shifted, -self.neg_scale * shifted)
        entropy = -F.logsigmoid(margins)
        entropy = torch.where(relevant, entropy, entropy / self.neg_scale)
        focus = self.focal_balance * torch.sigmoid(-margins) ** self.focal_gamma
        return self.reduction(weights * focus * entropy)
