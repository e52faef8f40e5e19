"""Draw the pictures of README.md and docs/: TKPR on one image, results, the architecture.

python train.py && python scripts/pictures.py runs/mosaic/tkpr_a2/default
"""

from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch
from matplotlib.ticker import MaxNLocator

from tkpr.runs.script import Parser, output_folder, script

ROOT = Path(__file__).resolve().parents[1]
GOOD, BAD, DARK, LIGHT = "#009E73", "#D55E00", "#0072B2", "#BBBBBB"
SETTINGS = {
    "VOC 2012, one label": "voc2012_mlml_ranking_resnet50",
    "COCO subset, one label": "coco_mlml_ranking_resnet50",
    "COCO subset, all labels": "coco_mlc_ranking_resnet101",
}
TRAINED = {"linear head on ResNet-50": "resnet50_features", "last layers trained": "finetune"}


def main() -> None:
    """Read the command line and draw all pictures."""
    parser = Parser(__doc__)
    parser.add_argument("run", type=Path, help="a finished run on the mosaic, for its scores")
    parser.add_argument("--output", type=output_folder, default=str(ROOT / "docs" / "images"))
    arguments = parser.parse_args()
    mpl.rc("font", size=9)
    mpl.rc("axes.spines", top=False, right=False)
    pictures = {
        "tkpr": draw_tkpr(arguments.run),
        "results": draw_results(ROOT / "results"),
        "architecture": draw_architecture(),
    }
    for name, figure in pictures.items():
        figure.savefig(arguments.output / f"{name}.png", dpi=160)
    print(f"written: {', '.join(pictures)} in {arguments.output}")


def draw_tkpr(run: Path, k: int = 4) -> Figure:
    """One test image, its scores and the pairs that TKPR counts.

    The image is the first one with three labels, two of them among the K + 1 highest scores and
    none in second place, so that pairs are both won and lost.

    Args:
        run: a finished run on the mosaic.
        k: K.
    """
    from omegaconf import OmegaConf

    from tkpr.config import build_dataset
    from tkpr.metrics import tkpr_at_k
    from tkpr.runs.saved_model import load_predictions

    stored = load_predictions(run)
    order = np.argsort(-stored["logits"], axis=1, kind="stable")
    ranked = np.take_along_axis(stored["targets"], order, axis=1) > 0
    found = (ranked.sum(1) == 3) & (ranked[:, : k + 1].sum(1) == 2) & ~ranked[:, 1]
    image = int(np.flatnonzero(found)[0])
    scores = 1 / (1 + np.exp(-stored["logits"][image, order[image]]))
    names, relevant = stored["class_names"][order[image]], ranked[image]
    value = tkpr_at_k(stored["logits"][[image]], stored["targets"][[image]], k, alpha=2)

    figure = Figure(figsize=(9.6, 3.1), layout="constrained")
    left, middle, right = figure.subplots(1, 3, width_ratios=[1, 1.25, 1.6])
    data = build_dataset(OmegaConf.load(run / "config.yaml").dataset)
    left.imshow(data.test.inputs[image], cmap="gray")
    left.set_title(f"a test image\n{', '.join(names[relevant])}")
    left.axis("off")

    heights = range(len(names))
    middle.barh(heights, scores, color=[DARK if one else LIGHT for one in relevant])
    middle.set_yticks(heights, names)
    middle.invert_yaxis()
    middle.axhline(k - 0.5, color="black", linewidth=1, linestyle="--")
    middle.text(1, k - 0.6, f"top K = {k}", ha="right", va="bottom")
    middle.set(xlim=(0, 1), title="scores, relevant labels dark")
    middle.title.set_horizontalalignment("center")

    draw_pairs(right, names, np.flatnonzero(relevant), k)
    right.set_title(rf"TKPR$^{{\alpha_2}}$@{k} = won pairs / ($\alpha$K) = {value:.3f}", loc="left")
    return figure


