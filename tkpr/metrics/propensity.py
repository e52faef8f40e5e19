"""Propensity-scored measures of extreme multi-label classification (Jain et al., KDD 2016).

With hundreds of thousands of labels, annotators miss relevant ones, rare labels most of all. The
chance that a relevant label l is observed, its propensity, is modelled from the number N_l of
training samples that have it:

    1 / p_l = 1 + C (N_l + B)^-A,    C = (log N - 1) (B + 1)^A.

A and B belong to the data set: 0.5 and 0.4 for Wikipedia, 0.6 and 2.6 for Amazon, 0.55 and 1.5 for
all others of the Extreme Classification Repository. Each relevant label then counts 1 / p_l, and a
measure is divided by its largest possible value, both summed over the rows first:

    PSP@K = sum_i sum_{k<=K} y_sigma(k) / p_sigma(k)  /  sum_i max_sigma (the same).

PSnDCG@K likewise has w_i D(k) y_sigma(k) / p_sigma(k), D(k) = 1 / log2(k + 1), with w_i the
reciprocal of sum D(k) over the first min(K, N_i) positions. Rows without relevant labels add 0 to
both sums.
"""

import numpy as np
import torch
from torch import Tensor

Array = Tensor | np.ndarray


def inverse_propensities(
    class_counts: Array, num_samples: int, *, a: float = 0.55, b: float = 1.5
) -> Tensor:
    """Return 1 / p_l of each label.

    Args:
        class_counts: N_l, the training samples that have each label, ``[C]``.
        num_samples: N, the size of the training set, at least 3, or log N - 1 would be negative.
        a: A.
        b: B.

    Returns:
        float64 ``[C]``, 1 or more, the larger the rarer the label.

    >>> inverse_propensities(torch.tensor([0, 10, 1000]), 1000)
    tensor([8.8242, 3.5521, 1.2187], dtype=torch.float64)
    """
    counts = torch.as_tensor(class_counts).double()
    if counts.ndim != 1:
        raise ValueError(f"class_counts must be [C]; got {tuple(counts.shape)}")
    if num_samples < 3:
        raise ValueError(f"propensities need at least 3 training samples; got {num_samples}")
    if a < 0 or b <= 0:
        raise ValueError(f"a must be 0 or more and b above 0; got {a} and {b}")
    scale = (np.log(num_samples) - 1) * (b + 1) ** a
    return 1 + scale * (counts + b) ** -a


def psp_at_k(gains: Tensor, ideal: Tensor, num_relevant: Tensor, k: int) -> float:
    """PSP@K from the K best labels of each row.

    Args:
        gains: y_sigma(k) / p_sigma(k) of the label at each position, ``[N, K']``, K' >= k.
        ideal: 1 / p of the relevant labels, largest first, padded with 0, ``[N, K']``.
        num_relevant: not used; how many labels are relevant, ``[N]``.
        k: K.

    >>> gains = torch.tensor([[0.0, 2.0], [3.0, 0.0]])
    >>> ideal = torch.tensor([[4.0, 2.0], [3.0, 0.0]])
    >>> psp_at_k(gains, ideal, torch.tensor([2, 1]), 2)  # 5 / 9
    0.5555555555555556
    """
    return _ratio(gains[:, :k].double().sum(), ideal[:, :k].double().sum())


def psndcg_at_k(gains: Tensor, ideal: Tensor, num_relevant: Tensor, k: int) -> float:
    """PSnDCG@K from the K best labels of each row.

    Args:
        gains: y_sigma(k) / p_sigma(k) of the label at each position, ``[N, K']``, K' >= k.
        ideal: 1 / p of the relevant labels, largest first, padded with 0, ``[N, K']``.
        num_relevant: how many labels are relevant, ``[N]``.
        k: K.

    >>> gains, ideal = torch.tensor([[0.0, 2.0]]), torch.tensor([[4.0, 2.0]])
    >>> round(psndcg_at_k(gains, ideal, torch.tensor([2]), 2), 6)  # x / (4 + x), x = 2 / log2(3)
    0.239812
    """
    discount = 1 / torch.arange(2, k + 2, dtype=torch.float64).log2()
    norm = discount.cumsum(0)[num_relevant.long().clamp(1, k) - 1]
    found, best = ((part[:, :k].double() @ discount / norm).sum() for part in (gains, ideal))
    return _ratio(found, best)


def _ratio(found: Tensor, best: Tensor) -> float:
    if best <= 0:
        raise ValueError("no row has the relevant labels this measure needs")
    return float(found / best)
