"""Every loss and every measure on random batches: a finite number or a clear error, never NaN.

TKPR_FUZZ sets the number of random batches per loss and per measure.
"""

import inspect
import math
import os

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.losses.test_battery import NAMES, ROOT, facts
from tkpr import metrics
from tkpr.config import build
from tkpr.losses.inputs import check_index

CASES = int(os.environ.get("TKPR_FUZZ", "12"))
fuzz = settings(max_examples=CASES, suppress_health_check=list(HealthCheck))

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
VALUES = ["normal", "ties", "all equal", "extreme", "wrong and extreme", "tiny"]


@st.composite
def batches(draw, smallest_classes=1):
    """Logits, targets and index of any shape, value, type and layout."""
    rows = draw(st.integers(1, 9))
    classes = draw(st.integers(smallest_classes, 30))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    shape = (rows, classes)
    density = draw(st.sampled_from([0.0, 0.05, 0.3, 0.7, 1.0]))
    targets = (torch.rand(shape, generator=generator) < density).float()
    for row in draw(st.sets(st.integers(0, rows - 1), max_size=2)):
        targets[row] = draw(st.sampled_from([0.0, 1.0]))
    kind = draw(st.sampled_from(VALUES))
    normal = torch.randn(shape, generator=generator)
    logits = {
        "normal": 3 * normal,
        "ties": (2 * normal).round(),
        "all equal": torch.full(shape, normal.flatten()[0].item()),
        "extreme": 1e4 * normal.sign(),
        "wrong and extreme": torch.where(targets > 0, -100.0, 100.0) + normal,
        "tiny": 1e-30 * normal,
    }[kind]
    logits = logits.to(draw(st.sampled_from(DTYPES)))
    layout = draw(st.sampled_from(["contiguous", "transposed", "strided", "expanded"]))
    if layout == "transposed":
        logits, targets = logits.T.contiguous().T, targets.T.contiguous().T
    elif layout == "strided":
        logits = torch.stack([logits, logits], dim=2)[:, :, 0]
        targets = torch.stack([targets, targets], dim=2)[:, :, 1]
    elif layout == "expanded":
        logits, targets = logits[:1].expand(rows, -1), targets[:1].expand(rows, -1)
    targets = targets.to(
        draw(st.sampled_from([torch.float32, torch.uint8, torch.bool, torch.int64]))
    )
    if draw(st.booleans()):
        logits = logits.detach().requires_grad_()
    index = torch.randperm(11, generator=generator)[:rows]
    return logits, targets, index


def assert_clear(error):
    """One sentence of our own."""
    assert 10 < len(str(error)) < 300, error
    assert "\n" not in str(error), error


def make(name, classes, dtype, epoch, training):
    from omegaconf import OmegaConf

    config = OmegaConf.load(ROOT / "configs" / "loss" / f"{name}.yaml")
    loss = build(config, facts=facts(num_classes=classes)).train(training)
    if hasattr(loss, "set_epoch"):
        loss.set_epoch(epoch)
    return loss.double() if dtype == torch.float64 else loss


@pytest.mark.parametrize("name", NAMES)
def test_losses(name):
    """A finite scalar with finite gradients, or a ValueError of one sentence."""
    answered = []

    @fuzz
    @given(batch=batches(), epoch=st.integers(0, 9), training=st.booleans())
    def check(batch, epoch, training):
        logits, targets, index = batch
        before = logits.detach().clone(), targets.clone()
        try:
            loss = make(name, logits.shape[1], logits.dtype, epoch, training)
            value = loss(logits, targets, index)
        except ValueError as error:
            assert_clear(error)
            return
        answered.append(1)
        assert value.shape == ()
        assert value.dtype == (torch.float64 if logits.dtype == torch.float64 else torch.float32)
        assert value.isfinite(), value
        if logits.requires_grad:
            (gradient,) = torch.autograd.grad(value, logits)
            assert gradient.shape == logits.shape
            assert not gradient.isnan().any()
            if logits.dtype != torch.float16:  # where a large gradient may exceed 65504
                assert gradient.isfinite().all()
        assert torch.equal(logits.detach(), before[0])
        assert torch.equal(targets, before[1])

    check()
    assert len(answered) > CASES // 3  # the errors must stay the exception


@st.composite
def not_finite(draw):
    """A batch with NaN or infinite logits in a row that has relevant and irrelevant labels."""
    logits, targets, index = draw(batches(smallest_classes=7))
    logits, targets = logits.detach().clone(), targets.clone()
    if logits.dtype in (torch.float16, torch.bfloat16):
        logits = logits.float()
    row = draw(st.integers(0, len(logits) - 1))
    targets[row, :2] = torch.tensor([0, 1])
    bad = draw(st.sampled_from([[math.nan], [math.inf], [-math.inf], [math.inf, -math.inf]]))
    for column in draw(st.sets(st.integers(0, logits.shape[1] - 1), min_size=1)):
        logits[row, column] = draw(st.sampled_from(bad))
    return logits, targets, index


