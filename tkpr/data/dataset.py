"""What every data set is turned into: inputs, one 0/1 label matrix, names."""

import hashlib
import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_array


@dataclass(frozen=True)
class Split:
    """One split of a data set, before any transform.

    Attributes:
        inputs: one entry per sample: the path of an image file, a ready PIL image (any sequence
            that makes it on demand), or a row of an array of features ``[N, D]``, dense or sparse.
        targets: 1 for labels present, 0 for the others, uint8 ``[N, C]``; sparse only beside sparse
            features.
        ids: a name per sample, unique, stable between runs.
    """

    inputs: Sequence[Path] | Sequence[Any] | np.ndarray | csr_array
    targets: np.ndarray | csr_array
    ids: Sequence[str]

    def __post_init__(self) -> None:
        if self.targets.ndim != 2 or self.targets.dtype != np.uint8:
            raise ValueError(
                f"targets must be uint8 [N, C]; got {self.targets.dtype} {self.targets.shape}"
            )
        inputs = self.inputs.shape[0] if isinstance(self.inputs, csr_array) else len(self.inputs)
        if not inputs == len(self) == len(self.ids):
            raise ValueError(
                f"{inputs} inputs, {len(self)} rows of targets and {len(self.ids)} ids must be "
                "equally many"
            )
        if self.targets.size and self.targets.max() > 1:
            raise ValueError(f"targets must hold only 0 and 1; got {self.targets.max()}")

    def __len__(self) -> int:
        return self.targets.shape[0]

    def subset(self, rows: np.ndarray) -> "Split":
        """Return the samples at ``rows``, in that order."""
        if isinstance(self.inputs, np.ndarray | csr_array):
            inputs: Any = self.inputs[rows]
        else:
            inputs = [self.inputs[row] for row in rows]
        return Split(inputs, self.targets[rows], [self.ids[row] for row in rows])


@dataclass(frozen=True)
class MultiLabelData:
    """A data set: class names in the order of the columns, a training and a test split."""

    class_names: list[str]
    train: Split
    test: Split

    def __post_init__(self) -> None:
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
        return MultiLabelData(self.class_names, *parts)


def checksum(targets: np.ndarray | csr_array) -> str:
    """Return 16 digits of the SHA-256 of a label matrix: of the text ``N,C:``, then of its bytes.

    It changes with the labels and with the order of samples and classes. Of a sparse matrix, the
    bytes are those of the number of labels of each row, then of the labels, int64.

    >>> checksum(np.array([[1, 0], [0, 1]], dtype=np.uint8))
    'c7ea2bd0ce1317d2'
    """
    samples, classes = targets.shape
    digest = hashlib.sha256(f"{samples},{classes}:".encode())
    parts = [targets]
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
