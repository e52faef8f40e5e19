"""Time every loss beside torch's BCEWithLogitsLoss and MultiLabelMarginLoss.

python scripts/bench_loss.py
python scripts/bench_loss.py --losses tkpr_raw tkpr_softmax --batch 16 --classes 1000 100000
python scripts/bench_loss.py --runs 5 --csv results/bench_loss.csv
python scripts/bench_loss.py --quick

What is compared: one call of the loss and its backward pass, down to the gradient at the logits,
for each loss of configs/loss, for TKPR with the logistic surrogate and K = 15 on each kind of
scores (tkpr_raw, tkpr_softmax, tkpr_sigmoid), and for the losses that work on lists of labels
instead of dense targets ("lists" in their names). The table gives times as multiples of
BCEWithLogitsLoss's.

Why it is fair: all contestants get the same logits and the same labels (1 to 5 of them relevant in
a row), each in the form that it asks for and that a data loader can prepare, the same number of
threads, and the same process. They take turns call by call, in a new order each round, so that a
busy moment of the machine meets all of them and each finds the caches as others left them, as in
training, where a network runs between two calls of a loss. A second table is of turns of 0.03
seconds, in which a contestant has the caches to itself; losses of many small operators then look
worse beside BCE. With one thread, the CPU time of the thread counts, which other programs on the
machine change only through the caches. A ratio is taken within a round, and its median over the
rounds is the result of a run; the CSV file has the lowest and the highest result of several runs.
The ratios depend on the processor (how fast it selects the largest of many numbers beside a
logarithm), on its caches and on what else the machine does: compare within a file, not between
files. The batches change from call to call: on the same few numbers again and again a processor
learns every branch of a sort, as it never would in training. The checks of the inputs, which
torch's losses do not make, are part of our times.
"""

import argparse
import functools
import itertools
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from tkpr.runs.script import Parser, output_file, script

ROOT = Path(__file__).resolve().parents[1]
# above it a single call of MultiLabelMarginLoss takes seconds to minutes
MOST_CLASSES_OF_MARGIN = 10_000
LISTS = ("tkpr_raw", "tkpr_softmax", "tkpr_sigmoid", "rank", "u1", "u2", "u3", "u4", "bce")


