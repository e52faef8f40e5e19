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


def read_results(folder: Path) -> dict[str, Any]:
    """Return the content of a finished run's metrics.json."""
    file = folder / "metrics.json"
    results = read(file)
    check_run(file, results.get("run"))
    return results


def check_run(path: Path, run: object) -> None:
    """Refuse a file that was written by another run than the one in its folder.

    Args:
        path: the file; run.json, in the same folder, holds the id of the run.
        run: the id in the file.
    """
    if run_id(path.parent) not in (None, run):
        raise ValueError(
            f"{path} and run.json belong to different runs: put the right one back, or delete the "
            "folder and repeat the training command"
        )


def check_file(path: Path) -> None:
    """Refuse a file of a finished run that is damaged or comes from another run.

    Args:
        path: metrics.json, in the same folder, holds its checksum.
    """
    if (path.parent / "metrics.json").exists():
        expected = read_results(path.parent).get("files", {}).get(path.name)
        if expected is not None and file_checksum(path) not in as_list(expected):
            raise ValueError(
                f"{path} is damaged or belongs to another run (its checksum is not the one in "
                f"metrics.json): {AGAIN}"
            )


def replace_file(path: Path, content: bytes, run: str) -> None:
    """Write a file, and its new checksum if it is one of a finished run.

    In between, metrics.json holds the checksums of the old and of the new content, so that a run
    whose process is killed here is still whole.

    Args:
        path: the file to make or replace.
        content: all of it.
        run: the id of the run that it belongs to.
    """
    record, new = path.parent / "metrics.json", hashlib.sha256(content).hexdigest()
    results = read_results(path.parent) if record.exists() else {}
    files = results.get("files", {})
    if results.get("run") != run or path.name not in files:
        atomic.write(path, content)
        return
    write(record, {**results, "files": {**files, path.name: [*as_list(files[path.name]), new]}})
    atomic.write(path, content)
    write(record, {**results, "files": {**files, path.name: new}})


def as_list(checksums: str | list[str]) -> list[str]:
    """Return the checksums that a file may have: one, or several while it is replaced."""
    return [checksums] if isinstance(checksums, str) else checksums


def read_history(folder: Path) -> list[dict[str, float]]:
    """Return the rows of a run's metrics.csv, one per epoch."""
    path = folder / "metrics.csv"
    if not path.is_file():
        raise FileNotFoundError(f"no {path}: {folder} is not the folder of a run")
    check_file(path)
    try:
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file, strict=True))
        runs = {row.pop("run", None) for row in rows}
        history = [{name: float(value) for name, value in row.items()} for row in rows]
    except (ValueError, TypeError, csv.Error) as error:
        raise ValueError(f"{path} is damaged ({error}): {AGAIN}") from error
    if not history:
        raise ValueError(f"{path} is empty: {AGAIN}")
    for run in runs:
        check_run(path, run)
    return history
