"""Losses for one observed positive label per image (Cole et al., CVPR 2021).

A target of 1 is an observed positive label; 0 is unobserved, so positive or negative. Throughout,
p = sigmoid(logits), and the negative logarithm is n(q) = -log(q + eps) with the original's
eps = 1e-5: it is a little below zero at q = 1, and its slope is never steeper than 1 / eps. With
eps = 0 it is the exact logarithm, computed from the logits.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tkpr.losses.chunked import ChunkedLogits
from tkpr.losses.inputs import (
    REDUCTIONS,
    Relevant,
    check_index,
    choose,
    find_relevant,
    prepare,
)
from tkpr.losses.label_lists import LabelLists
from tkpr.losses.partial_labels import PartialLabels, split


def negative_log(logits: Tensor, label: int, *, eps: float) -> Tensor:
    """Return n(p), the loss of each entry as a positive label, or n(1 - p), as a negative one.

    Args:
        logits: raw scores, any shape.
        label: 1 or 0.
        eps: what is added to the probability under the logarithm; 0 for the exact logarithm.

    >>> negative_log(torch.tensor([0.0, 9.0]), 1, eps=0)
    tensor([6.9315e-01, 1.2340e-04])
    """
    if eps == 0:
        return -F.logsigmoid(logits if label == 1 else -logits)
    probabilities = torch.sigmoid(logits)
    return -torch.log((probabilities if label == 1 else 1 - probabilities) + eps)


def negative_logs(logits: Tensor, *, eps: float) -> tuple[Tensor, Tensor]:
    """Return n(p) and n(1 - p), the losses of each entry as a positive and as a negative label."""
    return negative_log(logits, 1, eps=eps), negative_log(logits, 0, eps=eps)


def expectation_penalty(probabilities: Tensor, expected_positives: float) -> Tensor:
    """R = ((mean over the batch of sum_c p_c - k) / C)^2, k the expected number of positives.

    Args:
        probabilities: ``[B, C]``.
        expected_positives: k.

    >>> expectation_penalty(torch.tensor([[1.0, 0.0], [1.0, 1.0]]), 1.0)
    tensor(0.0625)
    """
    per_image = probabilities.sum(dim=1).mean()
    return ((per_image - expected_positives) / probabilities.shape[1]).square()


class AssumeNegative(nn.Module):
    """Binary cross-entropy that takes unobserved labels as negative: BCE, AN, AN-LS, WAN.

    With one observed positive per image this is AN, with full labels it is BCE. Each entry is

        (1 - e) own + e other,

    where own is n(p) for a target of 1 and n(1 - p) for a target of 0, other is the opposite one,
    and e is the label smoothing (AN-LS: e = 0.1, not halved). With weak negatives (WAN) the entries
    with target 0 are divided by C - 1, so that they weigh as much as the one positive. Unknown
    labels (`PartialLabels`) have no term: the mean is over the known entries, C - 1 counts those of
    the row.

    Args:
        label_smoothing: e.
        weak_negatives: divide the negatives by C - 1.
        eps: the constant in n(q) = -log(q + eps); 0 for the exact logarithm.
        reduction: "mean" or "sum" over all B C entries; the original takes the mean.

    >>> loss = AssumeNegative(eps=0)
    >>> loss(torch.tensor([[0.0, 0.0]]), torch.tensor([[1.0, 0.0]]))
    tensor(0.6931)
    """

    def __init__(
        self,
        *,
        label_smoothing: float = 0.0,
        weak_negatives: bool = False,
        eps: float = 1e-5,
        reduction: str = "mean",
    ) -> None:
        super().__init__()
        self.label_smoothing = label_smoothing
        self.weak_negatives = weak_negatives
        self.eps = eps
        choose(reduction, REDUCTIONS, "reduction")
        self.reduction = reduction

    def forward(
        self,
        logits: Tensor | ChunkedLogits,
        targets: Tensor | LabelLists | PartialLabels,
        index: Tensor | None = None,
    ) -> Tensor:
        """Return the loss of a batch ``[B, C]``; ``index`` is not used."""
        if isinstance(targets, PartialLabels):
            return self._of_known(*split(logits, targets))
        if isinstance(logits, ChunkedLogits) and not self.weak_negatives:
            return logits.add_up(self, targets, mean=self.reduction == "mean")
        logits, labels = find_relevant(logits, targets)
        # a single class has no other label to share the weight with
        divisor = max(logits.shape[1] - 1, 1) if self.weak_negatives else 1
        if isinstance(labels, Relevant):
            own = self._smoothed(logits.flatten().index_select(0, labels.entries), 1)
            others = self._smoothed(logits, 0).flatten().index_fill(0, labels.entries, 0)
            total = own.sum() + others.sum() / divisor
        else:
            own, others = self._smoothed(logits, 1), self._smoothed(logits, 0) / divisor
            total = torch.where(labels == 1, own, others).sum()
        return total / logits.numel() if self.reduction == "mean" else total

    def _of_known(self, logits: Tensor, relevant: Tensor, irrelevant: Tensor) -> Tensor:
        """Return the loss without a term for unknown labels."""
        known = relevant | irrelevant
        own, others = self._smoothed(logits, 1), self._smoothed(logits, 0)
        if self.weak_negatives:
            others = others / (known.sum(1, keepdim=True) - 1).clamp(min=1)
        total = torch.where(relevant, own, others).where(known, 0).sum()
        return total / known.sum().clamp(min=1) if self.reduction == "mean" else total

    def _smoothed(self, logits: Tensor, label: int) -> Tensor:
        """(1 - e) own + e other."""
        own = negative_log(logits, label, eps=self.eps)
        if self.label_smoothing == 0:
            return own
        other = negative_log(logits, 1 - label, eps=self.eps)
        return (1 - self.label_smoothing) * own + self.label_smoothing * other


class ExpectedPositiveRegularisation(nn.Module):
    """EPR: observed positives only, and the right number of predicted positives on average.

        L = mean over B C of y n(p) + R(p),
        R(p) = ((mean over the batch of sum_c p_c - k) / C)^2.

    R is an expectation over the batch, so the batch size matters.

    Args:
        expected_positives: k, the mean number of positives per image in the clean training labels.
        eps: the constant in n(q) = -log(q + eps).

    >>> loss = ExpectedPositiveRegularisation(expected_positives=1.0, eps=0)
    >>> loss(torch.tensor([[0.0, 0.0]]), torch.tensor([[1.0, 0.0]]))
    tensor(0.3466)
    """

    def __init__(self, *, expected_positives: float, eps: float = 1e-5) -> None:
        super().__init__()
        self.expected_positives = expected_positives
        self.eps = eps

    def forward(self, logits: Tensor, targets: Tensor, index: Tensor | None = None) -> Tensor:
        """Return the loss of a batch ``[B, C]``; ``index`` is not used."""
        logits, targets = prepare(logits, targets)
        positive = negative_log(logits, 1, eps=self.eps)
        penalty = expectation_penalty(torch.sigmoid(logits), self.expected_positives)
        return (targets * positive).mean() + penalty


class PairwiseRanking(nn.Module):
    """PR: a hinge between observed and unobserved labels, on probabilities.

        L = 1 / (B C) sum over rows, observed i, unobserved j of max(0, 1 - p_i + p_j).

    Two probabilities never differ by more than 1, so the hinge never cuts, and the sum over pairs
    is one over entries: M (1 - p_i) for each of the N observed labels, N p_j for each of the M
    unobserved ones.

    Args:
        reduction: "mean" or "sum" over all B C entries; the original takes the mean.

    >>> loss = PairwiseRanking()
    >>> loss(torch.tensor([[0.0, 0.0]]), torch.tensor([[1.0, 0.0]]))
    tensor(0.5000)
    """

    def __init__(self, *, reduction: str = "mean") -> None:
        super().__init__()
        self.reduction = choose(reduction, REDUCTIONS, "reduction")

    def forward(self, logits: Tensor, targets: Tensor, index: Tensor | None = None) -> Tensor:
        """Return the loss of a batch ``[B, C]``; ``index`` is not used."""
        logits, targets = prepare(logits, targets)
        probabilities = torch.sigmoid(logits)
        observed = targets.sum(dim=1, keepdim=True)
        unobserved = targets.shape[1] - observed
        entries = (
            targets * unobserved * (1 - probabilities) + (1 - targets) * observed * probabilities
        )
        return self.reduction(entries)


class ROLE(nn.Module):
    """ROLE: classifier and label estimates learn together, each the soft target of the other.

    The estimates q = sigmoid(theta[index]) are a free parameter per training image and class. With
    sg(.) for a target that gets no gradient,

        L = (A(p | sg(q)) + A(q | sg(p))) / 2,
        A(p | q) = mean over B C of {y n(p) + q n(p) + (1 - q) n(1 - p)} + R(p),

    R being the penalty of EPR. theta starts at logit(0.995) for observed positives and uniformly
    between -logit(0.6) and logit(0.6) elsewhere, and learns ten times as fast as the network.

    Args:
        expected_positives: k, the mean number of positives per image in the clean training labels.
        train_targets: observed labels of the training set, ``[N, C]``.
        eps: the constant in n(q) = -log(q + eps).
        seed: of the first estimates, which do not touch the global generator.

    >>> loss = ROLE(expected_positives=1.0, train_targets=torch.eye(3))
    >>> loss(torch.zeros(1, 3), torch.tensor([[0.0, 1.0, 0.0]]), torch.tensor([1]))
    tensor(1.2017, grad_fn=<DivBackward0>)
    """

    learning_rate_multiplier = 10.0

    def __init__(
        self,
        *,
        expected_positives: float,
        train_targets: Tensor,
        eps: float = 1e-5,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.expected_positives = expected_positives
        self.eps = eps
        generator = torch.Generator().manual_seed(seed)
        uniform = torch.rand(train_targets.shape, generator=generator)
        unobserved = (2 * uniform - 1) * math.log(0.6 / 0.4)
        theta = torch.where(train_targets.cpu() == 1, math.log(0.995 / 0.005), unobserved)
        self.theta = nn.Parameter(theta)

    def forward(self, logits: Tensor, targets: Tensor, index: Tensor | None = None) -> Tensor:
        """Return the loss of a batch ``[B, C]`` of the training images at ``index`` ``[B]``."""
        logits, targets = prepare(logits, targets)
        theta = self.theta[check_index(index, len(logits), len(self.theta))].to(logits.dtype)
        classifier = self._side(logits, targets, torch.sigmoid(theta).detach())
        estimator = self._side(theta, targets, torch.sigmoid(logits).detach())
        return (classifier + estimator) / 2

    def _side(self, logits: Tensor, targets: Tensor, soft: Tensor) -> Tensor:
        """A(p | q) for p = sigmoid(logits) and q = soft."""
        positive, negative = negative_logs(logits, eps=self.eps)
        entries = (targets + soft) * positive + (1 - soft) * negative
        return entries.mean() + expectation_penalty(torch.sigmoid(logits), self.expected_positives)
