"""Name the best run of a search, and the command that trains it on the whole training set.

python train.py -m experiment=search_k loss=tkpr_a2
python scripts/best.py runs/mosaic/tkpr_a2
"""

import csv
import json
import shlex
from pathlib import Path

from tkpr.runs.script import Parser, script


def main() -> None:
    """Read the command line, rank the finished runs, print the winner's command."""
    parser = Parser(__doc__)
    parser.add_argument("folder", type=Path, nargs="+", help="where to look for finished runs")
    parser.add_argument("--monitor", default="mAP@3", help="the measure that decides (mAP@3)")
    arguments = parser.parse_args()
    runs = held_out_runs(arguments.folder)
    if not runs:
        raise FileNotFoundError(
            f"no finished run on a held-out split below {', '.join(map(str, arguments.folder))}: "
            f"search with split.holdout=0.2 first"
        )
    sign = -1 if arguments.monitor == "ranking_loss" else 1
    scored = sorted((-sign * best_epoch(run, arguments.monitor)[1], str(run), run) for run in runs)
    print(f"{arguments.monitor:>14}  epoch  settings")
    for _, _, run in scored:
        epoch, value = best_epoch(run, arguments.monitor)
        print(f"{value:14.4f}  {epoch:5}  {' '.join(read(run)['overrides'])}")
    print(f"\nthe best, on the whole training set:\n{retrain(read(scored[0][2])['overrides'])}")


def held_out_runs(folders: list[Path]) -> list[Path]:
    """List the folders of finished runs that were tested on held-out training images."""
    found = sorted({file.parent for folder in folders for file in folder.rglob("metrics.json")})
    return [run for run in found if read(run)["config"]["split"]["holdout"]]


def read(run: Path) -> dict:
    """Return what metrics.json holds."""
    return json.loads((run / "metrics.json").read_text())


def best_epoch(run: Path, monitor: str) -> tuple[int, float]:
    """Return the epoch with the best value of the measure, and that value."""
    with (run / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    if monitor not in rows[0]:
        raise ValueError(f"{run} has no measure {monitor!r}; it has {', '.join(rows[0])}")
    sign = -1 if monitor == "ranking_loss" else 1
    row = max(rows, key=lambda row: sign * float(row[monitor]))
    return int(row["epoch"]), float(row[monitor])


def retrain(overrides: list[str]) -> str:
    """Return the command of a run without what belongs to the search alone."""
    search = ("experiment=search_", "split.holdout=", "trainer.patience=", "run_dir=")
    kept = [word for word in overrides if not word.lstrip("+").startswith(search)]
    return shlex.join(["python", "train.py", *kept])


if __name__ == "__main__":
    script(main)
