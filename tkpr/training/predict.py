"""Prediction: the one pass over a data set that training, evaluation and scripts share."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from tkpr.data.assemble import Samples, TrainingData
from tkpr.data.sparse import has_lists
from tkpr.losses.chunked import ChunkedLogits
from tkpr.losses.label_lists import LabelLists
from tkpr.metrics import evaluate, evaluate_top
from tkpr.ranking import top_labels
from tkpr.training.collectives import all_reduce
from tkpr.training.loader import make_loader, to_device
from tkpr.training.unreadable import UnreadableImages


@torch.no_grad()
def predict(
    model: nn.Module,
    dataset: Samples,
    finish: nn.Module,
    fabric: Fabric,
    *,
    batch_size: int,
    num_workers: int = 0,
    channels_last: bool = False,
    keep: Callable[[Any, Any], Tensor] = lambda outputs, targets: dense(outputs),
    unreadable: UnreadableImages | None = None,
    after_batch: Callable[[], None] = lambda: None,
) -> Tensor:
    """Return fp32 outputs ``[N, C]`` in the order of the data set, the same on every rank.

    Each rank fills in its own rows and the sum over ranks puts them together, so every sample
    counts once for any number of processes. Rows that ``dataset.unreadable`` marks are 0.

    Args:
        model: not wrapped for distributed training, whose forward pass is a collective that a
            rank without a batch would never reach.
        dataset: the samples.
        finish: converts pixels (:class:`tkpr.data.assemble.TrainingData`).
        fabric: launched; it names device and precision.
        batch_size: samples per batch and process.
        num_workers: processes that load data.
        channels_last: the memory layout of images.
        keep: what to keep of the outputs of a batch and its targets, ``[B, C]`` or less.
        unreadable: what a run has logged so far; None: each unreadable image is logged.
        after_batch: called equally often on every rank.

    >>> from tkpr.data.dataset import Split
    >>> from tkpr.data.features import FeatureDataset
    >>> import numpy as np
    >>> rows = FeatureDataset(Split(np.eye(3), np.eye(3, 2, dtype=np.uint8), ["a", "b", "c"]))
    >>> double = nn.Linear(3, 3, bias=False)
    >>> _ = double.weight.data.copy_(2 * torch.eye(3))
    >>> predict(double, rows, nn.Identity(), fabric_on("cpu"), batch_size=2).diagonal()
    tensor([2., 2., 2.])
    """
    model.to(fabric.device).eval()
    loader = make_loader(dataset, fabric, batch_size=batch_size, num_workers=num_workers)
    found = []
    for inputs, targets, index in to_device(loader, fabric, finish, channels_last=channels_last):
        if len(index):
            with fabric.autocast():
                outputs = model(inputs).float()
            found.append((index, keep(outputs, targets)))
        after_batch()
    most = -(-len(dataset) // (batch_size * fabric.world_size))  # batches of rank 0
    for _ in range(most - len(loader)):
        after_batch()
    (unreadable or UnreadableImages(fabric)).share(dataset)
    if dataset.unreadable.all():
        raise ValueError(f"not one of the {len(dataset)} images can be read")
    width = torch.tensor(max((rows.shape[1] for _, rows in found), default=0))
    width = all_reduce(fabric, width, "max")  # a rank without a batch does not know it
    kept = torch.zeros(len(dataset), int(width), device=fabric.device)
    for index, rows in found:
        kept[index] = rows
    return all_reduce(fabric, kept).cpu()


def dense(logits: Tensor | ChunkedLogits) -> Tensor:
    """Return logits as a tensor ``[B, C]``."""
    return logits.dense() if isinstance(logits, ChunkedLogits) else logits


def keep_best(logits: Tensor | ChunkedLogits, targets: LabelLists, *, k: int) -> Tensor:
    """Keep the k best labels of each row, then their scores, float32 ``[B, 2 k]``.

    Ties are broken against the relevant labels, as everywhere (Asm. 2). Labels are exact up to
    2^24. For :func:`predict`, where N C logits are too many.

    >>> keep_best(torch.tensor([[0.5, 2.0, 1.0]]), LabelLists(torch.tensor([[2]])), k=2)
    tensor([[1., 2., 2., 1.]])
    """
    # at most P of the candidates are relevant: K irrelevant ones are left where a tie is longer
    most_relevant = int(targets.counts.max())
    values, candidates = logits.topk(min(k + most_relevant, logits.shape[1]))
    places = top_labels(values, targets.contain(candidates), k)
    return torch.cat([candidates.gather(1, places).float(), values.gather(1, places)], dim=1)


def what_to_keep(test: Samples, ks: Sequence[int]) -> dict[str, Any]:
    """The options of :func:`predict` for the test set: all logits, or the best of label lists."""
    return {"keep": partial(keep_best, k=max(ks))} if has_lists(test) else {}


def measure(data: TrainingData, outputs: Tensor, ks: Sequence[int]) -> dict[str, float]:
    """Return the measures of what was kept for the test set.

    Args:
        data: the data whose test set was predicted.
        outputs: of :func:`predict` with the options of :func:`what_to_keep`.
        ks: the cut-offs K.
    """
    test = data.test
    if has_lists(test):
        labels, weights = outputs[:, : max(ks)].long(), data.inverse_propensities
        return evaluate_top(labels, test.targets, ks, inverse_propensities=weights)
    readable = ~test.unreadable
    unknown = None if test.known is None else ~test.known[readable]
    return evaluate(outputs[readable], test.targets[readable], ks, unknown=unknown)


def fabric_on(device: str, precision: Any = "32-true") -> Fabric:
    """Return a Fabric of one process on a device: cpu, cuda, cuda:1, mps.

    >>> fabric_on("cpu").device
    device(type='cpu')
    """
    kind, _, number = device.partition(":")
    try:
        return Fabric(accelerator=kind, devices=[int(number)] if number else 1, precision=precision)
    except Exception as error:  # Fabric raises errors of many kinds
        reason = str(error).strip().splitlines()[0]
        raise ValueError(f"the device {device!r} is not available here: {reason}") from error
