"""What every loss in configs/loss must satisfy; a new YAML is found by being there."""

import copy
import importlib
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

from tkpr.config import build

ROOT = Path(__file__).parents[2]
NAMES = sorted(path.stem for path in (ROOT / "configs" / "loss").glob("*.yaml"))
REFERENCES = {
    name: function
    for path in Path(__file__).parent.glob("reference_*.py")
    for name, function in vars(importlib.import_module(f"tests.losses.{path.stem}")).items()
}
NUM_SAMPLES, NUM_CLASSES, BATCH = 11, 9, 5

everything = pytest.mark.parametrize("name", NAMES)


def facts(num_samples=NUM_SAMPLES, num_classes=NUM_CLASSES):
    """A training set in which every class is sometimes present and sometimes not."""
    targets = (torch.arange(num_samples)[:, None] * 3 + torch.arange(num_classes)) % 4 == 0
    return {
        "num_samples": num_samples,
        "num_classes": num_classes,
        "class_counts": targets.sum(0),
        "expected_positives": float(targets.sum() / num_samples),
        "train_targets": targets.to(torch.uint8),
        "num_epochs": 10,
    }


def make(name, known=None):
    config = OmegaConf.load(ROOT / "configs" / "loss" / f"{name}.yaml")
    return build(config, facts=known or facts()).double().eval()


def batch(scale=1.0, dtype=torch.float64):
    """Random logits, and the rows 3, 0, 7, ... of the training set; the last one has no label."""
    torch.manual_seed(0)
    index = torch.tensor([3, 0, 7, 10, 4])
    targets = facts()["train_targets"][index].clone()
    targets[-1] = 0
    logits = scale * torch.randn(BATCH, NUM_CLASSES, dtype=dtype)
    return logits.requires_grad_(), targets, index


@everything
def test_scalar_finite_differentiable(name):
    logits, targets, index = batch()
    loss = make(name)(logits, targets, index)
    assert loss.shape == ()
    loss.backward()
    assert loss.isfinite()
    assert logits.grad.isfinite().all()
    assert logits.grad.any()


@everything
def test_equals_a_double_loop(name):
    assert name in REFERENCES, f"write {name}() in tests/losses/reference_*.py"
    logits, targets, index = batch()
    loss = make(name)
    expected = REFERENCES[name](logits.tolist(), targets.tolist(), index.tolist(), loss)
    assert loss(logits, targets, index).item() == pytest.approx(expected, rel=1e-10)


@everything
def test_gradient(name, monkeypatch):
    """What a loss detaches, it holds constant: at its value for the logits of the batch."""
    logits, targets, index = batch()
    loss, constants = make(name), []
    detach = torch.Tensor.detach

    def value(logits):
        held = iter(constants)
        with monkeypatch.context() as patch:
            patch.setattr(torch.Tensor, "detach", lambda tensor: next(held))
            return loss(logits, targets, index)

    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "detach", lambda t: constants.append(detach(t)) or detach(t))
        loss(logits, targets, index)
    assert torch.autograd.gradcheck(value, (logits,))


@everything
def test_order_of_samples_does_not_matter(name):
    logits, targets, index = batch()
    order = torch.tensor([4, 2, 0, 3, 1])
    loss = make(name)
    torch.testing.assert_close(
        loss(logits[order], targets[order], index[order]), loss(logits, targets, index)
    )


@everything
def test_order_of_classes_does_not_matter(name):
    logits, targets, index = batch()
    order = torch.tensor([8, 0, 3, 1, 7, 2, 6, 5, 4])
    known = facts()
    known["class_counts"] = known["class_counts"][order]
    known["train_targets"] = known["train_targets"][:, order]
    loss, shuffled = make(name), make(name, known)
    state = {
        key: value[..., order] if value.shape[-1:] == (NUM_CLASSES,) else value
        for key, value in loss.state_dict().items()
    }
    shuffled.load_state_dict(state)
    torch.testing.assert_close(
        shuffled(logits[:, order], targets[:, order], index), loss(logits, targets, index)
    )


