"""Logits in chunks: equal to dense ones, value and gradients, without tensors [B, C]."""

from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from tkpr.config import build
from tkpr.losses import (
    SPLC,
    TKPR,
    AssumeNegative,
    AsymmetricLoss,
    ChunkedLogits,
    EntropyMaximisation,
    Hill,
    LabelLists,
)
from tkpr.training.lazy_adam import LazyAdam

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


def make_head(num_classes=CLASSES, dtype=torch.float64):
    """Weights and biases of a classifier."""
    torch.manual_seed(1)
    return nn.Linear(WIDTH, num_classes, dtype=dtype)


def in_chunks(features, head, chunk=2048):
    return ChunkedLogits(features, head.weight, head.bias, chunk=chunk)


def dense(gradient):
    return gradient.to_dense() if gradient.is_sparse else gradient


def assert_equal_to_dense(loss, chunk, *, dtype=torch.float64, num_classes=CLASSES, temperature=1):
    """Compare value and gradients with those of nn.Linear and the loss."""
    features, lists = batch(num_classes, dtype)
    head = make_head(num_classes, dtype)
    inputs = features, head.weight, head.bias
    value = loss(in_chunks(features, head, chunk) / temperature, lists)
    got = torch.autograd.grad(value, inputs)
    expected = loss(head(features) / temperature, lists)
    torch.testing.assert_close(value, expected)
    for one, other in zip(got, torch.autograd.grad(expected, inputs), strict=True):
        torch.testing.assert_close(dense(one), other)


@any_chunk
@pytest.mark.parametrize("scores", ["raw", "sigmoid"])
@pytest.mark.parametrize("surrogate", ["square", "exponential", "logistic"])
@pytest.mark.parametrize("alpha", [1, 2, 3])
def test_tkpr_of_any_chunk(alpha, surrogate, scores, chunk):
    assert_equal_to_dense(TKPR(k=4, alpha=alpha, surrogate=surrogate, scores=scores), chunk)


@any_chunk
@entrywise
def test_entrywise_of_any_chunk(loss, chunk):
    assert_equal_to_dense(loss, chunk)


@pytest.mark.parametrize("loss", [TKPR(k=4), AssumeNegative(eps=0), Hill(reduction="mean")])
@pytest.mark.parametrize("temperature", [1, 0.3, 2])
def test_means_and_temperatures(loss, temperature):
    assert_equal_to_dense(loss, 9, temperature=temperature)


def test_float32_and_many_classes():
    assert_equal_to_dense(TKPR(k=5), 1000, dtype=torch.float32, num_classes=20_000)


LOSSES = sorted((Path(__file__).parents[2] / "configs" / "loss").glob("*.yaml"))


CHUNKED = {
    *("tkpr_a1", "tkpr_a2", "tkpr_a3", "bce", "an", "an_ls", "asl", "hill", "splc", "em"),
    *("ccd", "ccd_half_asl"),  # ASL with other constants
}


@pytest.mark.parametrize("path", LOSSES, ids=lambda path: path.stem)
def test_each_loss_is_equal_or_refuses(path):
    """The refusal names the losses that are equal."""
    refusal = "needs all logits at once: choose tkpr_a1, tkpr_a2, .* em, or set model.head=dense"
    facts = {
        **{"num_samples": 2 * BATCH, "num_classes": CLASSES, "expected_positives": 2.0},
        **{"class_counts": torch.ones(CLASSES), "num_epochs": 3},
        "train_targets": torch.zeros(2 * BATCH, CLASSES, dtype=torch.uint8),
    }
    loss = build(OmegaConf.load(path), facts=facts)
    features, lists = batch()
    head, index = make_head(), torch.arange(BATCH)
    logits = in_chunks(features, head, 9)
    if path.stem in CHUNKED:
        torch.testing.assert_close(loss(logits, lists, index), loss(head(features), lists, index))
    else:
        with pytest.raises(ValueError, match=refusal):
            loss(logits, lists, index)


