"""The k largest scores against torch's own."""

import pytest
import torch

from tkpr.ranking import largest


@pytest.mark.parametrize("num_classes", [6, 299, 300, 301, 307, 5000])
@pytest.mark.parametrize("levels", [3, 10**6])
def test_largest_is_topk(num_classes, levels):
    """With few levels nearly all scores tie; the values are the same, and so are the rest's."""
    generator = torch.Generator().manual_seed(num_classes)
    scores = torch.randint(levels, (7, num_classes), generator=generator) / 7
    values, columns = largest(scores, 6)
    assert torch.equal(values.sort(descending=True).values, scores.topk(6).values)
    assert torch.equal(scores.gather(1, columns), values)
    assert all(len(set(row)) == 6 for row in columns.tolist())


def test_largest_takes_any_memory_layout():
    scores = torch.randn(800, 4, generator=torch.Generator().manual_seed(0)).T
    assert torch.equal(largest(scores, 5)[0].sort(descending=True).values, scores.topk(5).values)
