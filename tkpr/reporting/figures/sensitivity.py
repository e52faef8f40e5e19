"""Fig. 5, 6 and 7: how much does the result depend on K and on E_w?"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from tkpr.metrics import title
from tkpr.reporting.figures.style import COLOURS, shown
from tkpr.reporting.rows import Run, is_ours

SETTINGS = {
    "k": ("loss", "k", "$K$ of the loss"),
    "warmup": ("trainer", "warmup_epochs", "$E_w$ (warm-up epochs)"),
}


def gather(runs: Sequence[Run], setting: str) -> dict[str, dict[Any, list[float]]]:
    """TKPR@5 of each run of a sweep, with the alpha of its loss: by row, then by the setting.

    Args:
        runs: of a sensitivity experiment; all else that varies among them makes the spread.
        setting: k or warmup.
    """
    group, key, _ = SETTINGS[setting]
    found: dict[str, dict[Any, list[float]]] = {}
    for run in runs:
        if run.row and is_ours(run.row):
            values = found.setdefault(run.row, {})
            values.setdefault(run.config[group][key], []).append(run.metrics[f"{run.row}@5"])
    return {row: dict(sorted(values.items())) for row, values in sorted(found.items())}


def draw(runs: Sequence[Run], setting: str) -> Figure:
    """Draw a horizontal box per value, as the paper does, and every run as a point on it.

    Args:
        runs: of a sensitivity experiment.
        setting: k or warmup.
    """
    found = gather(runs, setting)
    if not found:
        raise ValueError("no finished TKPR runs to draw: run the sensitivity experiment first")
    size = max(len(values) for values in found.values())
    figure = Figure(figsize=(2.7 * len(found) + 0.3, 0.36 * size + 1.2), layout="constrained")
    panels = figure.subplots(1, len(found), squeeze=False)[0]
    rng = np.random.default_rng(0)
    for letter, panel, (row, values) in zip("abc", panels, found.items(), strict=False):
        panel.boxplot(
            list(values.values()),
            orientation="horizontal",
            widths=0.6,
            showfliers=False,
            patch_artist=True,
            boxprops={"facecolor": "#DCE9F5"},
            medianprops={"color": COLOURS[2], "linewidth": 1.8},
        )
        for place, points in enumerate(values.values(), 1):
            heights = place + rng.uniform(-0.12, 0.12, len(points))
            panel.plot(points, heights, "o", color="#333333", markersize=2, alpha=0.6)
        medians = [float(np.median(points)) for points in values.values()]
        best = int(np.argmax(medians))
        panel.plot(medians[best], best + 1.42, marker="v", color="#000000", markersize=4)
        panel.set_yticks(range(1, len(values) + 1), [str(value) for value in values])
        panel.set_title(f"({letter}) optimize {shown(row)}")
        panel.set_xlabel(f"{title(row + '@5')} on the test set")
        panel.set_ylabel(SETTINGS[setting][2])
        panel.tick_params("x", rotation=30)
    counts = [len(points) for values in found.values() for points in values.values()]
    many = f"{min(counts)} to {max(counts)}" if min(counts) < max(counts) else str(counts[0])
    figure.supxlabel(
        f"box: quartiles of {many} runs that differ in the other settings; line: median; "
        "triangle: best median",
        fontsize=7,
        color="#444444",
    )
    return figure
