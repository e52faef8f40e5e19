"""Preemption: when to save and when to stop, by clock and signals, the same on every rank."""

import contextlib
import math
import signal
import time
from collections.abc import Iterator
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
    (0, False)
    >>> preemption.ask_to_stop(signal.SIGTERM)
    >>> preemption.poll()
    (15, False)
    """

    def __init__(self, fabric: Fabric, *, save_minutes: float) -> None:
        self.fabric, self.save_seconds = fabric, 60 * save_minutes
        self.last_save = time.monotonic()
        self.signal, self.asked_at = 0, math.inf
        self.polls_since_sync, self.polls_per_sync, self.last_sync = 0, 1, time.monotonic()

    def ask_to_stop(self, number: int, *_: Any) -> None:
        """Note a SIGTERM or a Ctrl-C; a second Ctrl-C does not wait for a checkpoint.

        torchrun passes a Ctrl-C on to processes that the terminal has sent it to already, so the
        second must come a second later.
        """
        if number == signal.SIGINT and time.monotonic() > self.asked_at + 1:
            raise KeyboardInterrupt
        self.signal = self.signal or number
        self.asked_at = min(self.asked_at, time.monotonic())

    def saved(self) -> None:
        """Restart the clock of the next save."""
        self.last_save = time.monotonic()

    def poll(self, *, sync: bool = True) -> tuple[int, bool]:
        """Return the signal to stop on, or 0, and whether a save is due.

        The ranks of a run sync about once a second, so that they act at the same step: torchrun
        and Slurm wait half a minute before they kill. All ranks must poll equally often.

        Args:
            sync: sync now.
        """
        stop, late = self.signal, time.monotonic() - self.last_save > self.save_seconds
        if self.fabric.world_size > 1:
            self.polls_since_sync += 1
            if not sync and self.polls_since_sync < self.polls_per_sync:
                return 0, False
            seconds = time.monotonic() - self.last_sync
            latest = all_reduce(self.fabric, torch.tensor([float(stop), late, seconds]), "max")
            stop, late, seconds = latest.tolist()
            self.polls_per_sync = max(1, int(self.polls_since_sync / seconds))
            self.polls_since_sync, self.last_sync = 0, time.monotonic()
        return int(stop), bool(late)


@contextlib.contextmanager
def stop_on_signals(preemption: Preemption) -> Iterator[None]:
    """Stop in order on a SIGTERM, which clusters send before they kill, and on Ctrl-C."""
    numbers = (signal.SIGTERM, signal.SIGINT)
    previous = [signal.signal(number, preemption.ask_to_stop) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, previous, strict=True):
            if signal.getsignal(number) == preemption.ask_to_stop:
                signal.signal(number, handler)
