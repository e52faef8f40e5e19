"""A table of the paper from finished runs, as Markdown, LaTeX, HTML and CSV."""

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from pandas.io.formats.style import Styler

from tkpr.metrics import find_measure, lower_is_better, per_image
from tkpr.reporting.paper_numbers import oddities, paper_digits, paper_table
from tkpr.reporting.rows import (
    Run,
    averages,
    best_competitors,
    deviations,
    group_rows,
    is_ours,
    of_table,
    places,
)
from tkpr.reporting.significance import check_same_images, paired_bootstrap
from tkpr.runs.plan import UNSUPPORTED_ROWS
from tkpr.runs.saved_model import load_predictions

LEVEL, RESAMPLES = 0.05, 2000
BETTER, WORSE = "*", "°"
MISSING = "–"
BUDGETS = {
    "paper": "the paper's scale",
    "small": "images of 128 pixels, EfficientNet-Lite0, a few epochs: not the paper's setting",
    "features": "a linear head on features of a frozen network: not the paper's setting",
    "smoke": "digit mosaics and a tiny network, a few epochs: shows that it runs, nothing else",
}


@dataclass(frozen=True)
class Table:
    """What a table shows.

    Attributes:
        name: the paper's table.
        budget: paper, small, features or smoke.
        rows: the runs of each row, none for one that is missing.
        mean: over the seeds, a line per row.
        std: over the seeds, NaN where there is only one.
        marks: "*" where TKPR is significantly better than the best competitor, "°" where worse.
        notes: what a reader should know.
    """

    name: str
    budget: str
    rows: dict[str, list[Run]]
    mean: pd.DataFrame
    std: pd.DataFrame
    marks: pd.DataFrame
    notes: list[str]


def collect(
    runs: Sequence[Run], name: str, budget: str = "paper", *, significance: bool = True
) -> Table:
    """Collect the finished runs of a table.

    Args:
        runs: all runs that there are; those of other tables are left out.
        name: the paper's table.
        budget: paper, small, features or smoke.
        significance: whether to compare TKPR with the best competitor, image by image.
    """
    paper = paper_table(name)
    rows = group_rows(of_table(runs, name, budget), list(paper.index))
    mean, std = averages(rows), deviations(rows)
    marks = pd.DataFrame("", index=mean.index, columns=mean.columns)
    notes = [f"Budget {budget}: {BUDGETS[budget]}."]
    cannot = UNSUPPORTED_ROWS.get(budget, {})
    notes += [f"{row} {why}: not at this budget." for row, why in cannot.items() if row in rows]
    if missing := [row for row, group in rows.items() if not group and row not in cannot]:
        notes.append(f"Missing, not run yet: {', '.join(missing)}.")
    counts = {row: len(group) for row, group in rows.items() if group}
    if counts and max(counts.values()) > 1:
        notes.append(f"Mean ± standard deviation over seeds; seeds per row: {_count(counts)}.")
    notes.append(
        "Best: red, bold. Runner-up: blue, italic. Best competitor on each measure: underlined."
    )
    if significance and any(is_ours(row) and group for row, group in rows.items()):
        marks = significance_marks(rows, mean)
        notes.append(
            f"{BETTER} TKPR is better, {WORSE} worse than the best competitor by a paired "
            f"bootstrap over the test images ({RESAMPLES} draws, two-sided p < {LEVEL}; each cell "
            "by itself, so about one in twenty is marked by chance)."
        )
    notes += [f"About the paper's numbers: {note}" for note in oddities(name)]
    return Table(name, budget, rows, mean, std, marks, notes)


def _count(counts: dict[str, int]) -> str:
    """Write down how many runs the rows have.

    >>> _count({"L_u1": 3, "L_u2": 3}), _count({"L_u1": 3, "L_u2": 1})
    ('3', 'L_u1 3, L_u2 1')
    """
    if len(set(counts.values())) == 1:
        return str(next(iter(counts.values())))
    return ", ".join(f"{row} {count}" for row, count in counts.items())


