"""One dot per loss and seed: how far do losses differ beyond the spread over seeds?"""

from matplotlib.figure import Figure

from tkpr.metrics import lower_is_better, title
from tkpr.reporting.figures.style import COLOURS, shown
from tkpr.reporting.rows import Run, averages, is_ours


def draw(rows: dict[str, list[Run]], *, measure: str = "mAP@3") -> Figure:
    """Draw a line per row, the best on top: a dot per seed, a tick at their mean.

    Args:
        rows: the runs of each row, by its name.
        measure: on the x-axis.
    """
    means = averages(rows, [measure])[measure].dropna()
    if means.empty:
        raise ValueError(f"no run has a value of {measure}")
    order = means.sort_values(ascending=not lower_is_better(measure)).index
    figure = Figure(figsize=(5.2, 0.26 * len(order) + 1.0), layout="constrained")
    panel = figure.subplots()
    for place, row in enumerate(order):
        values = [run.metrics[measure] for run in rows[row]]
        ours = is_ours(row)
        panel.plot(
            values,
            [place] * len(values),
            linestyle="none",
            marker="o" if ours else "s",
            color=COLOURS[2] if ours else COLOURS[1],
            fillstyle="full" if ours else "none",
        )
        panel.plot(means[row], place, marker="|", markersize=13, color=COLOURS[0])
    panel.set_yticks(range(len(order)), [shown(row) for row in order])
    panel.set_ylim(-0.7, len(order) - 0.3)  # room for the lines of the first and the last
    panel.set_ylabel("optimized loss")
    less = ", less is better" if lower_is_better(measure) else ""
    panel.set_xlabel(f"{title(measure)} on the test set{less} (dot: a seed; line: their mean)")
    panel.grid(True, axis="y")
    return figure