@pytest.mark.host_only
@pytest.mark.parametrize("loss", [TKPR(k=4), ENTRYWISE["bce"]], ids=["tkpr", "bce"])
def test_compiled_code_around_it(loss):
    """torch.compile leaves the chunks alone and compiles the rest."""
    torch.compiler.reset()
    features, lists = batch()
    head, body = make_head(), nn.Linear(WIDTH, WIDTH, dtype=torch.float64)

    def step(features):
        return loss(in_chunks(body(features), head), lists)

    results = []
    for function in (step, torch.compile(step, backend="aot_eager")):
        value = function(features)
        gradients = torch.autograd.grad(value, [head.weight, body.weight, features])
        results.append((value, *(dense(gradient) for gradient in gradients)))
    torch.testing.assert_close(*results)


def test_half_precision_features():
    features, lists = batch(dtype=torch.bfloat16)
    head = make_head(dtype=torch.float32)
    value = TKPR(k=4)(in_chunks(features, head), lists)
    assert value.dtype == torch.float32
    torch.testing.assert_close(value, TKPR(k=4)(in_chunks(features.float(), head), lists))
    value.backward()
    assert features.grad.dtype == torch.bfloat16


def test_targets_of_any_form():
    features, lists = batch()
    logits, matrix = in_chunks(features, make_head()), lists.dense(CLASSES)
    for targets in (matrix, matrix.float(), matrix.double().to_sparse_csr()):
        torch.testing.assert_close(TKPR(k=4)(logits, targets), TKPR(k=4)(logits, lists))


def test_only_touched_classes_have_a_gradient():
    features, lists = batch(1000)
    head = make_head(1000)
    logits = in_chunks(features, head)
    _, top = logits.topk(5)
    TKPR(k=4)(logits, lists).backward()
    touched = set(head.weight.grad.coalesce().indices().flatten().tolist())
    assert touched == set(top.flatten().tolist()) | set(lists.columns.tolist())
    assert set(head.bias.grad.coalesce().indices().flatten().tolist()) == touched


@pytest.mark.parametrize(
    ("make", "lr"), [(torch.optim.SGD, 1.0), (torch.optim.SparseAdam, 0.1), (LazyAdam, 0.1)]
)
def test_optimizers_take_the_sparse_gradient(make, lr):
    features, lists = batch()
    head = make_head()
    optimizer = make(head.parameters(), lr=lr)
    values = []
    for _ in range(30):
        optimizer.zero_grad()
        value = TKPR(k=4)(in_chunks(features, head), lists)
        value.backward()
        optimizer.step()
        values.append(value.item())
    assert values[-1] < 0.7 * values[0]


@any_chunk
@pytest.mark.parametrize("k", [1, 5, 50])
def test_top(chunk, k):
    features, _ = batch()
    head = make_head()
    logits, classes = in_chunks(features, head, chunk).topk(k)
    expected = head(features).topk(k)
    torch.testing.assert_close(logits, expected.values.detach())
    assert torch.equal(classes, expected.indices)


@pytest.mark.parametrize("place", [0, 33])
def test_nan_is_not_hidden(place):
    features, lists = batch()
    head = make_head()
    with torch.no_grad():
        head.weight[place, 0] = torch.nan
    assert TKPR(k=4)(in_chunks(features, head, 8), lists).isnan()


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
    head = make_head(num_classes, torch.float32)
    with LargestTensor() as largest:
        TKPR(k=4)(in_chunks(features, head, chunk), lists).backward()
    assert BATCH * chunk <= largest.numel < 3 * BATCH * chunk


@pytest.mark.parametrize("loss", [TKPR(k=4), ENTRYWISE["bce"]], ids=["tkpr", "bce"])
def test_no_second_derivatives(loss):
    features, lists = batch()
    value = loss(in_chunks(features, make_head()), lists)
    with pytest.raises(RuntimeError, match="no second derivatives"):
        torch.autograd.grad(value, features, create_graph=True)


