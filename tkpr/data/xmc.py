"""Extreme multi-label sets in the text format of the Extreme Classification Repository.

A file starts with a line "N D C", the numbers of samples, features and labels. Each further line
is a sample: its labels, separated by commas, then its features,

    12,407 3:0.25 18:1.5

with ids that count from 0. A line that starts with a space has no labels. Features and labels stay
sparse matrices; no dense one is ever made.
"""

from array import array
from dataclasses import replace
from pathlib import Path

import numpy as np
from scipy.sparse import csr_array

from tkpr import atomic
from tkpr.data.dataset import MultiLabelData, Split
from tkpr.data.files import dataset_root, find_file, is_number, raw_lines

STORED_MODELS_MAY_BUILD = ("load_xmc",)

# features or labels, many times those of the largest public set: a wrong number in a file would
# otherwise fill the memory with names of labels
MOST = 100_000_000

HOW_TO_GET = "data/README.md says where the files come from"


def load_xmc(
    root: str | Path, *, name: str, split: int, normalise: bool, a: float, b: float
) -> MultiLabelData:
    """Read ``<name>_train.txt`` and ``<name>_test.txt``, or ``<name>_data.txt`` with split files.

    The repository has two forms: a training and a test file, or one file of all samples, with
    ``<name>_trSplit.txt`` and ``<name>_tstSplit.txt``. A split file has a column per split, of line
    numbers of samples from 1. All may be packed (``.gz``).

    Args:
        root: the folder with the files.
        name: the name of the data set, for instance ``bibtex``.
        split: the column of the split files, from 0; not used with a training and a test file.
        normalise: divide the features of each sample by their Euclidean norm.
        a: A of the propensities (:mod:`tkpr.metrics.propensity`).
        b: B.

    >>> load_xmc("data/xmc", name="bibtex", split=0, normalise=True, a=0.55, b=1.5)
    ... # doctest: +SKIP
    MultiLabelData(class_names=['0', '1', ...
    """
    folder = dataset_root(root, how_to_get=HOW_TO_GET)
    paths, missing = [], None
    for part in ("train", "test"):
        try:
            paths.append(find_file(folder, f"{name}_{part}.txt", how_to_get=HOW_TO_GET))
        except FileNotFoundError as error:
            missing = error
    if missing and paths:  # one of two, which files of the other form do not make up for
        raise missing
    if paths:
        train, test = (read_samples(path) for path in paths)
        for what, kind in (("features", "inputs"), ("labels", "targets")):
            first, second = (getattr(part, kind).shape[1] for part in (train, test))
            if first != second:
                raise ValueError(f"{paths[1]}, line 1: {second} {what}, {paths[0]} has {first}")
    else:
        path = find_file(folder, f"{name}_data.txt", how_to_get=HOW_TO_GET)
        whole = read_samples(path)
        files = [find_file(folder, f"{name}_{part}Split.txt") for part in ("tr", "tst")]
        seen, unseen = (read_split(file, split, len(whole)) for file in files)
        for line in np.flatnonzero(np.isin(unseen, seen))[:1]:
            raise ValueError(
                f"{files[1]}, line {line + 1}: sample {unseen[line] + 1} is in {files[0]} too"
            )
        train, test = whole.subset(seen), whole.subset(unseen)
    if normalise:
        train, test = (unit_rows(part) for part in (train, test))
    names = [str(label) for label in range(train.targets.shape[1])]
    return MultiLabelData(names, train, test, propensity=(a, b))


