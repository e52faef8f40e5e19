"""A fingerprint of a data set: equal wherever the same data is stored, another if it changes."""

import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from tkpr.data.dataset import MultiLabelData, Split, checksum

# Image files of more bytes than this are represented by their sizes and by some of them: reading
# all of a large data set would take longer than many an epoch
READ_WHOLE = 256 * 2**20
SAMPLED_FILES = 256


def fingerprint(data: MultiLabelData) -> dict[str, str]:
    """Return a digest of each part of a data set: class names; ids, labels and inputs of splits.

    Folders are not part of it, nor dates: a copy has the same fingerprint. Features, and image
    files of up to 256 MB, count byte by byte; of more image files the sizes of all and the bytes of
    256 of them, evenly spread.

    >>> split = Split(np.eye(2), np.eye(2, dtype=np.uint8), ["a", "b"])
    >>> print(fingerprint(MultiLabelData(["cat", "dog"], split, split))["test_labels"])
    c7ea2bd0ce1317d2
    """
    parts = {"class_names": digest(data.class_names)}
    for name, split in (("train", data.train), ("test", data.test)):
        parts[f"{name}_ids"] = digest(split.ids)
        parts[f"{name}_labels"] = checksum(split.targets, split.unknown)
        parts[f"{name}_inputs"] = digest(_inputs(split))
    return parts


def digest(parts: Sequence[str] | Iterator[Any]) -> str:
    """Return 16 digits of the SHA-256 of texts and arrays, each with its length or shape.

    >>> digest(["ab", "c"]) == digest(["a", "bc"])
    False
    """
    found = hashlib.sha256()
    for part in parts:
        if isinstance(part, np.ndarray):
            found.update(f"{part.dtype}{part.shape}".encode())
            found.update(np.ascontiguousarray(part).data)
        else:
            content = part if isinstance(part, bytes) else str(part).encode(errors="surrogatepass")
            found.update(f"{len(content)}:".encode() + content)
    return found.hexdigest()[:16]


def _inputs(split: Split) -> Iterator[Any]:
    """Yield what stands for the inputs of a split."""
    inputs: Any = split.inputs
    if isinstance(inputs, csr_array):
        yield from (str(inputs.shape), inputs.indptr, inputs.indices, inputs.data)
    elif isinstance(inputs, np.ndarray):
        yield inputs
    elif len(inputs) and isinstance(inputs[0], str | Path):
        sizes = np.array([_size(path) for path in inputs])
        yield sizes
        rows = np.arange(len(inputs))
        if sizes.sum() > READ_WHOLE:
            rows = np.linspace(0, len(inputs) - 1, SAMPLED_FILES).astype(int)
        yield from (Path(inputs[row]).read_bytes() for row in rows if sizes[row] >= 0)
    else:  # images made on demand
        rows = np.linspace(0, len(inputs) - 1, min(len(inputs), SAMPLED_FILES)).astype(int)
        yield from (np.asarray(inputs[row]) for row in rows)


def _size(path: str | Path) -> int:
    """Return the size of a file in bytes; -1 if it is missing, which reading the image reports."""
    try:
        return os.stat(path).st_size
    except (OSError, ValueError):
        return -1