def test_a_second_backward_pass():
    features, lists = batch()
    logits = in_chunks(features, make_head())
    value = TKPR(k=4)(logits, lists)
    (once,) = torch.autograd.grad(value, features, retain_graph=True)
    (tripled,) = torch.autograd.grad(3 * value, features)
    torch.testing.assert_close(tripled, 3 * once)
    loss = ENTRYWISE["bce"]
    (once,) = torch.autograd.grad(loss(logits, lists), features)
    value = loss(logits, lists)
    (tripled,) = torch.autograd.grad(3 * value, features, retain_graph=True)
    torch.testing.assert_close(tripled, 3 * once)
    with pytest.raises(RuntimeError, match="backward only once"):
        torch.autograd.grad(value, features)
    (doubled,) = torch.autograd.grad(2 * loss(logits, lists), features)
    torch.testing.assert_close(doubled, 2 * once)


class Names(TorchDispatchMode):
    """Note the name of each operator."""

    def __init__(self):
        super().__init__()
        self.seen = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.seen.add(function.overloadpacket.__name__)
        return function(*args, **(kwargs or {}))


def test_gradients_are_handed_over_as_they_are(branch):
    """On the host they are not multiplied by 1; a device is not asked for the factor."""
    features, lists = batch()
    value = ENTRYWISE["bce"](in_chunks(features, make_head()), lists)
    with Names() as operators:
        value.backward()
    assert ("mul_" in operators.seen) == (branch == "device")
    assert ("_local_scalar_dense" in operators.seen) == (branch == "host")


def test_the_best_are_found_without_a_host_sync(branch, monkeypatch):
    features, _ = batch()
    head, asked, numpy = make_head(), [], torch.Tensor.numpy
    monkeypatch.setattr(torch.Tensor, "numpy", lambda *all: asked.append(1) or numpy(*all))
    in_chunks(features, head, 7).topk(3)
    assert bool(asked) == (branch == "host")


@pytest.mark.host_only
@pytest.mark.parametrize(
    ("threads", "device", "chunk"), [(1, "cpu", 2048), (2, "cpu", 16_384), (1, "meta", 16_384)]
)
def test_how_many_classes_are_taken_at_a_time(threads, device, chunk, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    parts = (torch.zeros(shape, device=device) for shape in ((1, 2), (3, 2), (3,)))
    assert ChunkedLogits(*parts).chunk == chunk


@pytest.mark.parametrize("loss", [TKPR(k=4), ENTRYWISE["bce"]], ids=["tkpr", "bce"])
def test_without_gradients(loss):
    features, lists = batch()
    logits = in_chunks(features, make_head())
    expected = loss(logits, lists)
    with torch.no_grad():
        value = loss(logits, lists)
    assert not value.requires_grad
    assert torch.equal(value, expected)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda f, y: TKPR(k=50)(f, y), "k \\+ 1 may not exceed the number of classes, 50"),
        (lambda f, y: TKPR(k=2, scores="softmax")(f, y), "set loss.scores to sigmoid or raw"),
        (lambda f, y: ChunkedLogits(f.features, f.weight, f.bias, chunk=0), "chunk must be at l"),
        (lambda f, y: ChunkedLogits(f.features[:, :5], f.weight, f.bias), r"must be \[B, 7\]"),
        (lambda f, y: TKPR(k=2)(ChunkedLogits(f.features[:3], f.weight, f.bias), y), "3; got 6"),
        (
            lambda f, y: TKPR(k=2)(ChunkedLogits(f.features, f.weight[:30], f.bias[:30]), y),
            "below the number of classes, 30",
        ),
        (lambda f, y: TKPR(k=2)(f, torch.zeros(6, 29)), r"\(6, 50\); got \(6, 29\)"),
        (lambda f, y: f.topk(51), "k must be from 1 to .* 50; got 51"),
    ],
)
def test_what_is_refused(call, message):
    features, lists = batch()
    with pytest.raises(ValueError, match=message):
        call(in_chunks(features, make_head()), lists)