def read_samples(path: Path) -> Split:
    r"""Read one file.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "mini_train.txt"
    >>> _ = path.write_text("2 4 3\n0,2 1:0.5 3:2\n 0:1\n")
    >>> split = read_samples(path)
    >>> split.inputs.toarray()
    array([[0. , 0.5, 0. , 2. ],
           [1. , 0. , 0. , 0. ]], dtype=float32)
    >>> split.targets.toarray()
    array([[1, 0, 1],
           [0, 0, 0]], dtype=uint8)
    """
    labels, ids, values = array("q"), array("q"), array("f")
    label_ends, feature_ends = array("q", [0]), array("q", [0])
    size: list[int] = []
    for number, line in raw_lines(path):
        if not size:
            size = _read_header(path, line)
            continue
        if number > size[0] + 1:
            _check_rest(path, number, line, size[0])
            continue
        try:
            before, _, after = line.rstrip("\r\n").partition(" ")
            pairs = [word.split(":") for word in after.split()]
            labels.extend(map(int, before.split(",")) if before else ())
            if pairs:
                words, numbers = zip(*pairs, strict=True)  # each pair has two sides, or this fails
                ids.extend(map(int, words))
                values.extend(map(float, numbers))
            if not (before or pairs) or "_" in line or not line.isascii():
                raise ValueError
        except (ValueError, OverflowError):
            raise ValueError(f"{path}, line {number}: {_explain(line)}") from None
        label_ends.append(len(labels))
        feature_ends.append(len(ids))
    if not size:
        raise ValueError(f"{path} is empty")
    found = len(label_ends) - 1
    if found < size[0]:
        raise ValueError(
            f"{path}, line {found + 1}: the file ends after {found} of the {size[0]} samples that "
            "its first line announces: it is cut short, or the line is wrong"
        )
    targets = _matrix(path, "label", labels, label_ends, np.ones(len(labels), np.uint8), size[2])
    weights = np.frombuffer(values, np.float32) if values else np.zeros(0, np.float32)
    inputs = _matrix(path, "feature", ids, feature_ends, weights, size[1])
    name = path.name.removesuffix(".gz").removesuffix(".txt")
    return Split(inputs, targets, [f"{name}:{row}" for row in range(found)])


def unit_rows(split: Split) -> Split:
    """Return a split with the features of each sample divided by their norm; 0 stays 0.

    >>> features = csr_array(np.array([[3, 4], [0, 0]], dtype=np.float32))
    >>> targets = csr_array(np.eye(2, dtype=np.uint8))
    >>> unit_rows(Split(features, targets, ["a", "b"])).inputs.toarray()
    array([[0.6, 0.8],
           [0. , 0. ]], dtype=float32)
    """
    inputs: csr_array = split.inputs
    norms = np.sqrt(inputs.multiply(inputs).sum(axis=1, dtype=np.float64))
    lengths = np.repeat(norms, np.diff(inputs.indptr))
    values = (inputs.data / np.where(lengths > 0, lengths, 1)).astype(np.float32)
    features = csr_array((values, inputs.indices, inputs.indptr), shape=inputs.shape)
    return replace(split, inputs=features)


def write_samples(path: Path, split: Split) -> None:
    """Write a split with dense or sparse features and labels as a file of this format.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "mini_train.txt"
    >>> write_samples(path, Split(np.eye(2, 3), np.eye(2, 4, dtype=np.uint8), ["a", "b"]))
    >>> print(path.read_text())
    2 3 4
    0 0:1
    1 1:1
    <BLANKLINE>
    """
    inputs, targets = csr_array(split.inputs), csr_array(split.targets)
    lines = [f"{len(split)} {inputs.shape[1]} {targets.shape[1]}\n"]
    for row in range(len(split)):
        part = slice(*inputs.indptr[row : row + 2])
        labels = ",".join(map(str, targets.indices[slice(*targets.indptr[row : row + 2])]))
        pairs = zip(inputs.indices[part], inputs.data[part], strict=True)
        lines.append(f"{labels} {' '.join(f'{feature}:{value:.9g}' for feature, value in pairs)}\n")
    atomic.write(path, "".join(lines))


