"""Outputs of a network's frozen part, stored once for all runs that train the rest."""

import hashlib
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
        atomic.write(note, json.dumps({**header, "unreadable": unreadable}, indent=1))
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
        array = np.load(file, mmap_mode="r", allow_pickle=False)
        unreadable = np.array(header["unreadable"], dtype=np.int64)
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"there are no maps at {error.filename}; make them with scripts/extract_features.py"
        ) from None
    except (ValueError, KeyError, TypeError, EOFError) as error:
        raise ValueError(f"{file} is not a whole file of maps ({error}): delete it") from error
    wrong = [
        f"{key} is {header.get(key)}, not {value}"
        for key, value in expected.items()
        if header.get(key) != value
    ]
    rows = 2 * expected["train"] + expected["test"]
    if not wrong and (array.dtype != np.float16 or array.shape != (rows, *expected["map"])):
        wrong = [f"it holds {array.dtype} {array.shape}, not float16 {(rows, *expected['map'])}"]
    if wrong:
        raise ValueError(
            f"{file} holds other maps ({'; '.join(wrong)}): delete it, or name another folder "
            "with map_dir=..."
        )
    return Maps(array, expected["train"], expected["size"], unreadable, header)


def fingerprint(data: MultiLabelData) -> str:
    """Return 16 digits that change with the images of a data set, their names and their order.

    Of an image file the name and the length count.
    """
    found = hashlib.sha256()
    for split in (data.train, data.test):
        found.update(f"{len(split)}:".encode())
        for name, image in zip(split.ids, split.inputs, strict=True):
            if isinstance(image, str | Path):
                path = Path(image)
                length = path.stat().st_size if path.is_file() else "missing"
                found.update(f"{name}|{length}\n".encode(errors="surrogatepass"))
            else:
                found.update(f"{name}|".encode() + np.asarray(image).tobytes())
    return found.hexdigest()[:16]


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
