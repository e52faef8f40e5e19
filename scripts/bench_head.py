"""Time a linear head with its loss, and measure its memory, for up to a million classes.

python scripts/bench_head.py
python scripts/bench_head.py --classes 1000000 --optimizer adam --threads 2
python scripts/bench_head.py --quick

What is compared: one step of training a linear classifier on given features: forward, backward down
to the gradient at the features, and the step of the optimizer (SGD, or Adam; LazyAdam where the
gradient is sparse). The contestants are nn.Linear with BCEWithLogitsLoss, nn.Linear with TKPR,
and logits in chunks (tkpr.losses.ChunkedLogits) with each of the two losses. In chunks, TKPR has a
sparse gradient and binary cross-entropy a dense one. TKPR is the default one, square and sigmoid,
with K = 5.

Why it is fair: all contestants get the same features, the same 1 to 5 labels per row, in the form
that they ask for, and weights of the same storage, in one process. They take turns step by step, in
a new order each round. A ratio is taken within a round; its median over the rounds is the result of
a run, and the lowest and the highest result of several runs are reported. The peak of the memory is
what one step adds to a process that holds weights, features and labels; the state of Adam is part
of it. With one thread, the CPU time of the thread counts, so that other programs do not disturb.
With more, the time that passes counts: do not take more threads than cores are free, for each chunk
waits for all of them.
"""

import argparse
import itertools
import statistics
import sys
from collections.abc import Callable
from typing import Any

from tkpr.runs.script import Parser, output_file, script

REFERENCE = "nn.Linear + BCE"
SPARSE = "chunks + TKPR"
HEADS = (REFERENCE, "nn.Linear + TKPR", "chunks + BCE", SPARSE)
K = 5


