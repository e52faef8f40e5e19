"""The checks that every loss makes before it computes."""

from collections.abc import Callable, Mapping
from typing import NamedTuple, NoReturn, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from tkpr.losses.chunked import ChunkedLogits
from tkpr.losses.label_lists import LabelLists
from tkpr.ranking import on_host

T = TypeVar("T")
REDUCTIONS: dict[str, Callable[[Tensor], Tensor]] = {"sum": torch.sum, "mean": torch.mean}


def prepare(logits: Tensor | ChunkedLogits, targets: Tensor | LabelLists) -> tuple[Tensor, Tensor]:
    """Check one batch and lift it to float32 where it comes in half precision.

    On the CPU a target other than 0 and 1 raises an error. On an accelerator, and in compiled or
    transformed code, the answer would stall the queue at every step: there all logits become NaN
    instead, and so does the loss.

    Args:
        logits: raw scores, ``[B, C]``; chunked ones are refused.
        targets: 1 for relevant labels, 0 for the others, ``[B, C]``, or lists of labels.

    Returns:
        Both as ``[B, C]`` in one floating type, float32 or float64.

    >>> prepare(torch.zeros(2, 3), torch.zeros(2))
    Traceback (most recent call last):
    ValueError: targets must have the shape of logits, (2, 3); got (2,)
    """
    logits, targets = _check_shapes(logits, targets)
    if isinstance(targets, LabelLists):
        return logits, targets.dense(logits.shape[1]).to(logits.dtype)
    if targets.dtype != torch.bool:
        # y (y - 1) is 0 for 0 and 1 alone, also in whole numbers that wrap around
        rest = (targets - 1) * targets
        if not on_host(targets):
            logits = logits.masked_fill((rest != 0).any(), torch.nan)
        elif rest.amin() != 0 or rest.amax() != 0:
            _refuse_value(targets[rest != 0][0].item())
    return logits, targets.to(logits.dtype)


class Relevant(NamedTuple):
    """The R relevant labels of a batch: few, so that a loss need not look at all B C labels.

    Attributes:
        entries: their positions in the flattened logits, ``[R]``.
        rows: their rows, ``[R]``.
        counts: N, the number of relevant labels of each row, in the logits' type, ``[B, 1]``.
    """

    entries: Tensor
    rows: Tensor
    counts: Tensor


def find_relevant(
    logits: Tensor | ChunkedLogits, targets: Tensor | LabelLists
) -> tuple[Tensor, Relevant | Tensor]:
    """Check one batch as :func:`prepare` does, and find its relevant labels where that is cheap.

    Args:
        logits: raw scores, ``[B, C]``; chunked ones are refused.
        targets: 1 for relevant labels, 0 for the others, ``[B, C]``, or lists of labels.

    Returns:
        The logits in float32 or float64, and the relevant labels. To find them in a dense matrix,
        an accelerator would have to report their number to the host; there, and in compiled or
        transformed code, the answer is the dense targets ``[B, C]`` in the logits' type.

    >>> _, relevant = find_relevant(torch.zeros(2, 3), torch.tensor([[1, 0, 1], [0, 1, 0]]))
    >>> relevant.entries, relevant.rows, relevant.counts.squeeze(1)
    (tensor([0, 2, 4]), tensor([0, 0, 1]), tensor([2., 1.]))
    """
    if isinstance(targets, Tensor) and targets.layout == torch.strided and not on_host(targets):
        return prepare(logits, targets)
    logits, targets = _check_shapes(logits, targets)
    if isinstance(targets, LabelLists):
        counts = targets.counts.to(logits.dtype).unsqueeze(1)
        return logits, Relevant(targets.entries(logits.shape), targets.rows, counts)
    return logits, _find_by_numpy(targets, logits)


def _find_by_numpy(targets: Tensor, logits: Tensor) -> Relevant:
    """Check and find the relevant labels, in a fraction of torch's time."""
    if targets.dtype == torch.bfloat16:  # NumPy has no such type
        targets = targets.float()
    values = targets.detach().numpy().ravel()
    entries = (values != 0).nonzero()[0]
    wrong = values[entries] != 1
    if np.count_nonzero(wrong):
        _refuse_value(values[entries[wrong][0]].item())
    rows = entries // logits.shape[1]
    counts = np.bincount(rows, minlength=len(logits))[:, None]
    counts = counts.astype(np.float64 if logits.dtype == torch.float64 else np.float32)
    return Relevant(*(torch.from_numpy(part) for part in (entries, rows, counts)))


