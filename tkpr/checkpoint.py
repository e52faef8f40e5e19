"""The state of a run on disk: written whole or not at all, read without running code."""

from pathlib import Path
from typing import Any

import torch

from tkpr import atomic


def path(folder: Path) -> Path:
    """Where the state of a run lives."""
    return folder / "last.ckpt"


def save(folder: Path, state: dict[str, Any]) -> None:
    """Replace the state of a run; the previous one stays until the new one is whole."""
    atomic.write(path(folder), lambda file: torch.save(state, file))


def load(folder: Path) -> dict[str, Any] | None:
    """Return the state of a run, or None where there is none yet."""
    file = path(folder)
    if not file.exists():
        return None
    try:
        return torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # a broken or foreign file fails in many ways
        reason = str(error).strip().splitlines()[0]
        raise ValueError(
            f"{file} cannot be read as a checkpoint ({reason}): delete it to start this run anew"
        ) from error
