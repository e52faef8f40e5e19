"""A linear classifier and its loss in one: equal to the two of them, without [B, C] tensors."""

import pytest
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from tkpr.losses import (
    SPLC,
    TKPR,
    AssumeNegative,
    AsymmetricLoss,
    EntropyMaximisation,
    Hill,
    LabelLists,
    LinearEntrywise,
    LinearTKPR,
)

BATCH, CLASSES, WIDTH = 6, 50, 7
ENTRYWISE = {
    "bce": AssumeNegative(eps=0, reduction="sum"),
    "an-ls": AssumeNegative(label_smoothing=0.1, reduction="sum"),
    "asl": AsymmetricLoss(reduction="sum"),
    "hill": Hill(reduction="sum"),
    "splc": SPLC(reduction="sum"),
    "em": EntropyMaximisation(alpha=0.1, reduction="sum"),
}
entrywise = pytest.mark.parametrize("loss", ENTRYWISE.values(), ids=ENTRYWISE.keys())
any_chunk = pytest.mark.parametrize("chunk", [1, 7, 49, 50, 4096])


def batch(num_classes=CLASSES, dtype=torch.float64):
    """Features, and lists of 0 to 4 labels."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(BATCH, WIDTH, generator=generator, dtype=dtype).requires_grad_()
    labels = torch.stack(
        [torch.randperm(num_classes, generator=generator)[:4] for _ in range(BATCH)]
    )
    labels = labels.where(torch.arange(4) < torch.arange(BATCH)[:, None] % 5, -1)
    return features, LabelLists(labels)


def dense(gradient):
    return gradient.to_dense() if gradient.is_sparse else gradient


def assert_equal_to(head, loss, features, lists, scale=1.0):
    """Compare value and gradients with those of two modules."""
    inputs = features, head.weight, head.bias
    value = head(features, lists)
    got = torch.autograd.grad(value, inputs)
    expected = scale * loss(F.linear(*inputs), lists)
    torch.testing.assert_close(value, expected)
    for one, other in zip(got, torch.autograd.grad(expected, inputs), strict=True):
        torch.testing.assert_close(dense(one), other)


@any_chunk
@pytest.mark.parametrize("scores", ["raw", "sigmoid"])
@pytest.mark.parametrize("surrogate", ["square", "exponential", "logistic"])
@pytest.mark.parametrize("alpha", [1, 2, 3])
def test_tkpr_of_any_chunk(alpha, surrogate, scores, chunk):
    settings = {"k": 4, "alpha": alpha, "surrogate": surrogate, "scores": scores}
    head = LinearTKPR(WIDTH, CLASSES, chunk=chunk, **settings).double()
    assert_equal_to(head, TKPR(**settings), *batch())


@any_chunk
@entrywise
def test_entrywise_of_any_chunk(loss, chunk):
    head = LinearEntrywise(WIDTH, CLASSES, loss, reduction="sum", chunk=chunk).double()
    assert_equal_to(head, loss, *batch())


def test_entrywise_mean():
    loss = ENTRYWISE["bce"]
    head = LinearEntrywise(WIDTH, CLASSES, loss, chunk=9).double()
    assert_equal_to(head, loss, *batch(), scale=1 / (BATCH * CLASSES))


def test_float32_and_many_classes():
    torch.manual_seed(0)
    features, lists = batch(20_000, torch.float32)
    head = LinearTKPR(WIDTH, 20_000, k=5, chunk=1000)
    assert_equal_to(head, TKPR(k=5), features, lists)


def test_half_precision_features():
    features, lists = batch(dtype=torch.bfloat16)
    head = LinearTKPR(WIDTH, CLASSES, k=4)
    value = head(features, lists)
    assert value.dtype == torch.float32
    torch.testing.assert_close(value, head(features.float(), lists))
    value.backward()
    assert features.grad.dtype == torch.bfloat16


def test_targets_of_any_form():
    features, lists = batch()
    head = LinearTKPR(WIDTH, CLASSES, k=4).double()
    matrix = lists.dense(CLASSES)
    for targets in (matrix, matrix.float(), matrix.double().to_sparse_csr()):
        torch.testing.assert_close(head(features, targets), head(features, lists))


def test_only_touched_classes_have_a_gradient():
    features, lists = batch(1000)
    head = LinearTKPR(WIDTH, 1000, k=4).double()
    _, top = head.top(features, 5)
    head(features, lists).backward()
    touched = set(head.weight.grad.coalesce().indices().flatten().tolist())
    assert touched == set(top.flatten().tolist()) | set(lists.columns.tolist())
    assert set(head.bias.grad.coalesce().indices().flatten().tolist()) == touched


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.SparseAdam])
def test_optimizers_take_the_sparse_gradient(make):
    features, lists = batch()
    head = LinearTKPR(WIDTH, CLASSES, k=4).double()
    optimizer = make(head.parameters(), lr=0.1)
    values = []
    for _ in range(30):
        optimizer.zero_grad()
        value = head(features, lists)
        value.backward()
        optimizer.step()
        values.append(value.item())
    assert values[-1] < 0.7 * values[0]


@any_chunk
@pytest.mark.parametrize("k", [1, 5, 50])
def test_top(chunk, k):
    features, _ = batch()
    head = LinearTKPR(WIDTH, CLASSES, k=4, chunk=chunk).double()
    logits, classes = head.top(features, k)
    expected = F.linear(features, head.weight, head.bias).topk(k)
    torch.testing.assert_close(logits, expected.values.detach())
    assert torch.equal(classes, expected.indices)


@pytest.mark.parametrize("place", [0, 33])
def test_nan_is_not_hidden(place):
    features, lists = batch()
    head = LinearTKPR(WIDTH, CLASSES, k=4, chunk=8).double()
    with torch.no_grad():
        head.weight[place, 0] = torch.nan
    assert head(features, lists).isnan()


class LargestTensor(TorchDispatchMode):
    """See the largest result of any operator."""

    numel = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and function.overloadpacket.__name__ not in VIEWS:
            stored = result._values().numel() if result.is_sparse else result.numel()
            self.numel = max(self.numel, stored)
        return result


VIEWS = {"t", "slice", "detach", "alias", "view"}


def test_no_tensor_of_the_size_of_the_logits():
    num_classes, chunk = 30_000, 100
    features, lists = batch(num_classes, torch.float32)
    head = LinearTKPR(WIDTH, num_classes, k=4, chunk=chunk)
    with LargestTensor() as largest:
        head(features, lists).backward()
    assert BATCH * chunk <= largest.numel < 3 * BATCH * chunk


def test_no_second_derivatives():
    features, lists = batch()
    for head in (
        LinearTKPR(WIDTH, CLASSES, k=4).double(),
        LinearEntrywise(WIDTH, CLASSES, ENTRYWISE["bce"]).double(),
    ):
        with pytest.raises(RuntimeError, match="no second derivatives"):
            torch.autograd.grad(head(features, lists), features, create_graph=True)


def test_a_second_backward_pass():
    features, lists = batch()
    head = LinearTKPR(WIDTH, CLASSES, k=4).double()
    value = head(features, lists)
    (once,) = torch.autograd.grad(value, features, retain_graph=True)
    (tripled,) = torch.autograd.grad(3 * value, features)
    torch.testing.assert_close(tripled, 3 * once)
    head = LinearEntrywise(WIDTH, CLASSES, ENTRYWISE["bce"]).double()
    (once,) = torch.autograd.grad(head(features, lists), features)
    value = head(features, lists)
    (tripled,) = torch.autograd.grad(3 * value, features, retain_graph=True)
    torch.testing.assert_close(tripled, 3 * once)
    with pytest.raises(RuntimeError, match="backward only once"):
        torch.autograd.grad(value, features)


def test_without_gradients():
    features, lists = batch()
    for head in (
        LinearTKPR(WIDTH, CLASSES, k=4).double(),
        LinearEntrywise(WIDTH, CLASSES, ENTRYWISE["bce"]).double(),
    ):
        expected = head(features, lists)
        with torch.no_grad():
            value = head(features, lists)
        assert not value.requires_grad
        assert torch.equal(value, expected)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda f, y: LinearTKPR(7, 50, k=50), "k \\+ 1 may not exceed the number of classes, 50"),
        (lambda f, y: LinearTKPR(7, 50, k=2, scores="softmax"), "choose sigmoid or raw"),
        (lambda f, y: LinearTKPR(7, 50, k=2, chunk=0), "chunk must be at least 1; got 0"),
        (lambda f, y: LinearTKPR(7, 50, k=2)(f[:, :5], y), r"features must be \[B, 7\]"),
        (lambda f, y: LinearTKPR(7, 50, k=2)(f[:3], y), "a list for each row of logits, 3; got 6"),
        (lambda f, y: LinearTKPR(7, 30, k=2)(f, y), "below the number of classes, 30"),
        (lambda f, y: LinearTKPR(7, 30, k=2)(f, torch.zeros(6, 29)), r"\(6, 30\); got \(6, 29\)"),
        (lambda f, y: LinearTKPR(7, 30, k=2).top(f, 31), "k must be from 1 to .* 30; got 31"),
    ],
)
def test_what_is_refused(call, message):
    features, lists = batch()
    with pytest.raises(ValueError, match=message):
        call(features, lists)
