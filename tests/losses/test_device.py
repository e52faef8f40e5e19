"""No loss asks an accelerator for a number: shown without one, in three ways.

Tensors without numbers ("fake" ones) run every forward pass on a device "cuda" and every backward
pass on a made-up device; the compiler takes each loss as one graph; a counter looks at every
operator.
"""

import copy
import shutil
import subprocess
import sys
from collections import Counter

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from tests.losses.conftest import as_on_device
from tests.losses.test_battery import NAMES, batch, make
from tkpr.losses import AUTKC, LSEP, TKPR, LabelLists, RankingLoss, Univariate
from tkpr.models.ccd import CCDHead

pytestmark = pytest.mark.host_only  # what is forced, is forced here

# what makes the host wait for a number or for a shape
SYNCS = {
    "_local_scalar_dense",
    "bincount",
    "equal",
    "is_nonzero",
    "item",
    "masked_select",
    "nonzero",
    "unique2",
}
FURTHER = {
    **{
        f"tkpr-{surrogate}-{scores}": TKPR(k=3, surrogate=surrogate, scores=scores)
        for surrogate in ("square", "exponential", "logistic")
        for scores in ("raw", "softmax", "sigmoid")
    },
    "autkc-raw": AUTKC(k=3, surrogate="hinge", scores="raw"),
    "autkc-few-classes": AUTKC(k=8),
    "rank-valid": RankingLoss("exponential", rows="valid"),
    "rank-logistic": RankingLoss("logistic"),
    "lsep-sampled": LSEP(max_pairs=4),
    "u2-exponential": Univariate("u2", base="exponential"),
}
every_loss = pytest.mark.parametrize("name", [*NAMES, *FURTHER])


def loss_in_training(name):
    """A loss as in the third epoch: what changes from the second one on is at work."""
    loss = copy.deepcopy(FURTHER[name]) if name in FURTHER else make(name).train()
    if hasattr(loss, "set_epoch"):
        loss.set_epoch(2)
    return loss


class Operators(TorchDispatchMode):
    """Count the operators that run."""

    def __init__(self):
        super().__init__()
        self.count = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        self.count[name] += 1
        if name in ("index", "index_put", "index_put_", "_index_put_impl_"):
            # a mask as an index is a nonzero inside of the operator
            self.count["nonzero"] += any(
                mask is not None and mask.dtype == torch.bool for mask in args[1]
            )
        return function(*args, **(kwargs or {}))


def test_the_counter_sees_what_stalls():
    with Operators() as operators:
        numbers = torch.tensor([0.0, 1.0])
        numbers.sum().item(), bool(numbers.any())
        numbers.nonzero(), numbers[numbers > 0]
        numbers[numbers >= 0] = torch.tensor([2.0, 3.0])
        numbers[torch.tensor([1])]
    assert operators.count["_local_scalar_dense"] == 2
    assert operators.count["nonzero"] == 3


@every_loss
def test_no_operator_that_stalls(name, monkeypatch):
    logits, targets, index = batch()
    loss = loss_in_training(name)
    as_on_device(monkeypatch)
    with Operators() as operators:
        loss(logits, targets, index).backward()
    assert operators.count
    assert not SYNCS & set(+operators.count)


def on_device(mode, tensor, device):
    """A tensor without numbers, on a device that need not exist."""
    return mode.from_tensor(tensor).detach().to(device)


def moved(loss, mode, device):
    """The loss with tensors without numbers in place of its state."""
    for module in loss.modules():
        for name, tensor in list(module.named_buffers(recurse=False)):
            module.register_buffer(name, on_device(mode, tensor, device))
        for name, tensor in list(module.named_parameters(recurse=False)):
            setattr(module, name, torch.nn.Parameter(on_device(mode, tensor, device)))
    return loss


@every_loss
def test_forward_on_tensors_without_numbers(name):
    logits, targets, index = batch()
    loss = loss_in_training(name)
    with FakeTensorMode() as mode:
        loss = moved(loss, mode, "cuda")
        logits, targets, index = (on_device(mode, t, "cuda") for t in (logits, targets, index))
        for dtype in (torch.uint8, torch.float32, torch.bool):
            value = loss(logits, targets.to(dtype), index)
            assert value.device.type == "cuda"
            assert value.shape == ()


