"""Collect finished runs into a table, of the paper or another, as Markdown, LaTeX, HTML and CSV.

python scripts/tables.py voc2012_mlml_ranking_resnet50 --budget features --paper
python scripts/tables.py all --runs runs --output tables
python scripts/tables.py beyond_voc2012_mlml --budget features
python scripts/tables.py coco_mlc_sota_swin --dry-run seed=0,1,2

Where TKPR is better, level or worse than the best competitor of each measure (paired bootstrap) is
written to verdicts-<budget>.csv, a line per row of TKPR in all the tables asked for.
"""

import argparse
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tkpr.runs.script import Parser, output_folder, script

if TYPE_CHECKING:
    import pandas as pd

    from tkpr.runs.plan import Budget

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    """Read the command line, then list what is to do or write what was found."""
    parser = Parser(__doc__)
    parser.add_argument(
        "table",
        help="a table of configs/experiment, or all of the paper's; --dry-run: any experiment",
    )
    parser.add_argument("--budget", default="paper", help="a file of configs/budget (paper)")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="where the runs are")
    parser.add_argument(
        "--paper", action="store_true", help="add the paper's values and ours minus them"
    )
    parser.add_argument("--output", type=output_folder, default="tables", help="where to write")
    parser.add_argument("--no-significance", action="store_true", help="no bootstrap: quicker")
    parser.add_argument("--dry-run", action="store_true", help="list the runs that it takes")
    parser.add_argument(
        "overrides", nargs="*", help="for --dry-run, such as seed=0,1,2 split.limit=100"
    )
    arguments = parser.parse_intermixed_args()

    from tkpr.reporting.paper_numbers import table_names
    from tkpr.runs.plan import find_budget, tables

    budget = find_budget(ROOT / "configs", arguments.budget)
    names = table_names() if arguments.table == "all" else [arguments.table]
    known = tables(ROOT / "configs")
    if not arguments.dry_run and names[0] not in known:
        raise ValueError(f"no table {names[0]!r}: choose all or one of {', '.join(known)}")
    if arguments.paper and names[0] not in table_names():
        raise ValueError(f"{names[0]} is not in the paper: leave out --paper")
    found = []
    for name in names:
        if arguments.dry_run:
            list_runs(name, arguments)
        else:
            found.append(write_table(name, budget, arguments))
    if any(not one.empty for one in found):
        write_verdicts(found, arguments)


def list_runs(name: str, arguments: argparse.Namespace) -> None:
    """Print every run of a table with what it costs, and whether it is done."""
    from tkpr.reporting.rows import load_runs, of_table
    from tkpr.runs.plan import plan

    words = [f"budget={arguments.budget}", *arguments.overrides]
    planned = plan(ROOT / "configs", name, words)
    runs = load_runs(arguments.runs) if arguments.runs.is_dir() else []
    found = [run.row for run in of_table(runs, name, arguments.budget)]
    print(f"{name}, budget {arguments.budget}")
    head = ("runs", "epochs", "images", "all together")
    print(f"{'method':<12}{'row':<10}{head[0]:>6}{head[1]:>8}{head[2]:>10}{head[3]:>18}  state")
    total = 0
    for run in planned:
        if run.why_not:
            print(f"{run.method:<12}{run.row:<10}{'':>42}  {run.why_not}: not at this budget")
            continue
        work = run.runs * run.epochs * run.images if run.images is not None else None
        total += work or 0
        finished = found.count(run.row)
        state = f"{finished} finished" if finished else "to run"
        cells = ["?" if value is None else f"{value:,}" for value in (run.images, work)]
        print(
            f"{run.method:<12}{run.row:<10}{run.runs:>6}{run.epochs:>8}{cells[0]:>10}"
            f"{cells[1]:>18}  {state}"
        )
    unknown = any(run.images is None for run in planned if not run.why_not)
    some = " (without data sets of unknown size)" if unknown else ""
    print(f"{'runs x epochs x images':<36}{total:>18,}{some}")
    command = ["python", "train.py", "-m", f"experiment={name}", *words]
    print(f"{shlex.join(command)}\n")


def write_table(name: str, budget: "Budget", arguments: argparse.Namespace) -> "pd.DataFrame":
    """Print a table, write it in four formats, and return where TKPR stands in it."""
    from tkpr import atomic
    from tkpr.reporting import formats, tables
    from tkpr.reporting.rows import load_runs

    runs = load_runs(arguments.runs)
    table = tables.collect(runs, name, budget, significance=not arguments.no_significance)
    if not any(table.rows.values()):
        others = {str(run.config["budget"]) for run in runs if run.config.get("table") == name}
        where = f"; there are some at --budget {' or '.join(sorted(others))}" if others else ""
        print(f"no finished runs of {name} at budget {arguments.budget}{where}", file=sys.stderr)
    writers = {
        "md": formats.to_markdown,
        "tex": formats.to_latex,
        "csv": formats.to_csv,
        "html": formats.to_page,
    }
    arguments.output.mkdir(parents=True, exist_ok=True)
    for ending, write in writers.items():
        text = write(table, paper=arguments.paper)
        atomic.write(arguments.output / f"{name}-{arguments.budget}.{ending}", text)
    print(f"# {name}\n\n{formats.to_markdown(table, paper=arguments.paper)}")
    print(f"written to {arguments.output}/{name}-{arguments.budget}.md .tex .csv .html")
    return tables.verdicts(table)


def write_verdicts(found: list["pd.DataFrame"], arguments: argparse.Namespace) -> None:
    """Print where TKPR leads, is level and falls behind, and write it as CSV."""
    import pandas as pd

    from tkpr import atomic
    from tkpr.reporting.formats import frame_to_csv

    verdicts = pd.concat(found, ignore_index=True)
    file = arguments.output / f"verdicts-{arguments.budget}.csv"
    atomic.write(file, frame_to_csv(verdicts, digits=4))
    print(f"\n{verdicts.to_string(index=False, float_format='%.4f')}\n\nwritten to {file}")


if __name__ == "__main__":
    script(main)
