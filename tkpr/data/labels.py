"""Observed labels: what a learner may see of the training labels.

Each function takes the whole training split, before anything is held out, and returns it as the
learner sees it: 1 is an observed positive label, 0 is one taken as negative, and entries that
``unknown`` marks are neither. This is the one place that decides what becomes of unknown labels.
"""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from tkpr import atomic, records
from tkpr.data.dataset import Split, checksum
from tkpr.data.files import absolute, is_number, read_arrays, read_lines
from tkpr.data.nuswide_concepts import CONCEPTS, LIST_ORDER

STORED_MODELS_MAY_BUILD = (
    "annotated",
    "assume_negative",
    "full",
    "ignore",
    "partial",
    "single_positive",
)
DIFFICULT = ("negative", "positive", "unknown", "ignore_image")


def full(split: Split) -> Split:
    """Show all labels; none may be unknown.

    Example:
        >>> full(Split(["a.jpg"], np.array([[1, 0]], dtype=np.uint8), ["a"])).targets
        array([[1, 0]], dtype=uint8)
    """
    if split.unknown is not None:
        raise ValueError(
            f"{int(split.unknown.sum()):,} training labels are unknown: choose labels=ignore (the "
            "loss leaves them out) or labels=assume_negative"
        )
    return split


def assume_negative(split: Split) -> Split:
    """Take unknown labels as negative.

    Example:
        >>> targets, unknown = np.zeros((1, 2), dtype=np.uint8), np.array([[False, True]])
        >>> assume_negative(Split(["a.jpg"], targets, ["a"], unknown=unknown)).unknown is None
        True
    """
    return replace(split, unknown=None)


def ignore(split: Split) -> Split:
    """Leave unknown labels unknown; the loss must take them (:class:`PartialLabels`).

    Example:
        >>> targets, unknown = np.zeros((1, 2), dtype=np.uint8), np.array([[False, True]])
        >>> ignore(Split(["a.jpg"], targets, ["a"], unknown=unknown)).unknown
        array([[False,  True]])
    """
    return split


def annotated(split: Split, *, share: float, seed: int, others: str) -> Split:
    """Show a share of all labels, present or absent; the others are unknown.

    This is the setting of partially annotated data sets: each label is known with the same
    probability, whatever it is. Labels that the data set does not know stay unknown.

    Args:
        split: the whole training split.
        share: of the N C labels.
        seed: of the draw.
        others: "unknown", or "negative" to show them as absent, for comparison.

    Example:
        >>> split = Split(list("ab"), np.eye(2, 4, dtype=np.uint8), list("ab"))
        >>> seen = annotated(split, share=0.5, seed=1, others="unknown")
        >>> seen.targets
        array([[0, 0, 0, 0],
               [0, 1, 0, 0]], dtype=uint8)
        >>> seen.unknown
        array([[ True,  True, False,  True],
               [False, False,  True, False]])
    """
    _check_share(share)
    _require_dense(split, "annotated")
    if others not in ("unknown", "negative"):
        raise ValueError(f"labels.others must be unknown or negative; got {others!r}")
    unknown = np.random.default_rng(seed).random(split.targets.shape) >= share
    if split.unknown is not None:
        unknown |= split.unknown
    seen = replace(split, targets=split.targets * ~unknown, unknown=unknown)
    return seen if others == "unknown" else assume_negative(seen)


def single_positive(
    split: Split, *, seed: int, list_file: str | Path | None, index_order: str
) -> Split:
    """Keep one positive label of each sample.

    The draw reproduces that of the single-positive papers exactly: for each row in order, the
    indices of its positive labels are shuffled and the first is kept; then those of its negative
    labels are shuffled as well, although none is kept. It depends on the order of the rows, which
    is an option of the data sets. A row without labels stays empty; unknown labels count as
    unobserved.

    Args:
        split: the whole training split, before anything is held out.
        seed: of the draw; 1200 in the papers. Unused with a list.
        list_file: a file of lines "image,index", one per sample, may be gzipped: the labels to
            keep instead of drawing them. Images are matched by name without folder and extension.
        index_order: the meaning of an index in the list: ``columns``: a column of the label
            matrix; ``nuswide_published``: a position in the order of the published lists of
            NUS-WIDE.

    Example:
        >>> targets = np.array([[1, 1, 0], [0, 1, 1]], dtype=np.uint8)
        >>> split = Split(["a.jpg", "b.jpg"], targets, ["a", "b"])
        >>> single_positive(split, seed=1200, list_file=None, index_order="columns").targets
        array([[1, 0, 0],
               [0, 1, 0]], dtype=uint8)
    """
    _require_dense(split, "single_positive")
    observed = np.zeros_like(split.targets)
    if list_file is not None:
        kept = _listed(split, absolute(list_file), index_order)
        observed[np.arange(len(split)), kept] = 1
        return replace(split, targets=observed, unknown=None)
    rng = np.random.RandomState(seed)
    for row, labels in zip(observed, split.targets, strict=True):
        positive, negative = np.flatnonzero(labels), np.flatnonzero(labels == 0)
        rng.shuffle(positive)
        rng.shuffle(negative)
        row[positive[:1]] = 1
    return replace(split, targets=observed, unknown=None)


