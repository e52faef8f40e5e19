"""When to save and when to stop: the clock and SIGTERM, agreed on by all processes of a run."""

import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
from lightning_fabric import Fabric
from torch import Tensor


class Preemption:
    """Tells at which steps to save or stop, the same on every process.

    Args:
        fabric: launched.
        save_minutes: how long a state may stay unsaved.

    >>> preemption = Preemption(Fabric(accelerator="cpu", devices=1), save_minutes=30)
    >>> preemption.now()
    (False, False)
    >>> preemption.ask_to_stop()
    >>> preemption.now()
    (True, False)
    """

    def __init__(self, fabric: Fabric, *, save_minutes: float) -> None:
        self.fabric, self.save_seconds = fabric, 60 * save_minutes
        self.asked_to_stop, self.last_save = False, time.monotonic()
        # questions since processes compared notes, questions until they should, when they did
        self.alone, self.most_alone, self.last_notes = 0, 1, time.monotonic()

    def ask_to_stop(self, *_: Any) -> None:
        """Note a SIGTERM."""
        self.asked_to_stop = True

    def saved(self) -> None:
        """Start to count the minutes anew."""
        self.last_save = time.monotonic()

    def now(self, *, at_once: bool = True) -> tuple[bool, bool]:
        """Whether to stop, and whether to save because the time has come.

        Several processes compare notes about once a second, so that they do it at the same step:
        torchrun and Slurm wait half a minute before they kill. All must ask equally often.

        Args:
            at_once: compare notes now.
        """
        stop = float(self.asked_to_stop)
        late = float(time.monotonic() - self.last_save > self.save_seconds)
        if self.fabric.world_size > 1:
            self.alone += 1
            if not at_once and self.alone < self.most_alone:
                return False, False
            seconds = time.monotonic() - self.last_notes
            notes = self.fabric.to_device(torch.tensor([stop, late, seconds]))
            together = cast(Tensor, self.fabric.all_reduce(notes, reduce_op="sum"))
            stop, late, seconds = together.tolist()
            self.most_alone = max(1, int(self.alone * self.fabric.world_size / seconds))
            self.alone, self.last_notes = 0, time.monotonic()
        return stop > 0, late > 0


@contextlib.contextmanager
def on_sigterm(handler: Callable[..., None]) -> Iterator[None]:
    """Call ``handler`` on a SIGTERM, which clusters send before they kill."""
    previous = signal.signal(signal.SIGTERM, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
