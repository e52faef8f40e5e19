"""Preemption: when to save and when to stop, by the clock and SIGTERM, the same on every rank."""

import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from lightning_fabric import Fabric

from tkpr.training.collectives import all_reduce


class Preemption:
    """Decides at which steps to save or stop, the same on every rank.

    Args:
        fabric: launched.
        save_minutes: how long a state may stay unsaved.

    >>> preemption = Preemption(Fabric(accelerator="cpu", devices=1), save_minutes=30)
    >>> preemption.poll()
    (False, False)
    >>> preemption.ask_to_stop()
    >>> preemption.poll()
    (True, False)
    """

    def __init__(self, fabric: Fabric, *, save_minutes: float) -> None:
        self.fabric, self.save_seconds = fabric, 60 * save_minutes
        self.asked_to_stop, self.last_save = False, time.monotonic()
        self.polls_since_sync, self.polls_per_sync, self.last_sync = 0, 1, time.monotonic()

    def ask_to_stop(self, *_: Any) -> None:
        """Note a SIGTERM."""
        self.asked_to_stop = True

    def saved(self) -> None:
        """Restart the clock of the next save."""
        self.last_save = time.monotonic()

    def poll(self, *, sync: bool = True) -> tuple[bool, bool]:
        """Whether to stop, and whether a save is due.

        The ranks of a run sync about once a second, so that they act at the same step: torchrun
        and Slurm wait half a minute before they kill. All ranks must poll equally often.

        Args:
            sync: sync now.
        """
        stop = float(self.asked_to_stop)
        late = float(time.monotonic() - self.last_save > self.save_seconds)
        if self.fabric.world_size > 1:
            self.polls_since_sync += 1
            if not sync and self.polls_since_sync < self.polls_per_sync:
                return False, False
            seconds = time.monotonic() - self.last_sync
            total = all_reduce(self.fabric, torch.tensor([stop, late, seconds]))
            stop, late, seconds = total.tolist()
            polls_per_second = self.polls_since_sync * self.fabric.world_size / seconds
            self.polls_per_sync = max(1, int(polls_per_second))
            self.polls_since_sync, self.last_sync = 0, time.monotonic()
        return stop > 0, late > 0


@contextlib.contextmanager
def on_sigterm(handler: Callable[..., None]) -> Iterator[None]:
    """Call ``handler`` on a SIGTERM, which clusters send before they kill."""
    previous = signal.signal(signal.SIGTERM, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
