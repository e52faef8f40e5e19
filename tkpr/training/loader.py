"""Batches of a data set for one process of several: its share, on its device."""

from collections.abc import Iterable, Iterator
from types import SimpleNamespace
from typing import Any

from lightning_fabric import Fabric
from torch import Tensor, nn
from torch.utils.data import DataLoader

from tkpr.data.assemble import loader
from tkpr.data.features import FeatureDataset
from tkpr.data.images import ImageDataset
from tkpr.training.seeding import ResumableSampler

Samples = ImageDataset | FeatureDataset


def cut(
    dataset: Samples, fabric: Fabric, settings: SimpleNamespace, *, shuffle_seed: int | None = None
) -> DataLoader:
    """Cut a data set into batches; each process gets its share.

    Args:
        dataset: what to cut.
        fabric: launched.
        settings: the trainer's.
        shuffle_seed: for training, of the order; None: in order, each sample once.
    """
    sampler: Any = range(fabric.global_rank, len(dataset), fabric.world_size)
    if shuffle_seed is not None:
        sampler = ResumableSampler(
            dataset,
            num_replicas=fabric.world_size,
            rank=fabric.global_rank,
            seed=shuffle_seed,
            drop_last=settings.drop_last,
        )
    return loader(
        dataset,
        batch_size=settings.batch_size,
        sampler=sampler,
        num_workers=settings.num_workers,
        pin_memory=fabric.device.type == "cuda",
        drop_last=shuffle_seed is not None and settings.drop_last,
    )


def on_device(
    batches: Iterable[Any], fabric: Fabric, finish: nn.Module, *, channels_last: bool
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Move batches to the device as they come, and there from bytes to numbers.

    Args:
        batches: as the loader gives them; one of which no image can be read has no rows.
        fabric: launched.
        finish: from bytes to numbers.
        channels_last: the memory layout of images.
    """
    for batch in without_worker_traceback(batches):
        inputs, targets, index = fabric.to_device(batch)
        if len(index):
            inputs = finish(inputs)
        if inputs.ndim == 4 and not channels_last:
            inputs = inputs.contiguous()
        yield inputs, targets, index


def without_worker_traceback(batches: Iterable[Any]) -> Iterator[Any]:
    """Hand batches on; an error from a worker says what is wrong, without the worker's trace."""
    try:
        yield from batches
    except (ValueError, OSError) as error:
        kind, _, message = str(error).strip().splitlines()[-1].partition(": ")
        if kind != type(error).__name__:
            raise
        raise type(error)(message) from error
