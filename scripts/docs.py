"""Print the tables of README.md, RESULTS.md and docs/ from the CSV files in results/.

python scripts/docs.py            rewrite what differs
python scripts/docs.py --check    only name it; the exit code is 1 if something does

A table stands between two comments; the first one says in YAML what to print:

<!-- table
results: voc2012_mlml_ranking_resnet50-features     # a file of scripts/tables.py, or {title: file}
columns: [mAP@3, ranking_loss]
rows: [L_rank, TKPR_a2]                             # default: all of them
paper: true                                         # the paper's number beside each of ours
-->
<!-- end of table -->

``csv: performance`` instead of ``results`` prints any other file as it is.
"""

import re
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from tkpr.runs.script import Parser, script

ROOT = Path(__file__).resolve().parents[1]
TABLE = re.compile(r"(<!-- table\n(.*?)-->\n).*?(<!-- end of table -->)", re.DOTALL)


def main() -> None:
    """Read the command line; rewrite the files, or compare them."""
    parser = Parser(__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing")
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout")
    arguments = parser.parse_args()
    if not (arguments.root / "results").is_dir():
        raise FileNotFoundError(f"no folder {arguments.root / 'results'}: this needs a checkout")
    stale = []
    for page in pages(arguments.root):
        old = page.read_text()
        new = render(old, arguments.root / "results")
        if new != old:
            stale.append(str(page.relative_to(arguments.root)))
            if not arguments.check:
                page.write_text(new)
    if stale and arguments.check:
        raise ValueError(f"not as in results/: {', '.join(stale)}; run python scripts/docs.py")
    print(f"rewritten: {', '.join(stale)}" if stale else "all tables are as in results/")


def pages(root: Path) -> list[Path]:
    """The files that may hold tables."""
    return [root / "README.md", root / "RESULTS.md", *sorted(root.glob("docs/*.md"))]


def render(text: str, folder: Path) -> str:
    """Print the tables of a page anew.

    Args:
        text: the page.
        folder: where the CSV files are.
    """
    return TABLE.sub(lambda found: f"{found[1]}\n{table(found[2], folder)}\n\n{found[3]}", text)


def table(asked: str, folder: Path) -> str:
    """One table in Markdown, by what its comment asks for."""
    spec = yaml.safe_load(asked)
    if unknown := set(spec) - {"csv", "results", "columns", "rows", "paper"}:
        raise ValueError(f"no option {', '.join(sorted(unknown))} in a table's comment")
    if "csv" in spec:
        body = pd.read_csv(folder / f"{spec['csv']}.csv", dtype=str, keep_default_na=False)
        return markdown([name.strip() for name in body.columns], body.to_numpy().tolist())
    named = spec["results"] if isinstance(spec["results"], dict) else {"": spec["results"]}
    columns = [
        column
        for title, name in named.items()
        for column in result_columns(folder / f"{name}.csv", spec, title)
    ]
    body = pd.concat(columns, axis=1).fillna("")
    rows = body.loc[spec.get("rows", list(body.index))]
    return markdown(["", *rows.columns], rows.reset_index().to_numpy().tolist())


def result_columns(file: Path, spec: dict[str, Any], title: str) -> list[pd.Series]:
    """The columns of one file: mean ± deviation with marks and, if asked, the paper's numbers.

    Args:
        file: a CSV file of scripts/tables.py, ``<table>-<budget>.csv``.
        spec: what the comment of the table asks for.
        title: put before the names of the measures.
    """
    from tkpr.reporting.paper_numbers import paper_digits, paper_table
    from tkpr.reporting.rows import places
    from tkpr.reporting.tables import number

    stored = pd.read_csv(file).set_index("method")
    mean, std = (stored[stored["kind"] == kind] for kind in ("mean", "std"))
    place = places(mean[spec["columns"]])
    columns = []
    for name in spec["columns"]:
        cells = {}
        for row, value in mean[name].items():
            cell = short(number(value, name))
            if row in std.index:
                cell += f" ± {short(number(std.loc[row, name], name))}"
            cells[row] = {1: f"**{cell}**", 2: f"*{cell}*"}.get(place.loc[row, name], cell)
        columns.append(pd.Series(cells, name=f"{title}: {name}" if title else name))
        if spec.get("paper"):
            paper = file.stem.rpartition("-")[0]
            printed, digits = paper_table(paper)[name], paper_digits(paper)[name]
            cells = {
                row: short(number(value, name, digits=digits))
                for row, value in printed.reindex(mean.index).dropna().items()
            }
            columns.append(pd.Series(cells, name="paper"))
    return columns


def short(text: str) -> str:
    """Write a number below 1 without its leading zero, as the paper does."""
    return text.removeprefix("0") if text.startswith("0.") else text


def markdown(heads: list[str], rows: list[list[str]]) -> str:
    """A table in Markdown."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |".replace("|  |", "| |") for line in lines)


if __name__ == "__main__":
    script(main)
