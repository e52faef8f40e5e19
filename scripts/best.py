"""Name the best run of a search, and the command that trains it on the whole training set.

python train.py -m experiment=search/k loss=tkpr_a2
python scripts/best.py runs/mosaic/tkpr_a2
"""

import shlex
from pathlib import Path

from tkpr.runs.script import Parser, script


def main() -> None:
    """Read the command line, rank the finished runs, print the winner's command."""
    parser = Parser(__doc__)
    parser.add_argument("folder", type=Path, nargs="+", help="where to look for finished runs")
    parser.add_argument("--monitor", default="mAP@3", help="the measure that decides (mAP@3)")
    arguments = parser.parse_args()

    from tkpr.metrics import find_measure
    from tkpr.reporting.rows import load_runs
    from tkpr.reporting.search import ranked

    measure, _ = find_measure(arguments.monitor)
    found = {run.folder: run for folder in arguments.folder for run in load_runs(folder)}
    runs = [run for run in found.values() if run.held_out]
    if not runs:
        raise FileNotFoundError(
            f"no finished run on a held-out split below {', '.join(map(str, arguments.folder))}: "
            "search with split.holdout=0.2 first"
        )
    candidates = ranked(runs, arguments.monitor)
    print(f"{arguments.monitor:>14}  epoch  settings")
    for one in candidates:
        print(f"{one.value:14.{measure.digits + 1}f}  {one.epoch:5}  {' '.join(one.run.overrides)}")
    best = candidates[0]
    command = [*training_words(best.run.overrides), *best.retrain_words]
    print(f"\nthe best, on the whole training set:\n{shlex.join(['python', 'train.py', *command])}")


def training_words(overrides: list[str]) -> list[str]:
    """The settings of a run without the ones that only a search needs."""
    search = ("experiment=search/", "split.holdout=", "trainer.patience=", "run_dir=")
    return [word for word in overrides if not word.lstrip("+").startswith(search)]


if __name__ == "__main__":
    script(main)
