"""The common form of all data sets: inputs, a 0/1 label matrix, names."""

import hashlib
import importlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_array

# Above this number of classes, labels are lists from the file to the loss: no label matrix [N, C]
# is made, and only measures of the K best labels are computed
MOST_DENSE_CLASSES = 10_000


@dataclass(frozen=True)
class Split:
    """One split of a data set, before any transform.

    Attributes:
        inputs: one entry per sample: the path of an image file, a PIL image (any sequence that
            makes it on demand), uint8 pixels, or a row of features ``[N, D]``, dense or sparse.
        targets: 1 for a label that is present, 0 otherwise, uint8 ``[N, C]``; sparse with
            sparse features, and of more than ``MOST_DENSE_CLASSES`` classes.
        ids: a unique name per sample, stable between runs.
        unknown: where it is not known whether a label is present, bool ``[N, C]``; targets are 0
            there. None: every label is known.
    """

    inputs: Sequence[Path] | Sequence[Any] | np.ndarray | csr_array
    targets: np.ndarray | csr_array
    ids: Sequence[str]
    unknown: np.ndarray | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if self.targets.ndim != 2 or self.targets.dtype != np.uint8:
            raise ValueError(
                f"targets must be uint8 [N, C]; got {self.targets.dtype} {self.targets.shape}"
            )
        inputs = self.inputs.shape[0] if isinstance(self.inputs, csr_array) else len(self.inputs)
        if not inputs == len(self) == len(self.ids):
            raise ValueError(
                f"{inputs} inputs, {len(self)} rows of targets and {len(self.ids)} ids: there "
                "must be one of each per sample"
            )
        if self.targets.size and self.targets.max() > 1:
            raise ValueError(f"targets must hold only 0 and 1; got {self.targets.max()}")
        if self.unknown is None:
            return
        if self.unknown.dtype != bool or self.unknown.shape != self.targets.shape:
            raise ValueError(
                f"unknown must be bool {self.targets.shape}, as targets are; "
                f"got {self.unknown.dtype} {self.unknown.shape}"
            )
        if (self.targets[self.unknown] != 0).any():
            raise ValueError("targets must be 0 where a label is unknown")
        if not self.unknown.any():
            object.__setattr__(self, "unknown", None)

    def __len__(self) -> int:
        return self.targets.shape[0]

    def subset(self, rows: np.ndarray) -> "Split":
        """Return the samples at ``rows``, in that order."""
        if isinstance(self.inputs, np.ndarray | csr_array):
            inputs: Any = self.inputs[rows]
        else:
            inputs = [self.inputs[row] for row in rows]
        unknown = None if self.unknown is None else self.unknown[rows]
        return Split(inputs, self.targets[rows], [self.ids[row] for row in rows], unknown=unknown)


@dataclass(frozen=True)
class MultiLabelData:
    """A data set: class names in the order of the columns, a training and a test split.

    Attributes:
        class_names: one per column of the targets.
        train: the training split.
        test: the test split.
        propensity: A and B of the chance that a relevant label is observed
            (:mod:`tkpr.metrics.propensity`); None: labels are not missing in this way.
    """

    class_names: list[str]
    train: Split
    test: Split
    propensity: tuple[float, float] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        names = self.class_names
        if not names:
            raise ValueError("the data set has no classes: not one label was found")
        for name in names:
            if not isinstance(name, str) or not name.strip() or "\0" in name:
                raise ValueError(f"a class name must be a non-empty text; got {name!r:.60}")
        if len(set(names)) < len(names):
            twice = next(name for at, name in enumerate(names) if name in names[:at])
            raise ValueError(f"two classes have the name {twice!r:.60}")
        for name, split in (("train", self.train), ("test", self.test)):
            if split.targets.shape[1] != len(self.class_names):
                raise ValueError(
                    f"the {name} targets have {split.targets.shape[1]} columns for "
                    f"{len(self.class_names)} class names"
                )

    def limit(self, size: int) -> "MultiLabelData":
        """Return the first ``size`` samples of each split, to try things out."""
        parts = [
            split.subset(np.arange(min(size, len(split)))) for split in (self.train, self.test)
        ]
        return MultiLabelData(self.class_names, *parts, propensity=self.propensity)


def checksum(targets: np.ndarray | csr_array, unknown: np.ndarray | None = None) -> str:
    """Return 16 hex digits of the SHA-256 of a label matrix: the text ``N,C:``, then its bytes.

    The checksum depends on the labels and on the order of samples and classes. For a sparse matrix
    the bytes are the number of labels per row, then the columns of the labels, all int64. Unknown
    labels have a byte of 2.

    >>> checksum(np.array([[1, 0], [0, 1]], dtype=np.uint8))
    'c7ea2bd0ce1317d2'
    """
    samples, classes = targets.shape
    digest = hashlib.sha256(f"{samples},{classes}:".encode())
    parts = [targets if unknown is None else np.where(unknown, np.uint8(2), targets)]
    if isinstance(targets, csr_array):
        targets = targets.sorted_indices()
        parts = [np.diff(targets.indptr).astype(np.int64), targets.indices.astype(np.int64)]
    for part in parts:
        digest.update(np.ascontiguousarray(part).data)
    return digest.hexdigest()[:16]


def declared(target: str, name: str) -> Sequence[Any]:
    """Return the constant ``name`` of the module that holds a loader, or nothing.

    Args:
        target: the loader's full name.
        name: ``REFERENCE_COUNTS`` or ``ARCHIVES``.

    >>> declared("tkpr.data.csv.load_csv", "ARCHIVES")
    ()
    """
    return getattr(importlib.import_module(target.rpartition(".")[0]), name, ())
