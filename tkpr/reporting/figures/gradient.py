"""How strongly TKPR pulls at a relevant label, by its logit: the sigmoid saturates at the switch.

TKPR compares sigmoid scores, so the gradient with respect to a logit carries the factor p (1 - p).
A network that was warmed up has logits of many units: there the factor, and with it the pull at a
label that is ranked wrongly, all but vanishes. Dividing the logits by a temperature T widens the
range in which the loss still learns.
"""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from tkpr.losses.pairwise import RankingLoss
from tkpr.losses.tkpr import TKPR
from tkpr.reporting.figures.style import COLOURS, LINES

TEMPERATURES = (1.0, 2.0, 4.0)


def pull(
    loss: Callable[[Tensor, Tensor], Tensor],
    logits: Sequence[float],
    *,
    rivals: float,
    num_classes: int = 20,
) -> np.ndarray:
    """Minus the gradient at the logit of the only relevant label, one value per logit.

    Args:
        loss: of (logits, targets), a mean over rows.
        logits: of the relevant label.
        rivals: the logit of all other labels.
        num_classes: C.

    >>> pull(lambda s, y: (s * (1 - 2 * y)).sum(1).mean(), [0.0], rivals=1.0)
    array([1.])
    """
    values = torch.full((len(logits), num_classes), rivals, dtype=torch.float64)
    values[:, 0] = torch.tensor(logits, dtype=torch.float64)
    values.requires_grad_()
    targets = torch.zeros_like(values)
    targets[:, 0] = 1
    (gradient,) = torch.autograd.grad(loss(values, targets) * len(logits), values)
    return -gradient[:, 0].numpy()


def draw(*, k: int = 5, rivals: float = 4.0) -> Figure:
    """Draw the pull at a relevant label against its logit, for several T and two other losses.

    Args:
        k: K of TKPR.
        rivals: the logit of the other labels, which a wrongly ranked label has to pass.
    """
    figure = Figure(figsize=(6.2, 3.2), layout="constrained")
    panel = figure.subplots()
    logits = np.linspace(-15, 15, 301)
    tkpr, rank = TKPR(k=k), RankingLoss()
    losses: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        f"TKPR $\\alpha_2$, T = {t:g}": partial(_tempered, tkpr, t) for t in TEMPERATURES
    }
    losses[r"$L_{\mathrm{rank}}$"] = rank
    losses["BCE"] = lambda s, y: (
        binary_cross_entropy_with_logits(s, y, reduction="none").sum(1).mean()
    )
    for i, (name, loss) in enumerate(losses.items()):
        values = np.maximum(pull(loss, logits.tolist(), rivals=rivals), 1e-9)
        panel.plot(logits, values, color=COLOURS[i], linestyle=LINES[i], label=name)
    panel.axvline(rivals, color="#999999", linewidth=0.9)
    panel.set_yscale("log")
    panel.set_ylim(1e-6, 3)
    panel.set_xlabel(f"logit of the relevant label (all other labels: {rivals:g}, grey line)")
    panel.set_ylabel("pull: minus the gradient")
    figure.legend(loc="outside right upper", handlelength=3.2)
    return figure


def _tempered(loss: nn.Module, temperature: float, logits: Tensor, targets: Tensor) -> Tensor:
    return loss(logits / temperature, targets)
