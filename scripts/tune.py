"""Run a table with settings chosen for every row alike, on a held-out fifth of the training set.

For each row: all combinations of the learning rates and, where the row has them, of E_w and K are
trained on four fifths and tested on the fifth; the best is trained on everything, once per seed.
What is finished is skipped, so the same command goes on where it was stopped. At --budget paper
the values are those that the paper searches, and rows with their authors' recipe are run as it is.

python scripts/tune.py voc2012_mlml_ranking_resnet50 --budget features --seeds 0 1 2
python scripts/tune.py voc2012_mlml_ranking_resnet50 --budget features --dry-run
"""

import argparse
import itertools
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tkpr.runs.script import Parser, script

if TYPE_CHECKING:
    from tkpr.runs.plan import PlannedRun

ROOT = Path(__file__).resolve().parents[1]
BUDGETS = ("paper", "small", "features", "smoke")
LR, E_W, BATCH, K = "optimizer.lr", "trainer.warmup_epochs", "trainer.batch_size", "loss.k"
# by recipe, what the paper searches (Sec. 6, App. F); of K only Fig. 6 tells
CNN = {LR: "0.1 0.01 0.001 0.0001", E_W: "10 20 30 40 50 60", BATCH: "32 64 128"}
SPACES = {
    "paper_cnn": CNN,
    "paper_cnn_voc2007": CNN,
    "paper_swin": {LR: "5e-5 1e-6", E_W: "5 10 15 20 25"},
    "paper_mlml": {LR: "1e-4 1e-5", E_W: "2 4 6 8 10"},
}
SPACES = {recipe: space | {K: "2 4 6 8 10"} for recipe, space in SPACES.items()}
# by budget, ours, within its epochs and classes
OURS = {
    "small": {LR: "1e-4 3e-4 1e-3 3e-3", E_W: "1 2 3", K: "3 5 8"},
    "features": {LR: "3e-4 1e-3 3e-3 1e-2", E_W: "2 4 8", K: "3 5 8"},
    "smoke": {LR: "3e-3 1e-2 3e-2", E_W: "1 3", K: "3 5 8"},
}


def main() -> None:
    """Read the command line, search and retrain row by row."""
    parser = Parser(__doc__)
    parser.add_argument("table", help="one of the ten tables, see configs/experiment")
    parser.add_argument("--budget", default="paper", choices=BUDGETS)
    parser.add_argument("--lr", nargs="+", dest=LR, help="learning rates, for all rows")
    parser.add_argument("--warmup", nargs="+", dest=E_W, help="E_w, for rows that have it")
    parser.add_argument("--k", nargs="+", dest=K, help="K, for rows that have it")
    parser.add_argument("--batch-size", nargs="+", dest=BATCH, help="batch sizes, for all rows")
    parser.add_argument("--methods", nargs="+", help="only these rows")
    parser.add_argument("--seeds", nargs="+", default=["0", "1", "2"])
    parser.add_argument("--monitor", default="mAP@3", help="the measure that decides (mAP@3)")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="where the runs are")
    parser.add_argument("--dry-run", action="store_true", help="print the commands of the search")
    parser.add_argument("overrides", nargs="*", help="further words for train.py")
    arguments = parser.parse_intermixed_args()

    from tkpr.runs.plan import cut, plan

    words = [f"budget={arguments.budget}", *arguments.overrides]
    planned = plan(ROOT / "configs", arguments.table, words)
    if swept := cut(arguments.overrides)[1]:
        raise ValueError(f"{next(iter(swept))} has several values: only the options are searched")
    if unknown := set(arguments.methods or []) - {run.method for run in planned}:
        known = ", ".join(run.method for run in planned)
        raise ValueError(f"no method {', '.join(sorted(unknown))} in this table: it has {known}")
    words = [f"experiment={arguments.table}", *words]
    for run in planned:
        if arguments.methods and run.method not in arguments.methods:
            continue
        if run.why_not:
            print(f"{run.row} {run.why_not}: not at this budget", file=sys.stderr)
            continue
        tune(run, [*words, f"method={run.method}"], arguments)