def read_split(path: Path, column: int, num_samples: int) -> np.ndarray:
    r"""Read one column of a split file: the rows of its samples, from 0.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "mini_trSplit.txt"
    >>> _ = path.write_text("1 2\n3 1\n")
    >>> read_split(path, 1, num_samples=3)
    array([1, 0])
    """
    rows: list[int] = []
    for number, line in raw_lines(path):
        words = line.split()
        if not 0 <= column < len(words):
            raise ValueError(
                f"{path}, line {number}: no split {column}; the line has {len(words)}, from 0"
            )
        word = words[column]
        if not is_number(word) or not 1 <= int(word) <= num_samples:
            raise ValueError(
                f"{path}, line {number}: expected the number of a sample from 1 to {num_samples}; "
                f"got {word!r}"
            )
        rows.append(int(word) - 1)
    if not rows:
        raise ValueError(f"{path} is empty")
    order = np.array(rows)
    _, first = np.unique(order, return_index=True)
    for twice in np.setdiff1d(np.arange(len(order)), first)[:1]:
        raise ValueError(f"{path}, line {twice + 1}: sample {order[twice] + 1} stands there twice")
    return order


def _read_header(path: Path, line: str) -> list[int]:
    """Return the numbers of samples, features and labels."""
    words = line.split()
    if len(words) != 3 or not all(is_number(word) and int(word) > 0 for word in words):
        raise ValueError(
            f"{path}, line 1: expected the numbers of samples, features and labels; "
            f"got {line.strip()[:60]!r}"
        )
    size = [int(word) for word in words]
    if max(size[1:]) > MOST:
        raise ValueError(
            f"{path}, line 1: at most {MOST:,} features or labels can be used; got {max(size[1:])}"
        )
    return size


def _check_rest(path: Path, number: int, line: str, announced: int) -> None:
    """Refuse more samples than the first line announces; trailing blank lines are fine."""
    if line.strip():
        raise ValueError(
            f"{path}, line {number}: more samples than the {announced} that the first line "
            "announces"
        )


def _explain(line: str) -> str:
    """Say what is wrong with a line that cannot be read."""
    if not line.strip():
        return "it is empty; a sample without labels starts with a space and has features"
    before, _, after = line.rstrip("\r\n").partition(" ")
    for word in before.split(",") if before else ():
        if not is_number(word):
            return f"expected labels as 3,17; got {word[:40]!r}"
    for word in after.split():
        feature, _, value = word.partition(":")
        if not is_number(feature):
            return f"expected a feature as id:value; got {word[:40]!r}"
        try:
            float(value)
        except ValueError:
            return f"expected a number after {feature}:; got {value[:40]!r}"
    return f"it cannot be read: {line.strip()[:40]!r}"


def _matrix(
    path: Path, what: str, ids: "array[int]", ends: "array[int]", values: np.ndarray, size: int
) -> csr_array:
    """Return a sparse matrix whose ids are in range, in order and named once, values finite."""
    columns, indptr = (np.array(part, dtype=np.int64) for part in (ids, ends))

    def where(entry: int) -> str:
        row = np.searchsorted(indptr, entry, side="right") - 1
        return f"{path}, line {row + 2}"

    wrong = np.flatnonzero((columns < 0) | (columns >= size))
    if len(wrong):
        raise ValueError(
            f"{where(wrong[0])}: {what}s must be from 0 to {size - 1}; got {columns[wrong[0]]}"
        )
    wrong = np.flatnonzero(~np.isfinite(values))
    if len(wrong):
        raise ValueError(
            f"{where(wrong[0])}: {what} {columns[wrong[0]]} must be a finite number in float32"
        )
    rows = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    order = np.lexsort((columns, rows))
    twice = np.flatnonzero((np.diff(columns[order]) == 0) & (np.diff(rows[order]) == 0))
    if len(twice):
        entry = order[twice[0] + 1]
        raise ValueError(f"{where(entry)}: {what} {columns[entry]} stands there twice")
    return csr_array((values[order], columns[order], indptr), shape=(len(indptr) - 1, size))
