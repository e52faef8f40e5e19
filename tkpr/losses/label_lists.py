"""Targets as lists of labels, where a dense matrix over all classes would be too large."""

from typing import Self

import torch
from torch import Tensor


class LabelLists:
    """The relevant labels of each row of a batch.

    Every loss takes such lists in place of dense targets. TKPR, AUTKC, RankingLoss, Univariate and
    AssumeNegative work on the lists themselves; the others make the dense matrix first. Make the
    lists on the CPU, where checking them is free, and move them with :meth:`to`: a loss on an
    accelerator then knows their lengths without a host sync.

    Args:
        indices: the labels of each row in any order, padded with -1, integers ``[B, P]``.

    Attributes:
        num_rows: B.
        rows: the row of each relevant label of the batch, ``[R]``.
        columns: its class, ``[R]``.
        counts: the number of relevant labels of each row, ``[B]``.
        largest: the largest label, -1 where there is none.

    >>> lists = LabelLists(torch.tensor([[1, 3], [2, -1], [-1, -1]]))
    >>> lists.dense(4)
    tensor([[False,  True, False,  True],
            [False, False,  True, False],
            [False, False, False, False]])
    """

    num_rows: int
    rows: Tensor
    columns: Tensor
    counts: Tensor
    largest: int

    def __init__(self, indices: Tensor) -> None:
        if indices.ndim != 2 or indices.is_floating_point() or indices.dtype == torch.bool:
            raise ValueError(
                "lists of labels must be integers [B, P], padded with -1; "
                f"got {indices.dtype} of shape {tuple(indices.shape)}"
            )
        rows, places = (indices != -1).nonzero(as_tuple=True)
        self._hold(len(indices), rows, indices[rows, places].long())

    @classmethod
    def from_csr(cls, crow_indices: Tensor, col_indices: Tensor) -> Self:
        """Take ``col_indices[crow_indices[i]:crow_indices[i + 1]]`` as the labels of row i.

        >>> LabelLists.from_csr(torch.tensor([0, 2, 3, 3]), torch.tensor([3, 1, 2])).rows
        tensor([0, 0, 1])
        """
        lengths = crow_indices.diff()
        steps_back = crow_indices.ndim != 1 or len(lengths) == 0 or bool((lengths < 0).any())
        if steps_back or crow_indices[0] != 0 or crow_indices[-1] != len(col_indices):
            raise ValueError(
                f"crow_indices must rise from 0 to the number of labels, {len(col_indices)}; "
                f"got {crow_indices.tolist()!s:.60}"
            )
        lists = cls.__new__(cls)
        rows = torch.arange(len(lengths), device=lengths.device).repeat_interleave(lengths)
        lists._hold(len(lengths), rows, col_indices.long())
        return lists

    @classmethod
    def from_sparse(cls, targets: Tensor) -> Self:
        """Take the entries of a sparse matrix, all of them 1, as the relevant labels.

        >>> LabelLists.from_sparse(torch.eye(3).to_sparse_csr()).columns
        tensor([0, 1, 2])
        """
        targets = targets.to_sparse_csr()
        wrong = targets.values() != 1
        if wrong.any():
            value = targets.values()[wrong][0].item()
            raise ValueError(f"sparse targets must store only 1; got {value:.6g}")
        return cls.from_csr(targets.crow_indices(), targets.col_indices())

    def _hold(self, num_rows: int, rows: Tensor, columns: Tensor) -> None:
        """Keep the labels if each is a class and stands in its list once."""
        largest = -1
        if len(columns) > 0:
            smallest, largest = (int(bound) for bound in columns.aminmax())
            if smallest < 0:
                raise ValueError(f"labels must be 0 or more, with -1 as padding; got {smallest}")
            sorted_entries = (rows * (largest + 1) + columns).sort()
            twice = sorted_entries.values.diff() == 0
            if twice.any():
                entry = sorted_entries.indices[1:][twice][0]
                raise ValueError(
                    f"a row may name a label only once; row {rows[entry].item()} "
                    f"names {columns[entry].item()} twice"
                )
        self.num_rows, self.rows, self.columns, self.largest = num_rows, rows, columns, largest
        self.counts = torch.bincount(rows, minlength=num_rows)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Self:
        """Return the same lists on a device."""
        lists = type(self).__new__(type(self))
        lists.num_rows, lists.largest = self.num_rows, self.largest
        for name in ("rows", "columns", "counts"):
            setattr(lists, name, getattr(self, name).to(device, non_blocking=non_blocking))
        return lists

    def entries(self, shape: tuple[int, ...]) -> Tensor:
        """Return the positions of the relevant labels in a flattened matrix of that shape.

        >>> LabelLists(torch.tensor([[1, 3], [2, -1]])).entries((2, 4))
        tensor([1, 3, 6])
        """
        if self.num_rows != shape[0]:
            raise ValueError(
                f"targets must have a list for each row of logits, {shape[0]}; got {self.num_rows}"
            )
        if self.largest >= shape[1]:
            raise ValueError(
                f"labels must be below the number of classes, {shape[1]}; got {self.largest}"
            )
        return self.rows * shape[1] + self.columns

    def contain(self, labels: Tensor) -> Tensor:
        """Return which of some labels of each row, ``[B, n]``, are in its list, bool ``[B, n]``.

        >>> LabelLists(torch.tensor([[1, 3], [2, -1]])).contain(torch.tensor([[3, 0], [1, 2]]))
        tensor([[ True, False],
                [False,  True]])
        """
        rows = torch.arange(self.num_rows, device=labels.device).unsqueeze(1)
        # one number for each pair of a row and a label, whatever the largest label
        return torch.isin(labels * self.num_rows + rows, self.columns * self.num_rows + self.rows)

    def dense(self, num_classes: int) -> Tensor:
        """Return the matrix ``[B, num_classes]``, True where a label is relevant."""
        shape = (self.num_rows, num_classes)
        matrix = torch.zeros(shape, dtype=torch.bool, device=self.columns.device)
        return matrix.view(-1).index_fill(0, self.entries(shape), True).view(shape)
