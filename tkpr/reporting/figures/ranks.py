"""Fig. 3: at which rank do the relevant labels end up?"""

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from tkpr.metrics import rank_distribution
from tkpr.reporting.figures.style import COLOURS, HATCHES, shown
from tkpr.reporting.rows import Run, is_ours
from tkpr.runs.saved_model import load_predictions

ROWS = ("L_rank", "L_u4", "LSEP", "TKPR_a1", "TKPR_a2", "TKPR_a3")


def usual(rows: dict[str, list[Run]]) -> dict[str, list[Run]]:
    """The paper's choice of rows; all of them where that would leave no competitor."""
    found = {row: rows[row] for row in ROWS if row in rows}
    return rows if all(map(is_ours, found)) else found


def rank_shares(runs: list[Run], *, last: int) -> np.ndarray:
    """The share of all relevant labels at rank 1, ..., ``last`` and beyond, averaged over seeds.

    Args:
        runs: of one row.
        last: the last rank with a value of its own.

    Returns:
        ``last + 1`` shares that sum to 1.
    """
    parts = []
    for run in runs:
        stored = load_predictions(run.folder)
        counts = rank_distribution(
            stored["logits"], stored["targets"], unknown=stored.get("unknown")
        )
        parts.append(np.append(counts[:last], counts[last:].sum()) / counts.sum())
    return np.mean(parts, axis=0)


def draw(rows: dict[str, list[Run]], *, last: int = 6) -> Figure:
    """Draw the shares as groups of bars.

    Args:
        rows: the runs of each row, by its name.
        last: the last rank with a group of its own.
    """
    figure = Figure(figsize=(6.8, 2.9), layout="constrained")
    panel = figure.subplots()
    width = 0.84 / len(rows)
    for i, (row, runs) in enumerate(rows.items()):
        shares = rank_shares(runs, last=last)
        positions = np.arange(len(shares)) + (i - (len(rows) - 1) / 2) * width
        panel.bar(
            positions,
            shares,
            width,
            label=shown(row),
            color=COLOURS[i % len(COLOURS)] if i else "#FFFFFF",
            alpha=0.75,
            edgecolor="#000000",
            linewidth=0.6,
            hatch=HATCHES[i % len(HATCHES)],
        )
    panel.set_xticks(range(last + 1), [*map(str, range(1, last + 1)), f"over {last}"])
    panel.set_xlabel("rank of the relevant label (position in the list of all labels)")
    panel.set_ylabel("share of relevant labels (%)")
    panel.yaxis.set_major_formatter(PercentFormatter(1, symbol=""))
    panel.grid(False, axis="x")
    figure.legend(
        loc="outside upper center",
        ncols=len(rows) if len(rows) <= 6 else 5,
        handlelength=2.4,
    )
    return figure
