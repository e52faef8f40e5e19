"""Targets with unknown entries.

A label is relevant, irrelevant or unknown. The third state is a type, not a number: targets with
unknown entries are a `PartialLabels`, and a tensor of targets holds 0 and 1 alone. A loss that
cannot handle unknown labels rejects the type with one clear error on every device, without reading
a value. A sentinel (-1 or NaN) would have to be looked for, and where it is not, as in sums that
count the samples of a class, it would silently pass as a label.
"""

from collections.abc import Callable
from typing import NamedTuple, Self

import torch
from torch import Tensor

from tkpr.losses.chunked import ChunkedLogits
from tkpr.losses.inputs import prepare
from tkpr.losses.label_lists import LabelLists


class PartialLabels(NamedTuple):
    """The known labels of a batch; what is neither relevant nor irrelevant is unknown.

    Attributes:
        relevant: bool ``[B, C]``.
        irrelevant: bool ``[B, C]``, True nowhere where ``relevant`` is.
    """

    relevant: Tensor
    irrelevant: Tensor

    @classmethod
    def from_states(cls, states: Tensor) -> Self:
        """Read a matrix of states: 1 relevant, 0 irrelevant, -1 unknown.

        Data sets call this where they check their labels, so it may read values.

        Args:
            states: ``[B, C]``, any signed type.

        >>> import torch
        >>> PartialLabels.from_states(torch.tensor([[1, 0, -1]])).irrelevant
        tensor([[False,  True, False]])
        >>> PartialLabels.from_states(torch.tensor([[1, 0, 2]]))
        Traceback (most recent call last):
        ValueError: states of labels must be 1, 0 or -1 (unknown); got 2
        """
        relevant, irrelevant = states == 1, states == 0
        wrong = ~(relevant | irrelevant | (states == -1))
        if wrong.any():
            raise ValueError(
                f"states of labels must be 1, 0 or -1 (unknown); got {states[wrong][0].item():.6g}"
            )
        return cls(relevant, irrelevant)


def split(
    logits: Tensor | ChunkedLogits, targets: Tensor | LabelLists | PartialLabels
) -> tuple[Tensor, Tensor, Tensor]:
    """Check one batch as :func:`tkpr.losses.inputs.prepare` does; unknown labels are welcome.

    Args:
        logits: raw scores, ``[B, C]``.
        targets: 0 and 1 as ``[B, C]``, lists of labels, or partial labels.

    Returns:
        The logits in float32 or float64, which labels are relevant, and which are irrelevant, both
        bool ``[B, C]``.

    >>> import torch
    >>> targets = PartialLabels.from_states(torch.tensor([[1, 0, -1]]))
    >>> split(torch.zeros(1, 3), targets)[1:]
    (tensor([[ True, False, False]]), tensor([[False,  True, False]]))
    """
    if isinstance(targets, PartialLabels):
        prepare(logits, targets.irrelevant)
        logits, _ = prepare(logits, targets.relevant)
        return logits, targets.relevant, targets.irrelevant
    logits, targets = prepare(logits, targets)
    relevant = targets == 1
    return logits, relevant, ~relevant


def find_known(
    logits: Tensor | ChunkedLogits, targets: Tensor | LabelLists | PartialLabels
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Check one batch as :func:`split` does, for losses that are sums over entries.

    Args:
        logits: raw scores, ``[B, C]``.
        targets: 0 and 1 as ``[B, C]``, lists of labels, or partial labels.

    Returns:
        The logits in float32 or float64, which labels are relevant, and which are known, both bool
        ``[B, C]``; None in place of the last where all are.

    >>> find_known(torch.zeros(1, 2), PartialLabels.from_states(torch.tensor([[1, -1]])))[1:]
    (tensor([[ True, False]]), tensor([[ True, False]]))
    >>> find_known(torch.zeros(1, 2), torch.tensor([[1, 0]]))[1:]
    (tensor([[ True, False]]), None)
    """
    if isinstance(targets, PartialLabels):
        logits, relevant, irrelevant = split(logits, targets)
        return logits, relevant, relevant | irrelevant
    logits, targets = prepare(logits, targets)
    return logits, targets == 1, None


def reduce_known(
    entries: Tensor, known: Tensor | None, reduction: Callable[[Tensor], Tensor]
) -> Tensor:
    """Return the sum, or the mean, over the known entries.

    Args:
        entries: the loss of each entry, ``[B, C]``.
        known: bool ``[B, C]``; None: all are.
        reduction: ``torch.sum`` or ``torch.mean``.

    >>> entries, known = torch.tensor([[1.0, 5.0, 2.0]]), torch.tensor([[True, False, True]])
    >>> reduce_known(entries, known, torch.mean)
    tensor(1.5000)
    """
    if known is None:
        return reduction(entries)
    total = entries.where(known, 0).sum()
    return total / known.sum().clamp(min=1) if reduction is torch.mean else total
