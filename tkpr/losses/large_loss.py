"""Large-loss modification: LL-R, LL-Ct, LL-Cp (Kim et al., CVPR 2022)."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from tkpr.losses.inputs import REDUCTIONS, check_index, choose, prepare
from tkpr.losses.single_positive import negative_logs

SCHEMES = {"reject": "LL-R", "correct_temporarily": "LL-Ct", "correct_permanently": "LL-Cp"}


class LargeLoss(nn.Module):
    """Binary cross-entropy without the unobserved labels that look wrong: LL-R, LL-Ct, LL-Cp.

    Unobserved labels count as negative. Those with the largest losses are probably unobserved
    positives, and more and more of them are treated as such. Let u be the loss -log(1 - p) of the
    unobserved entries of the batch, 0 for observed ones, and th the k-th largest u. Entries with
    u >= th are

        reject (LL-R):                left out (they still count in the mean),
        correct_temporarily (LL-Ct):  given the loss of the opposite label,
        correct_permanently (LL-Cp):  the same, and those with u > th stay positive for good.

    The clean rate starts at 1 and loses delta_rel after each epoch. k = ceil(B C (1 - clean rate))
    for LL-R and LL-Ct. For LL-Cp, whose corrections add up, k = ceil(B C delta_rel) from the second
    epoch on. The permanent corrections are made in training mode only. The first epoch is plain
    binary cross-entropy.

    Where k exceeds the number of unobserved entries, th is 0 and observed positives are left out or
    turned as well, as in the original; with rates like the paper's that takes hundreds of epochs.

    The original compares the name of the scheme by identity (``is``), which is false for a name
    that comes from the command line. Its LL-Cp then takes the growing k and never writes a
    correction back: it is LL-Ct. Here LL-Cp does what its code says; ``cli_bug=True`` gives what
    its command line computes.

    Args:
        scheme: "reject", "correct_temporarily" or "correct_permanently".
        delta_rel: what the clean rate loses per epoch; the paper tries 0.001 to 0.005.
        num_samples: the size of the training set, needed for "correct_permanently".
        num_classes: C, needed for "correct_permanently".
        keep_last: let "correct_permanently" keep all entries with u >= th, as BoostLU's code does;
            no other scheme is concerned.
        cli_bug: compute LL-Cp as the original's command line does; no other scheme is concerned.
        reduction: "mean" or "sum" over all B C entries; the original takes the mean.

    >>> loss = LargeLoss(scheme="reject", delta_rel=0.25)
    >>> logits, targets = torch.tensor([[0.0, 3.0]]), torch.tensor([[1.0, 0.0]])
    >>> loss(logits, targets)
    tensor(1.8709)
    >>> loss.set_epoch(1)
    >>> loss(logits, targets)
    tensor(0.3466)
    """

    corrections: Tensor

    def __init__(
        self,
        *,
        scheme: str,
        delta_rel: float = 0.002,
        num_samples: int | None = None,
        num_classes: int | None = None,
        keep_last: bool = False,
        cli_bug: bool = False,
        reduction: str = "mean",
    ) -> None:
        super().__init__()
        choose(scheme, SCHEMES, "scheme")
        self.reject = scheme == "reject"
        self.permanent = scheme == "correct_permanently" and not cli_bug
        self.keep_last = keep_last
        self.delta_rel = delta_rel
        self.reduction = choose(reduction, REDUCTIONS, "reduction")
        self.clean_rate = 1.0
        if self.permanent:
            if num_samples is None or num_classes is None:
                raise ValueError(
                    "the scheme 'correct_permanently' keeps a label per sample and class: "
                    "give num_samples and num_classes"
                )
            self.register_buffer(
                "corrections", torch.zeros(num_samples, num_classes, dtype=torch.uint8)
            )

    def set_epoch(self, epoch: int) -> None:
        """Set the clean rate of the epoch, counted from 0."""
        self.clean_rate = 1.0
        # one subtraction per epoch, as in the original: a product rounds differently
        for _ in range(epoch):
            self.clean_rate -= self.delta_rel
        self.clean_rate = max(self.clean_rate, 0.0)

    def num_modified(self, entries: int) -> int:
        """Return k for a batch of that many entries."""
        if self.clean_rate == 1:
            return 0
        share = self.delta_rel if self.permanent else 1 - self.clean_rate
        return min(math.ceil(entries * share), entries)

    def merge_state(self, all_reduce_max: Callable[[Tensor], Tensor]) -> None:
        """Make the corrections of all processes those of each: a correction made by one counts.

        Args:
            all_reduce_max: returns the elementwise maximum of a tensor over the processes.
        """
        if self.permanent:
            self.corrections.copy_(all_reduce_max(self.corrections))

    def forward(self, logits: Tensor, targets: Tensor, index: Tensor | None = None) -> Tensor:
        """Return the loss of a batch ``[B, C]``; LL-Cp needs the samples' ``index`` ``[B]``."""
        logits, targets = prepare(logits, targets)
        observed = targets == 1
        if self.permanent:
            index = check_index(index, len(logits), len(self.corrections))
            observed = observed | self.corrections[index].bool()
        positive, negative = negative_logs(logits, eps=0)
        entries = torch.where(observed, positive, negative)
        k = self.num_modified(logits.numel())
        if k == 0:
            return self.reduction(entries)
        suspicion = negative.detach().masked_fill(observed, 0)
        threshold = suspicion.flatten().topk(k).values[-1]
        if self.permanent and self.training and index is not None:
            kept = suspicion >= threshold if self.keep_last else suspicion > threshold
            # the maximum: no correction is lost where an index repeats
            self.corrections.index_reduce_(0, index, kept.to(torch.uint8), "amax")
        opposite = torch.where(observed, negative, positive)
        replacement = torch.zeros_like(entries) if self.reject else opposite
        return self.reduction(torch.where(suspicion >= threshold, replacement, entries))
