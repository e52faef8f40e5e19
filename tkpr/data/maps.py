"""Outputs of a network's frozen part, stored once for all runs that train the rest."""

import hashlib
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from tkpr import atomic
from tkpr.data.dataset import MultiLabelData, Split
from tkpr.data.fingerprint import READ_WHOLE, SAMPLED_FILES, digest
from tkpr.data.targets import known_where, take
from tkpr.losses.partial_labels import PartialLabels


class ToFloat(nn.Module):
    """Turn stored maps into float32."""

    def forward(self, maps: Tensor) -> Tensor:
        """Return them in single precision."""
        return maps.float()


@dataclass(frozen=True)
class Maps:
    """A file of maps: of each training image and of its mirror image, then of each test image.

    Attributes:
        array: float16 ``[2 N + M, ...]``, in the file, not in memory.
        num_train: N.
        size: the side of the images they were made from.
        unreadable: the rows of ``array`` whose image could not be read.
        header: what the file says of itself.
    """

    array: np.memmap
    num_train: int
    size: int
    unreadable: np.ndarray
    header: Mapping[str, Any]


def write_maps(
    file: Path,
    header: Mapping[str, Any],
    shape: Sequence[int],
    batches: Callable[[], Iterator[np.ndarray]],
    unreadable: list[int],
) -> None:
    """Write maps (.npy) and a header beside them (.json); both appear whole or not at all.

    Args:
        file: where to.
        header: what the maps were made from (:func:`describe`).
        shape: of all of them.
        batches: gives them, float16, in order.
        unreadable: rows without an image, complete once ``batches`` has ended.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    note = file.with_suffix(".json")
    note.unlink(missing_ok=True)  # it marks a file as complete

    def write(opened: BinaryIO) -> None:
        kind = {"descr": "<f2", "fortran_order": False, "shape": tuple(shape)}
        np.lib.format.write_array_header_1_0(opened, kind)
        for batch in batches():
            opened.write(np.ascontiguousarray(batch, dtype="<f2").data)

    atomic.write(file, write)
    try:
        about = {
            "content": content_digest(np.lib.format.open_memmap(file, mode="r")),
            "unreadable": unreadable,
        }
        atomic.write(note, json.dumps({**header, **about}, indent=1))
    except OSError:
        file.unlink()
        raise


def read_maps(file: Path, expected: Mapping[str, Any]) -> Maps:
    """Open a file of maps, or say why it is not the right one.

    Args:
        file: as :func:`write_maps` writes it.
        expected: what the maps must have been made from.
    """
    try:
        header = json.loads(file.with_suffix(".json").read_text())
        array = np.lib.format.open_memmap(file, mode="r")  # unlike np.load, opens nothing else
        content, rows = header["content"], header["unreadable"]
        if not all(type(row) is int and 0 <= row < len(array) for row in rows):
            raise ValueError("unreadable must list rows")
        unreadable = np.array(rows, dtype=np.int64)
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"there are no maps at {error.filename}; make them with scripts/extract_features.py"
        ) from None
    except (ValueError, LookupError, TypeError, EOFError, RecursionError) as error:
        raise ValueError(f"{file} is not a whole file of maps ({error}): delete it") from error
    wrong = [
        f"{key} is {header.get(key)}, not {value}"
        for key, value in expected.items()
        if header.get(key) != value
    ]
    shape = (2 * expected["train"] + expected["test"], *expected["map"])
    if not wrong and (array.dtype != np.float16 or array.shape != shape):
        wrong = [f"it holds {array.dtype} {array.shape}, not float16 {shape}"]
    if not wrong and content_digest(array) != content:
        wrong = ["its content is not what was written"]
    if wrong:
        raise ValueError(
            f"{file} holds other maps ({'; '.join(wrong)}): delete it, or name another folder "
            "with map_dir=..."
        )
    return Maps(array, expected["train"], expected["size"], unreadable, header)


def content_digest(array: np.ndarray) -> str:
    """Return 16 digits of the SHA-256 of maps; of more than 256 MB, of 256 rows of them.

    >>> content_digest(np.zeros((2, 3))) == content_digest(np.zeros((3, 2)))
    False
    """
    rows = range(len(array))
    if array.nbytes > READ_WHOLE:
        rows = np.linspace(0, len(array) - 1, SAMPLED_FILES).astype(int).tolist()
    return digest(itertools.chain([str(array.shape)], (array[row] for row in rows)))


def fingerprint(data: MultiLabelData) -> str:
    """Return 16 digits that change with the images of a data set, their names and their order.

    Image files of up to 256 MB count byte by byte, so that a copy has the same fingerprint; of more
    the name, the length and the date of each counts.
    """
    found = hashlib.sha256()
    for split in (data.train, data.test):
        found.update(f"{len(split)}:".encode())
        images = [Path(image) for image in split.inputs if isinstance(image, str | Path)]
        whole = sum(path.stat().st_size for path in images if path.is_file()) <= READ_WHOLE
        for name, image in zip(split.ids, split.inputs, strict=True):
            if isinstance(image, str | Path):
                about = _file_state(Path(image), whole=whole)
                found.update(f"{name}|{about}\n".encode(errors="surrogatepass"))
            else:
                found.update(f"{name}|".encode() + np.asarray(image).tobytes())
    return found.hexdigest()[:16]


def _file_state(path: Path, *, whole: bool) -> str:
    """Return what an image file counts by."""
    if not path.is_file():
        return "missing"
    if whole:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    state = path.stat()
    return f"{state.st_size}|{state.st_mtime_ns}"


class MapDataset(Dataset[Any]):
    """Maps and labels of a split, in place of its images.

    An item is (map float16, targets float32 ``[C]``, index).

    Args:
        maps: the file.
        split: ``targets`` are what the learner sees; ``inputs`` are not looked at.
        rows: of the maps of the images as they are, one per sample.
        augment: whether to take the mirror image of every second sample, drawn anew each epoch; it
            is in the row that follows.
        seed: of that draw.
    """

    def __init__(
        self, maps: Maps, split: Split, rows: np.ndarray, *, augment: bool = False, seed: int = 0
    ) -> None:
        self.maps, self.rows, self.augment, self.seed = maps.array, rows, augment, seed
        self.ids, self.size = split.ids, maps.size
        self.targets, self.known = torch.from_numpy(split.targets), known_where(split.unknown)
        self.unreadable = torch.from_numpy(np.isin(rows, maps.unreadable)).share_memory_()
        # shared memory: workers that outlive an epoch see it change
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()

    def __len__(self) -> int:
        return len(self.targets)

    def set_epoch(self, epoch: int) -> None:
        """Choose the mirror images of an epoch, before its first batch is asked for."""
        self._epoch.fill_(epoch)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, int]:
        maps, _, _ = self.__getitems__([index])
        if not len(maps):
            raise ValueError(f"the image {self.ids[index]} cannot be read")
        return maps[0], self.targets[index].float(), index

    def __getitems__(self, indices: Sequence[int]) -> tuple[Tensor, Tensor | PartialLabels, Tensor]:
        """Return a whole batch: maps, targets ``[B, C]``, indices; without unreadable images."""
        index = torch.as_tensor(indices)
        index = index[~self.unreadable[index]]
        rows = self.rows[index.numpy()]
        if self.augment:
            draw = np.random.default_rng((self.seed, int(self._epoch))).random(len(self))
            rows = rows + (draw[index.numpy()] < 0.5)
        maps = torch.from_numpy(np.asarray(self.maps[rows]))
        return maps, take(self.targets, self.known, index), index
