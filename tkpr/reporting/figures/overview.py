"""Fig. 1: what TKPR counts, and what other measures see, on the rankings of Sec. 4.2."""

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from tkpr.metrics import per_image, title

K, GREEN = 4, "#8FD9BE"
# the paper's example: the first two labels are relevant; ties go against them
TARGETS = np.array([[1, 1, 0, 0, 0, 0]])
SCORES = {
    "$f_1$": [0.8, 0.8, 0.9, 0.9, 0.2, 0.2],
    "$f_2$": [0.9, 0.9, 0.8, 0.8, 0.2, 0.2],
    "$f_3$": [0.8, 0.1, 0.9, 0.2, 0.2, 0.2],
}
MEASURES = ("P@K", "R@K", "mAP@K", "NDCG@K", "TKPR_a1@K", "TKPR_a2@K", "ranking_loss")


def order(scores: list[float]) -> list[int]:
    """The labels from the highest score down, relevant ones last among equals."""
    return sorted(range(len(scores)), key=lambda label: (-scores[label], TARGETS[0, label]))


def values(scores: list[float]) -> dict[str, float]:
    """Each measure of one ranking."""
    names = [name.replace("@K", f"@{K}") for name in MEASURES]
    return {name: float(per_image(name, np.array([scores]), TARGETS)[0]) for name in names}


def draw() -> Figure:
    """Draw the rankings with the gain of each position, and below them all measures."""
    figure = Figure(figsize=(6.8, 4.2), layout="constrained")
    top, bottom = figure.subplots(2, 1, height_ratios=[1.25, 1])
    for panel in (top, bottom):
        panel.set_axis_off()
    num_classes = TARGETS.shape[1]
    for place in range(num_classes):
        gain = max(0, K - place)
        top.text(place + 0.5, 3.25, f"{gain}", ha="center", fontsize=9)
    top.text(-0.15, 3.25, r"gain $K + 1 - k$", ha="right", fontsize=9)
    for line, (name, scores) in enumerate(SCORES.items()):
        height = 2 - line
        ranking = order(scores)
        found = [K - place for place, label in enumerate(ranking[:K]) if TARGETS[0, label]]
        for place, label in enumerate(ranking):
            relevant = bool(TARGETS[0, label])
            corner = (place + 0.04, height)
            face = GREEN if relevant else "#FFFFFF"
            top.add_patch(Rectangle(corner, 0.92, 0.84, facecolor=face, edgecolor="#000000"))
            top.text(
                place + 0.5,
                height + 0.42,
                f"{scores[label]}",
                ha="center",
                va="center",
                fontsize=9,
                weight="bold" if relevant else "normal",
            )
        top.text(-0.15, height + 0.42, name, ha="right", va="center", fontsize=11)
        total = " + ".join(map(str, found)) or "0"
        top.text(
            num_classes + 0.15,
            height + 0.42,
            rf"TKPR$^{{\alpha_1}}$ = ({total}) / {K} = {sum(found) / K:g}",
            va="center",
            fontsize=9,
        )
    top.plot([K, K], [-0.1, 3.15], color="#000000", linestyle="--", linewidth=1)
    top.text(K, -0.32, f"top K = {K}", ha="center", va="top", fontsize=9)
    top.set_xlim(-1.9, num_classes + 3.4)
    top.set_ylim(-0.8, 3.7)
    names = list(values(SCORES["$f_1$"]))
    table = bottom.table(
        cellText=[[f"{value:.3f}" for value in values(s).values()] for s in SCORES.values()],
        rowLabels=list(SCORES),
        colLabels=[title(name) for name in names],
        loc="center",
        cellLoc="center",
    )
    table.scale(1, 1.5)
    bottom.set_title(
        "green, bold: relevant; ties go against relevant labels\n"
        "P@4 and R@4 cannot tell $f_1$ from $f_2$; TKPR$^{\\alpha_1}$ cannot tell $f_1$ from $f_3$",
        fontsize=9,
    )
    return figure
