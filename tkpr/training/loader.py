"""Batches of a data set: the share of one process, on its device."""

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn
from torch.utils.data import DataLoader

from tkpr.data.assemble import Samples, loader
from tkpr.losses.label_lists import LabelLists
from tkpr.losses.partial_labels import PartialLabels
from tkpr.models.sparse_linear import Bags
from tkpr.training.seeding import ResumableSampler

Batch = tuple[Tensor | Bags, Tensor | LabelLists | PartialLabels, Tensor]


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
    for inputs, targets, index in prefetch(without_worker_traceback(batches), fabric):
        if len(index):
            inputs = finish(inputs)
        if isinstance(inputs, Tensor) and inputs.ndim == 4 and not channels_last:
            inputs = inputs.contiguous()
        yield inputs, targets, index


def prefetch(batches: Iterable[Any], fabric: Fabric) -> Iterator[Any]:
    """Move batches to the device; to a GPU, each while the one before is in use.

    The copy from pinned memory runs on a stream of its own, so the GPU computes meanwhile.

    Args:
        batches: on the host, in pinned memory.
        fabric: launched.
    """
    if fabric.device.type != "cuda":
        yield from map(fabric.to_device, batches)
        return
    stream = torch.cuda.Stream(fabric.device)

    def copy(batch: Any) -> Any:
        with torch.cuda.stream(stream):
            return fabric.to_device(batch)

    ahead = None
    for batch in batches:
        ready, ahead = ahead, copy(batch)
        if ready is not None:
            yield ready
        current = torch.cuda.current_stream(fabric.device)
        current.wait_stream(stream)
        for part in ahead:
            record_stream(part, current)
    if ahead is not None:
        yield ahead


def record_stream(part: Any, stream: torch.cuda.Stream) -> None:
    """Keep the memory of a tensor, or of several, until a stream has used it."""
    if isinstance(part, LabelLists):
        part = (part.rows, part.columns)
    if isinstance(part, tuple):
        for one in part:
            record_stream(one, stream)
    else:
        part.record_stream(stream)


@contextlib.contextmanager
def explain_dead_worker() -> Iterator[None]:
    """Say in one line that a loader worker died; torch raises that wherever the process is.

    >>> with explain_dead_worker():
    ...     raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed. ")
    Traceback (most recent call last):
    ChildProcessError: DataLoader worker (pid 7) is killed by signal: Killed; out of memory is the
    usual cause: lower trainer.num_workers or trainer.batch_size; the same command resumes from the
    last checkpoint
    """
    try:
        yield
    except RuntimeError as error:
        if "DataLoader worker" not in str(error):
            raise
        raise ChildProcessError(
            f"{str(error).strip().splitlines()[0].rstrip('. ')}; out of memory is the usual cause: "
            "lower trainer.num_workers or trainer.batch_size; the same command resumes from the "
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