def tune(run: "PlannedRun", words: list[str], arguments: argparse.Namespace) -> None:
    """Search for one row, then train it on everything with what was found."""
    grid, chosen = grid_of(run, arguments), []
    if grid:
        sweep = [f"{key}={','.join(values)}" for key, values in grid.items()]
        done = scores(run, grid, arguments)
        if arguments.dry_run or any(key not in done for key in combinations(grid).values()):
            train(*words, "split.holdout=0.2", *sweep, dry=arguments.dry_run)
    if arguments.dry_run:
        return
    if grid:
        chosen = best(run, grid, arguments)
    fixed = {key: [value] for key, _, value in (word.partition("=") for word in chosen)}
    finished = {str(one.seed) for _, one in matching(run, fixed, arguments, held_out=False)}
    if not finished.issuperset(arguments.seeds):
        train(*words, *chosen, f"seed={','.join(arguments.seeds)}")


def grid_of(run: "PlannedRun", arguments: argparse.Namespace) -> dict[str, list[str]]:
    """The values to search for a row: those of the command line, else those of its budget."""
    at_paper = arguments.budget == "paper"
    space = SPACES.get(run.recipe, {}) if at_paper else OURS[arguments.budget]
    grid = {}
    for key in (LR, BATCH, E_W, K):
        values = getattr(arguments, key) or space.get(key, "").split()
        if values and (key != E_W or run.warms_up) and (key != K or run.has_k):
            grid[key] = values
    if too_long := [value for value in grid.get(E_W, []) if int(value) >= run.epochs]:
        raise ValueError(
            f"E_w = {too_long[0]} leaves none of {run.epochs} epochs to the loss of {run.row}: "
            "name smaller ones with --warmup"
        )
    return grid


def train(*words: str, dry: bool = False) -> None:
    """Run train.py as a sweep, or say how."""
    print(shlex.join(["python", "train.py", "-m", *words]), flush=True)
    if not dry:
        subprocess.run([sys.executable, str(ROOT / "train.py"), "-m", *words], check=True)


def combinations(grid: dict[str, list[str]]) -> dict[tuple[str, ...], tuple[float, ...]]:
    """All combinations of a grid, as words and as numbers."""
    return {values: tuple(map(float, values)) for values in itertools.product(*grid.values())}


def matching(
    run: "PlannedRun", grid: dict[str, list[str]], arguments: argparse.Namespace, *, held_out: bool
):
    """The finished runs that differ from a row by the grid alone, with their values of it."""
    from tkpr.reporting.rows import load_runs

    folder = arguments.runs / arguments.table / arguments.budget / run.method
    expected = run.settings | ({"split.holdout": 0.2} if held_out else {})
    found = []
    for other in load_runs(folder) if folder.is_dir() else []:
        told = other.settings
        differing = {key for key in {*told, *expected} if told.get(key) != expected.get(key)}
        if other.held_out == held_out and differing <= set(grid):
            found.append((tuple(float(told[key]) for key in grid), other))
    wanted = combinations(grid).values()
    return [(values, other) for values, other in found if values in wanted]


def scores(run: "PlannedRun", grid: dict[str, list[str]], arguments: argparse.Namespace) -> dict:
    """What the finished combinations reach on the held-out part after their last epoch."""
    found: dict = {}
    for values, other in matching(run, grid, arguments, held_out=True):
        if arguments.monitor not in other.metrics:
            raise ValueError(f"{other.folder} has no {arguments.monitor}: name another --monitor")
        if values in found:
            raise ValueError(
                f"{run.method} was searched twice with the same settings: see {other.folder}"
            )
        found[values] = other.metrics[arguments.monitor]
    return found


def best(run: "PlannedRun", grid: dict[str, list[str]], arguments: argparse.Namespace) -> list[str]:
    """The words of the combination that is best on the held-out part."""
    from tkpr.metrics import lower_is_better

    found, scored = scores(run, grid, arguments), []
    for values, numbers in combinations(grid).items():
        if numbers not in found:
            told = ", ".join(f"{name}={value}" for name, value in zip(grid, values, strict=True))
            raise FileNotFoundError(
                f"no finished search of {run.method} with {told} in {arguments.runs}"
            )
        scored.append((found[numbers], values))
    sign = -1 if lower_is_better(arguments.monitor) else 1
    value, values = max(scored, key=lambda pair: sign * pair[0])  # the first among equals
    words = [f"{name}={value}" for name, value in zip(grid, values, strict=True)]
    print(f"{run.method}: {' '.join(words)}  {arguments.monitor} {value:.4f} held out", flush=True)
    return words


if __name__ == "__main__":
    try:
        script(main)
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)
