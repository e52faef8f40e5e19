"""Gather the tables and figures of all finished runs into one HTML page that needs no network.

python scripts/report.py --runs runs --output report.html
"""

import argparse
import sys
from pathlib import Path


def main() -> None:
    """Read the command line, build the page, write it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="where the runs are")
    parser.add_argument("--output", type=Path, default=Path("report.html"), help="the page")
    parser.add_argument("--title", default="Top-K Pairwise Ranking: results")
    arguments = parser.parse_args()

    from tkpr import atomic
    from tkpr.reporting.html import build_report, sections
    from tkpr.reporting.rows import load_runs

    runs = load_runs(arguments.runs)
    if not sections(runs):
        raise FileNotFoundError(
            f"no finished runs of a table in {arguments.runs}: first, for instance, "
            "python train.py -m experiment=voc2012_mlml_ranking_resnet50 budget=smoke"
        )
    atomic.write(arguments.output, build_report(runs, title=arguments.title))
    print(f"written: {arguments.output}")


if __name__ == "__main__":
    try:
        main()
    except (ValueError, FileNotFoundError) as error:
        sys.exit(f"error: {error}")
