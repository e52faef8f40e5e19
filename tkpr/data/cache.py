"""A cache of resized images on disk, so that each file is decoded only once."""

import hashlib
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

HEAD = 4  # bytes of the checksum before the pixels
VERSION = 2  # increase when decoding or resizing changes


class ImageCache:
    """The resized images of a split in one file, as records of fixed length.

    A record is a checksum followed by the pixels. The file is sparse: it takes disk space only for
    the images stored so far. Any number of processes may read and write it concurrently: a record
    that is missing, incomplete or damaged does not match its checksum and counts as missing. The
    file name depends on the names, sizes and modification times of the image files, so that a
    changed image is never served from an old cache. Files of old caches can be deleted.

    Args:
        folder: the folder of the file, which is created if needed.
        paths: the image files.
        size: the side of the resized images.
        interpolation: how they were resized.

    Example:
        >>> folder = Path(tempfile.mkdtemp())
        >>> (folder / "a.jpg").touch()
        >>> cache = ImageCache(folder, [folder / "a.jpg"], size=2)
        >>> cache.get(0)
        >>> cache.put(0, torch.ones(3, 2, 2, dtype=torch.uint8))
        >>> cache.get(0).sum()
        tensor(12)
    """

    def __init__(
        self,
        folder: str | Path,
        paths: Sequence[str | Path],
        *,
        size: int,
        interpolation: str = "bilinear",
    ) -> None:
        self._file: int | None = None
        self.size = size
        self.rows = np.arange(len(paths))
        self.path = Path(folder) / f"images-{size}-{interpolation}-{_fingerprint(paths)}.bin"
        if not self.path.exists():
            _create(self.path, len(paths) * self._record)

    @property
    def _record(self) -> int:
        return HEAD + 3 * self.size**2

    def subset(self, rows: np.ndarray) -> "ImageCache":
        """Return a view of the cache for the samples at ``rows``."""
        part = object.__new__(ImageCache)
        part.__setstate__(self.__getstate__() | {"rows": self.rows[rows]})
        return part

    def get(self, index: int) -> Tensor | None:
        """Return an image, uint8 ``[3, size, size]``, or None if it is not cached."""
        head, pixels = bytearray(HEAD), np.empty(self._record - HEAD, np.uint8)
        os.preadv(self._opened(), [head, pixels.data], int(self.rows[index]) * self._record)
        if int.from_bytes(head) != _checksum(pixels):
            return None
        return torch.from_numpy(pixels).view(self.size, self.size, 3).permute(2, 0, 1)

    def put(self, index: int, image: Tensor) -> None:
        """Store an image."""
        pixels = image.permute(1, 2, 0).contiguous().numpy().reshape(-1)
        record = _checksum(pixels).to_bytes(HEAD) + pixels.tobytes()
        try:
            written = os.pwrite(self._opened(), record, int(self.rows[index]) * len(record))
            if written < len(record):
                raise OSError(f"wrote {written} of {len(record)} bytes")
        except OSError as error:
            raise OSError(
                f"{self.path} cannot be written ({error}); make room, or set cache_dir=null"
            ) from error

    def _opened(self) -> int:
        """Return the file descriptor, opened once per process."""
        if self._file is None:
            self._file = os.open(self.path, os.O_RDWR)
        return self._file

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_file": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def __del__(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _checksum(pixels: np.ndarray) -> int:
    """Return a 4-byte checksum of the pixels, never 0, which is what a hole in the file reads as.

    It sums 8 bytes at a time; a CRC would take longer than the rest of a read.
    """
    whole = len(pixels) // 8 * 8
    total = int(pixels[:whole].view(np.uint64).sum()) + int(pixels[whole:].sum())
    return 1 + total % (2 ** (8 * HEAD) - 1)


def _fingerprint(paths: Sequence[str | Path]) -> str:
    """Return a digest of the names, sizes and modification times of the image files."""
    digest = hashlib.sha256(f"{VERSION}".encode())
    for path in paths:
        try:
            state = os.stat(path)
            found = f"{state.st_size}|{state.st_mtime_ns}"
        except (OSError, ValueError):  # reading the image will report it
            found = "missing"
        digest.update(f"{path}|{found}\n".encode(errors="surrogatepass"))
    return digest.hexdigest()[:16]


def _create(path: Path, length: int) -> None:
    """Create a sparse file of the given length, unless another process was faster."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, beside = tempfile.mkstemp(dir=path.parent)
    try:
        os.truncate(descriptor, length)
        os.link(beside, path)
    except FileExistsError:
        pass
    finally:
        os.close(descriptor)
        os.unlink(beside)
