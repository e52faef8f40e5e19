"""Analyse the runs of a table: what is due to the loss, to its settings, to the seed?

Prints what the searches found on held-out images, the shares of the variance, and what reporting
the best epoch of each measure would add, as some public code does. All need the runs of
scripts/tune.py: final ones and those of the search. With --best 0.25 only the best quarter of each
search counts as the spread over settings. With --by it lists the values of a sweep instead, by the
settings that were swept, for instance by the draw of the labels (scripts/tune.py --again).

python scripts/analyse.py voc2012_mlml_ranking_resnet50 --budget features
python scripts/analyse.py coco_mlc_ranking_resnet101 --budget features --measures mAP@3 ranking_loss
python scripts/analyse.py voc2012_mlml_decay --budget features --by optimizer.weight_decay
python scripts/analyse.py voc2012_mlml_ranking_resnet50 --budget features --by labels.seed
"""

import itertools
from pathlib import Path

from tkpr.runs.script import Parser, output_folder, script

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    """Read the command line, print and write what was asked for."""
    parser = Parser(__doc__)
    parser.add_argument("table", help="one of the tables or sweeps, see configs/experiment")
    parser.add_argument("--budget", default="paper", help="a file of configs/budget (paper)")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="where the runs are")
    parser.add_argument("--measures", nargs="+", default=["mAP@3"], help="default: mAP@3")
    parser.add_argument("--best", type=float, default=1.0, help="share of each search (1)")
    parser.add_argument("--by", nargs="+", help="list a sweep by these settings")
    parser.add_argument("--output", type=output_folder, default="tables", help="where to write")
    arguments = parser.parse_args()
    if not 0 < arguments.best <= 1:
        raise ValueError(f"--best must be above 0 and at most 1; got {arguments.best:g}")

    import pandas as pd

    from tkpr import atomic
    from tkpr.metrics import find_measure
    from tkpr.reporting.analysis import by_settings, epoch_choice, searches, variance_shares
    from tkpr.reporting.formats import frame_to_csv
    from tkpr.reporting.rows import load_runs, on_searched_labels
    from tkpr.runs.plan import find_budget

    find_budget(ROOT / "configs", arguments.budget)
    for measure in arguments.measures:
        find_measure(measure)
    runs = [
        run
        for run in load_runs(arguments.runs)
        if run.config.get("table") == arguments.table
        and run.config.get("budget") == arguments.budget
    ]
    if not runs:
        raise FileNotFoundError(
            f"no finished runs of {arguments.table} at budget {arguments.budget} in "
            f"{arguments.runs}: first python scripts/tune.py {arguments.table} "
            f"--budget {arguments.budget}"
        )
    for run, measure in itertools.product(runs, arguments.measures):
        if measure not in run.metrics:
            raise ValueError(f"{run.folder} has no {measure}: name another with --measures")
    tables = {}
    if arguments.by:
        parts = [
            by_settings(runs, arguments.by, measure).assign(measure=measure)
            for measure in arguments.measures
        ]
        tables["sweep"] = pd.concat(parts)
    else:
        runs = on_searched_labels(runs)
        lines = []
        for measure in arguments.measures:
            found = variance_shares(runs, measure, best=arguments.best)
            shares = {part: found.share(part) for part in ("loss", "setting", "seed")}
            counts = {"rows": found.rows, "searched": found.searched}
            lines.append({"measure": measure, **shares, **counts})
        tables["search"] = searches(runs, arguments.measures[0])
        minutes = tables["search"]["seconds"].sum() / 60
        print(f"{len(runs)} runs of {minutes:.0f} minutes in all\n")
        tables["variance"] = pd.DataFrame(lines)
        tables["epoch_choice"] = epoch_choice(runs, arguments.measures)
    for kind, table in tables.items():
        print(f"{kind}\n{table.to_string(index=False, float_format='%.4f')}\n")
        file = arguments.output / f"{arguments.table}-{arguments.budget}-{kind}.csv"
        atomic.write(file, frame_to_csv(table))
        print(f"written to {file}\n")


if __name__ == "__main__":
    script(main)