@pytest.mark.parametrize("name", NAMES)
def test_losses_do_not_hide_what_is_not_finite(name):
    """NaN comes out as NaN; infinite logits as if they were huge, or as a loss that is not finite.

    A row without a pair of labels may be left out, whatever is in it.
    """
    answered = []

    @fuzz
    @given(batch=not_finite(), epoch=st.integers(0, 9), training=st.booleans())
    def check(batch, epoch, training):
        logits, targets, index = batch
        try:
            value, as_huge = (
                make(name, logits.shape[1], logits.dtype, epoch, training)(scores, targets, index)
                for scores in (logits, logits.nan_to_num(0, 1e6, -1e6))
            )
        except ValueError as error:
            assert_clear(error)
            return
        answered.append(1)
        if logits.isnan().any():
            assert value.isnan(), value
        else:
            assert not value.isfinite() or torch.allclose(value, as_huge, rtol=1e-3), (
                value,
                as_huge,
            )

    check()
    assert len(answered) > CASES // 3


@st.composite
def wrong_shapes(draw):
    """Targets that torch would broadcast to the logits, or index out of range."""
    logits = torch.zeros(draw(st.integers(2, 6)), draw(st.integers(2, 12)))
    rows, classes = logits.shape
    shapes = [(classes,), (1, classes), (rows, 1), (rows,), (), (1, 1), (rows, classes, 1)]
    shape = draw(st.sampled_from([s for s in shapes if s != (rows, classes)]))
    return logits, torch.ones(shape)


@pytest.mark.parametrize("name", NAMES)
def test_losses_do_not_broadcast(name):
    @settings(parent=fuzz, max_examples=max(CASES // 3, 8))
    @given(batch=wrong_shapes())
    def check(batch):
        logits, targets = batch
        try:
            loss = make(name, logits.shape[1], logits.dtype, 0, True)
        except ValueError:  # too few classes for this loss
            return
        with pytest.raises(ValueError, match="shape of logits"):
            loss(logits, targets, torch.arange(len(logits)))

    check()


@fuzz
@given(index=st.lists(st.integers(-3, 13), min_size=1, max_size=5), batch=st.integers(1, 5))
def test_index_is_checked(index, batch):
    given_index = torch.tensor(index)
    valid = len(index) == batch and all(0 <= place < 11 for place in index)
    if valid:
        assert check_index(given_index, batch, 11) is given_index
    else:
        with pytest.raises(ValueError, match="index must"):
            check_index(given_index, batch, 11)


MEASURES = sorted(
    name
    for name, function in vars(metrics).items()
    if inspect.isfunction(function)
    and "measure" not in inspect.signature(function).parameters
    and {"scores", "targets"} <= inspect.signature(function).parameters.keys()
)


def values_of(result):
    """All numbers that a measure returned."""
    if isinstance(result, dict):
        return list(result.values())
    return torch.as_tensor(result).double().flatten().tolist()


@pytest.mark.parametrize("name", MEASURES)
def test_measures(name):
    """Between 0 and 1 (counts apart), the same for tensors and arrays, or a ValueError."""
    function = getattr(metrics, name)
    accepted = inspect.signature(function).parameters

    @fuzz
    @given(
        batch=batches(),
        k=st.integers(0, 12),
        ties=st.sampled_from(["worst", "average"]),
        empty=st.sampled_from(["skip", "zero"]),
    )
    def check(batch, k, ties, empty):
        scores, targets, _ = batch
        options = {}
        for option, value in (("ties", ties), ("empty", empty)):
            if option in accepted or "options" in accepted:
                options[option] = value
        if "ks" in accepted:
            options["ks"] = [k]
        elif "k" in accepted:
            options["k"] = k
        try:
            result = function(scores, targets, **options)
        except ValueError as error:
            assert_clear(error)
            return
        for value in values_of(result):
            assert math.isfinite(value)
            assert value >= 0
        if scores.dtype != torch.bfloat16:  # NumPy has no such type
            again = function(scores.detach().numpy(), targets.numpy(), **options)
            assert values_of(again) == values_of(result)

    check()


@pytest.mark.parametrize("name", MEASURES)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_measures_refuse_what_is_not_finite(name, bad):
    function = getattr(metrics, name)
    scores = torch.zeros(3, 4)
    scores[1, 2] = bad
    options = {"ks": [2]} if "ks" in inspect.signature(function).parameters else {}
    if "k" in inspect.signature(function).parameters:
        options["k"] = 2
    with pytest.raises(ValueError, match="scores must be finite; got"):
        function(scores, torch.eye(3, 4), **options)
    with pytest.raises(ValueError, match="shape of scores"):
        function(torch.zeros(3, 4), torch.ones(4), **options)


def test_all_measures_are_found():
    assert {"precision_at_k", "evaluate", "tkpr_at_k", "ranking_loss", "class_f1"} <= set(MEASURES)
