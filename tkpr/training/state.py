"""The state of a run: what it holds, how it is saved, loaded and resumed."""

import logging
import time
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from lightning_fabric import Fabric

from tkpr import atomic, records
from tkpr.training.collectives import gather

if TYPE_CHECKING:
    from tkpr.training.trainer import Trainer

log = logging.getLogger(__name__)

FORMAT = 2  # of the state; higher after a change that makes older states unusable


@dataclass
class Progress:
    """How far a run has come, and the counters of its current epoch.

    Attributes:
        epoch: epochs completed.
        step: batches of the current epoch that were used or skipped.
        skipped: batches of the current epoch without a readable image.
        total_loss: sum of this rank's losses in the current epoch.
        labels_updated: whether the loss has revised its labels after the current epoch.
        history: a row of measures per epoch.
        epoch_start: seconds of training before the current epoch.
        seconds_before_resume: seconds of training in processes before this one.
    """

    epoch: int = 0
    step: int = 0
    skipped: int = 0
    total_loss: float = 0.0
    labels_updated: bool = False
    history: list[dict[str, float]] = field(default_factory=list)
    epoch_start: float = 0.0
    seconds_before_resume: float = 0.0
    started: float = field(default_factory=time.monotonic)

    @property
    def position(self) -> tuple[int, int, bool]:
        """Position in the run: (epoch, step, labels updated)."""
        return self.epoch, self.step, self.labels_updated

    @property
    def seconds(self) -> float:
        """Seconds of training so far, in this process and those before it."""
        return self.seconds_before_resume + time.monotonic() - self.started

    def begin_epoch(self) -> None:
        """Note when an epoch begins, unless it is being resumed."""
        if not self.step:
            self.epoch_start = self.seconds

    def end_epoch(self, row: dict[str, float]) -> None:
        """Add the row of an epoch and reset the per-epoch counters."""
        row["seconds"] = self.seconds - self.epoch_start
        self.history.append({"epoch": self.epoch + 1, **row})
        self.epoch += 1
        self.step, self.skipped, self.total_loss, self.labels_updated = 0, 0, 0.0, False


def capture(trainer: "Trainer") -> dict[str, Any]:
    """Return everything that a resumed run needs; all ranks call it, between two steps."""
    progress, fabric = trainer.progress, trainer.fabric
    return {
        "model": trainer.module.state_dict(),
        "losses": [loss.state_dict() for loss in trainer.losses],
        "optimizer": trainer.optimizer.state_dict(),
        "scheduler": trainer.scheduler.state_dict(),
        "precision": fabric.strategy.precision.state_dict(),
        "ema": trainer.ema.state_dict() if trainer.ema else None,
        "epoch": progress.epoch,
        "step": progress.step,
        "skipped": progress.skipped,
        "total_loss": gather(fabric, progress.total_loss),
        "labels_updated": progress.labels_updated,
        "history": progress.history,
        "seconds": (progress.seconds, progress.epoch_start),
        "unreadable": [part.unreadable.nonzero().flatten() for part in trainer.parts],
    }


def restore(trainer: "Trainer", saved: dict[str, Any]) -> None:
    """Bring a trainer to a captured state; the counterpart of :func:`capture`."""
    fabric, (seconds, epoch_start) = trainer.fabric, saved["seconds"]
    if (before := len(saved["total_loss"])) != fabric.world_size:
        raise ValueError(
            f"{trainer.folder} holds a run of {before} processes, this one has "
            f"{fabric.world_size}: go on with {before}, as its batches and its learning rates were "
            "planned for, or delete the folder"
        )
    trainer.module.load_state_dict(saved["model"])
    for loss, state in zip(trainer.losses, saved["losses"], strict=True):
        loss.load_state_dict(state)
    trainer.set_up()  # after the weights: which of them learn depends on the stage of CCD
    trainer.optimizer.load_state_dict(saved["optimizer"])
    trainer.scheduler.load_state_dict(saved["scheduler"])
    fabric.strategy.precision.load_state_dict(saved["precision"])
    if trainer.ema:
        trainer.ema.load_state_dict(saved["ema"])
    trainer.progress = Progress(
        epoch=saved["epoch"],
        step=saved["step"],
        skipped=saved["skipped"],
        total_loss=saved["total_loss"][fabric.global_rank],
        labels_updated=saved["labels_updated"],
        history=saved["history"],
        epoch_start=epoch_start,
        seconds_before_resume=seconds,
    )
    for part, rows in zip(trainer.parts, saved["unreadable"], strict=True):
        trainer.unreadable.restore(part, rows)
    log.info("resuming after epoch %d, step %d", saved["epoch"], saved["step"])


def path(folder: Path) -> Path:
    """Where the state of a run is kept."""
    return folder / "last.ckpt"


def save(folder: Path, state: dict[str, Any]) -> None:
    """Replace the state of a run; the previous one stays until the new one is whole."""
    head = {"format": FORMAT, "run": records.run_id(folder)}
    atomic.write(path(folder), lambda file: torch.save({**head, **state}, file))


def load(folder: Path) -> dict[str, Any] | None:
    """Return the state of a run, or None where there is none yet."""
    file = path(folder)
    if not file.exists():
        return None
    try:
        with zipfile.ZipFile(file) as archive:  # torch does not look at its checksums
            if damaged := archive.testzip():
                raise ValueError(f"{damaged} does not match its checksum")
        state = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # a broken or foreign file fails in many ways
        reason = (str(error).strip() or repr(error)).splitlines()[0]
        raise ValueError(
            f"{file} cannot be read as a checkpoint ({reason}): delete it to start over"
        ) from error
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise ValueError(
            f"{file} was written by another version: go on with that one, or delete the file to "
            "start over"
        )
    records.check_run(file, state["run"])
    return state


def load_together(folder: Path, fabric: Fabric, *, patience: float = 60.0) -> dict[str, Any] | None:
    """Return the state that rank 0 finds, on every rank.

    A shared file system may show the others an older state, or none, for a while.

    Args:
        folder: the run folder.
        fabric: launched.
        patience: how many seconds to wait for the same state.
    """
    saved = load(folder)
    wanted, end = fabric.broadcast(position(saved)), time.monotonic() + patience
    while position(saved) != wanted:
        if time.monotonic() > end:
            raise FileNotFoundError(
                f"process {fabric.global_rank} finds {position(saved)} in {path(folder)}, the "
                f"first process {wanted}: the folder must be the same for all machines"
            )
        time.sleep(min(1.0, patience))
        saved = load(folder)
    return saved


def position(saved: dict[str, Any] | None) -> str:
    """Where in a run a state was saved.

    >>> position({"epoch": 2, "step": 40}), position(None)
    ('epoch 2, step 40', 'no state')
    """
    return f"epoch {saved['epoch']}, step {saved['step']}" if saved else "no state"
