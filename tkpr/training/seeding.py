"""What makes an epoch the same each time: its seeds and its order, from any place in it."""

import itertools
import random
from collections.abc import Iterator

import numpy as np
import torch
from torch.utils.data import DistributedSampler


def seed_everything(*numbers: int) -> None:
    """Seed Python, NumPy and torch from a few numbers, so that an epoch can be replayed alone."""
    seed = int(np.random.SeedSequence(numbers).generate_state(1)[0])
    random.seed(seed)
    np.random.seed(seed)
    seed_torch(seed)


def seed_torch(seed: int) -> None:
    """Seed torch; ``torch.manual_seed`` would queue calls for every GPU that is not in use."""
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed(seed)


class ResumableSampler(DistributedSampler):
    """The shuffled order of an epoch, for one process of several, from any place in it.

    >>> sampler = ResumableSampler(range(20), num_replicas=1, rank=0, seed=0)
    >>> whole = list(sampler)
    >>> sampler.start = 16
    >>> list(sampler) == whole[16:], len(sampler)
    (True, 4)
    """

    start = 0  # so many samples of this epoch are done; more than there are after its last batch

    def __iter__(self) -> Iterator[int]:
        return itertools.islice(super().__iter__(), self.start, None)

    def __len__(self) -> int:
        return max(0, super().__len__() - self.start)
