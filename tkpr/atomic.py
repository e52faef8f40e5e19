"""Atomic writes: a reader sees the old file or the new one, never a part of it."""

import errno
import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

PART = ".part"


def write(path: Path, content: bytes | str | Callable[[BinaryIO], Any]) -> None:
    """Write beside ``path``, flush to the disk, then rename over it and flush the folder.

    Args:
        path: the file to make or replace.
        content: its bytes or text, or a function that writes them to an open binary file.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "note.txt"
    >>> write(file, "whole")
    >>> file.read_text(), sorted(p.name for p in file.parent.iterdir())
    ('whole', ['note.txt'])
    """
    beside = path.with_name(f".{path.name}.{uuid.uuid4().hex}{PART}")
    try:
        with beside.open("wb") as file:
            if callable(content):
                content(file)
            else:
                file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except (OSError, RuntimeError) as error:  # torch reports a full disk as a RuntimeError
        reason = str(error).strip().splitlines()[0]
        raise OSError(
            f"{path} cannot be written ({reason}); what was there before is kept"
        ) from error
    finally:
        beside.unlink(missing_ok=True)
    _flush_folder(path.parent)


def _flush_folder(folder: Path) -> None:
    """Flush a folder, so that a new name survives a loss of power."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some network file systems do not support it
            raise OSError(f"{folder} cannot be flushed to the disk ({error})") from error
    finally:
        os.close(descriptor)


def remove_parts(folder: Path) -> None:
    """Remove partial files left by processes that were killed while writing.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> (folder / ".note.txt.1f0c.part").touch()
    >>> remove_parts(folder)
    >>> list(folder.iterdir())
    []
    """
    for part in folder.glob(f".*{PART}"):
        part.unlink(missing_ok=True)
