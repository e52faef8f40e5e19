"""Run a table with settings chosen for every row alike, on a held-out fifth of the training set.

For each row: all combinations of the learning rates and, where the row has them, of E_w and K are
trained on four fifths and tested on the fifth; the best is trained on everything, once per seed.
What is finished is skipped, so the same command goes on where it was stopped.

python scripts/tune.py voc2012_mlml_ranking_resnet50 --budget features --seeds 0 1 2
python scripts/tune.py voc2012_mlml_ranking_resnet50 --budget features --dry-run
"""

import argparse
import itertools
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUDGETS = ("paper", "small", "features", "smoke")


def main() -> None:
    """Read the command line, search and retrain row by row."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("table", help="one of the ten tables, see configs/experiment")
    parser.add_argument("--budget", default="paper", choices=BUDGETS)
    parser.add_argument("--lr", nargs="+", default=["3e-4", "1e-3", "3e-3", "1e-2"])
    parser.add_argument("--warmup", nargs="+", default=["2", "4", "8"], help="E_w")
    parser.add_argument("--k", nargs="+", default=["3", "5", "8"], help="K")
    parser.add_argument("--methods", nargs="+", help="only these rows")
    parser.add_argument("--seeds", nargs="+", default=["0", "1", "2"])
    parser.add_argument("--monitor", default="mAP@3", help="the measure that decides (mAP@3)")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="where the runs are")
    parser.add_argument("--dry-run", action="store_true", help="print the commands of the search")
    parser.add_argument("overrides", nargs="*", help="further words for train.py")
    arguments = parser.parse_intermixed_args()

    from tkpr.plan import plan

    words = [f"budget={arguments.budget}", *arguments.overrides]
    planned = plan(ROOT / "configs", arguments.table, words)
    if unknown := set(arguments.methods or []) - {run.method for run in planned}:
        known = ", ".join(run.method for run in planned)
        raise ValueError(f"no method {', '.join(sorted(unknown))} in this table: it has {known}")
    words = [f"experiment={arguments.table}", *words]
    for run in planned:
        if arguments.methods and run.method not in arguments.methods:
            continue
        grid = {"optimizer.lr": arguments.lr}
        if run.warms_up:
            grid["trainer.warmup_epochs"] = arguments.warmup
        if run.has_k:
            grid["loss.k"] = arguments.k
        sweep = [f"{key}={','.join(values)}" for key, values in grid.items()]
        train(*words, f"method={run.method}", "split.holdout=0.2", *sweep, dry=arguments.dry_run)
        if not arguments.dry_run:
            chosen = best(run.method, grid, arguments)
            train(*words, f"method={run.method}", *chosen, f"seed={','.join(arguments.seeds)}")


def train(*words: str, dry: bool = False) -> None:
    """Run train.py as a sweep, or say how."""
    print(shlex.join(["python", "train.py", "-m", *words]), flush=True)
    if not dry:
        subprocess.run([sys.executable, str(ROOT / "train.py"), "-m", *words], check=True)


def best(method: str, grid: dict[str, list[str]], arguments: argparse.Namespace) -> list[str]:
    """The words of the combination that is best on the held-out part after its last epoch."""
    from tkpr.results import LOWER_IS_BETTER, load_runs

    folder = arguments.runs / arguments.table / arguments.budget / method
    found = {}
    for run in load_runs(folder):
        if run.held_out and arguments.monitor in run.metrics:
            found[tuple(value_at(run.config, key) for key in grid)] = run.metrics[arguments.monitor]
    scored = []
    for values in itertools.product(*grid.values()):
        key = tuple(float(value) for value in values)
        if key not in found:
            told = ", ".join(f"{name}={value}" for name, value in zip(grid, values, strict=True))
            raise FileNotFoundError(f"no finished search of {method} with {told} in {folder}")
        scored.append((found[key], values))
    sign = -1 if arguments.monitor in LOWER_IS_BETTER else 1
    value, values = max(scored, key=lambda pair: sign * pair[0])  # the first among equals
    words = [f"{name}={value}" for name, value in zip(grid, values, strict=True)]
    print(f"{method}: {' '.join(words)}  {arguments.monitor} {value:.4f} held out", flush=True)
    return words


def value_at(config: dict, key: str) -> float:
    """The number at a dotted key."""
    for part in key.split("."):
        config = config[part]
    return float(config)  # type: ignore[arg-type]


if __name__ == "__main__":
    try:
        main()
    except (ValueError, FileNotFoundError) as error:
        sys.exit(f"error: {error}")
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)
