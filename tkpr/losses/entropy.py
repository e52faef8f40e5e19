"""Losses that acknowledge unknown labels: EM and EM+APL (Zhou et al., ECCV 2022).

As in `tkpr.losses.single_positive`, p = sigmoid(logits) and n(q) = -log(q + eps). Both losses can
be below zero. The authors advise a decision threshold of 0.75 instead of 0.5 with them.
"""

import torch
from torch import Tensor, nn

from tkpr.losses.chunked import ChunkedLogits
from tkpr.losses.inputs import REDUCTIONS, check_index, choose, prepare
from tkpr.losses.label_lists import LabelLists
from tkpr.losses.single_positive import negative_logs


class EntropyMaximisation(nn.Module):
    """EM: fit the observed positives, keep the predictions on unobserved labels undecided.

        y = 1:  n(p)
        y = 0:  -alpha [p n(p) + (1 - p) n(1 - p)]

    The second line is minus the entropy, and is differentiated in full.

    Args:
        alpha: weight of the entropy.
        eps: the constant in n(q) = -log(q + eps).
        reduction: "mean" or "sum" over all B C entries; the original takes the mean.

    >>> loss = EntropyMaximisation(alpha=0.1, eps=0)
    >>> loss(torch.tensor([[0.0, 0.0]]), torch.tensor([[1.0, 0.0]]))
    tensor(0.3119)
    """

    def __init__(self, *, alpha: float, eps: float = 1e-5, reduction: str = "mean") -> None:
        super().__init__()
        self.alpha = alpha
        self.eps = eps
        self.reduction = choose(reduction, REDUCTIONS, "reduction")

    def forward(
        self,
        logits: Tensor | ChunkedLogits,
        targets: Tensor | LabelLists,
        index: Tensor | None = None,
    ) -> Tensor:
        """Return the loss of a batch ``[B, C]``; ``index`` is not used."""
        if isinstance(logits, ChunkedLogits):
            return logits.add_up(self, targets, mean=self.reduction is torch.mean)
        logits, targets = prepare(logits, targets)
        positive, negative = negative_logs(logits, eps=self.eps)
        probabilities = torch.sigmoid(logits)
        entropy = probabilities * positive + (1 - probabilities) * negative
        return self.reduction(torch.where(targets == 1, positive, -self.alpha * entropy))


class EMAPL(nn.Module):
    """EM with asymmetric pseudo-labelling: the lowest scores become soft negatives for good.

    With o the label that the loss keeps for each training image and class, an entry is

        o = 1, observed positive:   n(p)
        o = 0, unknown:             -alpha [p n(p) + (1 - p) n(1 - p)]
        o = -q, pseudo-negative:    beta [q n(p) + (1 - q) n(1 - p)].

    After the training pass of epoch number ``warmup_epochs`` (counted from 1) and of each later
    one, `update_labels` takes, per class, the floor(r U / (E - warmup_epochs)) unknown images with
    the lowest scores and sets their o to -score. r is ``negative_proportion``, U the number of
    unobserved images of the class, E the number of epochs. A pseudo-label is never revised, and
    only negatives are ever labelled.

    As in the original, a score of exactly 0 leaves the entry unknown (in float32, a logit below
    -103; its gradient is 0 either way). Two differences, neither of which changes a model that is
    trained on more than one batch per epoch: no update is asked for after the last epoch, since
    nothing would use it, and an epoch of a single batch is followed by an update too.

    Args:
        alpha: weight of the entropy.
        beta: weight of the pseudo-negatives.
        warmup_epochs: the number, from 1, of the first epoch that an update follows.
        train_targets: observed labels of the training set, ``[N, C]``.
        num_epochs: E.
        negative_proportion: r, the share of the unobserved labels that would be pseudo-negative
            after E - warmup_epochs updates.
        eps: the constant in n(q) = -log(q + eps).
        reduction: "mean" or "sum" over all B C entries; the original takes the mean.

    >>> observed = torch.tensor([[1, 0], [0, 1], [0, 0]])
    >>> loss = EMAPL(alpha=0.1, beta=0.9, warmup_epochs=1, train_targets=observed, num_epochs=2)
    >>> loss.wants_update()
    True
    >>> loss.update_labels(torch.tensor([[0.0, 0.0], [0.0, 0.0], [-1.0, 1.0]]))
    >>> loss.labels
    tensor([[ 1.0000, -0.5000],
            [ 0.0000,  1.0000],
            [-0.2689,  0.0000]])
    """

    labels: Tensor

    def __init__(
        self,
        *,
        alpha: float,
        beta: float,
        warmup_epochs: int,
        train_targets: Tensor,
        num_epochs: int,
        negative_proportion: float = 0.9,
        eps: float = 1e-5,
        reduction: str = "mean",
    ) -> None:
        super().__init__()
        self.alpha = alpha
        self.beta = beta
        self.warmup_epochs = warmup_epochs
        self.num_epochs = num_epochs
        self.negative_proportion = negative_proportion
        self.eps = eps
        self.reduction = choose(reduction, REDUCTIONS, "reduction")
        self.epoch = 0
        self.register_buffer("labels", train_targets.to(torch.float32, copy=True))

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, counted from 0."""
        self.epoch = epoch

    def wants_update(self) -> bool:
        """Whether `update_labels` is due after the training pass of this epoch."""
        return self.warmup_epochs <= self.epoch + 1 < self.num_epochs

    @torch.no_grad()
    def update_labels(self, logits: Tensor) -> None:
        """Turn the lowest-scoring unknown labels of each class into soft negatives.

        Args:
            logits: predictions for the whole training set in the order of its index, ``[N, C]``.
        """
        if logits.shape != self.labels.shape:
            raise ValueError(
                f"logits must have one row per training sample, {tuple(self.labels.shape)}; "
                f"got {tuple(logits.shape)}"
            )
        logits = logits.to(self.labels)
        unobserved = (self.labels <= 0).sum(dim=0).double()
        updates = max(self.num_epochs - self.warmup_epochs, 1)
        count = torch.floor(self.negative_proportion * unobserved / updates)
        unknown = self.labels == 0
        order = logits.masked_fill(~unknown, torch.inf).argsort(dim=0, stable=True)
        among_lowest = torch.arange(len(logits), device=logits.device)[:, None] < count
        chosen = torch.zeros_like(unknown).scatter_(0, order, among_lowest) & unknown
        self.labels.copy_(torch.where(chosen, -torch.sigmoid(logits), self.labels))

    def forward(self, logits: Tensor, targets: Tensor, index: Tensor | None = None) -> Tensor:
        """Return the loss of a batch ``[B, C]`` of the training images at ``index`` ``[B]``."""
        logits, targets = prepare(logits, targets)
        labels = self.labels[check_index(index, len(logits), len(self.labels))].to(logits.dtype)
        positive, negative = negative_logs(logits, eps=self.eps)
        probabilities = torch.sigmoid(logits)
        entropy = probabilities * positive + (1 - probabilities) * negative
        soft = self.beta * ((1 + labels) * negative - labels * positive)
        unobserved = torch.where(labels < 0, soft, -self.alpha * entropy)
        return self.reduction(torch.where(targets == 1, positive, unobserved))
