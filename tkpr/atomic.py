"""Write a file so that a reader finds the old one or the new one, never half of it."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO


def write(path: Path, content: bytes | str | Callable[[BinaryIO], Any]) -> None:
    """Write beside ``path``, flush to the disk, then rename over it.

    Args:
        path: the file to make or replace.
        content: its bytes or text, or a function that writes them to an open binary file.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "note.txt"
    >>> write(file, "whole")
    >>> file.read_text(), sorted(p.name for p in file.parent.iterdir())
    ('whole', ['note.txt'])
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with beside.open("wb") as file:
            if callable(content):
                content(file)
            else:
                file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
