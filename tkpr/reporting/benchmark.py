"""Time contestants side by side, and measure the memory that a piece of work needs."""

import multiprocessing
import os
import platform
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

STATUS = Path("/proc/self/status")


def side_by_side(
    contestants: Mapping[str, Callable[[], object]],
    *,
    rounds: int = 7,
    seconds: float = 0.1,
    threads: int | None = None,
) -> dict[str, list[float]]:
    """Time all contestants in turn, round after round, so that a slow moment meets each of them.

    A contestant's turn is one call to warm up and then as many timed calls as fit into ``seconds``,
    between 3 and 200; its time in that round is their median. A call that is longer than that
    needs no warming up: it is a turn by itself. The order of the turns changes from round to round,
    since each leaves the processor's caches to the next.

    Args:
        contestants: what to call, by name.
        rounds: the number of rounds.
        seconds: the length of one turn.
        threads: of the work. If it is 1, its CPU time counts, which other programs on the same
            cores change only through the caches; otherwise the time that passes.

    Returns:
        The times in seconds of each contestant, one per round.

    >>> times = side_by_side({"short": lambda: sum(range(9)), "long": lambda: sum(range(9999))},
    ...                      rounds=3, seconds=0.001)
    >>> ratio(times["long"], times["short"]) > 1
    True
    """
    times: dict[str, list[float]] = {name: [] for name in contestants}
    clock = time.thread_time if threads == 1 else time.perf_counter
    order, dice = list(contestants), random.Random(0)
    for _ in range(rounds):
        dice.shuffle(order)
        for name in order:
            call = contestants[name]
            first = _time(call, clock)
            number = int(min(max(seconds / first, 3), 200))
            repeats = [first] if first > seconds else [_time(call, clock) for _ in range(number)]
            times[name].append(statistics.median(repeats))
    return times


def ratio(times: list[float], others: list[float]) -> float:
    """Return the median over the rounds of the ratio of two contestants' times.

    >>> ratio([2.0, 8.0, 6.0], [1.0, 2.0, 2.0])
    3.0
    """
    return statistics.median(a / b for a, b in zip(times, others, strict=True))


def peak_memory(prepare: Callable[..., Callable[[], object]], *arguments: Any) -> int | None:
    """Return by how many bytes a piece of work raises the memory of a fresh process at its peak.

    Args:
        prepare: makes the inputs and returns the work, which takes no argument; a function that a
            new process can import.
        *arguments: handed to ``prepare``.

    Returns:
        The peak of the resident memory during the work, less what was resident before; None where
        the system has no /proc.
    """
    if not STATUS.exists():
        return None
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_measure_peak, args=(sender, prepare, arguments))
    process.start()
    sender.close()
    try:
        return receiver.recv()
    except EOFError:
        raise RuntimeError("the work whose memory was measured failed; see above") from None
    finally:
        process.join()


def machine() -> dict[str, Any]:
    """Describe where the times were taken."""
    import torch

    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def clock(device: str = "cpu") -> float:
    """The time in seconds once a device has finished its work."""
    import torch

    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
    elif device.startswith("mps"):
        torch.mps.synchronize()
    return time.perf_counter()


def time_stages(
    stages: Sequence[Callable[[Any], Any]], first: Any, *, device: str = "cpu"
) -> list[float]:
    """Seconds of each stage, which gets the result of the one before it.

    Args:
        stages: what to call, in order.
        first: the argument of the first stage.
        device: waited for after each stage.

    >>> len(time_stages([lambda n: list(range(n)), sum], 99))
    2
    """
    marks, value = [clock(device)], first
    for stage in stages:
        value = stage(value)
        marks.append(clock(device))
    return [after - before for before, after in pairwise(marks)]


def _time(call: Callable[[], object], clock: Callable[[], float]) -> float:
    start = clock()
    call()
    return clock() - start


def _measure_peak(
    sender: Connection, prepare: Callable[..., Callable[[], object]], arguments: tuple[Any, ...]
) -> None:
    """Do the work in this process and send by how much its memory rose."""
    work = prepare(*arguments)
    # resets the peak to what is resident now
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    work()
    sender.send(_status("VmHWM") - before)


def _status(name: str) -> int:
    """Return a number of bytes from the process's status."""
    for line in STATUS.read_text().splitlines():
        if line.startswith(f"{name}:"):
            return 1024 * int(line.split()[1])
    raise RuntimeError(f"{STATUS} has no line {name}")


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor()
