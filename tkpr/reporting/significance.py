"""Paired bootstrap over test images: is one method better than another beyond chance?

Both methods are measured on the same images. The images are drawn again, with replacement, many
times; the share of draws in which their order is reversed says how far to trust it. The
spread over training runs is not seen by this: several seeds are averaged per image first.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from tkpr.metrics import evaluate_one, find_measure, per_image
from tkpr.runs.saved_model import load_predictions

LEVEL = 0.05
RESAMPLES_AT_ONCE = 100


@dataclass(frozen=True)
class Comparison:
    """How a method a differs from a method b on a measure.

    Attributes:
        first: the value of a.
        second: the value of b.
        low: lower end of the interval of a - b.
        high: upper end.
        p_value: two-sided: twice the share of draws on the less likely side of 0.
    """

    first: float
    second: float
    low: float
    high: float
    p_value: float

    @property
    def difference(self) -> float:
        """The value of a minus that of b."""
        return self.first - self.second


def paired_bootstrap(
    first: np.ndarray,
    second: np.ndarray,
    *,
    resamples: int,
    confidence: float = 0.95,
    seed: int = 0,
) -> list[Comparison]:
    """Compare the means of two methods on the same images, for several measures at once.

    Args:
        first: the values of method a, ``[N, M]``; NaN where a measure says nothing.
        second: those of method b.
        resamples: how often the images are drawn again; all measures see the same draws.
        confidence: of the interval.
        seed: of the draws.

    >>> first, second = np.array([[1.0], [1], [1], [0]]), np.zeros((4, 1))
    >>> paired_bootstrap(first, second, resamples=500)[0].difference
    0.75
    """
    valid = ~(np.isnan(first) | np.isnan(second))
    if not valid.any(axis=0).all():
        raise ValueError("a measure says nothing about any image")
    differences = np.where(valid, first - second, 0.0)
    both = np.concatenate([differences, valid], axis=1)
    size, rng = len(first), np.random.default_rng(seed)
    chance = np.full(size, 1 / size)
    sums = np.concatenate(
        [
            rng.multinomial(size, chance, min(RESAMPLES_AT_ONCE, resamples - start)) @ both
            for start in range(0, resamples, RESAMPLES_AT_ONCE)
        ]
    )
    totals, counts = np.split(sums, 2, axis=1)
    drawn = totals / np.maximum(counts, 1)
    means = [np.where(valid, part, 0.0).sum(axis=0) / valid.sum(axis=0) for part in (first, second)]
    return [
        _summary(one, other, column, confidence)
        for one, other, column in zip(*means, drawn.T, strict=True)
    ]


def bootstrap_whole(
    function: Callable[..., float],
    first: np.ndarray,
    second: np.ndarray,
    *labels: np.ndarray,
    resamples: int,
    confidence: float = 0.95,
    seed: int = 0,
) -> Comparison:
    """Compare two methods on a measure of the whole set, computed anew on every draw.

    Args:
        function: of (logits, *labels), such as the per-class mAP.
        first: logits of method a, ``[N, C]``.
        second: logits of method b.
        labels: the targets ``[N, C]``, and where they are unknown if anywhere.
        resamples: how often the images are drawn again.
        confidence: of the interval.
        seed: of the draws.
    """
    rng = np.random.default_rng(seed)
    drawn = []
    for _ in range(resamples):
        rows = rng.integers(len(first), size=len(first))
        chosen = [part[rows] for part in labels]
        drawn.append(function(first[rows], *chosen) - function(second[rows], *chosen))
    values = function(first, *labels), function(second, *labels)
    return _summary(*values, np.array(drawn), confidence)


def _summary(first: float, second: float, drawn: np.ndarray, confidence: float) -> Comparison:
    """Interval and p-value from the differences in the draws; the data count as one draw more."""
    low, high = np.quantile(drawn, [(1 - confidence) / 2, (1 + confidence) / 2])
    reversed_share = min((drawn <= 0).sum() + 1, (drawn >= 0).sum() + 1) / (len(drawn) + 1)
    p_value = min(1.0, 2 * reversed_share)
    return Comparison(float(first), float(second), float(low), float(high), float(p_value))


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct the p-values of several comparisons (Holm, 1979).

    The i-th smallest of m is multiplied by m - i + 1, and is at least the one before it. Rejecting
    where the result is below 5 % makes any false rejection, among all m, that unlikely.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = np.argsort(p_values, kind="stable")
    factors = np.arange(len(p_values), 0, -1)
    corrected = np.maximum.accumulate(np.asarray(p_values)[order] * factors).clip(max=1)
    result = np.empty(len(p_values))
    result[order] = corrected
    return result.tolist()


def compare(
    first: Sequence[Path],
    second: Sequence[Path],
    measure: str,
    *,
    resamples: int | None = None,
    seed: int = 0,
) -> Comparison:
    """Compare two methods by the predictions of their finished runs.

    Args:
        first: run folders of method a, one per seed.
        second: run folders of method b.
        measure: any name that ``evaluate`` returns, with any K.
        resamples: how often the images are drawn again; by default 2000, or 200 where the measure
            has to be computed anew each time.
        seed: of the draws.
    """
    ones, others = ([load_predictions(folder) for folder in part] for part in (first, second))
    for stored, folder in zip([*ones, *others], [*first, *second], strict=True):
        check_same_images(ones[0], stored, first[0], folder)
    labels = [ones[0][name] for name in ("targets", "unknown") if name in ones[0]]
    if find_measure(measure)[0].scope != "image":
        if len(ones) != 1 or len(others) != 1:
            raise ValueError(f"{measure} is no mean over images: compare one run with one run")
        logits = ones[0]["logits"], others[0]["logits"]
        draws, whole = resamples or 200, partial(evaluate_one, measure)
        return bootstrap_whole(whole, *logits, *labels, resamples=draws, seed=seed)
    means = [
        np.mean([per_image(measure, stored["logits"], *labels) for stored in part], axis=0)[:, None]
        for part in (ones, others)
    ]
    return paired_bootstrap(*means, resamples=resamples or 2000, seed=seed)[0]


def check_same_images(
    one: dict[str, np.ndarray], other: dict[str, np.ndarray], folder: Path, other_folder: Path
) -> None:
    """Refuse to compare predictions for other images or other labels."""
    for name in ("ids", "class_names", "targets", "unknown"):
        if not np.array_equal(one.get(name, ()), other.get(name, ())):
            raise ValueError(
                f"{folder} and {other_folder} were not tested on the same images: "
                f"their {name} differ"
            )
