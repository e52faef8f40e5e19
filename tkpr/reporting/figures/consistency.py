"""Fig. 2 and 4: do all measures rise together while a loss is optimized?"""

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy.stats import kendalltau

from tkpr.metrics import lower_is_better, measure_names, title
from tkpr.reporting.figures.style import COLOURS, LINES, MARKERS, shown
from tkpr.reporting.rows import Run, is_ours

ROWS = ("L_rank", "L_u4", "LSEP", "TKPR_a2")
DRAWN = ("P@5", "R@5", "mAP@5", "NDCG@5", "TKPR_a2@5", "ranking_loss")


def usual(rows: dict[str, list[Run]]) -> dict[str, list[Run]]:
    """The paper's choice of rows; where that has no competitor, the first three and one of ours."""
    found = {row: rows[row] for row in ROWS if row in rows}
    if not all(map(is_ours, found)):
        return found
    theirs = [row for row in rows if not is_ours(row)][:3]
    ours = [row for row in ("TKPR_a2", *rows) if row in rows and is_ours(row)][:1]
    return {row: rows[row] for row in [*theirs, *ours]}


def epoch_curves(run: Run, measures: Sequence[str] | None = None) -> pd.DataFrame:
    """The measures after each epoch of a run, by epoch, counted from 1."""
    table = pd.DataFrame(run.history())
    table = table.set_index(table["epoch"].astype(int))
    return table[list(measures or measure_names(scopes=["image"]))]


def normalise(curves: pd.DataFrame) -> pd.DataFrame:
    """Bring each measure to [0, 1]: 1 at its best epoch, 0 at its worst (Sec. 6.2.3).

    The paper prints (max - m) / (max - min). For the ranking loss, where less is better, that is
    what is computed here; for the other measures it would turn the curves upside down, and the
    paper's figures show them rising, so (m - min) / (max - min) is taken. A measure that never
    changes is 1 throughout.

    >>> normalise(pd.DataFrame({"P@5": [1.0, 3.0, 2.0], "ranking_loss": [4.0, 2.0, 3.0]}))
       P@5  ranking_loss
    0  0.0           0.0
    1  1.0           1.0
    2  0.5           0.5
    """
    good = curves.mul([-1 if lower_is_better(name) else 1 for name in curves.columns])
    span = good.max() - good.min()
    return ((good - good.min()) / span.where(span > 0)).fillna(1.0)


def consistency(curves: pd.DataFrame) -> float:
    """Kendall's tau between the epoch curves of two measures, averaged over all pairs of measures.

    1: whenever one measure gets better from one epoch to another, so do all the others; 0: they
    have nothing to do with each other. Measures that never change are left out.

    Args:
        curves: the measures after each epoch, of the epochs in which the loss was optimized.

    >>> consistency(pd.DataFrame({"P@5": [1, 2, 3], "R@5": [2, 4, 5], "ranking_loss": [3, 2, 1]}))
    1.0
    >>> round(consistency(pd.DataFrame({"P@5": [1, 2, 3], "R@5": [1, 3, 2]})), 3)
    0.333
    """
    normal = normalise(curves)
    changing = [normal[name] for name in normal.columns if normal[name].nunique() > 1]
    taus = [kendalltau(one, other).statistic for one, other in combinations(changing, 2)]
    return float(np.mean(taus)) if taus else float("nan")


def row_consistency(runs: Sequence[Run]) -> float:
    """The consistency of a row: after the warm-up, averaged over the seeds."""
    return float(np.mean([consistency(epoch_curves(run).iloc[warmup(run) :]) for run in runs]))


def warmup(run: Run) -> int:
    """E_w, the epochs before the loss of the row takes over."""
    return run.config["trainer"]["warmup_epochs"]


def draw(
    rows: dict[str, list[Run]], *, measures: Sequence[str] = DRAWN, after_warmup: bool = False
) -> Figure:
    """Draw the normalised measures against the epoch, a panel per row, averaged over the seeds.

    Args:
        rows: the runs of each row, by its name; those of one row differ in the seed only.
        measures: which curves to draw. The number in the title is about all fifteen.
        after_warmup: draw and normalise only the epochs in which the row's own loss was optimized;
            the paper shows all of them.
    """
    columns = min(2, len(rows))
    lines = -(-len(rows) // columns)
    figure = Figure(figsize=(3.4 * columns, 2.5 * lines + 0.6), layout="constrained")
    panels = figure.subplots(lines, columns, squeeze=False, sharey=True)
    for panel in panels.flat[len(rows) :]:
        panel.set_visible(False)
    for letter, panel, (row, runs) in zip("abcdefghij", panels.flat, rows.items(), strict=False):
        curves = sum(epoch_curves(run, measures) for run in runs) / len(runs)
        normal = normalise(curves.iloc[warmup(runs[0]) :] if after_warmup else curves)
        for i, name in enumerate(measures):
            panel.plot(
                normal.index,
                normal[name],
                color=COLOURS[i],
                linestyle=LINES[i],
                marker=MARKERS[i],
                markevery=max(1, len(normal) // 10),
                label=title(name),
            )
        config = runs[0].config
        if (
            0 < warmup(runs[0]) < len(curves)
            and config["warmup"] != config["loss"]
            and not after_warmup
        ):
            end = warmup(runs[0]) + 0.5
            panel.axvline(end, color="#555555", linewidth=0.9, label="warm-up ends")
        tau = row_consistency(runs)
        panel.set_title(f"({letter}) optimize {shown(row)}: mean Kendall's $\\tau$ = {tau:.2f}")
        panel.set_xlabel("training epoch")
        panel.set_ylim(-0.04, 1.04)
        panel.xaxis.get_major_locator().set_params(integer=True)
    for panel in panels[:, 0]:
        panel.set_ylabel("normalised measure\n(0 worst, 1 best epoch)")
    named: dict[str, Any] = {}
    for panel in panels.flat:
        handles, labels = panel.get_legend_handles_labels()
        named |= dict(zip(labels, handles, strict=True))
    figure.legend(named.values(), named, loc="outside lower center", ncols=4, handlelength=3.2)
    return figure
