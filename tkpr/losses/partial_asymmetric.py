"""P-ASL and CSL: an asymmetric loss with a third exponent for unannotated labels."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from tkpr.losses.asymmetric import right_probability
from tkpr.losses.inputs import REDUCTIONS, choose
from tkpr.losses.label_lists import LabelLists
from tkpr.losses.partial_labels import PartialLabels, split

UNKNOWN = {
    "negative": "as irrelevant labels with an exponent of their own",
    "ignore": "not at all",
    "ignore_normalize": "not at all, and rows with few annotations weigh more",
    "selective": "as irrelevant, unless the class is frequent or the score is high",
}


class PartialAsymmetricLoss(nn.Module):
    r"""P-ASL and class-aware selective loss, CSL (Ben-Baruch et al., CVPR 2022).

    With p the sigmoid of the logit and q = min(1 - p + m, 1), an entry is

    .. math::
        \ell^+ = -a_+ (1 - p)^{\gamma_+} \log \max(p, \epsilon), \quad
        \ell^- = -a_- (1 - q)^{\gamma_-} \log \max(q, \epsilon), \quad
        \ell^u = -a_u (1 - q)^{\gamma_u} \log \max(q, \epsilon)

    for relevant, irrelevant and unknown labels, times a weight. The focusing factors are constants
    in the backward pass. The weights are 1, except

        ignore:            0 for unknown labels;
        ignore_normalize:  0 for unknown labels, 1 + 1 / (1 + A) for the A known ones of a row;
        selective (CSL):   0 for unknown labels of classes whose prior is above ``prior_threshold``,
                           and for the ``likelihood_top`` B unknown labels of the batch with the
                           highest scores, which may be missed positives.

    The likelihood rule ranks the whole batch together, and labels that the prior has removed use up
    its budget, as in the original. Labels that tie with the last one are removed with it. Targets
    without unknown labels, 0 and 1 alone, give P-ASL.

    The authors take as priors the mean predictions of a first model trained with "ignore". Without
    priors the likelihood rule alone selects. As in ASL, a relevant label with p < eps no longer
    learns. The defaults are those of the released training script.

    Args:
        unknown: how unknown labels count: "negative", "ignore", "ignore_normalize", "selective".
        gamma_pos: focusing power of relevant labels.
        gamma_neg: focusing power of irrelevant labels.
        gamma_unknown: focusing power of unknown labels.
        alpha_pos: factor of relevant labels.
        alpha_neg: factor of irrelevant labels.
        alpha_unknown: factor of unknown labels.
        clip: m, the shift of the probability of irrelevant and unknown labels; 0 for none.
        likelihood_top: unknown labels per row of the batch that "selective" leaves out.
        prior_threshold: "selective" leaves out the unknown labels of classes above it.
        class_priors: the share of samples that have each class, ``[C]``, for "selective".
        eps: the lowest probability inside the logarithm.
        reduction: "sum" (the original's) or "mean" over all B * C entries.

    >>> targets = PartialLabels.from_states(torch.tensor([[1, 0, -1]]))
    >>> loss = PartialAsymmetricLoss(unknown="ignore")
    >>> loss(torch.zeros(1, 3), targets)  # log(2) + log(2) / 2
    tensor(1.0397)
    """

    class_priors: Tensor | None

    def __init__(
        self,
        *,
        unknown: str,
        gamma_pos: float = 0.0,
        gamma_neg: float = 1.0,
        gamma_unknown: float = 2.0,
        alpha_pos: float = 1.0,
        alpha_neg: float = 1.0,
        alpha_unknown: float = 1.0,
        clip: float = 0.0,
        likelihood_top: int = 5,
        prior_threshold: float = 0.5,
        class_priors: Sequence[float] | None = None,
        eps: float = 1e-8,
        reduction: str = "sum",
    ) -> None:
        super().__init__()
        choose(unknown, UNKNOWN, "treatment of unknown labels")
        if eps <= 0:
            raise ValueError(f"eps must be above 0; got {eps}")
        self.unknown = unknown
        self.gamma_pos, self.alpha_pos = gamma_pos, alpha_pos
        self.gamma_neg, self.alpha_neg = gamma_neg, alpha_neg
        self.gamma_unknown, self.alpha_unknown = gamma_unknown, alpha_unknown
        self.clip = clip
        self.likelihood_top = likelihood_top
        self.prior_threshold = prior_threshold
        self.eps = eps
        self.reduction = choose(reduction, REDUCTIONS, "reduction")
        priors = None if class_priors is None else torch.tensor(list(class_priors))
        self.register_buffer("class_priors", priors)

    def forward(
        self,
        logits: Tensor,
        targets: Tensor | LabelLists | PartialLabels,
        index: Tensor | None = None,
    ) -> Tensor:
        """Return the sum (or mean) over all entries; ``index`` is not used."""
        logits, relevant, irrelevant = split(logits, targets)
        right, log_right = right_probability(logits, relevant, clip=self.clip, eps=self.eps)
        wrong = (1 - right).detach()
        known = torch.where(
            relevant,
            self.alpha_pos * wrong**self.gamma_pos,
            self.alpha_neg * wrong**self.gamma_neg,
        )
        annotated = relevant | irrelevant
        focus = torch.where(annotated, known, self.alpha_unknown * wrong**self.gamma_unknown)
        weights = self.weights(logits, annotated)
        return self.reduction(-weights * focus * log_right)

    def weights(self, logits: Tensor, annotated: Tensor) -> Tensor:
        """Return the weight of each entry.

        Args:
            logits: ``[B, C]``.
            annotated: where a label is known, bool ``[B, C]``.

        >>> loss = PartialAsymmetricLoss(unknown="selective", likelihood_top=1)
        >>> loss.weights(torch.tensor([[5.0, 3.0, 1.0]]), torch.tensor([[True, False, False]]))
        tensor([[1., 0., 1.]])
        """
        if self.unknown == "negative":
            return torch.ones_like(logits)
        if self.unknown == "selective":
            return torch.where(annotated | self._selected(logits, annotated), 1.0, 0.0).to(logits)
        weights = annotated.to(logits.dtype)
        if self.unknown == "ignore_normalize":
            weights = weights * (1 + 1 / (1 + weights.sum(1, keepdim=True)))
        return weights

    def _selected(self, logits: Tensor, annotated: Tensor) -> Tensor:
        """Return the entries that count as irrelevant if they are unknown."""
        # the scores rank as the probabilities do, without the ties of those near 1
        scores = logits.detach().masked_fill(annotated, -torch.inf)
        selected = torch.ones_like(annotated)
        removed = min(self.likelihood_top * len(logits), logits.numel())
        if removed > 0:
            selected = scores < scores.flatten().topk(removed).values[-1]
        if self.class_priors is not None:
            if len(self.class_priors) != logits.shape[1]:
                raise ValueError(
                    f"class_priors must have one entry per class, {logits.shape[1]}; "
                    f"got {len(self.class_priors)}"
                )
            selected = selected & (self.class_priors <= self.prior_threshold)
        return selected
