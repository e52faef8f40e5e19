"""Analyse the runs of a table: what is due to the loss, to its settings, to the seed?

Prints the shares of the variance, and what reporting the best epoch of each measure would add, as
some public code does. Both need the runs of scripts/tune.py: final ones and those of the search.

python scripts/analyse.py voc2012_mlml_ranking_resnet50 --budget features
python scripts/analyse.py coco_mlc_ranking_resnet101 --budget features --measures mAP@3 ranking_loss
"""

from pathlib import Path

from tkpr.runs.script import Parser, output_folder, script

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    """Read the command line, print and write both analyses."""
    parser = Parser(__doc__)
    parser.add_argument("table", help="one of the ten tables, see configs/experiment")
    parser.add_argument("--budget", default="paper", help="a file of configs/budget (paper)")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="where the runs are")
    parser.add_argument("--measures", nargs="+", default=["mAP@3"], help="default: mAP@3")
    parser.add_argument("--output", type=output_folder, default="tables", help="where to write")
    arguments = parser.parse_args()

    import pandas as pd

    from tkpr import atomic
    from tkpr.metrics import find_measure
    from tkpr.reporting.analysis import epoch_choice, variance_shares
    from tkpr.reporting.rows import load_runs
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
    lines = []
    for measure in arguments.measures:
        found = variance_shares(runs, measure)
        parts = {part: found.share(part) for part in ("loss", "setting", "seed")}
        lines.append({"measure": measure, **parts, "rows": found.rows, "searched": found.searched})
    shares, choice = pd.DataFrame(lines), epoch_choice(runs, arguments.measures)
    name = f"{arguments.table}-{arguments.budget}"
    for kind, table in (("variance", shares), ("epoch_choice", choice)):
        print(f"{kind}\n{table.to_string(index=False, float_format='%.4f')}\n")
        text = table.to_csv(index=False, float_format="%.6f")
        atomic.write(arguments.output / f"{name}-{kind}.csv", text)
    print(f"written to {arguments.output}/{name}-variance.csv and -epoch_choice.csv")


if __name__ == "__main__":
    script(main)
