"""Shared by the loaders: find files, read lines, stay inside the root folder."""

import gzip
import logging
import os
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PureWindowsPath
from typing import Any
from xml.etree.ElementTree import Element, ParseError

import defusedxml.ElementTree
import numpy as np
from defusedxml import DefusedXmlException

from tkpr.data.dataset import Split

log = logging.getLogger(__name__)


def absolute(path: str | Path) -> Path:
    """Return ``path`` as an absolute path, with ``~`` expanded.

    >>> absolute("data/coco") == Path.cwd() / "data" / "coco"
    True
    """
    return Path(path).expanduser().absolute()


def dataset_root(root: str | Path, *, how_to_get: str) -> Path:
    """Return the folder of a data set; if it is missing, the error says how to get it.

    >>> dataset_root("no/such", how_to_get="see data/README.md")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    FileNotFoundError: there is no folder ...such; see data/README.md
    """
    folder = absolute(root)
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}; {how_to_get}")
    return folder


def find_file(folder: Path, *names: str, how_to_get: str = "see data/README.md") -> Path:
    """Return the first of ``names`` that exists in ``folder``, plain or with ``.gz`` appended."""
    for name in names:
        for path in (folder / name, folder / f"{name}.gz"):
            if path.is_file():
                return path
    wanted = " or ".join(f"{folder / name}[.gz]" for name in names)
    raise FileNotFoundError(f"there is no file {wanted}; {how_to_get}")


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    r"""Yield (line number, text) of each non-blank line; the file may be gzipped.

    A file without such lines is an error: an empty label file is a broken download.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "list.txt"
    >>> _ = path.write_text("a 1\n\nb 0\n")
    >>> list(read_lines(path))
    [(1, 'a 1'), (3, 'b 0')]
    """
    empty = True
    for number, line in raw_lines(path):
        if text := line.strip():
            empty = False
            yield number, text
    if empty:
        raise ValueError(f"{path} is empty")


def raw_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the number (from 1) and all of each line, its end included, also from ``.gz``."""
    try:
        with _open_text(path) as lines:
            yield from enumerate(lines, start=1)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"there is no file {path}; see data/README.md") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} cannot be read: {error}; save it as UTF-8") from error
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error


def _open_text(path: Path) -> Any:
    """Open a text file, gzipped or not; a byte order mark is dropped."""
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    return open(path, encoding="utf-8-sig", newline="")


def read_arrays(path: Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Return the named arrays that an ``.npz`` file holds; refuse pickles and damaged arrays.

    ``np.load`` stops at the length in the header, so that it misses a wrong length: the zip
    checksum is compared only at the end of a member.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "arrays.npz"
    >>> np.savez(path, a=np.ones(2), b=np.ones(3))
    >>> read_arrays(path, ["a", "c"])
    {'a': array([1., 1.])}
    """
    found = {}
    with zipfile.ZipFile(path) as archive:
        for name in [name for name in names if f"{name}.npy" in archive.namelist()]:
            with archive.open(f"{name}.npy") as member:
                found[name] = np.lib.format.read_array(member, allow_pickle=False)
                if member.read(1):
                    raise ValueError(f"{name} is longer than it says")
    return found


def read_xml(path: Path) -> Element:
    """Return the root element of an XML file; refuse entities and external references."""
    try:
        return defusedxml.ElementTree.parse(path).getroot()
    except ParseError as error:
        raise ValueError(f"{path}, line {error.position[0]}: broken XML: {error}") from error
    except DefusedXmlException as error:
        raise ValueError(f"{path}: unsafe XML: {error}") from error
    except (LookupError, ValueError) as error:  # unknown or wrong encoding
        raise ValueError(f"{path}: broken XML: {error}") from error


def is_number(text: str) -> bool:
    """Whether a text is a non-negative integer of ASCII digits that fits into 64 bits.

    >>> is_number("07"), is_number("-7"), is_number("\u0667"), is_number("7" * 5000)
    (True, False, False, False)
    """
    return text.isascii() and text.isdecimal() and len(text) < 19


def line_of(path: Path, text: str) -> int:
    """Return the number of the first line of ``path`` that contains ``text``, for messages."""
    return next((number for number, line in read_lines(path) if text in line), 1)


def inside(root: Path, name: str, *, where: str, allow_outside: bool | None = None) -> Path:
    """Return ``root / name``; ``name`` must not lead out of ``root``.

    Args:
        root: the folder that names are relative to.
        name: a relative path with ``/`` as separator.
        where: the file and line of the name, for the message.
        allow_outside: whether to accept absolute names and ``..``. None: no, and the message does
            not suggest the option.

    >>> inside(Path("data"), "cats/1.jpg", where="list.txt, line 1").as_posix()
    'data/cats/1.jpg'
    >>> inside(Path("data"), "../1.jpg", where="list.txt, line 2")
    Traceback (most recent call last):
    ValueError: list.txt, line 2: '../1.jpg' leads out of data; use a relative path without ..
    """
    if not allow_outside and _leads_out(name):
        option = "" if allow_outside is None else ", or set dataset.allow_outside=true"
        raise ValueError(
            f"{where}: {name!r} leads out of {root}; use a relative path without ..{option}"
        )
    return root / name


def _leads_out(name: str) -> bool:
    """Whether a name is absolute, has a drive or contains ``..``, on any system."""
    if not name.startswith(("/", "\\")) and ".." not in name and ":" not in name:
        return False  # the common case, a hundred times faster than parsing the path
    parts = PureWindowsPath(name)  # understands both separators and drives
    return bool(parts.anchor) or ".." in parts.parts


def missing_files(paths: Iterable[Path]) -> list[Path]:
    """Return the ``paths`` that do not exist; each folder is listed only once.

    >>> missing_files([Path("no/such/1.jpg")]) == [Path("no/such/1.jpg")]
    True
    """
    listings: dict[Path, set[str]] = {}
    missing = []
    for path in paths:
        if path.parent not in listings:
            there = os.path.isdir(path.parent)  # also False for invalid names
            listings[path.parent] = set(os.listdir(path.parent)) if there else set()
        # on a case-insensitive file system the listing may spell the name differently
        if path.name not in listings[path.parent] and not os.path.exists(path):
            missing.append(path)
    return missing


def require_files(paths: Sequence[Any] | np.ndarray) -> None:
    """Raise an error with the number of missing files and the first of them."""
    if missing := missing_files(paths):
        hint = "scripts/prepare_data.py lists them all"
        if "\\" in missing[0].name:
            hint = "write paths with / instead of \\"
        raise FileNotFoundError(
            f"{len(missing)} of {len(paths)} image files are missing, the first is {missing[0]}; "
            f"{hint}"
        )


def labelled_only(split: Split, *, name: str) -> Split:
    """Return ``split`` without the samples that have no label; log their number.

    >>> split = Split(["a.jpg", "b.jpg"], np.array([[0, 0], [1, 0]], dtype=np.uint8), ["a", "b"])
    >>> labelled_only(split, name="train").ids
    ['b']
    """
    rows = np.flatnonzero(split.targets.any(axis=1))
    if not len(rows):
        first = f", such as {split.inputs[0]}" if len(split) else ""
        raise ValueError(f"{name}: none of the {len(split)} samples{first} has a label")
    if len(rows) < len(split):
        log.info("%s: dropped %d samples without labels", name, len(split) - len(rows))
    return split.subset(rows)
