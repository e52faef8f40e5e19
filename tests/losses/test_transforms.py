"""What users do with a loss beyond one backward pass: further derivatives, torch.func, options."""

import pytest
import torch

from tests.losses.conftest import as_on_device
from tests.losses.test_battery import NAMES, batch, make
from tests.losses.test_device import Operators, every_loss, loss_in_training
from tkpr.losses import TKPR, LabelLists

# torch refuses these on CUDA if results are to be deterministic
NOT_DETERMINISTIC = {
    "bincount",
    "histc",
    "median",
    "put",
    "put_",
    "scatter_reduce",
    "take_backward",
}

tkpr = pytest.mark.parametrize(
    "loss",
    [
        TKPR(k=3, alpha=alpha, surrogate=surrogate, scores=scores)
        for alpha, surrogate in ((2, "square"), (1, "exponential"), (3, "logistic"))
        for scores in ("raw", "softmax", "sigmoid")
    ],
    ids=lambda loss: f"{loss.surrogate}-{loss.scores}",
)


@pytest.fixture
def deterministic():
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@tkpr
def test_second_derivatives(loss):
    logits, targets, _ = batch()
    assert torch.autograd.gradgradcheck(lambda s: loss(s, targets), (logits,))


@tkpr
@pytest.mark.host_only
def test_hessian_is_that_of_torch_func(loss):
    logits, targets, _ = batch()
    expected = torch.func.hessian(lambda s: loss(s, targets))(logits.detach())
    assert expected.any()
    lists = LabelLists.from_sparse(targets.float().to_sparse_csr())
    for labels in (targets, lists):
        got = torch.autograd.functional.hessian(lambda s: loss(s, labels), logits)  # noqa: B023
        torch.testing.assert_close(got, expected)


@tkpr
def test_gradient_penalty(loss):
    """Differentiate the norm of the gradient; compare with a finite difference."""
    logits, targets, _ = batch()

    def penalty(scores):
        (gradient,) = torch.autograd.grad(loss(scores, targets), scores, create_graph=True)
        return gradient.square().sum()

    assert torch.autograd.gradcheck(penalty, (logits,))


@every_loss
def test_deterministic_algorithms(name, deterministic):
    logits, targets, index = batch()
    lists = LabelLists.from_sparse(targets.float().to_sparse_csr())
    for labels in (targets, lists):
        loss = loss_in_training(name)
        (gradient,) = torch.autograd.grad(loss(logits, labels, index), logits)
        assert gradient.isfinite().all()


@every_loss
@pytest.mark.host_only
@pytest.mark.parametrize("form", ["dense", "lists"])
def test_no_operator_that_is_never_deterministic_on_cuda(name, form, monkeypatch):
    logits, targets, index = batch()
    if form == "lists":
        targets = LabelLists.from_sparse(targets.float().to_sparse_csr())
    loss = loss_in_training(name)
    as_on_device(monkeypatch)
    with Operators() as operators:
        loss(logits, targets, index).backward()
    assert not NOT_DETERMINISTIC & set(operators.count)


@every_loss
@pytest.mark.host_only
def test_functional_gradient(name):
    logits, targets, index = batch()
    loss = loss_in_training(name).eval()
    torch.manual_seed(1)
    (expected,) = torch.autograd.grad(loss(logits, targets, index), logits)
    got = torch.func.grad(lambda s: loss(s, targets, index))(logits.detach())
    if name != "lsep-sampled":  # draws pairs at random
        torch.testing.assert_close(got, expected)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.host_only
def test_vmap_over_rows(name):
    """The loss of each row as a batch of its own, and its gradient."""
    logits, targets, index = batch()
    loss = make(name)

    def of_row(scores, labels, place):
        return loss(scores[None], labels[None], place[None])

    rows = logits.detach(), targets, index
    values = torch.vmap(of_row)(*rows)
    torch.testing.assert_close(
        values, torch.stack([of_row(*row).detach() for row in zip(*rows, strict=True)])
    )
    gradients = torch.vmap(torch.func.grad(of_row))(*rows)
    expected = torch.stack(
        [
            torch.autograd.grad(of_row(*row), row[0])[0]
            for row in zip(logits.detach().requires_grad_().unbind(), *rows[1:], strict=True)
        ]
    )
    torch.testing.assert_close(gradients, expected)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.host_only
def test_vmap_of_bare_rows_is_refused(name):
    logits, targets, index = batch()
    with pytest.raises(ValueError, match=r"logits must be \[B, C\] and not empty; got \(9,\)"):
        torch.vmap(make(name))(logits.detach(), targets, index)
