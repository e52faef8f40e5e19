"""ASL (and CCD's criteria), DB-Loss, Hill and SPLC against the original implementations."""

import inspect
import math

import pytest
import torch
from torch.nn import functional as F

from tests.losses.golden import assert_matches, cases, tensors
from tkpr.losses.asymmetric import AsymmetricLoss
from tkpr.losses.balanced import DistributionBalancedLoss
from tkpr.losses.partial_asymmetric import PartialAsymmetricLoss
from tkpr.losses.robust import SPLC, Hill
from tkpr.losses.sigmoid_f1 import SigmoidF1
from tkpr.losses.two_way import TwoWay
from tkpr.losses.univariate import Univariate

COUNTS = [40, 3, 7, 50, 99, 1, 20, 12]

LOSSES = {
    "asl": AsymmetricLoss(),
    "asl-differentiated": AsymmetricLoss(gamma_pos=1, detach_focus=False),
    "asl-square-root": AsymmetricLoss(gamma_neg=0.5, gamma_pos=0.5, detach_focus=False),
    "focal": AsymmetricLoss(gamma_neg=1, gamma_pos=1, clip=0),
    "half-asl": AsymmetricLoss(gamma_neg=1, gamma_pos=0, clip=0, reduction="mean"),
    "db": DistributionBalancedLoss(COUNTS, num_samples=100),
    "db-voc": DistributionBalancedLoss(COUNTS, num_samples=100, neg_scale=5, map_gamma=0.3),
    "hill": Hill(),
    "splc": SPLC(),
    "splc-corrected": SPLC(change_epoch=0),
}
every_loss = pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES.keys())


def stored(*names):
    return pytest.mark.parametrize(("name", "params", "case"), cases(*names))