def make_step(head: str, optimizer: str, shared: dict[str, Any]) -> Callable[[], object]:
    """Return one step of training of a head on the shared weights and batch."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    from tkpr.losses import TKPR, AssumeNegative, ChunkedLogits
    from tkpr.training.lazy_adam import LazyAdam

    weight, bias = (nn.Parameter(shared[name]) for name in ("weight", "bias"))
    logits: Any = F.linear if head.startswith("nn.Linear") else ChunkedLogits
    loss: Any = TKPR(k=K) if head.endswith("TKPR") else AssumeNegative(eps=0)
    if head == REFERENCE:
        loss = nn.BCEWithLogitsLoss()
    form = "targets" if head == REFERENCE else "lists"
    adam = LazyAdam if head == SPARSE else torch.optim.Adam
    kind: Any = adam if optimizer == "adam" else torch.optim.SGD
    updates = kind([weight, bias], lr=1e-3)

    def step() -> None:
        shared["features"].grad = None
        updates.zero_grad()
        loss(logits(shared["features"], weight, bias), shared[form]).backward()
        updates.step()
        updates.zero_grad()  # the next contestant needs the memory

    return step


def make_shared(
    batch: int, width: int, num_classes: int, form: str | None = None
) -> dict[str, Any]:
    """Draw weights, features and labels; dense targets unless only lists are asked for."""
    import torch

    from tkpr.losses import LabelLists

    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(num_classes // 5, (batch, 5), generator=generator)
    labels += torch.arange(5) * (num_classes // 5)  # no label twice
    number = torch.randint(1, 6, (batch, 1), generator=generator)
    lists = LabelLists(labels.where(torch.arange(5) < number, -1))
    bound = width**-0.5
    shared = {
        "features": torch.randn(batch, width, generator=generator).requires_grad_(),
        "weight": torch.empty(num_classes, width).uniform_(-bound, bound, generator=generator),
        "bias": torch.zeros(num_classes),
        "lists": lists,
    }
    if form != "lists":
        shared["targets"] = lists.dense(num_classes).float()
    return shared


def one_step(
    head: str, optimizer: str, batch: int, width: int, num_classes: int, threads: int
) -> Callable[[], object]:
    """Return one step, for the measurement of its memory."""
    import torch

    torch.set_num_threads(threads)
    # a first step with few classes pays for what torch loads once
    make_step(head, optimizer, make_shared(batch, width, 100))()
    form = "targets" if head == REFERENCE else "lists"
    return make_step(head, optimizer, make_shared(batch, width, num_classes, form))


def measure(
    arguments: argparse.Namespace, threads: int, optimizer: str, num_classes: int
) -> list[dict[str, Any]]:
    """Time and measure all heads for a number of classes."""
    import torch

    from tkpr.reporting.benchmark import peak_memory, ratio, side_by_side

    torch.set_num_threads(threads)
    shared = make_shared(arguments.batch, arguments.features, num_classes)
    steps = {head: make_step(head, optimizer, shared) for head in HEADS}
    for step in steps.values():
        step()
    times: dict[str, list[float]] = {head: [] for head in HEADS}
    faster: dict[str, list[float]] = {head: [] for head in HEADS}
    for _ in range(arguments.runs):
        run = side_by_side(steps, rounds=arguments.rounds, seconds=0.0, threads=threads)
        for head in HEADS:
            times[head] += run[head]
            faster[head].append(ratio(run[REFERENCE], run[head]))
    del shared, steps
    settings = (arguments.batch, arguments.features, num_classes, threads)
    peaks = {head: peak_memory(one_step, head, optimizer, *settings) for head in HEADS}
    print(f"{threads} threads, {optimizer}, {num_classes} classes: done", file=sys.stderr)
    return [
        {
            "head": head,
            "optimizer": optimizer,
            "batch": arguments.batch,
            "features": arguments.features,
            "classes": num_classes,
            "threads": threads,
            "runs": arguments.runs,
            "milliseconds": round(1000 * statistics.median(times[head]), 2),
            "times_as_fast_lowest": round(min(faster[head]), 2),
            "times_as_fast_highest": round(max(faster[head]), 2),
            "peak_megabytes": _rounded(peaks[head], 1e6),
            "peak_share": _rounded(peaks[head], peaks[REFERENCE]),
        }
        for head in HEADS
    ]


def _rounded(number: float | None, unit: float | None) -> float | None:
    return None if number is None or not unit else round(number / unit, 4)


def print_table(rows: list[dict[str, Any]]) -> None:
    """Print a line for each head and number of classes."""
    title = f"{'classes':>9}  {'head, optimizer, threads':<30}{'ms':>10}{'times as fast':>16}"
    print(f"{title}{'peak, MB':>11}{'share':>8}")
    for row in rows:
        speed = f"{row['times_as_fast_lowest']:.1f} to {row['times_as_fast_highest']:.1f}"
        unknown = row["peak_megabytes"] is None
        peak = "-" if unknown else f"{row['peak_megabytes']:.1f}"
        share = "-" if row["peak_share"] is None else f"{row['peak_share']:.1%}"
        name = f"{row['head']}, {row['optimizer']}, {row['threads']}"
        print(
            f"{row['classes']:>9}  {name:<30}{row['milliseconds']:>10.1f}{speed:>16}"
            f"{peak:>11}{share:>8}"
        )


def main() -> None:
    """Read the command line, measure, print the table, write the CSV file."""
    parser = Parser(__doc__)
    parser.add_argument("--classes", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--features", type=int, default=128)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--optimizer", nargs="+", choices=["sgd", "adam"], default=["sgd", "adam"])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=5, help="of a run")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--quick", action="store_true", help="tiny and inexact, to see it run")
    parser.add_argument("--output", type=output_file, default="runs/bench/head.csv")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.classes, arguments.features, arguments.batch = [50, 500], 8, 4
        arguments.runs, arguments.rounds, arguments.threads = 1, 1, [1]

    import pandas

    from tkpr import atomic
    from tkpr.reporting.benchmark import machine

    cases = itertools.product(arguments.threads, arguments.optimizer, arguments.classes)
    rows = [row for case in cases for row in measure(arguments, *case)]
    print_table(rows)
    table = pandas.DataFrame(rows).assign(processor=machine()["processor"])
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    atomic.write(arguments.output, table.to_csv(index=False))


if __name__ == "__main__":
    script(main)
