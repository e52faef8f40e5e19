"""The state of a run on disk: written whole or not at all, read without running code."""

import time
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric

from tkpr import atomic

FORMAT = 1  # of the state; higher after a change that makes older states unusable


def path(folder: Path) -> Path:
    """Where the state of a run lives."""
    return folder / "last.ckpt"


def save(folder: Path, state: dict[str, Any]) -> None:
    """Replace the state of a run; the previous one stays until the new one is whole."""
    atomic.write(path(folder), lambda file: torch.save({"format": FORMAT, **state}, file))


def load(folder: Path) -> dict[str, Any] | None:
    """Return the state of a run, or None where there is none yet."""
    file = path(folder)
    if not file.exists():
        return None
    try:
        state = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # a broken or foreign file fails in many ways
        reason = str(error).strip().splitlines()[0]
        raise ValueError(
            f"{file} cannot be read as a checkpoint ({reason}): delete it to start this run anew"
        ) from error
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise ValueError(
            f"{file} was written by another version: go on with that one, or delete the file to "
            "start this run anew"
        )
    return state


def load_together(folder: Path, fabric: Fabric, *, patience: float = 60.0) -> dict[str, Any] | None:
    """Return the state that the first process finds, on every process.

    A file system of many machines may show the others an older state, or none, for a while.

    Args:
        folder: the run folder.
        fabric: launched.
        patience: how many seconds to wait for the same state.
    """
    saved = load(folder)
    wanted, end = fabric.broadcast(place(saved)), time.monotonic() + patience
    while place(saved) != wanted:
        if time.monotonic() > end:
            raise FileNotFoundError(
                f"process {fabric.global_rank} finds {place(saved)} in {path(folder)}, the first "
                f"process {wanted}: the folder must be the same for all machines"
            )
        time.sleep(min(1.0, patience))
        saved = load(folder)
    return saved


def place(saved: dict[str, Any] | None) -> str:
    """Where in a run a state was saved.

    >>> place({"epoch": 2, "step": 40}), place(None)
    ('epoch 2, step 40', 'no state')
    """
    return f"epoch {saved['epoch']}, step {saved['step']}" if saved else "no state"
