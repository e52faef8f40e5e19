"""Fig. 8 and 9: images with their labels and the top labels of several methods.

Images are chosen by a rule, not by hand: the gain of an image is TKPR^{alpha_2}@5 of the TKPR row
(alpha_2 where there are several) minus the highest value among the competitors. The images with the
largest gain are shown, those with more labels first among equals, then in the order of their ids.
With ``losses=True`` it is the smallest gain instead. The shares of images with a gain and with a
loss are written above them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from omegaconf import OmegaConf

from tkpr.config import build_dataset
from tkpr.data.dataset import Split
from tkpr.data.images import read_image
from tkpr.metrics import per_image, title
from tkpr.ranking import top_labels
from tkpr.reporting.escape import for_figure
from tkpr.reporting.figures.style import shown
from tkpr.reporting.rows import Run, is_ours
from tkpr.reporting.significance import check_same_images
from tkpr.runs.saved_model import load_predictions
from tkpr.runs.untrusted import check_targets

MEASURE = "TKPR_a2@5"
GREEN, GREY = "#1AB862", "#666666"  # the paper's green


@dataclass(frozen=True)
class Case:
    """One image: its id, its labels, and what each method puts on top.

    Attributes:
        id: of the image.
        labels: the names of its labels.
        gain: by the rule above.
        top: by row, the names of the top labels from the first on.
    """

    id: str
    labels: list[str]
    gain: float
    top: dict[str, list[str]]


@dataclass(frozen=True)
class Cases:
    """The chosen images, and how many of all had a gain or a loss.

    Attributes:
        chosen: from the largest gain down or, with ``losses``, from the smallest up.
        better: the share of all test images with a gain.
        worse: the share with a loss.
        losses: which end was chosen.
    """

    chosen: list[Case]
    better: float
    worse: float
    losses: bool


def choose(rows: Mapping[str, Run], *, count: int = 4, losses: bool = False) -> Cases:
    """Choose images by the rule at the top of this file.

    Args:
        rows: one run per row: one or more TKPR rows and one or more competitors.
        count: how many images.
        losses: the images on which TKPR does worst, instead of best.
    """
    ours = [row for row in rows if is_ours(row)]
    if not ours or len(rows) == len(ours):
        raise ValueError(
            f"a case study needs a TKPR row and at least one competitor; got {', '.join(rows)}"
        )
    lead = "TKPR_a2" if "TKPR_a2" in ours else ours[0]
    stored = {row: load_predictions(run.folder) for row, run in rows.items()}
    first = stored[lead]
    for row, predictions in stored.items():
        check_same_images(first, predictions, rows[lead].folder, rows[row].folder)
    targets, names = first["targets"], first["class_names"].tolist()
    unknown = first.get("unknown")
    values = {
        row: per_image(MEASURE, one["logits"], targets, unknown) for row, one in stored.items()
    }
    theirs = np.max([value for row, value in values.items() if row not in ours], axis=0)
    gain = np.nan_to_num(values[lead] - theirs).round(9)  # equal gains are ties
    order = np.lexsort((first["ids"], -targets.sum(1).astype(int), gain if losses else -gain))
    chosen = []
    for index in order[:count].tolist():
        top = {}
        for row, one in stored.items():
            scores = torch.from_numpy(one["logits"][[index]])
            best = top_labels(scores, torch.from_numpy(targets[[index]].astype(int)), 5)
            top[row] = [names[label] for label in best[0].tolist()]
        labels = [names[label] for label in np.flatnonzero(targets[index]).tolist()]
        chosen.append(Case(str(first["ids"][index]), labels, float(gain[index]), top))
    return Cases(chosen, float((gain > 0).mean()), float((gain < 0).mean()), losses)


def pictures(run: Run, dataset: Any = None) -> dict[str, tuple[Split, int]]:
    """The images of a run by their ids, those it was tested on first; empty for features.

    The id without folder and ending finds an image as well, where it belongs to one image only:
    features may be stored under shorter ids than the images.

    Args:
        run: whose data set to read.
        dataset: the settings of another data set with the same images, for runs on features.
    """
    if dataset is None:
        dataset = OmegaConf.create(run.config["dataset"])
        check_targets(dataset, run.folder, package="tkpr.data")
        if "cache_dir" in dataset:  # a stored file does not choose where others write
            dataset.cache_dir = None
    if "train_split" in dataset:
        return {}
    data = build_dataset(dataset)
    splits = (data.train, data.test) if run.held_out else (data.test, data.train)
    found: dict[str, tuple[Split, int]] = {}
    by_stem: dict[str, list[tuple[Split, int]]] = {}
    for split in splits:
        for row, name in enumerate(split.ids):
            found.setdefault(name, (split, row))
            by_stem.setdefault(PurePath(name).stem, []).append((split, row))
    return {stem: places[0] for stem, places in by_stem.items() if len(places) == 1} | found


def find_picture(images: Mapping[str, tuple[Split, int]], name: str) -> tuple[Split, int] | None:
    """Look an image up by its id; an id without a folder may lack the image's folder and ending.

    Args:
        images: of :func:`pictures`.
        name: the id.

    >>> images = {"0": ("split", 7), "train/0.png": ("split", 7)}
    >>> find_picture(images, "0.jpg"), find_picture(images, "test/0.png")
    (('split', 7), None)
    """
    short = PurePath(name).stem if PurePath(name).parent == PurePath() else name
    return images.get(name) or images.get(short)


def pixels(split: Split, row: int) -> np.ndarray:
    """One image of a split as an array."""
    image = split.inputs[row]
    return np.asarray(image if isinstance(image, np.ndarray) else read_image(image))


def draw(cases: Cases, images: Mapping[str, tuple[Split, int]], rows: Sequence[str]) -> Figure:
    """Draw a column per image: its labels, the image, then five labels per method.

    Right labels, and those of the image, are green and bold; right ones are ticked.

    Args:
        cases: the chosen images.
        images: where to find the pixels, by id; where they are not at hand the id is shown.
        rows: the methods, from top to bottom.
    """
    count = len(cases.chosen)
    figure = Figure(figsize=(2.1 * count, 2.2 + 1.0 * len(rows)), layout="constrained")
    heights = [2.0, *[1.0] * len(rows)]
    panels = figure.subplots(1 + len(rows), count, squeeze=False, height_ratios=heights)
    figure.suptitle(
        f"{'smallest' if cases.losses else 'largest'} gains in {title(MEASURE)} over the best "
        f"competitor; of all test images\n{cases.better:.0%} gain, {cases.worse:.0%} lose",
        fontsize=8,
    )
    for column, case in zip(panels.T, cases.chosen, strict=True):
        found = find_picture(images, case.id)
        if found:
            column[0].imshow(pixels(*found), cmap="gray", aspect="equal")
        else:
            name = for_figure(case.id)
            column[0].text(0.5, 0.5, f"image\n{name}", ha="center", va="center", color=GREY)
        names = wrap([for_figure(label) for label in case.labels])
        column[0].set_title(names, fontsize=7, color=GREEN, weight="bold")
        column[0].set_xlabel(f"gain {case.gain:+.2f}", fontsize=7, labelpad=2)
        for panel, row in zip(column[1:], rows, strict=True):
            panel.set_title(shown(row), fontsize=7, loc="left", pad=1)
            for place, label in enumerate(case.top[row]):
                right = label in case.labels
                panel.text(
                    0.04,
                    0.94 - 0.19 * place,
                    f"{place + 1}  {for_figure(label)}{'  ✓' if right else ''}",
                    fontsize=7,
                    va="top",
                    color=GREEN if right else GREY,
                    weight="bold" if right else "normal",
                )
    for panel in panels.flat:
        panel.set_xticks([])
        panel.set_yticks([])
        panel.grid(False)
        for spine in panel.spines.values():
            spine.set_visible(True)
            spine.set_color("#BBBBBB")
    return figure


def wrap(labels: Sequence[str], *, width: int = 26) -> str:
    """Join labels with commas, with a new line before one that would run over.

    >>> print(wrap(["traffic light", "person", "motorcycle"]))
    traffic light, person,
    motorcycle
    """
    lines = [""]
    for i, label in enumerate(labels):
        word = label + ("," if i + 1 < len(labels) else "")
        if lines[-1] and len(lines[-1]) + 1 + len(word) > width:
            lines.append(word)
        else:
            lines[-1] = f"{lines[-1]} {word}".strip()
    return "\n".join(lines)
