"""Analyse the runs of tables: what is due to the loss, to its settings, to the seed?

Prints what the searches found on held-out images, the shares of the variance, and what reporting
the best epoch of each measure would add, as some public code does. All need the runs of
scripts/tune.py: final ones and those of the search. With --best 0.25 only the best quarter of each
search counts as the spread over settings. With --by it shows a sweep instead, the values of the
last setting side by side, for instance two draws of the labels (scripts/tune.py --again).

python scripts/analyse.py voc2012_mlml_ranking_resnet50 --budget features
python scripts/analyse.py coco_mlml_ranking_resnet50 coco_mlml_sota_resnet50 --budget finetune
python scripts/analyse.py coco_mlc_ranking_resnet101 --budget features --measures mAP@3 ranking_loss
python scripts/analyse.py voc2012_mlml_decay --budget features --by optimizer.weight_decay
python scripts/analyse.py voc2012_mlml_ranking_resnet50 --budget features --by labels.seed
"""

import argparse
import itertools
from pathlib import Path
from typing import TYPE_CHECKING

from tkpr.runs.script import Parser, output_folder, script

if TYPE_CHECKING:
    import pandas as pd

    from tkpr.reporting.rows import Run

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    """Read the command line, print and write what was asked for."""
    parser = Parser(__doc__)
    parser.add_argument("tables", nargs="+", help="tables or sweeps, see configs/experiment")
    parser.add_argument("--budget", default="paper", help="a file of configs/budget (paper)")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="where the runs are")
    parser.add_argument("--measures", nargs="+", default=["mAP@3"], help="default: mAP@3")
    parser.add_argument("--best", type=float, default=1.0, help="share of each search (1)")
    parser.add_argument("--by", nargs="+", help="show a sweep by these settings")
    parser.add_argument("--output", type=output_folder, default="tables", help="where to write")
    arguments = parser.parse_args()
    if not 0 < arguments.best <= 1:
        raise ValueError(f"--best must be above 0 and at most 1; got {arguments.best:g}")

    import pandas as pd

    from tkpr import atomic
    from tkpr.metrics import find_measure
    from tkpr.reporting.formats import frame_to_csv
    from tkpr.reporting.paper_numbers import table_number
    from tkpr.reporting.rows import load_runs
    from tkpr.runs.plan import find_budget

    find_budget(ROOT / "configs", arguments.budget)
    for measure in arguments.measures:
        find_measure(measure)
    runs, found = load_runs(arguments.runs), []
    for name in arguments.tables:
        frames = analyse(select(runs, name, arguments), arguments)
        for frame in frames.values():
            frame.insert(0, "table", table_number(name))
        found.append(frames)
    one = len(arguments.tables) == 1
    stem = f"{arguments.tables[0]}-{arguments.budget}" if one else arguments.budget
    for kind in found[0]:
        table = pd.concat([frames[kind] for frames in found], ignore_index=True)
        print(f"{kind}\n{table.to_string(index=False, float_format='%.4f')}\n")
        file = arguments.output / f"{stem}-{kind}.csv"
        atomic.write(file, frame_to_csv(table, digits=4))
        print(f"written to {file}\n")


def select(runs: list["Run"], table: str, arguments: argparse.Namespace) -> list["Run"]:
    """Return the finished runs of a table, all of which must have the measures asked for."""
    found = [
        run
        for run in runs
        if run.config.get("table") == table and run.config.get("budget") == arguments.budget
    ]
    if not found:
        raise FileNotFoundError(
            f"no finished runs of {table} at budget {arguments.budget} in {arguments.runs}: "
            f"first python scripts/tune.py {table} --budget {arguments.budget}"
        )
    for run, measure in itertools.product(found, arguments.measures):
        if measure not in run.metrics:
            raise ValueError(f"{run.folder} has no {measure}: name another with --measures")
    return found


def analyse(runs: list["Run"], arguments: argparse.Namespace) -> dict[str, "pd.DataFrame"]:
    """Return what there is to say of one table, by the names of the files."""
    import pandas as pd

    from tkpr.reporting import analysis
    from tkpr.reporting.rows import on_searched_labels

    if arguments.by:
        parts = [
            analysis.by_settings(runs, arguments.by, measure).assign(measure=measure)
            for measure in arguments.measures
        ]
        return {"sweep": analysis.side_by_side(pd.concat(parts), arguments.by[-1])}
    runs, lines = on_searched_labels(runs), []
    for measure in arguments.measures:
        found = analysis.variance_shares(runs, measure, best=arguments.best)
        shares = {part: found.share(part) for part in ("loss", "setting", "seed")}
        lines.append({"measure": measure, **shares, "rows": found.rows, "runs": len(runs)})
    chosen = analysis.epoch_choice(runs, arguments.measures)
    return {
        "search": analysis.searches(runs, arguments.measures[0]),
        "variance": pd.DataFrame(lines),
        "epoch_choice": chosen,
        "epoch_gains": analysis.epoch_gains(chosen),
    }


if __name__ == "__main__":
    script(main)