@every_loss
def test_forward_on_lists_without_numbers(name):
    """Lists are made on the host; their lengths are known there."""
    logits, targets, index = batch()
    lists = LabelLists.from_sparse(targets.float().to_sparse_csr())
    loss = loss_in_training(name)
    with FakeTensorMode() as mode:
        for part in ("rows", "columns", "counts"):
            setattr(lists, part, mode.from_tensor(getattr(lists, part)))
        logits, index = (on_device(mode, t, "cuda") for t in (logits, index))
        value = moved(loss, mode, "cuda")(logits, lists.to("cuda"), index)
        assert value.device.type == "cuda"


# torch cannot run the backward pass of its own multilabel_margin_loss on tensors without numbers
WITH_BACKWARD = [name for name in [*NAMES, *FURTHER] if name != "multilabel_margin"]
BACKWARD = """
import os
import sys

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from tests.losses.conftest import as_on_device
from tests.losses.test_battery import batch
from tests.losses.test_device import WITH_BACKWARD, loss_in_training, moved, on_device

_setup_privateuseone_for_python_backend("nowhere")
logits, targets, index = batch()
for name in WITH_BACKWARD:
    loss = loss_in_training(name)
    with FakeTensorMode() as mode:
        loss = moved(loss, mode, "nowhere")
        scores, *rest = (on_device(mode, t, "nowhere") for t in (logits, targets, index))
        scores.requires_grad_()
        loss(scores, *rest).backward()
        assert scores.grad.device.type == "nowhere", name
    print(name)
sys.stdout.flush()
os._exit(0)  # torch's threads for a device without a driver may abort an orderly exit
"""


def test_backward_on_tensors_without_numbers():
    """In a process of its own, since a made-up device cannot be taken back."""
    pytest.importorskip("torch.utils.backend_registration", reason="needs torch 2.9")
    done = subprocess.run(
        [sys.executable, "-c", BACKWARD], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == WITH_BACKWARD


def test_the_head_of_ccd_does_not_stall():
    for stage in (1, 2):
        head = CCDHead(8, 5).train()
        if stage == 2:
            head.start_stage_two()
        with Operators() as operators:
            head(torch.randn(2, 8, 3, 3)).sum().backward()
        assert not SYNCS & set(+operators.count)
        assert (head.selector.weight.grad is None) == (stage == 1)


def compiled_equals_eager(name, backend, lists=False):
    """One graph without a break, and a second one for all further sizes of the batch."""
    torch.compiler.reset()
    loss = loss_in_training(name)
    compiled = torch.compile(copy.deepcopy(loss), fullgraph=True, backend=backend)
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    for rows in (5, 3, 4, 2):
        logits, targets, index = (tensor.detach()[:rows] for tensor in batch())
        logits.requires_grad_()
        if lists:
            targets = LabelLists.from_sparse(targets.float().to_sparse_csr())
        got, expected = compiled(logits, targets, index), loss(logits, targets, index)
        if name == "lsep-sampled":  # draws pairs at random
            assert got.isfinite()
            continue
        torch.testing.assert_close(got, expected)
        torch.testing.assert_close(
            torch.autograd.grad(got, logits), torch.autograd.grad(expected, logits)
        )
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs + 2


@pytest.mark.parametrize("name", NAMES)
def test_compiled(name):
    compiled_equals_eager(name, "aot_eager")


@pytest.mark.slow
@pytest.mark.parametrize("name", FURTHER)
def test_further_compiled(name):
    compiled_equals_eager(name, "aot_eager")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tkpr_a2", "tkpr-logistic-softmax", "autkc", "rank", "u3", "bce"])
def test_compiled_with_lists(name):
    compiled_equals_eager(name, "aot_eager", lists=True)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="the default compiler needs g++")
@pytest.mark.parametrize("name", ["tkpr_a2", "tkpr-logistic-softmax", "rank", "bce", "ll_cp"])
def test_compiled_to_machine_code(name):
    compiled_equals_eager(name, "inductor")


def test_the_head_of_ccd_compiled():
    for stage in (1, 2):
        torch.manual_seed(0)
        head = CCDHead(8, 5).train()
        if stage == 2:
            head.start_stage_two()
        compiled = torch.compile(copy.deepcopy(head), fullgraph=True, backend="aot_eager")
        features = torch.randn(2, 8, 3, 3)
        torch.testing.assert_close(compiled(features), head(features))
