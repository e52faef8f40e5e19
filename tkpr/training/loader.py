"""Batches of a data set: the share of one process, on its device."""

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

from lightning_fabric import Fabric
from torch import Tensor, nn
from torch.utils.data import DataLoader

from tkpr.data.assemble import Samples, loader
from tkpr.losses.label_lists import LabelLists
from tkpr.models.sparse_linear import Bags
from tkpr.training.seeding import ResumableSampler

Batch = tuple[Tensor | Bags, Tensor | LabelLists, Tensor]


def make_loader(
    dataset: Samples,
    fabric: Fabric,
    *,
    batch_size: int,
    num_workers: int = 0,
    shuffle_seed: int | None = None,
    drop_last: bool = False,
) -> DataLoader[Any]:
    """Return the batches of this process.

    For training all processes have equally many batches, and samples repeat where the data set
    does not divide; otherwise each sample occurs once, and rank 0 has the most batches.

    Args:
        dataset: the samples.
        fabric: launched.
        batch_size: samples per batch and process.
        num_workers: processes that prepare batches; 0: this one does.
        shuffle_seed: seed of the training order; None: in order, each sample once.
        drop_last: whether to leave out an incomplete last batch.
    """
    sampler: Any = range(fabric.global_rank, len(dataset), fabric.world_size)
    if shuffle_seed is not None:
        sampler = ResumableSampler(
            dataset,
            num_replicas=fabric.world_size,
            rank=fabric.global_rank,
            seed=shuffle_seed,
            drop_last=drop_last,
        )
    return loader(
        dataset,
        batch_size=batch_size,
        sampler=sampler,
        num_workers=num_workers,
        pin_memory=fabric.device.type == "cuda",
        drop_last=drop_last,
    )


def to_device(
    batches: Iterable[Any], fabric: Fabric, finish: nn.Module, *, channels_last: bool = False
) -> Iterator[Batch]:
    """Move each batch to the device and convert uint8 pixels to float.

    Args:
        batches: of a loader; a batch without a readable image has no rows.
        fabric: launched.
        finish: converts pixels (:class:`tkpr.data.assemble.TrainingData`).
        channels_last: the memory layout of images.
    """
    for batch in without_worker_traceback(batches):
        inputs, targets, index = fabric.to_device(batch)
        if len(index):
            inputs = finish(inputs)
        if isinstance(inputs, Tensor) and inputs.ndim == 4 and not channels_last:
            inputs = inputs.contiguous()
        yield inputs, targets, index


@contextlib.contextmanager
def explain_dead_worker() -> Iterator[None]:
    """Say in one line that a loader worker died; torch raises that wherever the process is.

    >>> with explain_dead_worker():
    ...     raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed. ")
    Traceback (most recent call last):
    ChildProcessError: DataLoader worker (pid 7) is killed by signal: Killed; out of memory is the
    usual cause: lower trainer.num_workers or trainer.batch_size; the same command goes on from the
    last checkpoint
    """
    try:
        yield
    except RuntimeError as error:
        if "DataLoader worker" not in str(error):
            raise
        raise ChildProcessError(
            f"{str(error).strip().splitlines()[0].rstrip('. ')}; out of memory is the usual cause: "
            "lower trainer.num_workers or trainer.batch_size; the same command goes on from the "
            "last checkpoint"
        ) from error


def without_worker_traceback(batches: Iterable[Any]) -> Iterator[Any]:
    """Yield batches; an error in a loader worker is raised without the worker's traceback."""
    try:
        yield from batches
    except (ValueError, OSError) as error:
        kind, _, message = str(error).strip().splitlines()[-1].partition(": ")
        if kind != type(error).__name__:
            raise
        raise type(error)(message) from error
