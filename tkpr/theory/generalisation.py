"""Prop. 5 to 10, Thm. 4 and Tab. 3: Lipschitz constants, and the factor before the complexity.

All constants are given for mu_l = 1; multiply by the surrogate's own constant
(:func:`surrogate_slope`). Asm. 3 asks for K >= N(y); where a histogram has more labels than K, the
weighting term takes N_K = min(K, N).

The local constant of Prop. 9 holds and can be improved: the loss is Lipschitz with
sqrt(q (K + 1) (q + K + 1)) / (alpha K) (:func:`sharp_constant`), smaller by up to sqrt(2).

Proof. Where it exists, the gradient is -1/(alpha K) sum_y sum_k g_yk (e_y - e_[k]) with
0 <= g_yk <= mu_l. A relevant label outside the top K + 1 gets at most K + 1 from it, an irrelevant
one inside at most q, a relevant one inside at most max(K + 1, q) as the two parts have opposite
signs. So the squared norm is at most q (K + 1)^2 + (K + 1) q^2, without overlap. The loss is
continuous and piecewise smooth. A linear l and relevant labels below the top K + 1 attain it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import torch
from scipy.optimize import brentq

from tkpr.data.reference_counts import reference_counts
from tkpr.ranking import alpha_weight
from tkpr.theory.consistency import conditional_risk

# VOC: an object marked difficult does not count. COCO: images without any object are left out.
# NUS-WIDE: the version with 119,103 training images.
DATA_SETS: dict[str, tuple[str, dict[str, Any]]] = {
    "VOC 2007": ("tkpr.data.voc.load_voc", {"year": 2007, "difficult": "negative"}),
    "VOC 2012": ("tkpr.data.voc.load_voc", {"year": 2012, "difficult": "negative"}),
    "COCO 2014": ("tkpr.data.coco.load_coco", {"year": 2014, "drop_unlabelled": True}),
    "NUS-WIDE": (
        "tkpr.data.nuswide.load_nuswide",
        {
            "version": "lists",
            "train_list": "nus_train_full.txt",
            "test_list": "nus_val.txt",
            "index_order": "published",
        },
    ),
}


def training_histogram(name: str) -> tuple[int, ...]:
    """The training images of a data set of the paper with 0, 1, 2, ... labels.

    >>> training_histogram("VOC 2012")
    (0, 3730, 1475, 414, 81, 17)
    """
    if name not in DATA_SETS:
        raise ValueError(f"unknown data set {name!r}: choose one of {', '.join(DATA_SETS)}")
    target, options = DATA_SETS[name]
    known = reference_counts(target, options)
    if known is None:
        raise ValueError(f"the label counts of {name} are not known")
    return known.train.histogram


def local_constant(q: Any, *, alpha: int, k: int) -> Any:
    """mu_q / mu_l for samples with q relevant labels (Prop. 9).

    [(K + 1) sqrt(q) + q sqrt(K + 1)] / (alpha(q) K).

    >>> round(float(local_constant(1, alpha=1, k=3)), 4)  # (4 + 2) / 3
    2.0
    """
    return ((k + 1) * np.sqrt(q) + q * np.sqrt(k + 1)) / (
        alpha_weight(np.asarray(q), alpha=alpha, k=k) * k
    )


def sharp_constant(q: Any, *, alpha: int, k: int) -> Any:
    """The improved mu_q / mu_l, sqrt(q (K + 1) (q + K + 1)) / (alpha(q) K).

    >>> round(float(sharp_constant(1, alpha=1, k=3)), 4)  # sqrt(20) / 3
    1.4907
    """
    return np.sqrt(q * (k + 1) * (q + k + 1)) / (alpha_weight(np.asarray(q), alpha=alpha, k=k) * k)


def constant_as_printed(k: int, *, alpha: int) -> float:
    """mu_K / mu_l as printed in Prop. 5.

    It is the largest local constant for alpha_1. For alpha_2 it is not: the appendix turns
    (K + 1) / (sqrt(N) K) into (K + 1) / sqrt(N K), which costs a factor up to sqrt(K). For alpha_3
    it adds the largest values of two terms, which two different N take. Both are valid bounds.

    >>> constant_as_printed(4, alpha=2) > largest_constant(4, alpha=2)
    True
    """
    root = math.sqrt(k + 1)
    return {
        1: (k + 1) / math.sqrt(k) + root,
        2: (k + 1) / math.sqrt(k) + root / k,
        3: (k + 1) / k**2 + 2 / (k * root),
    }[alpha]


def largest_constant(k: int, *, alpha: int, most: int | None = None) -> float:
    """The largest local constant over q = 1..K, or 1..most: what Prop. 5 follows from.

    >>> largest_constant(4, alpha=2) == float(local_constant(1, alpha=2, k=4))
    True
    """
    return float(local_constant(np.arange(1, (most or k) + 1), alpha=alpha, k=k).max())


def surrogate_slope(name: str) -> float:
    """mu_l of a surrogate on margins in [-1, 1], those of scores in [0, 1] (Asm. 3).

    >>> surrogate_slope("square")
    4.0
    """
    return {"square": 4.0, "exponential": math.e, "logistic": 1 / (1 + math.exp(-1))}[name]


def measured_ratio(
    q: int,
    *,
    alpha: int,
    k: int,
    surrogate: str,
    num_labels: int = 12,
    pairs: int = 3000,
    seed: int = 0,
) -> float:
    """The largest |L(s) - L(s')| / ||s - s'|| over random pairs of scores in [0, 1].

    The pairs are at all distances from 1e-4 up. Divided by the surrogate's slope, the ratio may
    exceed neither :func:`local_constant` nor :func:`sharp_constant`.

    >>> ratio = measured_ratio(2, alpha=2, k=3, surrogate="square") / surrogate_slope("square")
    >>> 0.5 < ratio < float(sharp_constant(2, alpha=2, k=3))
    True
    """
    generator = torch.Generator().manual_seed(seed)
    shape = (pairs, num_labels)
    scores = torch.rand(shape, generator=generator, dtype=torch.float64)
    step = torch.randn(shape, generator=generator, dtype=torch.float64)
    reach = 10 ** (-4 * torch.rand((pairs, 1), generator=generator, dtype=torch.float64))
    other = (scores + reach * step).clamp(0, 1)
    # the loss of one sample is the conditional risk for Delta = y / alpha, over K
    weights = (torch.arange(num_labels) < q).double() / alpha_weight(q, alpha=alpha, k=k) / k
    here, there = (conditional_risk(s, weights, k=k, surrogate=surrogate) for s in (scores, other))
    return float(((here - there).abs() / (scores - other).norm(dim=1)).max())


def shares(histogram: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Return the label counts q >= 1 that occur and their shares pi_q of all samples (Prop. 8).

    >>> shares([0, 3, 0, 1])
    (array([1, 3]), array([0.75, 0.25]))
    """
    counts = np.asarray(histogram)
    q = np.flatnonzero(counts)
    q = q[q > 0]
    return q, counts[q] / counts.sum()


def contraction_factor(histogram: Sequence[int], k: int, *, alpha: int) -> float:
    """sum_q sqrt(pi_q) mu_q / mu_l, the factor of the data-dependent contraction (Prop. 8, 9).

    >>> round(contraction_factor([0, 1], 3, alpha=1), 4)
    2.0
    """
    q, pi = shares(histogram)
    return float((np.sqrt(pi) * local_constant(q, alpha=alpha, k=k)).sum())


@dataclass(frozen=True)
class Fit:
    """A law fitted to a histogram of label counts.

    Attributes:
        law: "exponential", pi_q ~ exp(-lambda q), or "power", pi_q ~ q^-lambda, on q = 1..max.
        rate: lambda, by maximum likelihood.
        log_likelihood: per sample.
        distance: the total variation distance between the law and the shares, 0 to 1.
    """

    law: str
    rate: float
    log_likelihood: float
    distance: float


def fit(histogram: Sequence[int], law: str) -> Fit:
    """Fit lambda of a law of Tab. 3 to a histogram.

    Both laws are exponential families, so the likelihood is largest where the law's mean of q, or
    of ln q, is that of the data.

    >>> round(fit([0, 400, 200, 100], "exponential").rate, 6)  # each half the one before: ln 2
    0.693147
    """
    counts = np.asarray(histogram[1:], dtype=float)
    share = counts / counts.sum()
    statistic = _statistic(len(counts), law)
    rate = brentq(lambda r: _law(len(counts), law, r) @ statistic - share @ statistic, -20, 40)
    model = _law(len(counts), law, rate)
    return Fit(law, rate, float(share @ np.log(model)), float(np.abs(share - model).sum() / 2))


def law_factor(law: str, rate: float, k: int, *, alpha: int, normalised: bool = True) -> float:
    """sum_{q <= K} sqrt(pi_q) mu_q / mu_l for a law of Tab. 3 (Thm. 4).

    Tab. 3 drops the constant that makes the pi_q sum to one (``normalised=False``), although it
    depends on lambda and, for slow decay, on K.

    >>> law_factor("exponential", 10.0, 20, alpha=2, normalised=False) < 0.01
    True
    >>> law_factor("exponential", 10.0, 20, alpha=2) > largest_constant(20, alpha=2)
    True
    """
    q = np.arange(1, k + 1)
    root = np.exp(-rate * _statistic(k, law) / 2)
    if normalised:
        root = np.sqrt(_law(k, law, rate))
    return float((root * local_constant(q, alpha=alpha, k=k)).sum())


def order_as_printed(law: str, rate: float, k: float, *, alpha: int) -> float:
    """g(K) of Tab. 3.

    >>> order_as_printed("power", 2.0, 100, alpha=1)
    10.0
    """
    if law == "exponential":
        return {1: rate**-2, 2: math.exp(-rate / 2), 3: math.exp(-rate / 2) / k}[alpha]
    slow, fast = {1: (3, 5), 2: (1, 3), 3: (1, 3)}[alpha]
    scale = 1 / k if alpha == 3 else 1.0
    if rate < slow:
        return scale * k ** ((slow - rate) / 2)
    return scale * math.log(k) if rate < fast else scale


def row_as_printed(law: str, rate: float, *, alpha: int) -> str:
    """The row of Tab. 3 that a law with this lambda falls into, in words.

    >>> row_as_printed("power", 1.33, alpha=1)
    'lambda in (0, 3): K^((3 - lambda)/2) = K^0.83'
    """
    if law == "exponential":
        return {1: "1/lambda^2", 2: "exp(-lambda/2)", 3: "exp(-lambda/2)/K"}[alpha]
    slow, fast = {1: (3, 5), 2: (1, 3), 3: (1, 3)}[alpha]
    if rate < slow:
        power = {1: "(3 - lambda)/2", 2: "(1 - lambda)/2", 3: "-(1 + lambda)/2"}[alpha]
        value = (slow - rate) / 2 - (alpha == 3)
        return f"lambda in (0, {slow}): K^({power}) = K^{value:.2f}"
    scale = "/K" if alpha == 3 else ""
    if rate < fast:
        return f"lambda in [{slow}, {fast}): ln K{scale}"
    return f"lambda >= {fast}: 1{scale}"


def growth_exponent(law: str, rate: float, *, alpha: int, normalised: bool = True) -> float:
    """The power of K with which :func:`law_factor` grows, measured between 1e5 and 1e6.

    >>> round(growth_exponent("power", 2.0, alpha=1), 1)
    0.5
    """
    near, far = (
        law_factor(law, rate, k, alpha=alpha, normalised=normalised) for k in (10**5, 10**6)
    )
    return math.log10(far / near)


def linear_complexity(inputs: Sequence[float], scales: Sequence[float]) -> float:
    """Rademacher complexity of {x -> m w x: |w| <= 1} on a sample, m the scale at x; exact.

    With all scales 1 it is that of F, else of a loss with the local constants ``scales``: the
    smallest setting in which Prop. 8 can be tried.

    >>> linear_complexity([0.0, 1.0], [1.0, 1.0])
    0.5
    """
    terms = np.asarray(inputs) * np.asarray(scales)
    signs = np.array(list(product((-1, 1), repeat=len(terms))))
    return float(np.abs(signs @ terms).mean() / len(terms))


def _statistic(size: int, law: str) -> np.ndarray:
    """Return q, or ln q, for q = 1..size."""
    if law not in ("exponential", "power"):
        raise ValueError(f"unknown law {law!r}: choose one of exponential, power")
    q = np.arange(1, size + 1, dtype=float)
    return q if law == "exponential" else np.log(q)


def _law(size: int, law: str, rate: float) -> np.ndarray:
    """Return the probabilities of q = 1..size."""
    exponent = -rate * _statistic(size, law)
    weights = np.exp(exponent - exponent.max())
    return weights / weights.sum()
