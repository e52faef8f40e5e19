"""The univariate surrogates of the ranking loss: one weighted binary loss per label."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from tkpr.losses.inputs import Relevant, choose, find_relevant
from tkpr.losses.label_lists import LabelLists
from tkpr.losses.partial_labels import PartialLabels, split
from tkpr.losses.surrogates import exponential, logistic

WEIGHTINGS: dict[str, Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]] = {
    "u1": lambda n, m: (1 / (n + m), 1 / (n + m)),
    "u2": lambda n, m: (1 / (n * m), 1 / (n * m)),
    "u3": lambda n, m: (1 / n, 1 / m),
    "u4": lambda n, m: (1 / torch.minimum(n, m), 1 / torch.minimum(n, m)),
}


def label_weights(
    num_relevant: Tensor, num_irrelevant: Tensor, *, weighting: str
) -> tuple[Tensor, Tensor]:
    """Return the weights of the relevant and of the irrelevant labels of each row.

    With N relevant and M irrelevant labels in the row: u1: 1/C; u2: 1/(N M); u3: 1/N for relevant
    labels and 1/M for the others; u4: 1/min(N, M). Rows with N = 0 or M = 0 have no pair to rank
    and get weight 0, except in u1.

    Args:
        num_relevant: N, floating point, any shape.
        num_irrelevant: M, of the same shape.
        weighting: "u1", "u2", "u3" or "u4".

    >>> label_weights(torch.tensor([1.0, 3.0]), torch.tensor([2.0, 0.0]), weighting="u3")
    (tensor([1., 0.]), tensor([0.5000, 0.0000]))
    """
    weights = choose(weighting, WEIGHTINGS, "weighting")(num_relevant, num_irrelevant)
    if weighting == "u1":
        return weights
    has_pairs = (num_relevant > 0) & (num_irrelevant > 0)
    return weights[0].where(has_pairs, 0), weights[1].where(has_pairs, 0)


class Univariate(nn.Module):
    r"""L_u1 to L_u4: weighted binary losses that bound the ranking loss in O(C).

    .. math::
        L_u(f, y) = \sum_i w_i\, b(z_i s_i), \qquad z_i = +1 \text{ if } i \in P \text{ else } -1

    u1 and u2: Dembczynski et al., ICML 2012; u3 and u4: Wu et al., NeurIPS 2021. The weights are
    those of :func:`label_weights`; the batch is averaged, rows of weight 0 included. The paper's
    text swaps the names of the two parts of u3; here each part is divided by its own size, as in
    the original code. The four losses differ in scale by up to a factor of about C. Unknown labels
    (`PartialLabels`) have no term, and N and M count the known ones.

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

    def forward(
        self,
        logits: Tensor,
        targets: Tensor | LabelLists | PartialLabels,
        index: Tensor | None = None,
    ) -> Tensor:
        """Return the mean over the batch of the loss of each row."""
        if isinstance(targets, PartialLabels):
            return self._of_known(*split(logits, targets))
        logits, labels = find_relevant(logits, targets)
        counts = labels.counts if isinstance(labels, Relevant) else labels.sum(1, keepdim=True)
        own_weight, other_weight = label_weights(
            counts, logits.shape[1] - counts, weighting=self.weighting
        )
        if not isinstance(labels, Relevant):
            relevant = labels == 1
            entries = self.base(torch.where(relevant, logits, -logits))
            return (entries * torch.where(relevant, own_weight, other_weight)).sum() / len(logits)
        own_logits = logits.flatten().index_select(0, labels.entries)
        own = self.base(own_logits) * own_weight.squeeze(1).index_select(0, labels.rows)
        others = self.base(-logits).flatten().index_fill(0, labels.entries, 0).view_as(logits)
        return (own.sum() + (others * other_weight).sum()) / len(logits)

    def _of_known(self, logits: Tensor, relevant: Tensor, irrelevant: Tensor) -> Tensor:
        """Return the loss without a term for unknown labels."""
        counts = [part.sum(1, keepdim=True).to(logits.dtype) for part in (relevant, irrelevant)]
        own_weight, other_weight = label_weights(*counts, weighting=self.weighting)
        entries = self.base(torch.where(relevant, logits, -logits))
        weights = torch.where(relevant, own_weight, other_weight) * (relevant | irrelevant)
        return (entries.where(weights > 0, 0) * weights.where(weights > 0, 0)).sum() / len(logits)
