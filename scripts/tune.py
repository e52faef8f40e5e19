"""Run a table with settings chosen for every row alike, on a held-out fifth of the training set.

For each row: all combinations of the values that its budget, recipe and method name (plan.search
in configs/) are trained on four fifths and tested on the fifth; the best is trained on everything,
once per seed. Where a budget names plan.tries, or --tries is given, every row gets that many of its
combinations: half of them drawn at random, then neighbours of the best, which may lie beyond the
values named for learning rate, weight decay, temperature and a competitor's own parameter. With
trainer.patience=5 every run of the search stops early, and the best is trained for as many epochs
as it took. With --again the best is also trained with other words, such as another draw of the
labels. Values named on the command line replace those of the files. Finished runs are skipped, so
the same command continues where it was stopped; those of the search keep no last.ckpt. At --budget
paper the values are the ones that the paper searches (Sec. 6, App. E).

python scripts/tune.py voc2012_mlml_ranking_resnet50 --budget features --seeds 0 1 2
python scripts/tune.py voc2012_mlml_ranking_resnet50 --budget features loss.k=5 optimizer.lr=1,2
python scripts/tune.py voc2012_mlml_ranking_resnet50 --budget features --tries 12
python scripts/tune.py voc2012_mlml_ranking_resnet50 --budget features --again labels.seed=1
python scripts/tune.py voc2012_mlml_ranking_resnet50 --budget features --dry-run
"""

import argparse
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tkpr.runs.script import Parser, positive_int, script

if TYPE_CHECKING:
    from tkpr.reporting.rows import Run
    from tkpr.reporting.search import Values
    from tkpr.runs.plan import PlannedRun

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    """Read the command line, search and retrain row by row."""
    parser = Parser(__doc__)
    parser.add_argument("table", help="a table, see configs/experiment")
    parser.add_argument("--budget", default="paper", help="a file of configs/budget (paper)")
    parser.add_argument("--methods", nargs="+", default=[], help="only these rows")
    parser.add_argument("--seeds", nargs="+", default=["0", "1", "2"], help="of the final runs")
    parser.add_argument("--monitor", default="mAP@3", help="the measure that decides (mAP@3)")
    parser.add_argument(
        "--tries", type=positive_int, help="combinations per row (the budget's, or all)"
    )
    parser.add_argument(
        "--again",
        action="append",
        default=[],
        metavar="SETTING",
        help="train the best once more with this, such as labels.seed=1",
    )
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="where the runs are")
    parser.add_argument("--dry-run", action="store_true", help="print the commands of the search")
    parser.add_argument("overrides", nargs="*", help="settings for train.py, such as loss.k=3,5")
    arguments = parser.parse_intermixed_args()
    for option in ("methods", "seeds"):  # settings may follow a list
        words = getattr(arguments, option)
        arguments.overrides += [word for word in words if "=" in word]
        setattr(arguments, option, [word for word in words if "=" not in word])

    from tkpr.metrics import find_measure
    from tkpr.runs.plan import find_budget, plan, split_sweep

    find_measure(arguments.monitor)
    find_budget(ROOT / "configs", arguments.budget)
    first, swept = split_sweep(arguments.overrides)
    if "seed" in swept or not arguments.seeds:
        raise ValueError("name several seeds with --seeds, which the final runs have")
    for word in first:  # not every row has every setting of a loss: a search of one value
        key, _, value = word.partition("=")
        if key.startswith("loss."):
            swept.setdefault(key, [value])
    fixed = [word for word in first if word.partition("=")[0] not in swept]
    words = [f"budget={arguments.budget}", *fixed]
    planned = plan(ROOT / "configs", arguments.table, words, search=swept)
    if unknown := set(arguments.methods) - {run.method for run in planned}:
        known = ", ".join(run.method for run in planned)
        raise ValueError(f"no method {', '.join(sorted(unknown))} in this table: it has {known}")
    words = [f"experiment={arguments.table}", *words]
    for row in planned:
        if arguments.methods and row.method not in arguments.methods:
            continue
        if row.why_not:
            print(f"{row.row} {row.why_not}: not at this budget", file=sys.stderr)
            continue
        tune(row, [*words, f"method={row.method}"], arguments)