def significance_marks(rows: dict[str, list[Run]], mean: pd.DataFrame) -> pd.DataFrame:
    """Compare each row of TKPR with the best competitor on each measure, by the predictions."""
    marks = pd.DataFrame("", index=mean.index, columns=mean.columns)
    best = best_competitors(mean)
    ours = [row for row, group in rows.items() if is_ours(row) and group]
    needed = {*ours, *(row for row in best if row)}
    stored = {
        row: [(run.folder, load_predictions(run.folder)) for run in rows[row]] for row in needed
    }
    reference = next(iter(stored.values()))[0]
    for group in stored.values():
        for folder, predictions in group:
            check_same_images(reference[1], predictions, reference[0], folder)

    def values(row: str, measure: str) -> np.ndarray:
        parts = [per_image(measure, told["logits"], told["targets"]) for _, told in stored[row]]
        return np.mean(parts, axis=0)

    measures = [measure for measure in mean.columns if best[measure] is not None]
    if not measures:
        return marks
    theirs = np.stack([values(best[measure], measure) for measure in measures], axis=1)
    for row in ours:
        mine = np.stack([values(row, measure) for measure in measures], axis=1)
        compared = paired_bootstrap(mine, theirs, resamples=RESAMPLES)
        for measure, told in zip(measures, compared, strict=True):
            if told.p_value < LEVEL:
                gain = -told.difference if lower_is_better(measure) else told.difference
                marks.loc[row, measure] = BETTER if gain > 0 else WORSE
    return marks


def cell_texts(table: Table) -> pd.DataFrame:
    """Each cell as text: mean, deviation, mark of significance; a dash where nothing was run."""
    texts = pd.DataFrame(MISSING, index=table.mean.index, columns=table.mean.columns, dtype=object)
    for row in texts.index:
        for measure in texts.columns:
            mean, std = table.mean.loc[row, measure], table.std.loc[row, measure]
            if pd.notna(mean):
                spread = f" ± {number(std, measure)}" if pd.notna(std) else ""
                texts.loc[row, measure] = (
                    f"{number(mean, measure)}{spread}{table.marks.loc[row, measure]}"
                )
    return texts


def number(value: float, measure: str, *, digits: int | None = None, sign: bool = False) -> str:
    """Write a value with the digits of its measure, or with ``digits``.

    >>> number(0.66651, "mAP@3"), number(0.01234, "ranking_loss"), number(0.5, "P@3", sign=True)
    ('0.667', '0.0123', '+0.500')
    """
    digits = digits or find_measure(measure)[0].digits
    return f"{value:{'+' if sign else ''}.{digits}f}"


def lines(table: Table, *, paper: bool = False) -> pd.DataFrame:
    """The body of a table: row names, number of seeds, cells; below each row the paper's numbers.

    Args:
        table: what to show.
        paper: add two lines to each row: the paper's value, and ours minus the paper's.
    """
    texts, theirs = cell_texts(table), paper_table(table.name)
    digits, cannot = (
        paper_digits(table.name),
        UNSUPPORTED_ROWS.get(table.budget, {}),
    )
    body = []
    for row in texts.index:
        seeds = str(len(table.rows[row])) if table.rows[row] else "missing"
        seeds = "not possible" if seeds == "missing" and row in cannot else seeds
        body.append({"method": row, "seeds": seeds, **texts.loc[row]})
        name = row.split(" (")[0]
        if paper and name in theirs.index:
            known, mean = theirs.loc[name], table.mean.loc[row]
            printed = {m: number(known[m], m, digits=digits[m]) for m in texts.columns}
            difference = {
                m: number(mean[m] - known[m], m, digits=digits[m], sign=True)
                if pd.notna(mean[m])
                else MISSING
                for m in texts.columns
            }
            body.append({"method": "  paper", "seeds": ""} | printed)
            body.append({"method": "  difference", "seeds": ""} | difference)
    return pd.DataFrame(body)


def to_markdown(table: Table, *, paper: bool = False) -> str:
    """Markdown: best bold, runner-up italic, best competitor underlined, notes below."""
    body = lines(table, paper=paper)
    place, best = places(table.mean), best_competitors(table.mean)
    rows = ["| " + " | ".join(body.columns) + " |", "|---" * len(body.columns) + "|"]
    for _, line in body.iterrows():
        cells = []
        for name, text in line.items():
            if name in table.mean.columns and line["method"] in table.mean.index:
                wrap = {1: "**{}**", 2: "*{}*"}.get(place.loc[line["method"], name], "{}")
                text = wrap.format(text.replace("*", "\\*"))
                if best[str(name)] == line["method"]:
                    text = f"<u>{text}</u>"
            cells.append(text.replace("  ", "&nbsp;&nbsp;"))
        rows.append("| " + " | ".join(cells) + " |")
    notes = "\n".join(f"- {note.replace('*', chr(92) + '*')}" for note in table.notes)
    return "\n".join(rows) + f"\n\n{notes}\n"


def to_csv(table: Table, *, paper: bool = False) -> str:
    """CSV: a line of means and one of deviations per row; with ``paper`` two lines more."""
    theirs = paper_table(table.name)
    body = []
    for row in table.mean.index:
        kinds = {"mean": table.mean.loc[row], "std": table.std.loc[row]}
        name = row.split(" (")[0]
        if paper and name in theirs.index:
            kinds |= {"paper": theirs.loc[name], "difference": kinds["mean"] - theirs.loc[name]}
        seeds = len(table.rows[row])
        body += [
            {"method": row, "kind": kind, "seeds": seeds, **values}
            for kind, values in kinds.items()
        ]
    return pd.DataFrame(body).to_csv(index=False, float_format="%.6f")


