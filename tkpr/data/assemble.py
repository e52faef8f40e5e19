"""Turn a data set into the batches of the trainer."""

import functools
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_array
from torch import Tensor, nn
from torch.utils.data import DataLoader, Sampler

from tkpr.data.cache import ImageCache
from tkpr.data.dataset import MultiLabelData, Split, checksum
from tkpr.data.features import FeatureDataset
from tkpr.data.files import absolute
from tkpr.data.images import ImageDataset
from tkpr.data.labels import assume_negative, freeze_labels
from tkpr.data.maps import MapDataset, Maps, ToFloat
from tkpr.data.sparse import SparseDataset
from tkpr.data.splits import holdout as hold_out
from tkpr.data.transforms import ImagePipeline
from tkpr.metrics import inverse_propensities

Samples = ImageDataset | FeatureDataset | MapDataset | SparseDataset


@dataclass(frozen=True)
class TrainingData:
    """The training and test data of a run.

    Attributes:
        train: the training samples with their observed labels.
        test: the test samples, or the held-out part of the training set, with all their labels.
        finish: converts a batch of inputs from the loader for the network (uint8 pixels to
            float32); applied on the device.
        class_names: the names of the classes.
        train_targets: the observed labels, uint8 ``[N, C]``, sparse for a sparse data set.
        train_unknown: where they are unknown, bool ``[N, C]``; None: nowhere.
        clean_targets: all labels of the same samples, uint8 ``[N, C]``.
        counts: numbers for the record of a run, such as ``train_images``.
        inverse_propensities: how much each label counts in propensity-scored measures, ``[C]``.
    """

    train: Samples
    test: Samples
    finish: nn.Module
    class_names: list[str]
    train_targets: np.ndarray | csr_array
    clean_targets: np.ndarray | csr_array
    counts: dict[str, int | str]
    inverse_propensities: Tensor | None = None
    train_unknown: np.ndarray | None = None


def assemble(
    data: MultiLabelData,
    *,
    labels: Callable[[Split], Split],
    pipeline: ImagePipeline,
    holdout: float = 0.0,
    holdout_seed: int = 1200,
    seed: int = 0,
    run_dir: str | Path | None = None,
    cache_dir: str | Path | None = None,
    on_error: str = "raise",
    maps: Maps | None = None,
    test_unknown: str = "leave_out",
) -> TrainingData:
    """Draw the observed labels, hold out a part if requested, and wrap both splits.

    Labels are drawn for the whole training split, in its order, before a part is held out, as in
    the single-positive papers; the held-out part keeps all its labels.

    Args:
        data: the data set.
        labels: returns a split with its observed labels (:mod:`tkpr.data.labels`).
        pipeline: the input transform (:mod:`tkpr.data.transforms`).
        holdout: the share of the training samples to test on instead of the official test split.
        holdout_seed: seed of the held-out part.
        seed: seed of the augmentation.
        run_dir: a folder for ``observed_labels.npz``; an existing file must hold the same labels.
        cache_dir: a folder for resized images, so that each file is decoded once.
        on_error: "raise" an error for an image that cannot be read, or "skip" it.
        maps: outputs of a network's frozen part for these images, used instead of them.
        test_unknown: "leave_out" unknown labels of the test samples from the rankings, or take them
            as "negative".

    Example:
        >>> from tkpr.data import labels, mosaic, transforms
        >>> data = mosaic.load_mosaic(train_size=10, test_size=4, image_size=64, seed=0)
        >>> weights = {"mean": 0, "std": 1, "interpolation": "bilinear"}
        >>> pipeline = transforms.shift(size=64, pixels=4, **weights)
        >>> ready = assemble(data, labels=labels.full, pipeline=pipeline, holdout=0.2)
        >>> len(ready.train), len(ready.test)
        (8, 2)
        >>> images, targets, index = next(iter(loader(ready.train, batch_size=4)))
        >>> images.shape, targets.shape, index
        (torch.Size([4, 3, 64, 64]), torch.Size([4, 10]), tensor([0, 1, 2, 3]))
    """
    inputs = data.train.inputs
    in_rows = isinstance(inputs, np.ndarray | csr_array) and inputs.ndim == 2
    if in_rows != (pipeline.size is None):
        kind, right = ("features", "transform=none") if in_rows else ("images", "transform=asl")
        raise ValueError(f"the data set holds {kind}: use {right}")
    seen = labels(data.train)
    if run_dir is not None:
        file = Path(run_dir) / "observed_labels.npz"
        freeze_labels(file, seen.targets, seen.ids, seen.unknown)
    rows, held = np.arange(len(seen)), None
    if holdout:
        rows, held = hold_out(len(seen), holdout, seed=holdout_seed)

    def dataset(
        split: Split, rows: np.ndarray | None, *, augment: Callable[[Tensor], Tensor] | None = None
    ) -> Samples:
        part = split if rows is None else split.subset(rows)
        if maps is not None:
            places = 2 * maps.num_train + np.arange(len(split)) if rows is None else 2 * rows
            return MapDataset(maps, part, places, augment=augment is not None, seed=seed)
        if isinstance(part.inputs, csr_array):
            return SparseDataset(part)
        if pipeline.size is None:
            return FeatureDataset(part)
        cache = None
        if cache_dir is not None and isinstance(split.inputs[0], str | Path):
            cache = ImageCache(
                absolute(cache_dir),
                list(split.inputs),
                size=pipeline.size,
                interpolation=pipeline.interpolation,
            )
            cache = cache if rows is None else cache.subset(rows)
        return ImageDataset(
            part,
            size=pipeline.size,
            augment=augment,
            seed=seed,
            cache=cache,
            on_error=on_error,
            interpolation=pipeline.interpolation,
        )

    train = dataset(seen, rows, augment=pipeline.augment)
    tested = data.test if held is None else data.train
    if test_unknown == "negative":
        tested = assume_negative(tested)
    test = dataset(tested, held)
    clean, observed = data.train.targets[rows], seen.targets[rows]
    test_targets = tested.targets if held is None else tested.targets[held]
    marks = {"train": _rows(seen.unknown, rows), "test": _rows(tested.unknown, held)}
    _check_labels(data.class_names, observed, test_targets)
    weights = None
    if data.propensity is not None:
        a, b = data.propensity
        weights = inverse_propensities(clean.sum(axis=0), len(rows), a=a, b=b)
    counts: dict[str, int | str] = {
        "classes": len(data.class_names),
        "train_images": len(train),
        "train_labels": int(observed.sum()),
        "train_labels_all": int(clean.sum()),
        "train_without_label": int((clean.sum(axis=1) == 0).sum()),
        "train_checksum": checksum(observed, marks["train"]),
        "test_images": len(test),
        "test_labels": int(test_targets.sum()),
        "test_without_label": int((test_targets.sum(axis=1) == 0).sum()),
        "test_checksum": checksum(test_targets, marks["test"]),
    }
    counts |= {
        f"{name}_unknown": int(mark.sum()) for name, mark in marks.items() if mark is not None
    }
    return TrainingData(
        train=train,
        test=test,
        finish=pipeline.finish if maps is None else ToFloat(),
        class_names=data.class_names,
        train_targets=observed,
        train_unknown=marks["train"],
        clean_targets=clean,
        counts=counts,
        inverse_propensities=weights,
    )


