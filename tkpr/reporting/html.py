"""One HTML page with the tables and figures of a set of runs; needs no network."""

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from matplotlib.figure import Figure

from tkpr.reporting import tables
from tkpr.reporting.figures import cases, consistency, ranks, sensitivity
from tkpr.reporting.figures.consistency import row_consistency
from tkpr.reporting.formats import to_html
from tkpr.reporting.mistakes import find_mistakes
from tkpr.reporting.page import render
from tkpr.reporting.paper_numbers import table_names
from tkpr.reporting.rows import Run, is_ours, of_table, rows_in_paper_order
from tkpr.runs.plan import Budget
from tkpr.runs.saved_model import has_all_scores


@dataclass(frozen=True)
class Section:
    """A part of the page: a table or a sensitivity experiment at a budget.

    Attributes:
        title: its heading.
        figures: each with its caption and its PNG in base64.
        table: HTML, or None for a sensitivity experiment, as are the next two.
        beside: the same with the paper's numbers.
        consistency: Kendall's tau per row.
        notes: below the table.
    """

    title: str
    figures: list[dict[str, str]]
    table: str | None = None
    beside: str | None = None
    consistency: str | None = None
    notes: Sequence[str] = ()


def build_report(
    runs: Sequence[Run], budgets: Mapping[str, Budget], *, title: str = "Results"
) -> str:
    """Return the page.

    Args:
        runs: finished runs; of those that belong to no table or sensitivity experiment the page
            shows what each gets wrong.
        budgets: what is known of them, by name.
        title: the heading.
    """
    page = render(
        "report.html",
        title=title,
        count=len(runs),
        took=timedelta(seconds=round(sum(run.seconds for run in runs))),
        held_out=sum(run.held_out for run in runs),
        sections=[
            build_section(runs, table, budgets.get(budget, Budget(budget)))
            for table, budget in sections(runs)
        ],
        models=[build_model(run) for run in alone(runs)],
    )
    return str(page)


def alone(runs: Sequence[Run]) -> list[Run]:
    """The runs that belong to no table, with the scores of all classes."""
    return [run for run in runs if not run.config.get("table") and has_all_scores(run.folder)]


def build_model(run: Run) -> dict[str, Any]:
    """Collect what one run gets wrong."""
    mistakes = find_mistakes(run)
    caption = (
        "The most wrong images: a label that they do not have is ranked furthest above one that "
        "they have. Above each its labels, below the five highest scores; right ones are ticked."
    )
    figure = encode(caption, mistakes.figure) if mistakes.figure else None
    return vars(mistakes) | {"figure": figure}


def build_section(runs: Sequence[Run], table: str, budget: Budget) -> Section:
    """Collect the table and the figures of a section."""
    here = of_table(runs, table, budget.name)
    title = f"{table}, budget {budget.name}"
    figures = [encode(*drawn) for drawn in draw_figures(table, here)]
    if table not in table_names():
        return Section(title, figures)
    collected = tables.collect(runs, table, budget)
    taus = {row: row_consistency(group) for row, group in rows_in_paper_order(here).items()}
    lines = [[(row, ""), (f"{tau:.3f}", "")] for row, tau in taus.items()]
    return Section(
        title,
        figures,
        table=to_html(collected, sortable=True),
        beside=to_html(collected, paper=True),
        consistency=render("table.html", heads=["method", "mean tau"], rows=lines, sortable=True),
        notes=collected.notes,
    )


def sections(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """The tables and sensitivity experiments among the runs, with their budgets, in order."""
    found = {
        (run.config["table"], run.config["budget"])
        for run in runs
        if run.row and run.config.get("table") and not run.held_out
    }
    order = {name: place for place, name in enumerate(table_names())}
    return sorted(found, key=lambda key: (order.get(key[0], len(order)), key))


def draw_figures(table: str, runs: Sequence[Run]) -> list[tuple[str, Figure]]:
    """Draw what can be drawn of a section, each with a caption."""
    if table not in table_names():
        return [
            (f"Sensitivity to {sensitivity.SETTINGS[setting][2]}.", sensitivity.draw(runs, setting))
            for setting in sensitivity.SETTINGS
            if max(map(len, sensitivity.gather(runs, setting).values()), default=0) > 1
        ]
    rows = rows_in_paper_order(runs)
    usual = consistency.usual(rows)
    drawn = [
        ("Normalised measures against the epoch (as Fig. 2 and 4).", consistency.draw(usual)),
        (
            "The same, normalised over the epochs after the warm-up only.",
            consistency.draw(usual, after_warmup=True),
        ),
        ("Where the relevant labels end up (as Fig. 3).", ranks.draw(rows)),
    ]
    ours = [row for row in rows if is_ours(row)]
    theirs = [row for row in rows if not is_ours(row)]
    if ours and theirs:
        one = {row: rows[row][0] for row in [*ours, *theirs[:4]]}
        try:
            images = cases.pictures(one[ours[0]])
        except FileNotFoundError:  # the images are on another machine: their ids are shown
            images = {}
        for losses in (False, True):
            chosen = cases.choose(one, losses=losses)
            what = "smallest" if losses else "largest"
            caption = (
                f"The images with the {what} gain of TKPR: its {cases.MEASURE} minus the highest "
                "value among the competitors shown; among equals those with more labels, then by "
                "id. The labels of the image are green; right ones are ticked (as Fig. 8 and 9)."
            )
            drawn.append((caption, cases.draw(chosen, images, list(one))))
    return drawn


def encode(caption: str, figure: Figure) -> dict[str, str]:
    """A figure as the page needs it."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=130)
    data = base64.b64encode(buffer.getvalue()).decode()
    return {"caption": plain(caption), "png": data}


def plain(text: str) -> str:
    r"""Write formulas with letters.

    >>> plain(r"TKPR $\alpha_2$@5 and $L_{u_1}$ for $E_w$")
    'TKPR α2@5 and L_u1 for E_w'
    """
    for old, new in {
        r"\alpha_": "α",
        r"\mathrm": "",
        "{u_": "u",
        "$": "",
        "{": "",
        "}": "",
    }.items():
        text = text.replace(old, new)
    return text