def tune(row: "PlannedRun", words: list[str], arguments: argparse.Namespace) -> None:
    """Search for one row, then train it on everything with what was found."""
    from tkpr.reporting.search import (
        HOLDOUT,
        at_an_edge,
        chosen_words,
        grid_words,
        matching,
        superseded,
        untried,
        winner,
    )

    monitor = arguments.monitor
    grid, chosen, count = row.search, [], arguments.tries or row.tries
    diverged: set[Values] = set()
    for value in grid.get("trainer.warmup_epochs", []):
        if int(value) >= row.epochs:
            raise ValueError(
                f"E_w = {value} leaves none of {row.epochs} epochs to the loss of {row.row}: "
                "name smaller ones, such as trainer.warmup_epochs=0,1"
            )
    final = [word for word in words if not word.startswith("trainer.patience=")]
    searching = [*words, f"split.holdout={HOLDOUT}"]
    if not arguments.dry_run:
        for held_out, named in ((True, searching), (False, final)):
            check_data(matching(row, grid, finished(row, arguments), held_out=held_out), named)
    if grid or len(final) < len(words):
        sweep = [f"{key}={','.join(values)}" for key, values in grid.items()]
        if arguments.dry_run:
            train(*searching, *sweep, dry=True)
        elif count:
            tried: list[Values] = []
            while settings := untried(
                row, grid, finished(row, arguments), monitor, count, diverged
            ):
                if settings == tried:  # other workers have the rest
                    break
                for values in settings:
                    try:
                        train_setting(*searching, *grid_words(grid, values))
                    except FloatingPointError as error:
                        print(f"counts as the worst: {error}", flush=True)
                        diverged.add(values)
                tried = settings
                drop_checkpoints(matching(row, grid, finished(row, arguments), held_out=True))
        elif untried(row, grid, finished(row, arguments), monitor):
            train(*searching, *sweep)
            drop_checkpoints(matching(row, grid, finished(row, arguments), held_out=True))
    if arguments.dry_run:
        return
    if grid or len(final) < len(words):
        best = winner(row, grid, finished(row, arguments), monitor, count, diverged)
        chosen = chosen_words(best, grid)
        print(
            f"{row.method}: {' '.join(chosen)}  {monitor} {best.value:.4f} held out",
            flush=True,
        )
        for key in at_an_edge(best, grid):
            print(f"note: the best {key} of {row.method} is at the edge of its grid", flush=True)
        for folder in superseded(row, best, grid, finished(row, arguments), arguments.again):
            print(f"note: no longer the best of {row.method}, delete before tables.py: {folder}")
    settled = {key: [value] for key, _, value in (word.partition("=") for word in chosen)}
    done = {
        str(run.seed) for _, run in matching(row, settled, finished(row, arguments), held_out=False)
    }
    seeds = f"seed={','.join(arguments.seeds)}"
    if not done.issuperset(arguments.seeds):
        train(*final, *chosen, seeds)
    if arguments.again:  # finished runs are skipped
        train(*final, *chosen, *arguments.again, seeds)


def drop_checkpoints(found: list[tuple["Values", "Run"]]) -> None:
    """Delete the states of finished runs of a search: no one resumes them, and they fill disks."""
    from tkpr.training import state

    for _, run in found:
        state.path(run.folder).unlink(missing_ok=True)


def check_data(found: list[tuple["Values", "Run"]], words: list[str]) -> None:
    """Refuse the runs of an earlier call if the first of them is not of the data there are now."""
    from tkpr.runs.compose import compose
    from tkpr.runs.run import check_present_data

    for _, run in found[:1]:
        if (run.folder / "run.json").exists():
            check_present_data(compose(ROOT / "configs", words), run.folder)


def finished(row: "PlannedRun", arguments: argparse.Namespace) -> list["Run"]:
    """The finished runs of a row, searched or final."""
    from tkpr.reporting.rows import load_runs

    folder = arguments.runs / arguments.table / arguments.budget / row.method
    return load_runs(folder) if folder.is_dir() else []


def train(*words: str, dry: bool = False) -> None:
    """Do what train.py does with a sweep, or say how; in this process, which spares its start."""
    print(shlex.join(["python", "train.py", "-m", *words]), flush=True)
    if dry:
        return
    from tkpr.runs import sweep

    given, sys.argv = sys.argv, [str(ROOT / "train.py"), "-m", *words]
    try:
        sweep.train(ROOT / "configs")
    finally:
        sys.argv = given


def train_setting(*words: str) -> None:
    """Do what train.py does with one run."""
    from tkpr.runs.sweep import train_here

    print(shlex.join(["python", "train.py", *words]), flush=True)
    train_here(ROOT / "configs", words)


if __name__ == "__main__":
    script(main)