def partial(split: Split, *, share: float, seed: int) -> Split:
    """Keep a share of all positive labels, and at least one per sample that has any.

    The others, and unknown labels, count as unobserved: 0. One label of each sample is kept first;
    further ones are drawn from the whole set until the share is reached.

    Args:
        split: the whole training split, before anything is held out.
        share: the share of positive labels to keep.
        seed: of the draw.

    Example:
        >>> split = Split(list("abc"), np.ones((3, 4), dtype=np.uint8), list("abc"))
        >>> partial(split, share=0.5, seed=0).targets.sum(axis=1)
        array([1, 2, 3], dtype=uint64)
    """
    _check_share(share)
    _require_dense(split, "partial")
    rows, columns = np.nonzero(split.targets)
    order = np.random.RandomState(seed).permutation(len(rows))
    # reorder so that the first label of each row precedes all others
    first = order[np.unique(rows[order], return_index=True)[1]]
    order = np.concatenate([first, order[~np.isin(order, first)]])
    kept = order[: max(len(first), round(share * len(rows)))]
    observed = np.zeros_like(split.targets)
    observed[rows[kept], columns[kept]] = 1
    return replace(split, targets=observed, unknown=None)


def check_difficult(difficult: str) -> None:
    """Refuse an unknown treatment of VOC's classes with difficult objects only."""
    if difficult not in DIFFICULT:
        raise ValueError(f"difficult must be one of {', '.join(DIFFICULT)}; got {difficult!r}")


def _check_share(share: float) -> None:
    if not 0 < share <= 1:
        raise ValueError(f"the share of labels to keep must be above 0 and at most 1; got {share}")


def _require_dense(split: Split, name: str) -> None:
    if isinstance(split.targets, csr_array):
        raise ValueError(f"labels={name} cannot draw from lists of labels: use labels=full")


def freeze_labels(
    path: Path,
    observed: np.ndarray | csr_array,
    ids: Sequence[str],
    unknown: np.ndarray | None = None,
) -> None:
    """Write the observed labels to ``path``; if it exists, it must hold the same labels.

    Args:
        path: an ``.npz`` file with ``observed``, ``ids`` and ``checksum``.
        observed: the observed labels, uint8 ``[N, C]``; of a sparse matrix, the rows and columns of
            the labels are written, int64 ``[2, R]``.
        ids: the names of the samples.
        unknown: where labels are unknown, bool ``[N, C]``; written as ``unknown`` if given.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "observed_labels.npz"
        >>> freeze_labels(path, np.eye(2, dtype=np.uint8), ["a", "b"])
        >>> freeze_labels(path, np.eye(2, dtype=np.uint8), ["a", "b"])  # unchanged
        >>> freeze_labels(path, np.ones((2, 2), dtype=np.uint8), ["a", "b"])  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ValueError: ...observed_labels.npz holds other labels (checksum ...
    """
    labels = observed
    if isinstance(observed, csr_array):
        labels = np.stack(observed.sorted_indices().nonzero()).astype(np.int64)
    if path.exists():
        try:
            stored = read_arrays(path, ["observed", "ids", "checksum", "run", "unknown"])
            before, names = stored["observed"], stored["ids"].tolist()
            digest, run = str(stored["checksum"]), str(stored["run"])
        except Exception as error:  # a damaged archive can raise almost anything
            raise ValueError(f"{path} cannot be read ({error}): delete it") from error
        nothing = np.zeros(0, dtype=bool)
        marked = nothing if unknown is None else unknown
        same = np.array_equal(before, labels) and names == list(ids)
        if not (same and np.array_equal(stored.get("unknown", nothing), marked)):
            raise ValueError(
                f"{path} holds other labels (checksum {digest}) than those drawn "
                f"now ({checksum(observed, unknown)}); use that run's settings or another folder"
            )
        records.check_run(path, run)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, Any] = {
        "observed": labels,
        "ids": np.array(ids),
        "checksum": np.array(checksum(observed, unknown)),
        "run": np.array(str(records.run_id(path.parent))),
    }
    if unknown is not None:
        arrays["unknown"] = unknown
    atomic.write(path, lambda opened: np.savez_compressed(opened, **arrays))


def _listed(split: Split, path: Path, index_order: str) -> np.ndarray:
    """Return the column of the listed label of each sample."""
    if index_order not in ("columns", "nuswide_published"):
        raise ValueError(f"index_order must be columns or nuswide_published; got {index_order!r}")
    order = list(range(split.targets.shape[1]))
    if index_order == "nuswide_published":
        order = [CONCEPTS.index(name) for name in LIST_ORDER]
    row_of = {_stem(name): row for row, name in enumerate(split.ids)}
    if len(row_of) < len(split):
        raise ValueError(
            f"{path}: images are matched by name without folder, but only {len(row_of)} of "
            f"{len(split)} names are different"
        )
    kept = np.full(len(split), -1)
    for number, text in read_lines(path):
        where = f"{path}, line {number}"
        image, _, index = text.partition(",")
        index = index.strip().removesuffix(".")  # the published NUS-WIDE list has one "2."
        if not is_number(index) or int(index) >= len(order):
            wanted = f"'image,index' with an index from 0 to {len(order) - 1}"
            raise ValueError(f"{where}: expected {wanted}; got {text!r}")
        row, column = row_of.get(_stem(image)), order[int(index)]
        if row is None:
            raise ValueError(f"{where}: there is no training sample {image}")
        if not split.targets[row, column]:
            raise ValueError(
                f"{where}: {image} does not have the label {index}; the list may belong to "
                "another data set or need another index_order"
            )
        kept[row] = column
    if (kept < 0).any():
        missing = np.flatnonzero(kept < 0)
        raise ValueError(
            f"{path} has no label for {len(missing)} samples, the first is {split.ids[missing[0]]}"
        )
    return kept


def _stem(name: str) -> str:
    """Return a file name without folder and extension (faster than pathlib)."""
    return os.path.splitext(os.path.basename(name))[0]
