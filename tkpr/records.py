"""JSON files with a checksum, and whether the files of a run belong together."""

import csv
import hashlib
import json
from pathlib import Path
from typing import Any

from tkpr import atomic

AGAIN = "restore it, or delete metrics.json and repeat the training command, which computes it anew"


def write(path: Path, record: dict[str, Any]) -> None:
    """Write a record with its checksum.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "metrics.json"
    >>> write(file, {"epochs": 3})
    >>> read(file)
    {'epochs': 3}
    >>> _ = file.write_text(file.read_text().replace("3", "4", 1))
    >>> read(file)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ValueError: ...metrics.json is damaged (its checksum does not match its content): restore it...
    """
    atomic.write(path, json.dumps({**record, "checksum": checksum(record)}, indent=2))


def read(path: Path) -> dict[str, Any]:
    """Return a record, without its checksum."""
    try:
        record = json.loads(path.read_text())
        if not isinstance(record, dict) or "checksum" not in record:
            raise ValueError("it was not written by train.py")
        if record.pop("checksum") != checksum(record):
            raise ValueError("its checksum does not match its content")
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{path} is damaged ({error}): restore it, or delete it and repeat the training command"
        ) from error
    return record


def checksum(record: dict[str, Any]) -> str:
    """Return the checksum of a record: SHA-256 of its JSON with sorted keys."""
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def file_checksum(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def run_id(folder: Path) -> str | None:
    """Return the id of the run in a folder, or None where none has begun."""
    file = folder / "run.json"
    return read(file)["run"] if file.exists() else None


def check_file(path: Path) -> None:
    """Refuse a file of a finished run that is damaged or comes from another run.

    Args:
        path: metrics.json, in the same folder, holds its checksum.
    """
    record = path.parent / "metrics.json"
    if record.exists():
        expected = read(record).get("files", {}).get(path.name)
        if expected is not None and file_checksum(path) != expected:
            raise ValueError(
                f"{path} is damaged or belongs to another run (its checksum is not the one in "
                f"metrics.json): {AGAIN}"
            )


def read_history(folder: Path) -> list[dict[str, float]]:
    """Return the rows of a run's metrics.csv, one per epoch."""
    path = folder / "metrics.csv"
    if not path.is_file():
        raise FileNotFoundError(f"no {path}: {folder} is not the folder of a run")
    check_file(path)
    try:
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file, strict=True))
        history = [{name: float(value) for name, value in row.items()} for row in rows]
    except (ValueError, TypeError, csv.Error) as error:
        raise ValueError(f"{path} is damaged ({error}): {AGAIN}") from error
    if not history:
        raise ValueError(f"{path} is empty: {AGAIN}")
    return history
