"""The table of measures: one entry each, read by everything that names a measure."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from tkpr.metrics.functions import (
    apply_rows,
    average_precision_columns,
    average_precision_rows,
    class_counts,
    class_f1_of_counts,
    mean_rows,
    ndcg_rows,
    overall_f1_of_counts,
    precision_rows,
    ranking_loss_rows,
    recall_rows,
    tkpr_rows,
)
from tkpr.metrics.propensity import psndcg_at_k, psp_at_k
from tkpr.ranking import Array, check_matrices, leave_out, rankings


@dataclass(frozen=True)
class Measure:
    """An entry of :data:`MEASURES`.

    Attributes:
        name: the key in metrics.json; ``@K`` at its end stands for a cut-off.
        scope: "image": a mean over images; "class": a mean over classes; "set": one number for
            all; "propensity": a number for all that weighs rare labels up, which
            :func:`evaluate_top` computes; "training": a number of the training loop. The last two
            are left out by :func:`evaluate`.
        function: by scope, a function of a :class:`Ranking` of each image's labels (with a cut-off:
            of its top K, and K), of a ranking of the images for each class, or of three counts per
            class: true positives, predictions, positives; for "propensity" see propensity.py.
        title: how tables and figures write it, in LaTeX that matplotlib understands.
        lower_is_better: whether less is better.
        digits: printed after the decimal point.
    """

    name: str
    scope: str
    function: Callable[..., Any] | None
    title: str
    lower_is_better: bool = False
    digits: int = 3

    def names(self, ks: Iterable[int]) -> list[str]:
        """Its names with each cut-off, or its only name."""
        if not self.name.endswith("@K"):
            return [self.name]
        return [f"{self.name[:-1]}{k}" for k in ks]


MEASURES = {
    measure.name: measure
    for measure in (
        Measure("P@K", "image", precision_rows, "P@K"),
        Measure("R@K", "image", recall_rows, "R@K"),
        Measure("mAP@K", "image", average_precision_rows, "mAP@K"),
        Measure("NDCG@K", "image", ndcg_rows, "NDCG@K"),
        Measure("TKPR_a1@K", "image", partial(tkpr_rows, alpha=1), r"TKPR$^{\alpha_1}$@K"),
        Measure("TKPR_a2@K", "image", partial(tkpr_rows, alpha=2), r"TKPR$^{\alpha_2}$@K"),
        Measure("TKPR_a3@K", "image", partial(tkpr_rows, alpha=3), r"TKPR$^{\alpha_3}$@K"),
        Measure(
            "ranking_loss",
            "image",
            ranking_loss_rows,
            "ranking loss",
            lower_is_better=True,
            digits=4,
        ),
        Measure("mAP", "class", average_precision_columns, "mAP per class"),
        Measure("CF1", "set", class_f1_of_counts, "CF1"),
        Measure("OF1", "set", overall_f1_of_counts, "OF1"),
        Measure("PSP@K", "propensity", psp_at_k, "PSP@K"),
        Measure("PSnDCG@K", "propensity", psndcg_at_k, "PSnDCG@K"),
        Measure("train_loss", "training", None, "training loss", lower_is_better=True, digits=4),
    )
}


def find_measure(name: str) -> tuple[Measure, int | None]:
    """Return the entry of a measure, and K where its name has one.

    >>> measure, k = find_measure("NDCG@5")
    >>> measure.name, k
    ('NDCG@K', 5)
    """
    head, at, k = name.partition("@")
    measure = MEASURES.get(f"{head}@K" if at else name)
    if measure is None or (at and not (k.isdecimal() and int(k) > 0)):
        raise ValueError(f"no measure {name!r}: choose one of {', '.join(MEASURES)}")
    return measure, int(k) if at else None


def lower_is_better(name: str) -> bool:
    """Whether less is better.

    >>> lower_is_better("ranking_loss"), lower_is_better("mAP@3")
    (True, False)
    """
    return find_measure(name)[0].lower_is_better


def title(name: str) -> str:
    r"""How tables and figures write a measure.

    >>> title("TKPR_a2@5")
    'TKPR$^{\\alpha_2}$@5'
    """
    measure, k = find_measure(name)
    return measure.title.replace("@K", f"@{k}")


def measure_names(
    ks: Iterable[int] = (3, 5), scopes: Iterable[str] = ("image", "class", "set")
) -> list[str]:
    """The keys that :func:`evaluate` returns; with ``scopes=["image"]`` the tables' columns.

    >>> measure_names([3], scopes=["class", "set"])
    ['mAP', 'CF1', 'OF1']
    """
    ks, scopes = tuple(ks), tuple(scopes)
    chosen = [measure for measure in MEASURES.values() if measure.scope in scopes]
    return [name for measure in chosen for name in measure.names(ks)]


def evaluate(
    scores: Array,
    targets: Array,
    ks: Iterable[int] = (3, 5),
    *,
    threshold: float = 0.0,
    ties: str = "worst",
    empty: str = "skip",
    unknown: Array | None = None,
) -> dict[str, float]:
    """All measures of the table, from one ranking of the rows.

    Args:
        scores: logits (``threshold`` 0) or probabilities (0.5), ``[B, C]``.
        targets: 0 or 1, ``[B, C]``.
        ks: the cut-offs K.
        threshold: above it a label is predicted; used by CF1 and OF1 only.
        ties: "worst" or "average".
        empty: "skip" or "zero".
        unknown: True for labels to leave out of the ranking and of the counts, ``[B, C]``.

    Returns:
        The values by :func:`measure_names`.

    >>> values = evaluate(torch.tensor([[0.9, 0.8, 0.1]]), torch.tensor([[1, 0, 1]]), ks=[1, 2])
    >>> values["P@1"], values["TKPR_a2@2"], values["ranking_loss"]
    (1.0, 0.5, 0.5)
    """
    ks = tuple(ks)
    scores, targets = check_matrices(scores, targets, *ks)
    scores = leave_out(scores, targets, unknown)
    parts: dict[str, list[Tensor]] = {}
    for ranking in rankings(scores, targets, ties):
        tops = {k: ranking.top(k) for k in ks}
        for name in measure_names(ks, ["image"]):
            measure, k = find_measure(name)
            function = cast(Callable[..., Any], measure.function)
            values = function(tops[k], k) if k else function(ranking)
            parts.setdefault(name, []).append(values)
    for ranking in rankings(scores.T, targets.T, ties):
        for name in measure_names(ks, ["class"]):
            function = cast(Callable[..., Any], MEASURES[name].function)
            parts.setdefault(name, []).append(function(ranking))
    result = {name: float(mean_rows(torch.cat(part), empty)) for name, part in parts.items()}
    counts = class_counts(scores, targets, threshold, None)
    for name in measure_names(ks, ["set"]):
        result[name] = float(cast(Callable[..., Any], MEASURES[name].function)(*counts))
    return {name: result[name] for name in measure_names(ks)}


def evaluate_one(
    measure: str, scores: Array, targets: Array, unknown: Array | None = None
) -> float:
    """One measure by its name, as :func:`evaluate` computes it.

    >>> evaluate_one("mAP@2", torch.tensor([[0.9, 0.8, 0.1]]), torch.tensor([[1, 0, 1]]))
    0.5
    """
    entry, _ = find_measure(measure)
    if entry.function is None:
        raise ValueError(f"{measure} is a number of the training loop, not of predictions")
    if entry.scope == "image":
        values = per_image(measure, scores, targets, unknown)
        return float(mean_rows(torch.as_tensor(values), "skip"))
    if entry.scope == "class":
        check_matrices(scores, targets)
        unknown = None if unknown is None else unknown.T
        return apply_rows(entry.function, scores.T, targets.T, unknown=unknown)
    scores, targets = check_matrices(scores, targets)
    counts = class_counts(leave_out(scores, targets, unknown), targets, 0.0, None)
    return float(entry.function(*counts))


def per_image(measure: str, scores: Array, targets: Array, unknown: Array | None = None) -> Any:
    """The value of a measure on each image, NaN where it is not defined.

    Args:
        measure: a name such as mAP@3, TKPR_a2@5 or ranking_loss: one that is a mean over images.
        scores: ``[B, C]``.
        targets: 0 or 1, ``[B, C]``.
        unknown: True for labels to leave out of the ranking, ``[B, C]``.

    >>> import numpy as np
    >>> per_image("P@1", np.array([[2.0, 1.0], [2.0, 1.0]]), np.array([[1, 0], [0, 1]]))
    array([1., 0.])
    """
    entry, k = find_measure(measure)
    if entry.scope != "image" or entry.function is None:
        names = [known.name for known in MEASURES.values() if known.scope == "image"]
        raise ValueError(f"{measure} is no mean over images: choose one of {', '.join(names)}")
    function = partial(entry.function, k=k) if k else entry.function
    return apply_rows(function, scores, targets, k, reduction="none", unknown=unknown)
