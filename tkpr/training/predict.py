"""Prediction: the one pass over a data set that training, evaluation and scripts share."""

from collections.abc import Callable

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from tkpr.training.collectives import all_reduce
from tkpr.training.loader import Samples, make_loader, to_device
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
    for inputs, _, index in to_device(loader, fabric, finish, channels_last=channels_last):
        if len(index):
            with fabric.autocast():
                found.append((index, model(inputs).float()))
        after_batch()
    most = -(-len(dataset) // (batch_size * fabric.world_size))  # batches of rank 0
    for _ in range(most - len(loader)):
        after_batch()
    (unreadable or UnreadableImages(fabric)).share(dataset)
    if dataset.unreadable.all():
        raise ValueError(f"not one of the {len(dataset)} images can be read")
    width = torch.tensor(max((rows.shape[1] for _, rows in found), default=0))
    width = all_reduce(fabric, width, "max")  # a rank without a batch does not know it
    outputs = torch.zeros(len(dataset), int(width), device=fabric.device)
    for index, rows in found:
        outputs[index] = rows
    return all_reduce(fabric, outputs).cpu()


def fabric_on(device: str) -> Fabric:
    """Return a Fabric of one process in full precision on a device: cpu, cuda, cuda:1, mps.

    >>> fabric_on("cpu").device
    device(type='cpu')
    """
    kind, _, number = device.partition(":")
    try:
        return Fabric(accelerator=kind, devices=[int(number)] if number else 1)
    except Exception as error:  # Fabric raises errors of many kinds
        reason = str(error).strip().splitlines()[0]
        raise ValueError(f"the device {device!r} is not available here: {reason}") from error
