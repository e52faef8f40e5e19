"""Inspect a data set: its counts beside the reference counts, and unreadable images."""

import hashlib
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pandas as pd
from tqdm import tqdm

from tkpr.data.dataset import MultiLabelData, Split, checksum
from tkpr.data.reference_counts import ReferenceCounts, SplitCounts


@dataclass(frozen=True)
class Statistics:
    """Counts of one split.

    Attributes:
        images: the number of samples.
        labels: the number of ones in the label matrix.
        histogram: how many samples have 0, 1, 2, ... labels.
        rarest: the class with the fewest samples (the first of several) and their number.
        commonest: the class with the most samples, and their number.
        checksum: see :func:`checksum`.
    """

    images: int
    labels: int
    histogram: tuple[int, ...]
    rarest: tuple[str, int]
    commonest: tuple[str, int]
    checksum: str


def statistics(split: Split, class_names: Sequence[str]) -> Statistics:
    """Count the samples and labels of a split.

    >>> targets = np.array([[1, 1, 0], [1, 0, 0]], dtype=np.uint8)
    >>> found = statistics(Split(["a.jpg", "b.jpg"], targets, ["a", "b"]), ["cat", "dog", "cow"])
    >>> found.images, found.labels, found.histogram, found.rarest, found.commonest
    (2, 3, (0, 1, 1), ('cow', 0), ('cat', 2))
    """
    if not len(split):
        raise ValueError("a split has no samples")
    per_class = split.targets.sum(axis=0, dtype=np.int64)
    per_sample = split.targets.sum(axis=1, dtype=np.int64)
    low, high = int(per_class.argmin()), int(per_class.argmax())
    return Statistics(
        images=len(split),
        labels=int(per_class.sum()),
        histogram=tuple(np.bincount(per_sample).tolist()),
        rarest=(class_names[low], int(per_class[low])),
        commonest=(class_names[high], int(per_class[high])),
        checksum=checksum(split.targets, split.unknown),
    )


def summary(
    data: MultiLabelData, reference: ReferenceCounts | None = None, *, check_order: bool = True
) -> tuple[str, list[str]]:
    r"""Return a table of both splits beside the reference counts, and the differences.

    Args:
        data: the data set.
        reference: the counts of the complete data set, if known.
        check_order: whether to compare the checksums, which depend on the order of the samples.

    >>> split = Split(["a.jpg"], np.array([[1, 0]], dtype=np.uint8), ["a"])
    >>> table, differences = summary(MultiLabelData(["cat", "dog"], split, split))
    >>> print("\n".join(table.splitlines()[:3]))
                       train  expected              test  expected
    images                 1         -                 1         -
    labels                 1         -                 1         -
    >>> differences
    []
    """
    found = [statistics(split, data.class_names) for split in (data.train, data.test)]
    wanted = [reference.train, reference.test] if reference else []
    depth = max(len(h) for h in [s.histogram for s in found] + [w.histogram for w in wanted])
    titles = ["images", "labels", "mean per image", "most per image"]
    titles += [f"with {number} label{'s' * (number != 1)}" for number in range(depth)]
    titles += ["rarest class", "commonest class", "checksum"]

    columns: list[list[str]] = []
    differences = []
    for at, name in enumerate(("train", "test")):
        rarest, commonest = found[at].rarest, found[at].commonest
        here = _counts(found[at], depth)
        here += [f"{rarest[0]} ({rarest[1]:,})", f"{commonest[0]} ({commonest[1]:,})"]
        here += [found[at].checksum]
        there = ["-"] * len(titles)
        if wanted:
            there = [*_counts(wanted[at], depth), "-", "-"]
            there += [wanted[at].checksum if check_order else "-"]
        columns += [here, there]
        wrong = [
            row for row in zip(titles, here, there, strict=True) if row[2] not in (row[1], "-")
        ]
        if wrong:
            title, is_, should_be = wrong[0]
            differences.append(
                f"{name}: {len(wrong)} rows of the table differ from the reference, "
                f"the first is {title}: {is_} instead of {should_be}"
            )
    cells = list(zip(*columns, strict=True))
    table = pd.DataFrame(cells, index=titles, columns=["train", "expected", "test", "expected"])
    return table.to_string(), differences


def _counts(split: Statistics | SplitCounts, depth: int) -> list[str]:
    """Return the counts of a split as text, with ``depth`` bins of the histogram."""
    histogram = [*split.histogram, *[0] * (depth - len(split.histogram))]
    mean = f"{split.labels / split.images:.4f}"
    counts = [split.images, split.labels, mean, len(split.histogram) - 1, *histogram]
    return [count if isinstance(count, str) else f"{count:,}" for count in counts]


def unreadable_files(paths: Sequence[Path], *, workers: int) -> list[tuple[Path, str]]:
    """Decode every image as training does; return the paths that fail, with the reason.

    Args:
        paths: image files.
        workers: number of processes; 0: decode in this process.

    >>> unreadable_files([Path("no/such.jpg")], workers=0)[0][0].as_posix()
    'no/such.jpg'
    """
    bar = {"total": len(paths), "desc": "decoding", "unit": "image", "disable": None}
    if workers == 0:
        reasons = list(tqdm(map(_problem, paths), **bar))
    else:
        # spawn, because the caller may have threads
        with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
            try:
                reasons = list(tqdm(pool.map(_problem, paths, chunksize=64), **bar))
            except BrokenProcessPool as error:
                raise OSError(
                    "a process that decodes images was killed, most likely because memory ran "
                    "out; use a smaller number of workers=..."
                ) from error
    return [(path, reason) for path, reason in zip(paths, reasons, strict=True) if reason]


def _problem(path: Path) -> str | None:
    """Return why training could not read an image, None if it could."""
    from tkpr.data.images import read_image  # imports torch, which nothing else here needs

    try:
        read_image(path)
    except (OSError, ValueError) as error:
        return str(error)
    return None


def copied_files(train: Sequence[Path], test: Sequence[Path]) -> list[tuple[Path, Path]]:
    """Return the test files that equal a training file byte by byte, each with that file.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> for name in "abc":
    ...     _ = (folder / name).write_text(name if name == "b" else "same")
    >>> [(one.name, other.name) for one, other in copied_files([folder / "a"], [folder / "c"])]
    [('c', 'a')]
    """
    by_size: dict[int, list[Path]] = {}
    for path in train:
        by_size.setdefault(path.stat().st_size, []).append(path)
    suspects = [path for path in test if path.stat().st_size in by_size]
    sizes = {path.stat().st_size for path in suspects}
    originals = {_digest(path): path for size in sizes for path in by_size[size]}
    return [(path, originals[key]) for path in suspects if (key := _digest(path)) in originals]


def _digest(path: Path) -> bytes:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()
