"""Reference counts of the standard data sets, to check whether a folder on disk is complete."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tkpr.data.dataset import declared


@dataclass(frozen=True)
class SplitCounts:
    """One split: the checksum of its labels, and how many samples have 0, 1, 2, ... labels."""

    checksum: str
    counts: str

    @property
    def histogram(self) -> tuple[int, ...]:
        """The counts as numbers."""
        return tuple(map(int, self.counts.split()))

    @property
    def images(self) -> int:
        """The number of samples."""
        return sum(self.histogram)

    @property
    def labels(self) -> int:
        """The number of labels of all samples."""
        return sum(number * count for number, count in enumerate(self.histogram))


@dataclass(frozen=True)
class ReferenceCounts:
    """What a loader returns for a complete data set.

    Attributes:
        options: the arguments of the loader on which the counts depend.
        train: the counts of the training split.
        test: the counts of the test split.
        order: further arguments on which the order of rows and columns depends; the checksums
            hold for these only.
    """

    options: Mapping[str, Any]
    train: SplitCounts
    test: SplitCounts
    order: Mapping[str, Any] = field(default_factory=dict)


def reference_counts(target: str, options: Mapping[str, Any]) -> ReferenceCounts | None:
    """Return the counts of the data set that ``target`` loads with ``options``, if known.

    A loader's module declares them as ``REFERENCE_COUNTS``.

    >>> reference = reference_counts(
    ...     "tkpr.data.voc.load_voc", {"year": 2012, "difficult": "negative"}
    ... )
    >>> reference.train.images, reference.test.images
    (5717, 5823)
    >>> reference_counts("tkpr.data.csv.load_csv", {"root": "mine"}) is None
    True
    """
    for reference in declared(target, "REFERENCE_COUNTS"):
        if reference.options.items() <= options.items():
            return reference
    return None