@everything
def test_batch_of_one(name):
    logits, targets, index = batch()
    loss = make(name)(logits[:1], targets[:1], index[:1])
    assert loss.shape == ()
    assert loss.isfinite()


@everything
@pytest.mark.parametrize("fill", [0, 1])
def test_rows_with_no_or_only_relevant_labels(name, fill):
    logits, targets, index = batch()
    loss = make(name)(logits, torch.full_like(targets, fill), index)
    (gradient,) = torch.autograd.grad(loss, logits)
    assert loss.isfinite()
    assert gradient.isfinite().all()


@everything
def test_very_wrong_logits_stay_finite(name):
    logits, targets, index = batch(dtype=torch.float32)
    logits = (100 * torch.where(targets.bool(), -1.0, 1.0)).requires_grad_()
    loss = make(name).float()(logits, targets, index)
    loss.backward()
    assert loss.isfinite()
    assert logits.grad.isfinite().all()


@everything
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_bfloat16_autocast_computes_in_float32(name, dtype):
    logits, targets, index = batch(scale=30, dtype=torch.float32)
    logits = logits.detach().to(dtype).requires_grad_()
    loss = make(name).float()
    with torch.autocast("cpu", torch.bfloat16):
        value = loss(logits, targets, index)
    assert value.dtype == torch.float32
    torch.testing.assert_close(value, loss(logits.float(), targets, index))
    value.backward()
    assert logits.grad.isfinite().all()


@everything
@pytest.mark.parametrize("enabled", [True, False])
def test_grad_mode_and_inputs_are_left_alone(name, enabled):
    logits, targets, index = batch()
    before = copy.deepcopy((logits.detach(), targets, index))
    with torch.set_grad_enabled(enabled):
        make(name)(logits, targets, index)
        assert torch.is_grad_enabled() == enabled
    for now, then in zip((logits.detach(), targets, index), before, strict=True):
        assert torch.equal(now, then)


@everything
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s, y, i: (s, y[:, 0], i), r"shape of logits, \(5, 9\); got \(5,\)"),
        (lambda s, y, i: (s, y[:, :1], i), r"shape of logits, \(5, 9\); got \(5, 1\)"),
        (lambda s, y, i: (s[:0], y[:0], i[:0]), r"not empty; got \(0, 9\)"),
        (lambda s, y, i: (s[0], y[0], i[:1]), r"logits must be \[B, C\]"),
        (lambda s, y, i: (s.long(), y, i), r"logits must be floating point; got torch.int64"),
    ],
)
def test_bad_batches_get_one_sentence(name, change, message):
    with pytest.raises(ValueError, match=message):
        make(name)(*change(*batch()))


@everything
@pytest.mark.parametrize("wrong", [2.0, -1.0, 0.5, torch.nan])
@pytest.mark.parametrize("where", ["one", "all relevant labels"])
def test_wrong_targets_raise_or_give_nan(name, wrong, where, branch):
    """An error where the numbers can be looked at, NaN where that would stall the queue."""
    logits, targets, index = batch()
    targets = targets.double()
    targets[(0, 0) if where == "one" else targets == 1] = wrong
    if branch == "device":
        assert make(name)(logits, targets, index).isnan()
    else:
        with pytest.raises(ValueError, match=f"targets must hold only 0 and 1; got {wrong:.6g}"):
            make(name)(logits, targets, index)


@everything
def test_targets_of_every_type(name):
    logits, targets, index = batch()
    expected = make(name)(logits, targets, index)
    for dtype in (torch.bool, torch.int8, torch.int64, torch.float16, torch.bfloat16):
        assert torch.equal(make(name)(logits, targets.to(dtype), index), expected)
    for dtype in (torch.uint16, torch.uint32, torch.uint64):
        assert torch.equal(make(name)(logits, targets.to(dtype), index), expected)


@everything
def test_state_survives_saving(name):
    logits, targets, index = batch()
    loss, restored = make(name), make(name)
    restored.load_state_dict(loss.state_dict())
    assert torch.equal(restored(logits, targets, index), loss(logits, targets, index))
