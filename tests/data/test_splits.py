import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.losses.golden import golden
from tkpr.data.splits import holdout


def test_equals_the_split_of_the_single_positive_papers():
    stored = golden("spml_data")
    case = next(case for case in stored["cases"] if case["name"] == "split")
    train, held = holdout(
        case["num_examples"], stored["params"]["val_frac"], seed=stored["params"]["split_seed"]
    )
    assert train.tolist() == case["train"]
    assert held.tolist() == case["val"]


@given(st.integers(5, 500), st.floats(0.2, 0.8), st.integers(0, 10))
def test_each_row_is_in_one_part(num_samples, share, seed):
    train, held = holdout(num_samples, share, seed=seed)
    assert sorted([*train, *held]) == list(range(num_samples))
    assert (np.diff(train) > 0).all()
    assert (np.diff(held) > 0).all()
    assert abs(len(held) - share * num_samples) <= 0.5


@pytest.mark.parametrize("share", [0, 1, -0.1, 1.5])
def test_a_share_outside_0_and_1_is_refused(share):
    with pytest.raises(ValueError, match="between 0 and 1"):
        holdout(100, share)


def test_an_empty_part_is_refused():
    with pytest.raises(ValueError, match="leaves one part empty"):
        holdout(3, 0.1)
