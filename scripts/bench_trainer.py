"""Time the training loop beside a bare one, what an epoch spends on its records, and the start.

python scripts/bench_trainer.py
python scripts/bench_trainer.py --quick

Loop: images per second of ``Trainer.train_epoch`` and of the ten lines that a person would write,
``bare_epoch`` below, on the mosaic. It is fair because both train the same network from the same
weights with the same loss and optimizer on the same batches in the same order, which lie in memory
as bytes. Their mean losses over a first pass are printed: they agree. The loops take turns, pass
by pass, so that a busy moment of the machine meets both; a ratio is taken within a round, and its
median over the rounds is reported. A third row adds the loading and augmentation of the images.

Epoch: where the time of an epoch of the default run goes. Metrics are the measures on the test
set, logging is the log, metrics.csv and TensorBoard with its pictures. The share is that of both
in the time of the whole epoch, prediction and checkpoint included.

Start: ``python train.py --help`` beside ``python -c "import hydra"``, started in turns.
"""

import argparse
import collections
import copy
import functools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from lightning_fabric import Fabric
from torch import nn

from tkpr import atomic
from tkpr.config import build
from tkpr.reporting.benchmark import machine, ratio, side_by_side
from tkpr.runs.compose import compose
from tkpr.runs.run import build_data, build_model
from tkpr.runs.script import Parser, output_file, script
from tkpr.runs.settle import settle
from tkpr.training import trainer
from tkpr.training.logbook import Logbook
from tkpr.training.optimizer import parameter_groups
from tkpr.training.seeding import seed_everything
from tkpr.training.trainer import Trainer

ROOT = Path(__file__).resolve().parents[1]
SMALL = [
    *("dataset.train_size=40", "dataset.test_size=23", "dataset.image_size=32"),
    *("transform.size=32", "model.width=8", "trainer.batch_size=8"),
]


def make_trainer(folder: str, *overrides: str) -> Trainer:
    """Return the trainer of ``python train.py`` with some settings, on the CPU."""
    words = [f"run_dir={folder}", "trainer.accelerator=cpu", *overrides]
    cfg = compose(ROOT / "configs", words)
    settle(cfg)
    fabric = Fabric(accelerator="cpu", devices=1, precision=cfg.trainer.precision)
    seed_everything(cfg.seed)
    data = build_data(cfg)
    return Trainer(cfg, fabric, data, build_model(cfg, data), Path(folder))


# The loop


