"""Gather the tables and figures of all finished runs into one HTML page that needs no network.

Runs of no table get a part each: measures, precision and recall per class, the labels most often
confused and the most wrong images.

python scripts/report.py --runs runs --output report.html
"""

from pathlib import Path

from tkpr.runs.script import Parser, output_file, script

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    """Read the command line, build the page, write it."""
    parser = Parser(__doc__)
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="where the runs are")
    parser.add_argument("--output", type=output_file, default="report.html", help="the page")
    parser.add_argument("--title", default="Top-K Pairwise Ranking: results")
    arguments = parser.parse_args()

    from tkpr import atomic
    from tkpr.reporting.html import alone, build_report, sections
    from tkpr.reporting.rows import load_runs
    from tkpr.runs.plan import load_budgets

    runs = load_runs(arguments.runs)
    if not sections(runs) and not alone(runs):
        raise FileNotFoundError(
            f"no finished runs in {arguments.runs}: first, for instance, "
            "python train.py -m experiment=voc2012_mlml_ranking_resnet50 budget=smoke"
        )
    budgets = load_budgets(ROOT / "configs")
    atomic.write(arguments.output, build_report(runs, budgets, title=arguments.title))
    print(f"written: {arguments.output}")


if __name__ == "__main__":
    script(main)
