"""The univariate surrogates of the ranking loss: one weighted binary loss per label."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from tkpr.losses.inputs import choose, prepare
from tkpr.losses.surrogates import exponential, logistic

WEIGHTINGS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "u1": lambda targets, n, m: (1 / (n + m)).expand_as(targets),
    "u2": lambda targets, n, m: (1 / (n * m)).expand_as(targets),
    "u3": lambda targets, n, m: torch.where(targets == 1, 1 / n, 1 / m),
    "u4": lambda targets, n, m: (1 / torch.minimum(n, m)).expand_as(targets),
}


def label_weights(targets: Tensor, *, weighting: str) -> Tensor:
    """Return the weight w_i of each label in the univariate losses.

    With N relevant and M irrelevant labels in the row: u1: 1/C; u2: 1/(N M); u3: 1/N for relevant
    labels and 1/M for the others; u4: 1/min(N, M). Rows with N = 0 or M = 0 have no pair to rank
    and get weight 0, except in u1.

    Args:
        targets: 1 for relevant labels, 0 for the others, floating point, ``[B, C]``.
        weighting: "u1", "u2", "u3" or "u4".

    Returns:
        The weights ``[B, C]``.

    >>> label_weights(torch.tensor([[1., 0., 0.], [1., 1., 1.]]), weighting="u3")
    tensor([[1.0000, 0.5000, 0.5000],
            [0.0000, 0.0000, 0.0000]])
    """
    num_relevant = targets.sum(1, keepdim=True)
    num_irrelevant = targets.shape[1] - num_relevant
    weights = choose(weighting, WEIGHTINGS, "weighting")(targets, num_relevant, num_irrelevant)
    if weighting == "u1":
        return weights
    return weights.where((num_relevant > 0) & (num_irrelevant > 0), 0)


class Univariate(nn.Module):
    r"""L_u1 to L_u4: weighted binary losses that bound the ranking loss in O(C).

    .. math::
        L_u(f, y) = \sum_i w_i\, b(z_i s_i), \qquad z_i = +1 \text{ if } i \in P \text{ else } -1

    u1 and u2: Dembczynski et al., ICML 2012; u3 and u4: Wu et al., NeurIPS 2021. The weights are
    those of :func:`label_weights`; the batch is averaged, rows of weight 0 included. The paper's
    text swaps the names of the two parts of u3; here each part is divided by its own size, as in
    the original code. The four losses differ in scale by up to a factor of about C.

    Args:
        weighting: "u1", "u2", "u3" or "u4".
        base: b: "logistic" (the original code's) or "exponential" (the paper's for u2, for which it
            is consistent; App. E).

    >>> loss = Univariate("u2", base="exponential")
    >>> loss(torch.tensor([[0.0, 0.0, 0.0]]), torch.tensor([[1, 0, 0]]))  # 3 labels / (1 * 2)
    tensor(1.5000)
    """

    def __init__(self, weighting: str, base: str = "logistic") -> None:
        super().__init__()
        choose(weighting, WEIGHTINGS, "weighting")
        self.weighting = weighting
        self.base = choose(base, {"logistic": logistic, "exponential": exponential}, "base")

    def forward(self, logits: Tensor, targets: Tensor, index: Tensor | None = None) -> Tensor:
        """Return the mean over the batch of the loss of each row."""
        logits, targets = prepare(logits, targets)
        weights = label_weights(targets, weighting=self.weighting)
        return (weights * self.base((2 * targets - 1) * logits)).sum(1).mean()