def bare_epoch(
    batches: list[Any],
    model: nn.Module,
    criterion: nn.Module,
    optimizer: torch.optim.Optimizer,
    scheduler: torch.optim.lr_scheduler.LRScheduler,
) -> float:
    """Train on all batches, as plainly as it can be written, and return the mean loss."""
    total = 0.0
    for images, targets, _ in batches:
        loss = criterion(model(images.float().mul_(1 / 255)), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        total += loss.item()
    return total / len(batches)


def measure_loop(arguments: argparse.Namespace) -> dict[str, Any]:
    """Time the trainer's loop beside the bare one."""
    overrides = ["scheduler=constant", "trainer.warmup_epochs=0", *arguments.overrides]
    with tempfile.TemporaryDirectory() as folder:
        ours = make_trainer(folder, *overrides)
        ours.begin_epoch()
        loader, all_steps = ours.loader, ours.steps
        batches = list(loader)[: arguments.steps]
        model = copy.deepcopy(ours.module).train()
        cfg = ours.cfg
        groups = parameter_groups(
            model,
            [],
            lr=cfg.optimizer.lr,
            weight_decay=cfg.optimizer.weight_decay,
            head_lr_multiplier=cfg.trainer.head_lr_multiplier,
        )
        optimizer = build(cfg.optimizer)(groups)
        scheduler = build(cfg.scheduler)(optimizer, 1)
        bare = functools.partial(
            bare_epoch, batches, model, copy.deepcopy(ours.losses[1]), optimizer, scheduler
        )

        def epoch(batches: Any, steps: int) -> float:
            ours.loader, ours.steps = batches, steps
            ours.progress.step, ours.progress.total_loss = 0, 0.0
            return ours.train_epoch()["train_loss"]

        contestants: dict[str, Callable[[], float]] = {
            "bare": bare,
            "ours": functools.partial(epoch, batches, len(batches)),
        }
        losses = {name: call() for name, call in contestants.items()}
        times = side_by_side(contestants, rounds=arguments.rounds, seconds=0.0)
        loading = side_by_side(
            {"ours, with loading": functools.partial(epoch, loader, all_steps)}, rounds=1, seconds=0
        )
    images = sum(len(batch[0]) for batch in batches)
    rows = [
        {
            "loop": name,
            "images_per_second": images / statistics.median(times[name]),
            "times_bare": ratio(times[name], times["bare"]),
            "first_loss": losses[name],
        }
        for name in times
    ]
    [seconds] = loading["ours, with loading"]
    speed = len(ours.data.train) / seconds
    rows.append({"loop": "ours, with loading", "images_per_second": speed})
    return {"batch": ours.settings.batch_size, "steps": len(batches), "rows": rows}


# The epoch


def measure_epoch(arguments: argparse.Namespace) -> dict[str, Any]:
    """Add up where the time of a default run goes, epoch by epoch."""
    spent: dict[str, float] = collections.defaultdict(float)

    def timed(part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def wrapped(*args: Any, **options: Any) -> Any:
            start = time.perf_counter()
            try:
                return call(*args, **options)
            finally:
                spent[part] += time.perf_counter() - start

        return wrapped

    places = {
        "training": (Trainer, "train_epoch"),
        "prediction": (Trainer, "predict"),
        "metrics": (trainer, "measure"),
        "checkpoint": (Trainer, "save"),
        "logging": (Logbook, "write"),
        "start of the logging": (Logbook, "__init__"),
    }
    overrides = [f"trainer.epochs={arguments.epochs}", *arguments.overrides]
    with tempfile.TemporaryDirectory() as folder:
        run = make_trainer(folder, *overrides)
        patches = [
            mock.patch.object(owner, name, timed(part, getattr(owner, name)))
            for part, (owner, name) in places.items()
        ]
        for patch in patches:
            patch.start()
        start = time.perf_counter()
        run.fit()
        total = time.perf_counter() - start
        for patch in patches:
            patch.stop()
    once = spent.pop("start of the logging")  # once per run, however long it is
    total -= once
    parts = {part: seconds / arguments.epochs for part, seconds in spent.items()}
    parts["other"] = total / arguments.epochs - sum(parts.values())
    return {
        "epochs": arguments.epochs,
        "seconds_per_epoch": parts,
        "seconds_to_start_logging": once,
        "share_of_metrics_and_logging": (spent["metrics"] + spent["logging"]) / total,
    }


# The start


def measure_start(arguments: argparse.Namespace) -> dict[str, Any]:
    """Time the help of train.py beside the import of Hydra."""

    def start(*words: str) -> Callable[[], Any]:
        command = [sys.executable, *words]
        return lambda: subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)

    times = side_by_side(
        {"hydra": start("-c", "import hydra"), "help": start("train.py", "--help")},
        rounds=arguments.rounds,
        seconds=0.0,
    )
    return {
        "seconds_import_hydra": statistics.median(times["hydra"]),
        "seconds_help": statistics.median(times["help"]),
        "times_import_hydra": ratio(times["help"], times["hydra"]),
    }


def print_tables(measured: dict[str, Any]) -> None:
    """Print what was measured."""
    loop, epoch, start = measured["loop"], measured["epoch"], measured["start"]
    print(f"{'loop':<22}{'images/s':>10}{'time / bare':>13}{'loss of the first pass':>25}")
    for row in loop["rows"]:
        beside = ""
        if "times_bare" in row:
            beside = f"{row['times_bare']:>13.3f}{row['first_loss']:>25.5f}"
        print(f"{row['loop']:<22}{row['images_per_second']:>10.0f}{beside}")
    total = sum(epoch["seconds_per_epoch"].values())
    print(f"\n{'an epoch':<22}{'seconds':>10}{'share':>13}")
    for part, seconds in epoch["seconds_per_epoch"].items():
        print(f"{part:<22}{seconds:>10.3f}{seconds / total:>13.1%}")
    share = epoch["share_of_metrics_and_logging"]
    print(f"{'metrics and logging':<22}{share * total:>10.3f}{share:>13.1%}")
    print(f"TensorBoard is loaded once, in {epoch['seconds_to_start_logging']:.2f} s")
    print(
        f"\npython train.py --help: {start['seconds_help']:.2f} s, "
        f"{start['times_import_hydra']:.2f} times import hydra"
    )


def main() -> None:
    """Read the command line, measure, print the tables, write the JSON file."""
    parser = Parser(__doc__)
    parser.add_argument("overrides", nargs="*", help="settings as for train.py")
    parser.add_argument("--steps", type=int, default=16, help="batches in a pass of the loops")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--epochs", type=int, default=3, help="of the run whose time is divided up")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="tiny and inexact, to see it run")
    parser.add_argument("--output", type=output_file, default="runs/bench/trainer.json")
    arguments = parser.parse_intermixed_args()
    if arguments.quick:
        arguments.overrides += SMALL
        arguments.steps, arguments.rounds, arguments.epochs = 2, 1, 1

    torch.set_num_threads(arguments.threads)
    measured = {
        "machine": machine(),
        "loop": measure_loop(arguments),
        "epoch": measure_epoch(arguments),
        "start": measure_start(arguments),
    }
    print_tables(measured)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    atomic.write(arguments.output, json.dumps(measured, indent=2))


if __name__ == "__main__":
    script(main)
