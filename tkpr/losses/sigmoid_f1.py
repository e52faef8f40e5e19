"""sigmoidF1: one minus a smooth macro F1 of the batch."""

import torch
from torch import Tensor, nn

from tkpr.losses.label_lists import LabelLists
from tkpr.losses.partial_labels import PartialLabels, split


class SigmoidF1(nn.Module):
    r"""sigmoidF1 (Bénédict et al., TMLR 2022).

    With a smooth decision h for each entry, and for each class the sums over the batch

    .. math::
        h = \sigma(\beta\,(\sigma(s) + \eta)), \qquad
        tp = \sum h y, \quad fp = \sum h (1 - y), \quad fn = \sum (1 - h) y,

    the loss is the mean over the classes of 1 - 2 tp / (2 tp + fp + fn + 1e-16).

    The released code squashes twice, as written: with its defaults h stays between 0.5 and 0.73,
    and even perfect logits cost about 0.7. A decision at p = 1/2 needs eta = -0.5, and beta = 10
    makes it sharp. A class without relevant labels in the batch costs 1 and has no gradient, so the
    batch should be large (the authors take 256).

    Unknown labels (`PartialLabels`) are in no sum.

    Args:
        beta: the slope, -S in the released code.
        eta: the offset, E in the released code.

    >>> loss = SigmoidF1(beta=10, eta=-0.5)
    >>> loss(torch.tensor([[9.0], [-9.0]]), torch.tensor([[1], [0]]))
    tensor(0.0067)
    """

    def __init__(self, *, beta: float = 1.0, eta: float = 0.0) -> None:
        super().__init__()
        self.beta = beta
        self.eta = eta

    def forward(
        self,
        logits: Tensor,
        targets: Tensor | LabelLists | PartialLabels,
        index: Tensor | None = None,
    ) -> Tensor:
        """Return the mean over the classes; ``index`` is not used."""
        logits, relevant, irrelevant = split(logits, targets)
        decision = torch.sigmoid(self.beta * (logits.sigmoid() + self.eta))
        true_positive = (decision * relevant).sum(0)
        false_positive = (decision * irrelevant).sum(0)
        false_negative = ((1 - decision) * relevant).sum(0)
        errors = false_positive + false_negative
        return torch.mean(1 - 2 * true_positive / (2 * true_positive + errors + 1e-16))