def draw_pairs(axes: Axes, names: np.ndarray, positions: np.ndarray, k: int) -> None:
    """A grid of each relevant label against the K + 1 highest scores: won, lost or itself."""
    for row, own in enumerate(positions):
        for column in range(k + 1):
            text, color = ("won", GOOD) if own < column else ("lost", BAD)
            if own == column:
                text, color = "itself", LIGHT
            axes.add_patch(
                FancyBboxPatch((column + 0.06, row + 0.06), 0.88, 0.88, boxstyle="round,pad=0",
                               color=color, alpha=0.85)
            )  # fmt: skip
            axes.text(column + 0.5, row + 0.5, text, ha="center", va="center", color="white")
    axes.set(xlim=(0, k + 1), ylim=(len(positions), 0))
    axes.set_xticks(np.arange(k + 1) + 0.5, names[: k + 1])
    axes.set_yticks(np.arange(len(positions)) + 0.5, names[positions])
    axes.set_xlabel(f"the K + 1 = {k + 1} highest scores")
    axes.set_ylabel("relevant label")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def draw_results(folder: Path, measure: str = "mAP@3") -> Figure:
    """One measure of every row in three settings, with less and more of a network trained.

    Args:
        folder: where the CSV files are.
        measure: a column of them; mean and deviation, TKPR dark.
    """
    figure = Figure(figsize=(9.6, 5.2), layout="constrained")
    panels = figure.subplots(len(TRAINED), len(SETTINGS))
    for lines, (trained, budget) in zip(panels, TRAINED.items(), strict=True):
        for axes, (title, table) in zip(lines, SETTINGS.items(), strict=True):
            stored = pd.read_csv(folder / f"{table}-{budget}.csv").set_index("method")
            mean = stored[stored["kind"] == "mean"][measure].sort_values()
            std = stored[stored["kind"] == "std"][measure].reindex(mean.index)
            for row in mean.index:
                color = DARK if row.startswith("TKPR") else "#777777"
                axes.errorbar(mean[row], row, xerr=std[row], fmt="o", color=color, markersize=5)
            axes.grid(axis="x", color="#DDDDDD", linewidth=0.6)
            axes.set_title(f"{title}\n{trained}", fontsize=8, loc="left")
            axes.xaxis.set_major_locator(MaxNLocator(4))
    for axes in panels[-1]:
        axes.set_xlabel(measure)
    return figure


def draw_architecture() -> Figure:
    """The packages, and how one image becomes a number in a table."""
    figure = Figure(figsize=(9.6, 3.6), layout="constrained")
    axes = figure.subplots()
    axes.set(xlim=(0, 12), ylim=(0, 4.6))
    axes.axis("off")
    boxes = {
        "configs/": (0.1, 3.4, "one YAML file\nper choice"),
        "runs": (2.6, 3.4, "command line, plan,\nfolder, lock"),
        "data": (0.1, 1.9, "images and labels\nto batches"),
        "training": (4.2, 1.9, "warm-up loss, then the loss;\nstate, seeds, preemption"),
        "models": (2.3, 0.4, "images\nto logits"),
        "losses": (4.6, 0.4, "logits and labels\nto a scalar"),
        "ranking, metrics": (7.0, 0.4, "one sort,\nall measures"),
        "run folder": (8.0, 1.9, "metrics.json, weights,\npredictions, events"),
        "reporting": (8.0, 3.4, "tables, figures,\nsignificance, HTML"),
        "theory": (10.0, 0.4, "what the paper\nproves"),
    }
    widths = {"training": 2.9, "run folder": 2.4, "reporting": 2.4, "runs": 2.1, "losses": 2.0}
    for name, (x, y, text) in boxes.items():
        width = widths.get(name, 1.9)
        package = name not in ("configs/", "run folder")
        axes.add_patch(
            FancyBboxPatch(
                (x, y), width, 0.95, boxstyle="round,pad=0.04",
                facecolor="#E3EEF6" if package else "white", edgecolor=DARK if package else LIGHT,
            )
        )  # fmt: skip
        axes.text(x + width / 2, y + 0.76, name, ha="center", va="center", weight="bold")
        axes.text(x + width / 2, y + 0.32, text, ha="center", va="center", fontsize=8)
    arrows = [
        ((2.05, 3.9), (2.55, 3.9)), ((4.0, 3.35), (4.9, 2.92)), ((2.05, 2.4), (4.15, 2.4)),
        ((3.6, 1.4), (4.6, 1.86)), ((5.6, 1.4), (5.6, 1.86)), ((7.7, 1.4), (6.7, 1.86)),
        ((7.15, 2.4), (7.95, 2.4)), ((9.2, 2.9), (9.2, 3.36)),
    ]  # fmt: skip
    for start, end in arrows:
        axes.annotate("", end, start, arrowprops={"arrowstyle": "-|>", "color": "black"})
    return figure


if __name__ == "__main__":
    script(main)
