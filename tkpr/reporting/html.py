"""One HTML page with the tables and figures of a set of runs; needs no network."""

import base64
import html
import io
from collections.abc import Sequence
from datetime import timedelta

from matplotlib.figure import Figure

from tkpr.metrics import title as measure_title
from tkpr.reporting import tables
from tkpr.reporting.figures import cases, consistency, ranks, sensitivity
from tkpr.reporting.figures.style import shown
from tkpr.reporting.paper_numbers import table_names
from tkpr.reporting.rows import Run, is_ours, of_table, rows_in_paper_order

STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; padding: 1rem; max-width: 75rem;
       color: #1a1a1a; background: #fff; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; overflow-wrap: anywhere; }
h3 { font-size: 1rem; } nav li, .notes { font-size: 0.875rem; }
.scroll { overflow-x: auto; border: 1px solid #ddd; }
table { border-collapse: collapse; font-size: 0.8125rem; font-variant-numeric: tabular-nums; }
th, td { padding: 0.25rem 0.5rem; white-space: nowrap; text-align: right; }
th:first-child, td:first-child { position: sticky; left: 0; background: #fff; text-align: left; }
th { border-bottom: 2px solid #333; } tbody tr:nth-child(odd) td { background: #f6f6f6; }
th button { all: unset; cursor: pointer; } th button:focus-visible { outline: 2px solid #1f4fd8; }
th[aria-sort=ascending] button::after { content: " \\25b2"; }
th[aria-sort=descending] button::after { content: " \\25bc"; }
figure { margin: 1.5rem 0; } figure img { max-width: 100%; height: auto; }
figcaption { font-size: 0.875rem; color: #444; } summary { cursor: pointer; padding: 0.5rem 0; }
"""

SORT = """
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") !== "descending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const key = (row) => row.cells[column].textContent.trim();
      const order = (a, b) => {
        const x = parseFloat(key(a)), y = parseFloat(key(b));
        if (isNaN(x) !== isNaN(y)) return isNaN(x) ? 1 : -1;
        const value = isNaN(x) ? key(b).localeCompare(key(a)) : y - x;
        return down ? value : -value;
      };
      body.append(...[...body.rows].sort(order));
    });
  });
}
"""


def build_report(runs: Sequence[Run], *, title: str = "Results") -> str:
    """Return the page.

    Args:
        runs: finished runs; those that belong to no table or sensitivity experiment are counted
            but not shown.
        title: the heading.
    """
    groups = sections(runs)
    parts = [f"<h1>{html.escape(title)}</h1>", summary(runs)]
    links = "".join(f'<li><a href="#{t}-{b}">{t}, budget {b}</a></li>' for t, b in groups)
    parts.append(f"<nav><ul>{links}</ul></nav>")
    for table, budget in groups:
        parts.append(f'<section id="{table}-{budget}"><h2>{table}, budget {budget}</h2>')
        here = of_table(runs, table, budget)
        if table in table_names():
            parts += [table_part(runs, table, budget), consistency_table(here)]
        parts += [figure_part(*drawn) for drawn in draw_figures(table, here)]
        parts.append("</section>")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{STYLE}</style></head>\n"
        f"<body>{''.join(parts)}<script>{SORT}</script></body></html>\n"
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


def summary(runs: Sequence[Run]) -> str:
    """How many runs there are and how long they took."""
    held_out = sum(run.held_out for run in runs)
    took = timedelta(seconds=round(sum(run.seconds for run in runs)))
    return (
        f"<p>{len(runs)} finished runs, {took} of training in all; {held_out} of them on a "
        "held-out part of the training set, to choose settings, which the tables leave out. "
        "Click on the head of a column to sort.</p>"
    )


def table_part(runs: Sequence[Run], table: str, budget: str) -> str:
    """A table, and below it, folded away, the same beside the paper's numbers."""
    collected = tables.collect(runs, table, budget)
    mine = tables.to_html(collected).replace('class="results"', 'class="results sortable"')
    head, _, notes = mine.partition("</table>")
    beside = tables.to_html(collected, paper=True, suffix="paper").partition("</table>")[0]
    return (
        f'<div class="scroll">{head}</table></div>{notes}'
        "<details><summary>Beside the paper's numbers</summary>"
        f'<div class="scroll">{beside}</table></div></details>'
    )


def consistency_table(runs: Sequence[Run]) -> str:
    """Kendall's tau between the measures' epoch curves, one number per row."""
    rows = rows_in_paper_order(runs)
    lines = "".join(
        f"<tr><td>{html.escape(row)}</td><td>{consistency.row_consistency(group):.3f}</td></tr>"
        for row, group in rows.items()
    )
    return (
        "<h3>How consistent are the measures when this loss is optimized?</h3>"
        "<p class='notes'>Kendall's tau between the epoch curves of two measures, after the "
        "warm-up, averaged over all pairs of the fifteen measures. 1: they all rise and fall "
        "together.</p>"
        '<div class="scroll"><table class="sortable"><thead><tr><th>method</th>'
        f"<th>mean tau</th></tr></thead><tbody>{lines}</tbody></table></div>"
    )


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
        ("Normalised measures against the epoch (as Fig. 2 and 5).", consistency.draw(usual)),
        (
            "The same, normalised over the epochs after the warm-up only.",
            consistency.draw(usual, after_warmup=True),
        ),
        ("Where the relevant labels end up (as Fig. 4).", ranks.draw(rows)),
    ]
    ours = [row for row in rows if is_ours(row)]
    theirs = [row for row in rows if not is_ours(row)]
    if ours and theirs:
        keep = "TKPR_a2" if "TKPR_a2" in ours else ours[0]
        one = {row: rows[row][0] for row in [keep, *theirs[:4]]}
        try:
            images = cases.pictures(one[keep])
        except FileNotFoundError:  # the images are on another machine: their ids are shown
            images = {}
        for losses in (False, True):
            chosen = cases.choose(one, losses=losses)
            what = "smallest" if losses else "largest"
            caption = (
                f"The images with the {what} gain of {shown(keep)}: its "
                f"{measure_title(cases.MEASURE)} minus the highest value among the competitors "
                "shown; among equals those with more labels, then by id. Right labels are green "
                "and ticked (as Fig. 9 and 10)."
            )
            drawn.append((caption, cases.draw(chosen, images, list(one))))
    return drawn


def figure_part(caption: str, figure: Figure) -> str:
    """A figure inside the page, with its caption."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=130)
    data = base64.b64encode(buffer.getvalue()).decode()
    text = html.escape(plain(caption))
    return (
        f'<figure><img alt="{text}" src="data:image/png;base64,{data}">'
        f"<figcaption>{text}</figcaption></figure>"
    )


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
