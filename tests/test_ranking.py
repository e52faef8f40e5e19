"""The k largest scores against torch's own."""

import numpy as np
import pytest
import torch

from tkpr.ranking import alpha_weight, largest, on_host

SIZES = [(rows, classes) for rows in (7, 400, 1400) for classes in (6, 299, 300, 301, 307, 5000)]
SIZES += [(6000, 6), (1000, 40)]  # many scores, too few classes for groups of eight


@pytest.mark.parametrize("host", [True, False])
@pytest.mark.parametrize(("num_rows", "num_classes"), SIZES)
@pytest.mark.parametrize("levels", [3, 10**6])
def test_largest_is_topk(num_rows, num_classes, levels, host, monkeypatch):
    """With few levels nearly all scores tie; the values are the same, and so are the rest's."""
    if not host:  # by torch's operators, as on an accelerator
        monkeypatch.setattr("tkpr.ranking.on_host", lambda _: False)
    generator = torch.Generator().manual_seed(num_classes)
    scores = torch.randint(levels, (num_rows, num_classes), generator=generator) / 7
    values, columns = largest(scores, 6)
    assert torch.equal(values.sort(descending=True).values, scores.topk(6).values)
    assert torch.equal(scores.gather(1, columns), values)
    assert all(len(set(row)) == 6 for row in columns.tolist())


def test_largest_takes_any_memory_layout():
    scores = torch.randn(800, 4, generator=torch.Generator().manual_seed(0)).T
    assert torch.equal(largest(scores, 5)[0].sort(descending=True).values, scores.topk(5).values)


@pytest.mark.parametrize("num_classes", [20, 300])
def test_largest_puts_nan_first_as_topk_does(num_classes):
    scores = torch.randn(1000, num_classes, generator=torch.Generator().manual_seed(0))
    scores[[3, 500], [5, 7]] = torch.nan
    values = largest(scores, 5)[0]
    assert values.isnan().sum(1).nonzero().flatten().tolist() == [3, 500]
    expected = scores.topk(5).values
    assert torch.equal(values.nan_to_num(9).sort(descending=True).values, expected.nan_to_num(9))


def test_nan_in_one_row_and_a_tie_in_another_do_not_mix_the_rows_up():
    scores = torch.tensor([[torch.nan, 3.0, 2.0, 1.0], [2.0, 2.0, 1.0, 0.0]])
    values, columns = largest(scores, 1)
    assert columns[0] == 0
    assert values[1] == 2


@pytest.mark.parametrize("k", [1, 2, 5])
@pytest.mark.parametrize("num_relevant", [0, 1, 2, 3, 5, 9])
def test_alpha_weights_of_numbers_and_tensors(num_relevant, k):
    """Prop. 2: 1, N_K, and the sum of the K - i + 1 of the first N_K positions i."""
    n_k = min(max(num_relevant, 1), k)
    expected = {1: 1, 2: n_k, 3: sum(k - i + 1 for i in range(1, n_k + 1))}
    for alpha, weight in expected.items():
        assert alpha_weight(num_relevant, alpha=alpha, k=k) == weight
        assert alpha_weight(torch.tensor([num_relevant]), alpha=alpha, k=k).tolist() == [weight]
        assert alpha_weight(np.array([num_relevant]), alpha=alpha, k=k).tolist() == [weight]


@pytest.mark.parametrize("alpha", [0, 4, 1.5, None])
def test_there_are_three_weightings(alpha):
    with pytest.raises(ValueError, match=f"alpha must be 1, 2 or 3; got {alpha}"):
        alpha_weight(2, alpha=alpha, k=3)


def test_values_are_not_read_while_code_is_compiled_or_transformed(monkeypatch):
    assert on_host(torch.zeros(2))
    found = []
    torch.func.vmap(lambda row: found.append(on_host(row)) or row)(torch.zeros(2, 3))
    assert found == [False]
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert not on_host(torch.zeros(2))


@pytest.mark.parametrize("rows", [2, 64])
@pytest.mark.parametrize("classes", [50, 4000])
def test_values_that_cannot_be_read_are_not_read(rows, classes):
    """Tensors on the device "meta" have no values: NumPy would fail."""
    values, columns = largest(torch.empty(rows, classes, device="meta"), 3)
    assert values.shape == columns.shape == (rows, 3)
