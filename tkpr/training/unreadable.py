"""Images that cannot be read (``dataset.on_error=skip``): known to all ranks, named once."""

import logging

import torch
from lightning_fabric import Fabric
from torch import Tensor

from tkpr.data.assemble import Samples
from tkpr.training.collectives import all_reduce

log = logging.getLogger(__name__)


class UnreadableImages:
    """Keeps the ranks' records of unreadable images equal and logs each image once.

    A data set marks what it cannot read in its ``unreadable`` ``[N]``; every method is a collective
    that all ranks reach equally often, whatever their own share of the data.

    Args:
        fabric: launched.
        quiet: log nothing.
    """

    def __init__(self, fabric: Fabric, *, quiet: bool = False) -> None:
        self.fabric, self.quiet = fabric, quiet
        self.named: dict[int, Tensor] = {}  # which images were logged, per data set

    def share(self, dataset: Samples) -> None:
        """Mark on every rank what any rank could not read."""
        found = all_reduce(self.fabric, dataset.unreadable.long()).cpu() > 0
        dataset.unreadable |= found
        named = self.named.setdefault(id(dataset), torch.zeros_like(found))
        for row in [] if self.quiet else (found & ~named).nonzero().flatten().tolist():
            log.warning("left out, because it cannot be read: %s", dataset.ids[row])
        named |= found

    def restore(self, dataset: Samples, rows: Tensor) -> None:
        """Mark the rows that a run found, and logged, before it was resumed."""
        dataset.unreadable[rows] = True
        self.named[id(dataset)] = dataset.unreadable.clone()

    def empty_on_any_rank(self, index: Tensor) -> bool:
        """Whether no image of a batch could be read, on this rank or another.

        All ranks skip such a step together, since their gradients are summed.
        """
        if self.fabric.world_size == 1:
            return not len(index)
        return all_reduce(self.fabric, torch.tensor(float(not len(index)))).item() > 0