def _check_shapes(
    logits: Tensor | ChunkedLogits, targets: Tensor | LabelLists
) -> tuple[Tensor, Tensor | LabelLists]:
    """Check all but the values of the targets, lift the logits, make lists of sparse targets."""
    if isinstance(logits, ChunkedLogits):
        raise ValueError(
            "this loss needs all logits at once: choose tkpr_a1, tkpr_a2, tkpr_a3, bce, an, an_ls, "
            "asl, hill, splc or em, or set model.head=dense"
        )
    if logits.ndim != 2 or logits.numel() == 0:
        raise ValueError(f"logits must be [B, C] and not empty; got {tuple(logits.shape)}")
    if not logits.is_floating_point():
        raise ValueError(f"logits must be floating point; got {logits.dtype}")
    if not isinstance(targets, Tensor | LabelLists):
        raise ValueError(
            "this loss takes no unknown labels: choose one that does, such as csl or two_way, "
            "or give targets of 0 and 1"
        )
    if logits.dtype in (torch.float16, torch.bfloat16):
        logits = logits.float()
    if isinstance(targets, Tensor):
        if targets.shape != logits.shape:
            raise ValueError(
                f"targets must have the shape of logits, {tuple(logits.shape)}; "
                f"got {tuple(targets.shape)}"
            )
        if targets.layout != torch.strided:
            targets = LabelLists.from_sparse(targets)
        elif targets.dtype in (torch.uint16, torch.uint32, torch.uint64):
            targets = targets.long()  # torch has no arithmetic for these types
    return logits, targets


def _refuse_value(wrong: float) -> NoReturn:
    raise ValueError(f"targets must hold only 0 and 1; got {wrong:.6g}")


def check_index(index: Tensor | None, batch: int, num_samples: int) -> Tensor:
    """Return the sample index of a batch, or say why a loss with per-sample state cannot use it.

    Args:
        index: positions of the batch's samples in the training set, ``[B]``.
        batch: B.
        num_samples: the size of the training set.
    """
    if index is None:
        raise ValueError("this loss keeps a state per sample: call it with the samples' index")
    if index.shape != (batch,):
        raise ValueError(f"index must have shape ({batch},); got {tuple(index.shape)}")
    if on_host(index) and (index.min() < 0 or index.max() >= num_samples):
        raise ValueError(
            f"index must lie within the training set, 0 to {num_samples - 1}; "
            f"got {index.min().item()} to {index.max().item()}"
        )
    return index


def choose(name: str, options: Mapping[str, T], what: str) -> T:
    """Return ``options[name]``, or name the valid choices.

    >>> choose("cubic", {"square": 1, "hinge": 2}, "surrogate")
    Traceback (most recent call last):
    ValueError: unknown surrogate 'cubic': choose one of square, hinge
    """
    if name not in options:
        raise ValueError(f"unknown {what} {name!r}: choose one of {', '.join(options)}")
    return options[name]


def relevant_labels(targets: Tensor) -> Tensor:
    """List the relevant labels of each row.

    Args:
        targets: 1 for relevant labels, 0 for the others, ``[B, C]``.

    Returns:
        The columns of each row's relevant labels, padded with -1, ``[B, P]``. P is the largest
        number of them in the batch, or C where finding that number would stall an accelerator.

    >>> relevant_labels(torch.tensor([[0, 1, 0, 1], [0, 0, 1, 0]]))
    tensor([[ 1,  3],
            [ 2, -1]])
    """
    relevant = targets if targets.dtype == torch.bool else targets == 1
    if on_host(targets):
        return torch.from_numpy(_table_by_numpy(relevant))
    num_classes = targets.shape[1]
    # the other labels share a last place, which is cut off
    places = (relevant.cumsum(1) - 1).masked_fill(~relevant, num_classes)
    columns = torch.arange(num_classes, device=targets.device).expand_as(places)
    table = torch.full_like(F.pad(columns, (0, 1)), -1)
    return table.scatter(1, places, columns)[:, :num_classes]


def _table_by_numpy(relevant: Tensor) -> np.ndarray:
    """Return the table of :func:`relevant_labels`, in a fraction of torch's time."""
    rows, columns = np.divmod(np.flatnonzero(relevant.numpy()), relevant.shape[1])
    counts = np.bincount(rows, minlength=len(relevant))
    table = np.full((len(relevant), counts.max()), -1)
    table[rows, np.arange(len(rows)) - (counts.cumsum() - counts)[rows]] = columns
    return table