def make_batches(batch: int, num_classes: int, number: int) -> list[dict[str, Any]]:
    """Draw batches with 1 to 5 relevant labels per row, in every form a loss may ask for."""
    import torch

    from tkpr.losses import LabelLists

    generator = torch.Generator().manual_seed(0)
    batches = []
    for _ in range(number):
        first = torch.randint(num_classes, (batch, 1), generator=generator)
        stride = torch.randint(1, num_classes // 5, (batch, 1), generator=generator)
        labels = (first + stride * torch.arange(5)) % num_classes
        num_relevant = torch.randint(1, 6, (batch, 1), generator=generator)
        labels = labels.where(torch.arange(5) < num_relevant, -1)
        lists = LabelLists(labels)
        forms = {
            "logits": torch.randn(batch, num_classes, generator=generator, requires_grad=True),
            "targets": lists.dense(num_classes).float(),
            "lists": lists,
            "index": torch.arange(batch),
        }
        if num_classes <= MOST_CLASSES_OF_MARGIN:
            padding = (0, num_classes - 5)
            forms["columns"] = torch.nn.functional.pad(labels, padding, value=-1)
        batches.append(forms)
    return batches


def make_losses(batch: int, num_classes: int) -> dict[str, Callable[..., Any]]:
    """Build every loss that supports this number of classes: name -> loss of one of the batches."""
    import torch
    from omegaconf import DictConfig, OmegaConf

    from tkpr.config import build
    from tkpr.losses import TKPR

    facts = {
        "num_samples": 2 * batch,
        "num_classes": num_classes,
        "class_counts": torch.full((num_classes,), batch),
        "expected_positives": 3.0,
        "train_targets": torch.zeros(batch, num_classes, dtype=torch.uint8),
        "num_epochs": 10,
    }
    ours = {
        f"tkpr_{scores}": TKPR(k=15, surrogate="logistic", scores=scores)
        for scores in ("raw", "softmax", "sigmoid")
    }
    for path in sorted((ROOT / "configs" / "loss").glob("*.yaml")):
        ours[path.stem] = build(cast(DictConfig, OmegaConf.load(path)), facts=facts)

    bce, margin = torch.nn.BCEWithLogitsLoss(), torch.nn.MultiLabelMarginLoss()
    losses: dict[str, Callable[..., Any]] = {
        "BCEWithLogitsLoss": lambda forms: bce(forms["logits"], forms["targets"])
    }
    if num_classes <= MOST_CLASSES_OF_MARGIN:
        losses["MultiLabelMarginLoss"] = lambda forms: margin(forms["logits"], forms["columns"])
    else:
        del ours["multilabel_margin"]
    for name, loss in ours.items():
        losses[name] = functools.partial(_call, loss, "targets")
        if name in LISTS:
            losses[f"{name} lists"] = functools.partial(_call, loss, "lists")
    return losses


def _call(loss: Callable[..., Any], form: str, forms: dict[str, Any]) -> Any:
    return loss(forms["logits"], forms[form], forms["index"])


def step(loss: Callable[..., Any], batches: "itertools.cycle[dict[str, Any]]") -> None:
    """Do what a training step does with a loss."""
    forms = next(batches)
    forms["logits"].grad = None
    loss(forms).backward()


def one_step(name: str, batch: int, num_classes: int, threads: int) -> Callable[[], None]:
    """Return one step of a loss, for the measurement of its memory."""
    import torch

    torch.set_num_threads(threads)
    loss = make_losses(batch, num_classes)[name]
    # a first call on a small batch pays for what torch loads once
    step(make_losses(2, 80)[name], itertools.cycle(make_batches(2, 80, 1)))
    return functools.partial(step, loss, itertools.cycle(make_batches(batch, num_classes, 1)))


def measure_times(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Time all losses for each batch size and number of classes."""
    from tkpr.reporting.benchmark import ratio, side_by_side

    rows = []
    shapes = itertools.product(arguments.seconds, arguments.batch, arguments.classes)
    for seconds, batch, num_classes in shapes:
        losses = make_losses(batch, num_classes)
        references = ["BCEWithLogitsLoss", "MultiLabelMarginLoss"]
        wanted = arguments.losses or list(losses)
        number = max(2, min(8, 2**24 // (batch * num_classes)))
        batches = make_batches(batch, num_classes, number)
        contestants = {
            name: functools.partial(step, loss, itertools.cycle(batches))
            for name, loss in losses.items()
            if name == references[0] or name in wanted
        }
        rounds = min(arguments.rounds, max(9, 2**26 // (batch * num_classes)))
        if seconds:  # a round has many calls already
            rounds = min(rounds, 7)
        runs = [
            side_by_side(contestants, rounds=rounds, seconds=seconds, threads=arguments.threads)
            for _ in range(arguments.runs)
        ]
        for name in contestants:
            row: dict[str, Any] = {"loss": name, "batch": batch, "classes": num_classes}
            row["turn_seconds"] = seconds
            row["seconds"] = statistics.median(time for run in runs for time in run[name])
            for reference in references:
                if reference in contestants:
                    ratios = [ratio(run[name], run[reference]) for run in runs]
                    row[f"times_{reference}"] = statistics.median(ratios)
                    row[f"times_{reference}_lowest"] = min(ratios)
                    row[f"times_{reference}_highest"] = max(ratios)
            rows.append(row)
        print(f"batch {batch}, {num_classes} classes: done", file=sys.stderr)
    return rows


def measure_memory(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure the peak memory of the pairwise losses, beside the pairs they must not hold."""
    from tkpr.reporting.benchmark import peak_memory

    batch, num_classes = max(arguments.batch), arguments.memory_classes
    rows = []
    for name in ["rank"] if arguments.quick else ["BCEWithLogitsLoss", "tkpr_raw", "rank", "lsep"]:
        peak = peak_memory(one_step, name, batch, num_classes, arguments.threads)
        rows.append({"loss": name, "batch": batch, "classes": num_classes, "bytes": peak})
    return rows


def print_tables(times: list[dict[str, Any]], memory: list[dict[str, Any]]) -> None:
    """Print the ratios, one line per loss, and the memory."""
    for seconds, rows in itertools.groupby(times, key=lambda row: row["turn_seconds"]):
        print(f"turns of {seconds} seconds:" if seconds else "turns of one call:")
        print_times(list(rows))
    for row in memory:
        pairs = row["batch"] * row["classes"] ** 2 * 4
        peak = "unknown" if row["bytes"] is None else f"{row['bytes'] / 1e6:.0f} MB"
        print(
            f"peak memory of {row['loss']}, batch {row['batch']}, {row['classes']} classes: {peak}"
            f" (all pairs of labels would take {pairs / 1e6:.0f} MB)"
        )


def print_times(times: list[dict[str, Any]]) -> None:
    """Print the ratios, one line per loss."""
    shapes = list(dict.fromkeys((row["batch"], row["classes"]) for row in times))
    found = {(row["loss"], row["batch"], row["classes"]): row for row in times}
    width = max(len(row["loss"]) for row in times)
    print("time of forward and backward, as multiples of BCEWithLogitsLoss's")
    print(f"{'batch':<{width}}" + "".join(f"{batch:>9}" for batch, _ in shapes))
    print(f"{'classes':<{width}}" + "".join(f"{classes:>9}" for _, classes in shapes))
    for name in dict.fromkeys(row["loss"] for row in times):
        cells = [found.get((name, *shape)) for shape in shapes]
        numbers = [f"{cell['times_BCEWithLogitsLoss']:.2f}" if cell else "-" for cell in cells]
        print(f"{name:<{width}}" + "".join(f"{number:>9}" for number in numbers))
    milliseconds = [1000 * found["BCEWithLogitsLoss", *shape]["seconds"] for shape in shapes]
    line = "".join(f"{number:>9.3f}" for number in milliseconds)
    print(f"{'BCEWithLogitsLoss, ms':<{width}}{line}")
    if any(classes > MOST_CLASSES_OF_MARGIN for _, classes in shapes):
        print(f"-: left out above {MOST_CLASSES_OF_MARGIN} classes, where a call takes minutes")


def write_csv(arguments: argparse.Namespace, times: list[dict[str, Any]], processor: str) -> None:
    """Write the range of the ratio to BCEWithLogitsLoss over the runs, a line for each loss."""
    import pandas

    from tkpr import atomic

    ratio = "times_BCEWithLogitsLoss"
    table = pandas.DataFrame(
        {
            "loss": row["loss"],
            "batch": row["batch"],
            "classes": row["classes"],
            "turn_seconds": row["turn_seconds"],
            "threads": arguments.threads,
            "runs": arguments.runs,
            "microseconds": round(1e6 * row["seconds"], 1),
            "times_bce_lowest": round(row[f"{ratio}_lowest"], 2),
            "times_bce": round(row[ratio], 2),
            "times_bce_highest": round(row[f"{ratio}_highest"], 2),
            "processor": processor,
        }
        for row in times
    )
    arguments.csv.parent.mkdir(parents=True, exist_ok=True)
    atomic.write(arguments.csv, table.to_csv(index=False))


def main() -> None:
    """Read the command line, measure, print the tables, write the JSON file."""
    parser = Parser(__doc__)
    parser.add_argument("--losses", nargs="+", help="only these, beside BCE; by default all")
    parser.add_argument("--batch", type=int, nargs="+", default=[16, 128])
    parser.add_argument(
        "--classes", type=int, nargs="+", default=[80, 100, 1000, 5000, 10_000, 100_000]
    )
    parser.add_argument("--memory-classes", type=int, default=10_000, help="0: no memory")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--seconds", type=float, nargs="+", default=[0.0, 0.03], help="of a turn")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="tiny and inexact, to see it run")
    parser.add_argument("--output", type=output_file, default="runs/bench/loss.json")
    parser.add_argument("--csv", type=output_file, help="the ratios over the runs as a table")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.batch, arguments.classes, arguments.memory_classes = [4], [20, 40], 100
        arguments.rounds, arguments.seconds = 1, [0.0]

    import torch

    from tkpr import atomic
    from tkpr.reporting.benchmark import machine

    torch.set_num_threads(arguments.threads)
    times = measure_times(arguments)
    memory = measure_memory(arguments) if arguments.memory_classes > 0 else []
    print_tables(times, memory)
    measured = {"machine": machine(), "times": times, "memory": memory}
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    atomic.write(arguments.output, json.dumps(measured, indent=2))
    if arguments.csv is not None:
        write_csv(arguments, times, machine()["processor"])


if __name__ == "__main__":
    script(main)