def batch(rows=5, *, seed=0, scale=1.0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(rows, len(COUNTS), generator=generator, dtype=torch.float64)
    targets = (torch.rand(rows, len(COUNTS), generator=generator) < 0.4).to(dtype)
    return logits.to(dtype).requires_grad_(), targets


def gradient(value, logits):
    return torch.autograd.grad(value, logits)[0]


@stored(
    "asl",
    "asl_classdefault",
    "asl_optimized_default",
    "ccd_focal",
    "ccd_halfasl",
    "ccd_bce",
    "ccd_asl",
)
def test_asymmetric_golden(name, params, case):
    logits, targets = tensors(case)
    loss = AsymmetricLoss(
        gamma_neg=params["gamma_neg"],
        gamma_pos=params["gamma_pos"],
        clip=params["clip"],
        eps=params["eps"],
        detach_focus=params["disable_torch_grad_focal_loss"],
    )
    assert_matches(loss(logits, targets), logits, case)


@stored("ccd_mlsm")
def test_soft_margin_golden(name, params, case):
    """The default of CCD's script, torch's soft margin loss, is B times L_u1."""
    logits, targets = tensors(case)
    loss = Univariate(weighting="u1")
    assert_matches(len(logits) * loss(logits, targets), logits, case)


@stored("db_coco", "db_voc")
def test_db_golden(name, params, case):
    logits, targets = tensors(case)
    loss = DistributionBalancedLoss(
        case["extra"]["class_freq"],
        num_samples=case["extra"]["train_num"],
        neg_scale=params["logit_reg"]["neg_scale"],
        init_bias=params["logit_reg"]["init_bias"],
        map_alpha=params["map_param"]["alpha"],
        map_beta=params["map_param"]["beta"],
        map_gamma=params["map_param"]["gamma"],
        focal_balance=params["focal"]["balance_param"],
        focal_gamma=params["focal"]["gamma"],
    )
    assert_matches(loss(logits, targets), logits, case)


@stored("hill")
def test_hill_golden(name, params, case):
    logits, targets = tensors(case)
    assert_matches(Hill(**params)(logits, targets), logits, case)


@stored("splc", "splc_tau065")
def test_splc_golden(name, params, case):
    logits, targets = tensors(case)
    loss = SPLC(**params)
    loss.set_epoch(case["extra"]["epoch"])
    assert_matches(loss(logits, targets), logits, case)


@every_loss
@pytest.mark.parametrize("sign", [1.0, -1.0], ids=["right", "wrong"])
def test_extreme_logits_are_finite(loss, sign):
    _, targets = batch()
    logits = (sign * 100 * (2 * targets - 1)).requires_grad_()
    value = loss(logits, targets)
    assert value.isfinite()
    assert gradient(value, logits).isfinite().all()


@every_loss
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_autocast_computes_in_float32(loss, dtype):
    logits, targets = batch(scale=3.0)
    logits = logits.detach().to(dtype).requires_grad_()
    exact = logits.detach().float().requires_grad_()
    expected = loss(exact, targets)
    with torch.autocast("cpu", torch.bfloat16):
        value = loss(logits, targets)
    assert value.dtype == torch.float32
    torch.testing.assert_close(value, expected, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(gradient(value, logits), gradient(expected, exact).to(dtype))


@every_loss
@pytest.mark.parametrize("label", [0.0, 1.0], ids=["no-positives", "only-positives"])
def test_degenerate_row(loss, label):
    logits, _ = batch(rows=1)
    value = loss(logits, torch.full_like(logits, label))
    assert value.shape == ()
    assert 0 < value < math.inf
    assert gradient(value, logits).isfinite().all()


@every_loss
def test_grad_mode_and_inputs_stay_untouched(loss):
    logits, targets = batch()
    before = logits.detach().clone(), targets.clone()
    with torch.no_grad():
        assert not loss(logits, targets).requires_grad
        assert not torch.is_grad_enabled()
    loss(logits, targets).backward()
    assert torch.is_grad_enabled()
    assert torch.equal(logits, before[0])
    assert torch.equal(targets, before[1])


@pytest.mark.parametrize("kind", [AsymmetricLoss, Hill, SPLC])
def test_mean_is_the_sum_divided_by_all_entries(kind):
    logits, targets = batch(dtype=torch.float64)
    total, mean = kind(reduction="sum")(logits, targets), kind(reduction="mean")(logits, targets)
    torch.testing.assert_close(total / targets.numel(), mean)


def test_asl_without_focus_is_cross_entropy():
    logits, targets = batch(scale=4.0, dtype=torch.float64)
    loss = AsymmetricLoss(gamma_neg=0, gamma_pos=0, clip=0, reduction="mean")
    expected = F.binary_cross_entropy_with_logits(logits, targets)
    torch.testing.assert_close(loss(logits, targets), expected, rtol=1e-12, atol=0)


def test_asl_without_clip_keeps_its_precision_in_float32():
    """1 - sigmoid(17.5) is 0 in float32; the loss is 17.5, below the clamp at -log(eps) = 18.4."""
    logits = torch.tensor([[17.5]], requires_grad=True)
    value = AsymmetricLoss(gamma_neg=1, clip=0)(logits, torch.zeros(1, 1))
    assert value.item() == pytest.approx(17.5, rel=1e-6)
    assert gradient(value, logits).item() == pytest.approx(1, rel=1e-6)


def test_asl_gives_no_gradient_beyond_its_clamps():
    """A relevant label below eps, and an irrelevant one below the clip."""
    logits = torch.tensor([[-18.0, -19.0, -2.0, -3.0]], requires_grad=True)
    value = AsymmetricLoss()(logits, torch.tensor([[1, 1, 0, 0]]))
    assert (gradient(value, logits) != 0).tolist() == [[True, False, True, False]]


@pytest.mark.parametrize("gamma", [0, 1, 4])
def test_asl_is_zero_below_its_clip(gamma):
    """Not negative: the shifted probability stops at 1."""
    loss = AsymmetricLoss(gamma_neg=gamma, clip=0.05)
    assert loss(torch.tensor([[-3.0, -30.0]]), torch.zeros(1, 2)).item() == 0


def test_asl_focus_differentiated_or_not():
    """With the focus detached the slope of a relevant label is -(1-p)^gamma * (1-p)."""
    logits = torch.tensor([[0.3]], dtype=torch.float64, requires_grad=True)
    targets = torch.ones_like(logits)
    p = 1 / (1 + math.exp(-0.3))
    detached = gradient(AsymmetricLoss(gamma_pos=2)(logits, targets), logits)
    assert detached.item() == pytest.approx(-((1 - p) ** 3), rel=1e-12)
    whole = gradient(AsymmetricLoss(gamma_pos=2, detach_focus=False)(logits, targets), logits)
    extra = 2 * (1 - p) * p * (1 - p) * math.log(p)
    assert whole.item() == pytest.approx(-((1 - p) ** 3) + extra, rel=1e-12)


def test_splc_changes_its_mind_with_the_epoch():
    loss = SPLC(change_epoch=2)
    logits, targets = torch.tensor([[3.0, -1.0]]), torch.tensor([[0, 0]])
    values = []
    for epoch in range(4):
        loss.set_epoch(epoch)
        values.append(loss(logits, targets).item())
    assert values[0] == values[1] > values[2] == values[3]


def test_splc_takes_what_exceeds_tau_not_what_meets_it():
    """At the threshold itself an unobserved label is still pushed down."""
    logits = torch.zeros(1, 1, requires_grad=True)
    loss = SPLC(tau=0.5, change_epoch=0)
    assert gradient(loss(logits, torch.zeros(1, 1)), logits).item() > 0
    logits = torch.full((1, 1), 1e-3, requires_grad=True)
    assert gradient(loss(logits, torch.zeros(1, 1)), logits).item() < 0


def test_hill_hardly_pushes_likely_misses():
    logits = torch.tensor([[-8.0, 0.0, 8.0]], requires_grad=True)
    low, middle, high = gradient(Hill()(logits, torch.zeros(1, 3)), logits)[0].tolist()
    assert 0 < low < 0.01 * middle
    assert 0 < high < 0.01 * middle


def test_db_weighs_rare_classes_higher():
    loss = DistributionBalancedLoss([80, 2], num_samples=100, init_bias=0)
    logits = torch.zeros(1, 2, requires_grad=True)
    common, rare = gradient(loss(logits, torch.tensor([[1, 1]])), logits)[0].tolist()
    assert rare < 3 * common < 0


@pytest.mark.parametrize("counts", [COUNTS, tuple(COUNTS), torch.tensor(COUNTS)])
def test_db_takes_any_sequence_of_counts(counts):
    logits, targets = batch(dtype=torch.float64)
    value = DistributionBalancedLoss(counts, num_samples=100)(logits, targets)
    assert value.item() == pytest.approx(LOSSES["db"](logits, targets).item(), rel=1e-15)


@pytest.mark.parametrize(("count", "number"), [(0, 2), (100, 5), (101, 7)])
def test_db_names_the_class_with_an_impossible_count(count, number):
    counts = list(COUNTS)
    counts[number] = count
    with pytest.raises(
        ValueError, match=f"1 to num_samples - 1 = 99; got {count} for class {number}"
    ):
        DistributionBalancedLoss(counts, num_samples=100)


def test_db_refuses_counts_of_other_classes():
    with pytest.raises(ValueError, match="one entry per class, 6; got 8"):
        LOSSES["db"](torch.zeros(2, 6), torch.zeros(2, 6))
    with pytest.raises(ValueError, match=r"class_counts must be \[C\]; got \(1, 8\)"):
        DistributionBalancedLoss([COUNTS], num_samples=100)


def test_asl_needs_a_positive_eps():
    with pytest.raises(ValueError, match="eps must be above 0; got 0"):
        AsymmetricLoss(eps=0)


@pytest.mark.parametrize("kind", [AsymmetricLoss, Hill, SPLC])
def test_unknown_reduction(kind):
    with pytest.raises(ValueError, match="unknown reduction 'none': choose one of sum, mean"):
        kind(reduction="none")


@pytest.mark.host_only
@pytest.mark.parametrize(
    ("kind", "published"),
    [
        (AsymmetricLoss, {"gamma_neg": 4, "gamma_pos": 0, "clip": 0.05, "eps": 1e-8}),
        (Hill, {"lamb": 1.5, "margin": 1, "gamma": 2}),
        (SPLC, {"tau": 0.6, "change_epoch": 1, "margin": 1, "gamma": 2}),
        (SigmoidF1, {"beta": 1, "eta": 0}),
        (TwoWay, {"positive_temperature": 4, "negative_temperature": 1}),
        (
            PartialAsymmetricLoss,
            {"gamma_pos": 0, "gamma_neg": 1, "gamma_unknown": 2, "clip": 0, "likelihood_top": 5}
            | {"alpha_pos": 1, "alpha_neg": 1, "alpha_unknown": 1, "prior_threshold": 0.5},
        ),
    ],
)
def test_defaults_are_the_published_constants(kind, published):
    defaults = {name: arg.default for name, arg in inspect.signature(kind).parameters.items()}
    assert {name: defaults[name] for name in published} == published
