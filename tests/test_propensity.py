"""Propensity-scored measures against loops over labels."""

import math

import numpy as np
import pytest
import torch

from tkpr.propensity import inverse_propensities, psndcg_at_k, psp_at_k


def test_inverse_propensities_by_hand():
    counts, n, a, b = [0, 1, 7, 500], 1000, 0.6, 2.6
    c = (math.log(n) - 1) * (b + 1) ** a
    expected = [1 + c * math.exp(-a * math.log(count + b)) for count in counts]
    found = inverse_propensities(np.array(counts), n, a=a, b=b)
    assert found.tolist() == pytest.approx(expected, rel=1e-12)
    assert (found.diff() < 0).all()
    assert (found > 1).all()


def test_inverse_propensities_refuse_wrong_input():
    with pytest.raises(ValueError, match="at least 3 training samples; got 2"):
        inverse_propensities(torch.tensor([1]), 2)
    with pytest.raises(ValueError, match=r"class_counts must be \[C\]; got \(1, 1\)"):
        inverse_propensities(torch.tensor([[1]]), 9)
    with pytest.raises(ValueError, match=r"b above 0; got 0\.55 and 0"):
        inverse_propensities(torch.tensor([1]), 9, b=0)


def test_no_relevant_label_at_all():
    nothing = torch.zeros(2, 3)
    with pytest.raises(ValueError, match="no row has the relevant labels"):
        psp_at_k(nothing, nothing, 2)
    with pytest.raises(ValueError, match="no row has the relevant labels"):
        psndcg_at_k(nothing, nothing, torch.zeros(2), 2)
