"""Samples with sparse features and lists of labels, for sets too large for dense matrices."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor
from torch.utils.data import Dataset

from tkpr.data.dataset import Split
from tkpr.losses.label_lists import LabelLists
from tkpr.models.sparse_linear import Bags


class SparseDataset(Dataset[Any]):
    """Sparse rows of features and labels of a split.

    A batch is (features as :class:`Bags`, targets as :class:`LabelLists`, index ``[B]``).

    Args:
        split: ``inputs`` and ``targets`` are sparse matrices ``[N, D]`` and ``[N, C]``.

    Example:
        >>> split = Split(csr_array(np.eye(3, 4, dtype=np.float32)),
        ...               csr_array(np.eye(3, 2, dtype=np.uint8)), ["a", "b", "c"])
        >>> bags, lists, index = SparseDataset(split).__getitems__([1, 2])
        >>> bags.ids, lists.rows, lists.columns, index
        (tensor([1, 2]), tensor([0]), tensor([1]), tensor([1, 2]))
    """

    known: None = None  # lists of labels have no unknown ones

    def __init__(self, split: Split) -> None:
        self.inputs: csr_array = split.inputs
        self.targets: csr_array = split.targets
        self.ids = split.ids
        self.unreadable = torch.zeros(len(split), dtype=torch.bool)  # never, but images can be

    def __len__(self) -> int:
        return len(self.ids)

    def set_epoch(self, epoch: int) -> None:
        """Do nothing: features are the same in each epoch."""

    def __getitems__(self, indices: Sequence[int]) -> tuple[Bags, LabelLists, Tensor]:
        """Return a whole batch: features, targets, indices."""
        rows = np.asarray(indices)
        features = self.inputs[rows]
        bags = Bags(
            torch.from_numpy(features.indices.astype(np.int64)),
            torch.from_numpy(features.indptr[:-1].astype(np.int64)),
            torch.from_numpy(features.data),
        )
        return bags, label_lists(self.targets, rows), torch.from_numpy(rows)


def has_lists(samples: Any) -> bool:
    """Whether the labels of a data set are lists instead of a matrix."""
    return isinstance(samples.targets, csr_array)


def label_lists(targets: csr_array, rows: np.ndarray) -> LabelLists:
    """Return the relevant labels of some rows.

    >>> label_lists(csr_array(np.eye(3, dtype=np.uint8)), np.array([2, 0])).columns
    tensor([2, 0])
    """
    labels = targets[rows]
    return LabelLists.from_csr(torch.from_numpy(labels.indptr), torch.from_numpy(labels.indices))