def to_html(table: Table, *, paper: bool = False, suffix: str = "") -> str:
    """An HTML table with colours, and the notes below it, to be put into a page.

    Args:
        table: what to show.
        paper: add the paper's value and the difference.
        suffix: told apart by it, the same table may be in a page twice.
    """
    body = lines(table, paper=paper)
    styler = _styled(
        table,
        body,
        best="color: #c00000; font-weight: bold",
        second="color: #1f4fd8; font-style: italic",
        competitor="text-decoration: underline",
    )
    styler = styler.hide(axis="index").set_uuid(f"{table.name}_{table.budget}{suffix}")
    styler = styler.set_table_attributes('class="results"').format(escape="html")
    notes = "".join(f"<li>{html.escape(note)}</li>" for note in table.notes)
    return f'{styler.to_html()}\n<ul class="notes">{notes}</ul>\n'


def to_page(table: Table, *, paper: bool = False) -> str:
    """The same as a page of its own, in a named character set: for ± and –."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>{table.name}, budget {table.budget}</title></head>\n"
        f"<body>{to_html(table, paper=paper)}</body></html>\n"
    )


def to_latex(table: Table, *, paper: bool = False) -> str:
    r"""A LaTeX table in the paper's layout, for ``booktabs``, ``xcolor`` and ``amsmath``."""
    body = lines(table, paper=paper)
    styler = _styled(
        table,
        body,
        best="textcolor:{red}--rwrap; textbf:--rwrap",
        second="textcolor:{blue}--rwrap; textit:--rwrap",
        competitor="underline:--rwrap",
        columns=pd.MultiIndex.from_tuples([_latex_head(str(name)) for name in body.columns]),
    )
    text = (
        styler.hide(axis="index")
        .format(_latex_text)
        .to_latex(
            hrules=True, column_format="ll" + "c" * len(table.mean.columns), multicol_align="c"
        )
    )
    notes = "\n".join(f"% {note}" for note in table.notes)
    return f"{notes}\n{text}"


def _styled(
    table: Table,
    body: pd.DataFrame,
    *,
    best: str,
    second: str,
    competitor: str,
    columns: pd.Index | None = None,
) -> Styler:
    """Mark the cells of a body: best, runner-up, best competitor; ``columns`` are other heads."""
    place, competitors = places(table.mean), best_competitors(table.mean)
    styles = pd.DataFrame("", index=body.index, columns=body.columns)
    for index, row in body["method"].items():
        if row not in table.mean.index:
            continue
        for measure in table.mean.columns:
            parts = [{1: best, 2: second}.get(place.loc[row, measure], "")]
            parts += [competitor] if competitors[measure] == row else []
            styles.loc[index, measure] = "; ".join(part for part in parts if part)
    if columns is not None:
        body, styles = body.set_axis(columns, axis=1), styles.set_axis(columns, axis=1)
    return body.style.apply(lambda _: styles, axis=None)


def _latex_text(text: str) -> str:
    r"""Write a cell for LaTeX.

    >>> _latex_text("L_rank"), _latex_text("TKPR_a1"), _latex_text("0.54 ± 0.01*")
    ('$L_{\\text{rank}}$', 'TKPR $\\alpha_1$', '0.54 $\\pm$ 0.01$^{*}$')
    """
    name, sep, rest = text.partition(" (")
    name = re.sub(r"^L_(u)(\d)$", r"$L_{\1_\2}$", name)
    name = re.sub(r"^L_(\w+)$", r"$L_{\\text{\1}}$", name)
    name = re.sub(r"^TKPR_a(\d)$", r"TKPR $\\alpha_\1$", name)
    name = name.replace("±", r"$\pm$").replace(BETTER, "$^{*}$").replace(WORSE, r"$^{\circ}$")
    name = name.replace(MISSING, "--").replace("  ", r"\quad ")
    return name + sep + rest.replace("_", r"\_")


def _latex_head(name: str) -> tuple[str, str]:
    r"""Write the head of a column for LaTeX, in two lines.

    >>> _latex_head("TKPR_a2@3"), _latex_head("ranking_loss")
    (('TKPR$^{\\alpha_2}$@K', '3'), ('Ranking loss', ''))
    """
    if name in ("method", "seeds"):
        return name.capitalize(), ""
    measure, k = find_measure(name)
    return (measure.title, str(k)) if k else (measure.title.capitalize(), "")
