"""A table written as Markdown, CSV, LaTeX and HTML."""

import re

import pandas as pd

from tkpr.metrics import find_measure
from tkpr.reporting.escape import for_latex, for_markdown, for_spreadsheet, one_line
from tkpr.reporting.page import render
from tkpr.reporting.paper_numbers import paper_table
from tkpr.reporting.tables import BETTER, Table, lines, styles

MARKDOWN = {"best": "**{}**", "second": "*{}*", "competitor": "<u>{}</u>"}
LATEX = {
    "best": "textcolor:{red}--rwrap; textbf:--rwrap",
    "second": "textcolor:{blue}--rwrap; textit:--rwrap",
    "competitor": "underline:--rwrap",
}


def to_markdown(table: Table, *, paper: bool = False) -> str:
    """Markdown: best bold, runner-up italic, best competitor underlined, notes below."""
    body = lines(table, paper=paper)
    marks = styles(table, body)
    rows = [body.columns.tolist(), ["---"] * len(body.columns)]
    for index, line in body.iterrows():
        cells = []
        for name, text in line.items():
            cell = for_markdown(text).replace("  ", "&nbsp;&nbsp;")
            for word in str(marks.loc[index, name]).split():
                cell = MARKDOWN[word].format(cell)
            cells.append(cell)
        rows.append(cells)
    notes = "".join(f"- {for_markdown(note)}\n" for note in table.notes)
    return "".join(f"| {' | '.join(cells)} |\n" for cells in rows) + f"\n{notes}"


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
    return frame_to_csv(pd.DataFrame(body))


def frame_to_csv(frame: pd.DataFrame, digits: int = 6) -> str:
    """Write a frame as CSV in which no text is a formula for a spreadsheet.

    Args:
        frame: the frame, without its index.
        digits: of a number, after the point.

    >>> print(frame_to_csv(pd.DataFrame({"row": ["=1+1"], "gain": [-0.5]})))
    row,gain
    '=1+1,-0.500000
    """
    safe = frame.map(lambda cell: for_spreadsheet(cell) if isinstance(cell, str) else cell)
    return safe.to_csv(index=False, float_format=f"%.{digits}f")


def to_html(table: Table, *, paper: bool = False, sortable: bool = False) -> str:
    """An HTML table with colours, without its notes, to be put into a page.

    Args:
        table: what to show.
        paper: add the paper's value and the difference.
        sortable: a click on a head sorts.
    """
    body = lines(table, paper=paper)
    marks = styles(table, body)
    rows = [
        list(zip(texts, kinds, strict=True))
        for texts, kinds in zip(body.values.tolist(), marks.values.tolist(), strict=True)
    ]
    return render("table.html", heads=body.columns, rows=rows, sortable=sortable)


def to_page(table: Table, *, paper: bool = False) -> str:
    """The same as a page of its own, with the notes."""
    page = render(
        "table_page.html",
        title=f"{table.name}, budget {table.budget.name}",
        table=to_html(table, paper=paper),
        notes=table.notes,
    )
    return str(page)


def to_latex(table: Table, *, paper: bool = False) -> str:
    r"""A LaTeX table in the paper's layout, for ``booktabs``, ``xcolor`` and ``amsmath``."""
    body = lines(table, paper=paper)
    marks = styles(table, body).map(
        lambda words: "; ".join(LATEX[word] for word in str(words).split())
    )
    heads = pd.MultiIndex.from_tuples([_latex_head(str(name)) for name in body.columns])
    body, marks = body.set_axis(heads, axis=1), marks.set_axis(heads, axis=1)
    text = (
        body.style.apply(lambda _: marks, axis=None)
        .hide(axis="index")
        .format(_latex_cell)
        .to_latex(
            hrules=True,
            column_format="ll" + "c" * len(table.mean.columns),
            multicol_align="c",
        )
    )
    notes = "".join(f"% {one_line(note)}\n" for note in table.notes)
    return f"{notes}{text}"


def _latex_cell(text: str) -> str:
    r"""Write a cell for LaTeX.

    >>> _latex_cell("L_rank"), _latex_cell("TKPR_a1 (loss.k=3)"), _latex_cell("0.54 ± 0.01*")
    ('$L_{\\text{rank}}$', 'TKPR $\\alpha_1$ (loss.k=3)', '0.54 $\\pm$ 0.01$^{*}$')
    """
    name, sep, rest = text.partition(" (")
    for pattern, written in {
        r"L_u(\d)": r"$L_{{u_{}}}$",
        r"L_([a-z]+)": r"$L_{{\text{{{}}}}}$",
        r"TKPR_a(\d)": r"TKPR $\alpha_{}$",
    }.items():
        if found := re.fullmatch(pattern, name):
            return written.format(found[1]) + sep + for_latex(rest)
    if found := re.fullmatch(rf"(.*\d){re.escape(BETTER)}", name):
        return for_latex(found[1]) + "$^{*}$"
    indent = r"\quad " if text.startswith("  ") else ""
    return indent + for_latex(text.strip())


def _latex_head(name: str) -> tuple[str, str]:
    r"""Write the head of a column for LaTeX, in two lines.

    >>> _latex_head("TKPR_a2@3"), _latex_head("ranking_loss")
    (('TKPR$^{\\alpha_2}$@K', '3'), ('Ranking loss', ''))
    """
    if name in ("method", "seeds"):
        return name.capitalize(), ""
    measure, k = find_measure(name)
    return (measure.title, str(k)) if k else (measure.title.capitalize(), "")
