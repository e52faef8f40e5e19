"""What the readers of data sets on disk share: find files, read lines, stay inside the root."""

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
    """Return the folder of a data set, or say that there is none and how to get it.

    >>> dataset_root("no/such", how_to_get="see data/README.md")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    FileNotFoundError: there is no folder ...such; see data/README.md
    """
    folder = absolute(root)
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}; {how_to_get}")
    return folder


def find_file(folder: Path, *names: str, how_to_get: str = "see data/README.md") -> Path:
    """Return the first of ``names`` that exists in ``folder``, as it is or with ``.gz`` added."""
    for name in names:
        for path in (folder / name, folder / f"{name}.gz"):
            if path.is_file():
                return path
    wanted = " or ".join(f"{folder / name}[.gz]" for name in names)
    raise FileNotFoundError(f"there is no file {wanted}; {how_to_get}")


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    r"""Yield the number (from 1) and the text of each line that is not blank, also from ``.gz``.

    A file without any such line is an error: an empty label file is a broken download.

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
    except (UnicodeDecodeError, gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error


def _open_text(path: Path) -> Any:
    """Open a text file, packed by gzip or not; a byte order mark is left out."""
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    return open(path, encoding="utf-8-sig", newline="")


def read_arrays(path: Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Return those of the arrays that an ``.npz`` file has; pickles and damaged ones are refused.

    NumPy itself stops reading where a damaged header says so, before the archive can compare its
    checksum.

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
    """Return the root element of an XML file; entities and external references are refused."""
    try:
        return defusedxml.ElementTree.parse(path).getroot()
    except ParseError as error:
        raise ValueError(f"{path}, line {error.position[0]}: broken XML: {error}") from error
    except DefusedXmlException as error:
        raise ValueError(f"{path}: forbidden in XML from others: {error}") from error
    except (LookupError, ValueError) as error:  # an encoding that is unknown, or does not fit
        raise ValueError(f"{path}: broken XML: {error}") from error


def is_number(text: str) -> bool:
    """Whether a text is a whole number in plain digits, of a length that ``int`` takes.

    >>> is_number("07"), is_number("-7"), is_number("\u0667"), is_number("7" * 5000)
    (True, False, False, False)
    """
    return text.isascii() and text.isdecimal() and len(text) < 19


def line_of(path: Path, text: str) -> int:
    """Return the number of the first line of ``path`` that holds ``text``, for an error message."""
    return next((number for number, line in read_lines(path) if text in line), 1)


def inside(root: Path, name: str, *, where: str, allow_outside: bool | None = None) -> Path:
    """Return the path of the file that a list calls ``name``, which must lie in ``root``.

    Args:
        root: the folder that names are relative to.
        name: a relative path with ``/`` as separator.
        where: the file and line that hold the name, for the message.
        allow_outside: accept absolute names and ``..`` as well. None: no, and there is no such
            option for the user to set.

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
    """Tell whether a name is absolute, has a drive or goes up, on any system."""
    if not name.startswith(("/", "\\")) and ".." not in name and ":" not in name:
        return False  # nearly every name, and a hundred times faster than taking it apart
    parts = PureWindowsPath(name)  # knows both separators, and drives
    return bool(parts.anchor) or ".." in parts.parts


def missing_files(paths: Iterable[Path]) -> list[Path]:
    """Return those of ``paths`` that are not there; each folder is listed once.

    >>> missing_files([Path("no/such/1.jpg")]) == [Path("no/such/1.jpg")]
    True
    """
    listings: dict[Path, set[str]] = {}
    missing = []
    for path in paths:
        if path.parent not in listings:
            there = os.path.isdir(path.parent)  # False, too, for a name that no system accepts
            listings[path.parent] = set(os.listdir(path.parent)) if there else set()
        # a file system that ignores case has the file under another spelling
        if path.name not in listings[path.parent] and not os.path.exists(path):
            missing.append(path)
    return missing


def require_files(paths: Sequence[Any] | np.ndarray) -> None:
    """Raise an error with the count and the first name when a file is not there."""
    if missing := missing_files(paths):
        raise FileNotFoundError(
            f"{len(missing)} of {len(paths)} image files are missing, the first is {missing[0]}; "
            "scripts/prepare_data.py names them all"
        )


def labelled_only(split: Split, *, name: str) -> Split:
    """Return ``split`` without the samples that have no label, and log how many they were.

    >>> split = Split(["a.jpg", "b.jpg"], np.array([[0, 0], [1, 0]], dtype=np.uint8), ["a", "b"])
    >>> labelled_only(split, name="train").ids
    ['b']
    """
    rows = np.flatnonzero(split.targets.any(axis=1))
    if not len(rows):
        first = f", such as {split.inputs[0]}" if len(split) else ""
        raise ValueError(f"{name}: not one of its {len(split)} samples{first} has a label")
    if len(rows) < len(split):
        log.info("%s: %d samples without label dropped", name, len(split) - len(rows))
    return split.subset(rows)