def _rows(unknown: np.ndarray | None, rows: np.ndarray | None) -> np.ndarray | None:
    """Return the rows of a matrix, all of them without ``rows``; None if nothing is unknown."""
    if unknown is None or rows is None:
        return unknown
    return unknown[rows] if unknown[rows].any() else None


def _check_labels(
    class_names: list[str], train: np.ndarray | csr_array, test: np.ndarray | csr_array
) -> None:
    """Refuse data on which nothing can be learnt or measured."""
    if len(class_names) < 2:
        raise ValueError(f"the data set has one class, {class_names[0]!r}: ranking needs two")
    for name, targets in (("training", train), ("test", test)):
        if not targets.shape[0]:
            raise ValueError(f"the {name} set is empty")
        if not targets.sum():
            raise ValueError(f"not one of the {targets.shape[0]:,} {name} samples has a label")


def loader(
    dataset: Samples,
    *,
    batch_size: int,
    sampler: Sampler[int] | None = None,
    num_workers: int = 0,
    pin_memory: bool = False,
    drop_last: bool = False,
) -> DataLoader[Any]:
    """Return batches (inputs, targets, index int64 ``[B]``) of a data set.

    Targets are float32 ``[B, C]``, or lists of labels of a sparse data set.

    The data set collates whole batches itself. Workers persist across epochs; call the data set's
    ``set_epoch`` before each epoch.

    Args:
        dataset: the samples.
        batch_size: samples per batch.
        sampler: their order; None: sequential.
        num_workers: number of worker processes, which does not change the batches; 0: load in this
            process, as features and maps always are.
        pin_memory: whether to copy batches to page-locked memory, for a faster transfer to a GPU.
        drop_last: whether to drop the last batch if it is smaller.
    """
    if not isinstance(dataset, ImageDataset):  # to send rows to another process costs more
        num_workers = 0
    return DataLoader(
        dataset,
        batch_size=batch_size,
        sampler=sampler,
        num_workers=num_workers,
        collate_fn=_identity,
        pin_memory=pin_memory,
        drop_last=drop_last,
        persistent_workers=num_workers > 0,
        worker_init_fn=_follow_parent,
        multiprocessing_context=_fork_server() if num_workers else None,
    )


def _fork_server() -> Any:
    """Start the process that workers are forked from; return its context, None where there is none.

    A fork of this process would now and then hang at once: other threads, such as those of a
    process group, may hold a lock of the interpreter that no thread of the copy releases.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():  # Windows
        return None
    forkserver.set_forkserver_preload([__name__])
    resource_tracker.ensure_running()  # it would unblock SIGTERM below
    # inherited: clusters and torchrun send SIGTERM to the server as well
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)
    return multiprocessing.get_context("forkserver")


def _follow_parent(_: int) -> None:
    """Let a worker exit when its parent process ends or sends it a SIGTERM, and not before.

    Clusters and torchrun signal the workers as well, and a terminal sends them Ctrl-C, but the
    parent process needs them to finish its step and save a checkpoint. After a SIGKILL of the
    parent torch would take the fork server for it, which waits for its workers in turn.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    threading.Thread(target=_exit_after, args=(parent.join,), daemon=True).start()
    if hasattr(signal, "sigwaitinfo"):  # not on macOS
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # inherited by new threads
        told = functools.partial(_wait_for_sigterm, parent.pid)
        threading.Thread(target=_exit_after, args=(told,), daemon=True).start()


def _exit_after(wait: Callable[[], None]) -> None:
    """Wait, then end the process."""
    wait()
    os._exit(0)


def _wait_for_sigterm(sender: int | None) -> None:
    """Wait for a SIGTERM from a process."""
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != sender:
        pass


def _identity(batch: Any) -> Any:
    """Return the batch as the data set collated it."""
    return batch
