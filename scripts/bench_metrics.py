"""Time the measures beside scikit-learn's, and measure the memory that they need.

python scripts/bench_metrics.py
python scripts/bench_metrics.py --large
python scripts/bench_metrics.py --quick

What is compared: one call of tkpr.metrics.evaluate, which gives all measures of the paper's tables
and mAP, CF1 and OF1, against scikit-learn's label_ranking_loss, ndcg_score and
label_ranking_average_precision_score, which give three numbers, on an array of the size of COCO's
test set.

Why it is fair: both get the same NumPy arrays, in the types they like (scores float32, labels
uint8), check their inputs, and run in one process and one thread, in turns; a ratio is taken
within a round, and its median over the rounds is reported. The one measure that both compute, the
ranking loss, must agree.
"""

import functools
import json
import statistics
from collections.abc import Callable
from typing import Any

from tkpr.runs.script import Parser, output_file, script

SCIKIT_LEARN = ("label_ranking_loss", "ndcg_score", "label_ranking_average_precision_score")


def make_arrays(rows: int, classes: int) -> tuple[Any, Any]:
    """Draw scores and about three relevant labels per row, at least one."""
    import numpy as np

    random = np.random.default_rng(0)
    scores = random.standard_normal((rows, classes), dtype=np.float32)
    targets = np.zeros((rows, classes), dtype=np.uint8)
    for _ in range(3):
        targets[np.arange(rows), random.integers(classes, size=rows)] = 1
    return scores, targets


def make_evaluation(rows: int, classes: int) -> Callable[[], object]:
    """Return one evaluation, for the measurement of its memory."""
    import torch

    from tkpr.metrics import evaluate

    torch.set_num_threads(1)
    evaluate(*make_arrays(10, 8))
    return functools.partial(evaluate, *make_arrays(rows, classes))


def measure_times(rows: int, classes: int, rounds: int, seconds: float) -> dict[str, Any]:
    """Time all contestants on one pair of arrays."""
    from sklearn import metrics as scikit_learn

    from tkpr.metrics import evaluate
    from tkpr.reporting.benchmark import ratio, side_by_side

    scores, targets = make_arrays(rows, classes)
    ours = evaluate(scores, targets)
    theirs = scikit_learn.label_ranking_loss(targets, scores)
    if abs(ours["ranking_loss"] - theirs) > 1e-10:
        raise RuntimeError(f"ranking loss: {ours['ranking_loss']} here, {theirs} in scikit-learn")
    contestants: dict[str, Callable[[], object]] = {
        "evaluate": functools.partial(evaluate, scores, targets),
        **{
            name: functools.partial(getattr(scikit_learn, name), targets, scores)
            for name in SCIKIT_LEARN
        },
    }
    times = side_by_side(contestants, rounds=rounds, seconds=seconds)
    together = [sum(one_round) for one_round in zip(*(times[n] for n in SCIKIT_LEARN), strict=True)]
    return {
        "rows": rows,
        "classes": classes,
        "numbers": len(ours),
        "seconds": {name: statistics.median(values) for name, values in times.items()},
        "times_faster": ratio(together, times["evaluate"]),
    }


def measure_memory(rows: int, classes: int) -> dict[str, Any]:
    """Measure the peak memory of one evaluation on top of its inputs."""
    from tkpr.reporting.benchmark import peak_memory

    peak = peak_memory(make_evaluation, rows, classes)
    return {"rows": rows, "classes": classes, "bytes": peak, "scores_bytes": 4 * rows * classes}


def print_tables(times: dict[str, Any], memory: list[dict[str, Any]]) -> None:
    """Print what was measured."""
    print(f"{times['rows']} x {times['classes']}, one thread")
    for name, seconds in times["seconds"].items():
        print(f"{name:<40}{seconds:>10.3f} s")
    print(
        f"evaluate gives {times['numbers']} numbers {times['times_faster']:.0f} times as fast as "
        "scikit-learn its three"
    )
    for row in memory:
        peak = "unknown"
        if row["bytes"] is not None:
            peak = f"{row['bytes'] / 1e6:.0f} MB, {row['bytes'] / row['scores_bytes']:.2f} times"
        print(f"peak memory for {row['rows']} x {row['classes']}: {peak} the scores")


def main() -> None:
    """Read the command line, measure, print the tables, write the JSON file."""
    parser = Parser(__doc__)
    parser.add_argument("--rows", type=int, default=40_137, help="images; COCO's test set")
    parser.add_argument("--classes", type=int, default=80)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of a turn")
    parser.add_argument(
        "--large", action="store_true", help="also the memory for 1,000,000 x 1,000: some minutes"
    )
    parser.add_argument("--quick", action="store_true", help="tiny and inexact, to see it run")
    parser.add_argument("--output", type=output_file, default="runs/bench/metrics.json")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rows, arguments.classes = 200, 10
        arguments.rounds, arguments.seconds = 1, 0.0

    import torch

    from tkpr import atomic
    from tkpr.reporting.benchmark import machine

    torch.set_num_threads(1)
    times = measure_times(arguments.rows, arguments.classes, arguments.rounds, arguments.seconds)
    memory = [measure_memory(arguments.rows, arguments.classes)]
    if arguments.large:
        memory.append(measure_memory(1_000_000, 1000))
    print_tables(times, memory)
    measured = {"machine": machine(), "times": times, "memory": memory}
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    atomic.write(arguments.output, json.dumps(measured, indent=2))


if __name__ == "__main__":
    script(main)
