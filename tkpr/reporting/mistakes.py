"""What one model gets wrong: per class, which labels it confuses, and its most wrong images."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure

from tkpr.data.dataset import Split
from tkpr.decisions import class_report, confusions, probabilities
from tkpr.reporting.escape import for_figure
from tkpr.reporting.figures.cases import GREEN, GREY, find_picture, pictures, pixels, wrap
from tkpr.reporting.page import render
from tkpr.reporting.rows import Run
from tkpr.runs.saved_model import load_decisions, load_predictions


@dataclass(frozen=True)
class Mistakes:
    """Of one run, ready for the page.

    Attributes:
        title: the folder of the run.
        measures: its measures.
        classes: precision, recall, F1, support and threshold of each class, the worst first.
        confusions: labels that were missed, with the label given instead.
        figure: the most wrong images; None if no image has both a label and a wrong one.
    """

    title: str
    measures: Markup
    classes: Markup
    confusions: Markup
    figure: Figure | None


def find_mistakes(run: Run) -> Mistakes:
    """Collect the mistakes of a run on its test images, at the thresholds of its model."""
    stored = load_predictions(run.folder)
    temperature, thresholds = load_decisions(run.folder)
    names, targets = stored["class_names"].tolist(), stored["targets"]
    # unknown labels are below all others: neither given nor wrong
    logits = np.where(stored.get("unknown", False), -np.inf, stored["logits"])
    scores = probabilities(logits, temperature)
    cuts = np.array(thresholds or [0.5] * len(names))
    report = sorted(class_report(scores, targets, cuts, names), key=lambda row: row["f1"])
    try:
        images = pictures(run)
    except FileNotFoundError:  # the images are on another machine: their ids are shown
        images = {}
    wrong = most_wrong(logits, targets)
    ratios = ("precision", "recall", "f1", "threshold")
    return Mistakes(
        title=str(run.folder),
        measures=_table(
            ["measure", "value"],
            [[name, f"{value:.4f}"] for name, value in run.metrics.items()],
        ),
        classes=_table(
            ["class", "precision", "recall", "F1", "threshold", "support"],
            [[row["class"], *(f"{row[r]:.4f}" for r in ratios), row["support"]] for row in report],
        ),
        confusions=_table(
            ["missed", "given instead", "images"],
            [list(pair.values()) for pair in confusions(scores, targets, cuts, names)],
        ),
        figure=draw(wrong, stored, images) if wrong else None,
    )


def _table(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> Markup:
    """A table that can be sorted by clicking on its head."""
    cells = [[(value, "") for value in row] for row in rows]
    return render("table.html", heads=heads, rows=cells, sortable=True)


def most_wrong(logits: np.ndarray, targets: np.ndarray, *, count: int = 8) -> list[int]:
    """Return the images with the largest margin of a wrong label over a right one.

    The margin is the highest score of a label that the image does not have, minus the lowest score
    of a label that it has; images without a margin above 0 are ranked without a mistake.

    Args:
        logits: ``[N, C]``.
        targets: 0 or 1, ``[N, C]``.
        count: how many images at most.

    >>> most_wrong(np.array([[2.0, 1.0], [0.0, 3.0], [0.0, 1.0]]), np.array([[1, 0]] * 3))
    [1, 2]
    """
    present = np.asarray(targets) > 0
    highest_wrong = np.where(present, -np.inf, logits).max(1)
    lowest_right = np.where(present, logits, np.inf).min(1)
    margin = highest_wrong - lowest_right
    order = np.argsort(-margin, kind="stable")[:count]
    return [int(image) for image in order if margin[image] > 0]


def draw(
    chosen: Sequence[int],
    stored: Mapping[str, np.ndarray],
    images: Mapping[str, tuple[Split, int]],
    *,
    columns: int = 4,
) -> Figure:
    """Draw images with their labels above and the labels that the model puts first below.

    Args:
        chosen: rows of the predictions.
        stored: the predictions.
        images: where to find the pixels, by id; where they are not at hand the id is shown.
        columns: images side by side.
    """
    names, lines = stored["class_names"].tolist(), -(-len(chosen) // columns)
    figure = Figure(figsize=(2.4 * columns, 3.2 * lines), layout="constrained")
    panels = figure.subplots(lines, columns, squeeze=False).ravel()
    for panel in panels:
        panel.axis("off")
    for panel, row in zip(panels, chosen, strict=False):
        present = stored["targets"][row] > 0
        name = str(stored["ids"][row])
        found = find_picture(images, name)
        if found:
            panel.imshow(pixels(*found), cmap="gray", aspect="equal")
        else:
            shown_name = f"image\n{for_figure(name)}"
            panel.text(0.5, 0.5, shown_name, ha="center", va="center", color=GREY, fontsize=7)
        right = [for_figure(names[label]) for label in np.flatnonzero(present)]
        panel.set_title(wrap(right), fontsize=7, color=GREEN, weight="bold")
        first = np.argsort(-stored["logits"][row], kind="stable")[:5]
        shown = [for_figure(names[label]) + (" ✓" if present[label] else "") for label in first]
        panel.text(
            0.5, -0.03, wrap(shown), transform=panel.transAxes, fontsize=7, ha="center", va="top"
        )
    return figure
