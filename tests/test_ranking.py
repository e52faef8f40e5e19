"""The k largest scores against torch's own."""

import pytest
import torch

from tkpr.ranking import largest


@pytest.mark.parametrize("num_rows", [7, 400, 1400])  # from 2**13 scores on NumPy searches
@pytest.mark.parametrize("num_classes", [6, 299, 300, 301, 307, 5000])
@pytest.mark.parametrize("levels", [3, 10**6])
def test_largest_is_topk(num_rows, num_classes, levels):
    """With few levels nearly all scores tie; the values are the same, and so are the rest's."""
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
