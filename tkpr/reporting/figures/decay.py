"""Weight decay, L2 and decoupled: how much does each loss depend on its strength?

Adam divides a gradient by its own size. L2 decay is added to the gradient before that, so it is
strong beside a loss that averages over all entries and weak beside one that sums them; decoupled
decay is applied after it and does not depend on the scale of the loss.
"""

from collections.abc import Sequence

from matplotlib.figure import Figure

from tkpr.metrics import title
from tkpr.reporting.analysis import by_settings
from tkpr.reporting.figures.style import COLOURS, LINES, MARKERS, shown
from tkpr.reporting.rows import Run

KINDS = {"torch.optim.Adam": "L2 (Adam)", "torch.optim.AdamW": "decoupled (AdamW)"}
KEYS = ("optimizer._target_", "optimizer.weight_decay")
# the panels end this far below the best value: where a loss collapses, its line leaves them
SPAN = 0.06


def draw(runs: Sequence[Run], *, measure: str = "mAP@3") -> Figure:
    """Draw a panel per kind of decay: a line per loss, bars from its worst to its best seed.

    Args:
        runs: of a sweep over both kinds of decay and their strength.
        measure: on the y-axis.
    """
    found = by_settings(runs, KEYS, measure)
    if not (found["optimizer.weight_decay"] > 0).any():
        raise ValueError("no finished run has weight decay: run experiment=voc2012_mlml_decay")
    figure = Figure(figsize=(7.2, 3.2), layout="constrained")
    panels = figure.subplots(1, len(KINDS), sharey=True)
    rows = list(dict.fromkeys(found["row"]))
    for panel, (kind, name) in zip(panels, KINDS.items(), strict=True):
        for i, row in enumerate(rows):
            part = found[(found["row"] == row) & (found["optimizer._target_"] == kind)]
            mean = part["mean"]
            panel.errorbar(
                part["optimizer.weight_decay"],
                mean,
                yerr=[mean - part["lowest"], part["highest"] - mean],
                color=COLOURS[i % len(COLOURS)],
                linestyle=LINES[i % len(LINES)],
                marker=MARKERS[i % len(MARKERS)],
                label=shown(row) if panel is panels[0] else None,
            )
        panel.set_xscale("log")
        panel.set_xlabel(f"weight decay, {name}")
    best = found["highest"].max()
    panels[0].set_ylim(
        bottom=max(found["lowest"].min(), best - SPAN) - SPAN / 20, top=best + SPAN / 20
    )
    panels[0].set_ylabel(f"{title(measure)} on the test set")
    figure.legend(loc="outside right upper", handlelength=3.2)
    return figure
