"""Replay: seeds of a run, an epoch or a step, and the order of an epoch from any position."""

import itertools
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import DistributedSampler


def seed_everything(*numbers: int) -> None:
    """Seed Python, NumPy and torch from a few numbers.

    A run is seeded with (seed), a training step with (seed, epoch, rank, step), so any step can be
    replayed by itself.

    >>> seed_everything(0, 3, 1, 20)
    >>> first = torch.rand(2)
    >>> seed_everything(0, 3, 1, 20)
    >>> torch.equal(torch.rand(2), first)
    True
    """
    seed = int(np.random.SeedSequence(numbers).generate_state(1)[0])
    random.seed(seed)
    np.random.seed(seed)
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():  # torch.manual_seed would queue a call for every unused GPU
        torch.cuda.manual_seed(seed)


class ResumableSampler(DistributedSampler[Any]):
    """The shuffled order of an epoch, for one process of several, from any position in it.

    >>> sampler = ResumableSampler(range(20), num_replicas=1, rank=0, seed=0)
    >>> whole = list(sampler)
    >>> sampler.start = 16
    >>> list(sampler) == whole[16:], len(sampler)
    (True, 4)
    """

    start = 0  # samples consumed this epoch; may exceed the length

    def __iter__(self) -> Iterator[int]:
        return itertools.islice(super().__iter__(), self.start, None)

    def __len__(self) -> int:
        return max(0, super().__len__() - self.start)
