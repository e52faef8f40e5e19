"""Two-way, ZLPR, GR, P-ASL and CSL, sigmoidF1 and RAL against the original implementations."""

import pytest
import torch

from tests.losses.golden import assert_matches, cases, tensors
from tests.losses.test_battery import make
from tkpr.losses import (
    AUTKC,
    ZLPR,
    AsymmetricLoss,
    GeneralizedRobust,
    MultilabelMargin,
    PartialAsymmetricLoss,
    PartialLabels,
    RobustAsymmetricLoss,
    SigmoidF1,
    TwoWay,
)
from tkpr.losses.zlpr import log_one_plus_sum

NAMES = ["two_way", "zlpr", "gr", "csl", "p_asl", "sigmoid_f1", "ral"]
every_loss = pytest.mark.parametrize("name", NAMES)


def stored(*names):
    return pytest.mark.parametrize(
        ("params", "case"), [pytest.param(*rest, id=name) for name, *rest in cases(*names)]
    )


def random_batch(rows=6, classes=8, *, scale=2.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(rows, classes, generator=generator, dtype=torch.float64)
    targets = (torch.rand(rows, classes, generator=generator) < 0.3).double()
    return logits.requires_grad_(), targets


def gradient(value, logits):
    return torch.autograd.grad(value, logits)[0]


@stored("twoway", "twoway_unknown")
def test_two_way_golden(params, case):
    logits, states = tensors(case)
    loss = TwoWay(positive_temperature=params["Tp"], negative_temperature=params["Tn"])
    # the original's softplus is the identity above 20, which is 2e-9 off
    assert_matches(loss(logits, PartialLabels.from_states(states)), logits, case)
    if (states >= 0).all():
        assert_matches(loss(logits, states), logits, case)


def test_two_way_keeps_its_gradient_for_huge_scores():
    """A relevant label at 500 outweighs the marks of the original."""
    logits = torch.tensor([[500.0, 505.0, -3.0]], requires_grad=True)
    grad = gradient(TwoWay()(logits, torch.tensor([[1, 0, 0]])), logits)
    torch.testing.assert_close(
        grad, torch.tensor([[-1.0, 1.0, 0.0]]) * torch.sigmoid(torch.tensor(5.0))
    )


def test_two_way_without_any_relevant_label_is_zero():
    logits, targets = random_batch()
    value = TwoWay()(logits, torch.zeros_like(targets))
    assert value.item() == 0
    assert not gradient(value, logits).any()


@stored("zlpr")
def test_zlpr_golden(params, case):
    logits, targets = tensors(case)
    assert_matches(ZLPR()(logits, targets), logits, case)


@stored("zlpr", "zlpr_soft")
def test_zlpr_golden_rows(params, case):
    """Soft targets weigh the terms inside the logarithm."""
    logits, targets = tensors(case)
    rows = log_one_plus_sum(logits, 1 - targets) + log_one_plus_sum(-logits, targets)
    expected = torch.tensor(case["extra"]["per_sample"], dtype=torch.float64)
    torch.testing.assert_close(rows, expected, rtol=1e-10, atol=0)
    assert_matches(rows.mean(), logits, case)


@stored("gr", "gr_varied")
def test_gr_golden(params, case):
    logits, targets = tensors(case)
    w0, w1, b0, b1 = params["beta"]
    mu0, sigma0, mu1, sigma1 = params["alpha"]
    q2, q3 = params["q2q3"]
    loss = GeneralizedRobust(
        num_epochs=params["num_epochs"],
        init_epochs=params["linear_init"],
        slope=(w0, w1),
        offset=(b0, b1),
        center=(mu0, mu1),
        width=(sigma0, sigma1),
        q2=q2,
        q3=q3,
    ).double()
    loss.set_epoch(case["extra"]["epoch"] - 1)
    expected = [case["extra"][name] for name in ("w", "b", "mu", "sigma")]
    assert loss.schedule.tolist() == pytest.approx(expected, rel=1e-12)
    assert_matches(loss(logits, targets), logits, case)


@pytest.mark.parametrize("q3", [0.5, 1.0])
@pytest.mark.parametrize("score", [-120.0, -30.0, 30.0, 120.0])
def test_gr_has_a_finite_gradient_where_the_original_has_none(score, q3):
    logits = torch.full((1, 2), score, requires_grad=True)
    value = GeneralizedRobust(num_epochs=8, q3=q3)(logits, torch.zeros(1, 2))
    assert value.isfinite()
    assert gradient(value, logits).isfinite().all()


def test_gr_refuses_impossible_schedules():
    with pytest.raises(ValueError, match="init_epochs must be below the number of epochs, 3; got"):
        GeneralizedRobust(num_epochs=3, init_epochs=3)
    with pytest.raises(ValueError, match="q2 and q3 must be above 0; got 0 and 1"):
        GeneralizedRobust(num_epochs=3, q2=0)
    with pytest.raises(ValueError, match=r"q2 and q3 must be above 0; got 0\.01 and 0"):
        GeneralizedRobust(num_epochs=3, q3=0)


def test_gr_moves_by_default_as_the_released_code_does():
    """w from 0 to 2, b at -2, mu from 0.5 to 0.8, sigma from 2 to 0.5; w and b one step later."""
    loss = GeneralizedRobust(num_epochs=2)
    assert loss.schedule.tolist() == pytest.approx([0, -2, 0.65, 1.25])
    loss.set_epoch(1)
    assert loss.schedule.tolist() == pytest.approx([1, -2, 0.8, 0.5])
    assert not loss.state_dict()  # the epoch of a run sets it, not a checkpoint


MODES = {
    "negative": "negative",
    "ignore": "ignore",
    "ignore_normalize_classes": "ignore_normalize",
    "selective": "selective",
}


@stored(
    "csl_negative",
    "csl_ignore",
    "csl_ignore_normalize",
    "csl_selective",
    "csl_selective_rps",
    "csl_selective_top1",
    "csl_selective_noprior",
)
def test_partial_asymmetric_golden(params, case):
    logits, states = tensors(case)
    targets = PartialLabels.from_states(states)
    loss = PartialAsymmetricLoss(
        unknown=MODES[params["partial_loss_mode"]],
        gamma_pos=params["gamma_pos"],
        gamma_neg=params["gamma_neg"],
        gamma_unknown=params["gamma_unann"],
        alpha_pos=params["alpha_pos"],
        alpha_neg=params["alpha_neg"],
        alpha_unknown=params["alpha_unann"],
        clip=params["clip"],
        likelihood_top=params["likelihood_topk"],
        prior_threshold=params["prior_threshold"],
        class_priors=case["extra"].get("prior"),
    )
    weights = loss.weights(logits, targets.relevant | targets.irrelevant)
    expected = torch.tensor(case["extra"]["weights"], dtype=torch.float64)
    torch.testing.assert_close(weights, expected, rtol=1e-12, atol=0)
    assert_matches(loss(logits, targets), logits, case)


def test_partial_asymmetric_without_unknown_labels_is_asl():
    logits, targets = random_batch()
    loss = PartialAsymmetricLoss(unknown="selective", gamma_neg=4, clip=0.05)
    expected = AsymmetricLoss()(logits, targets)
    torch.testing.assert_close(loss(logits, targets), expected)


def test_selective_removes_all_that_tie_with_the_last():
    loss = PartialAsymmetricLoss(unknown="selective", likelihood_top=1)
    logits = torch.tensor([[2.0, 2.0, 1.0, 3.0]])
    annotated = torch.tensor([[False, False, False, True]])
    assert loss.weights(logits, annotated).tolist() == [[0, 0, 1, 1]]


def test_selective_may_remove_nothing():
    loss = PartialAsymmetricLoss(unknown="selective", likelihood_top=0)
    logits, targets = random_batch()
    assert loss.weights(logits, torch.zeros_like(targets).bool()).eq(1).all()


def test_selective_keeps_classes_at_the_prior_threshold():
    loss = PartialAsymmetricLoss(
        unknown="selective", likelihood_top=0, prior_threshold=0.25, class_priors=[0.24, 0.25, 0.26]
    )
    weights = loss.weights(torch.zeros(1, 3), torch.zeros(1, 3).bool())
    assert weights.tolist() == [[1, 1, 0]]


def test_partial_asymmetric_refuses_wrong_arguments():
    with pytest.raises(ValueError, match="treatment of unknown labels 'drop': choose one of neg"):
        PartialAsymmetricLoss(unknown="drop")
    with pytest.raises(ValueError, match="eps must be above 0; got 0"):
        PartialAsymmetricLoss(unknown="ignore", eps=0)
    loss = PartialAsymmetricLoss(unknown="selective", class_priors=[0.1, 0.2])
    with pytest.raises(ValueError, match="one entry per class, 3; got 2"):
        loss(torch.zeros(1, 3), torch.zeros(1, 3))


@stored("sigmoidf1", "sigmoidf1_hyper", "sigmoidf1_sharp")
def test_sigmoid_f1_golden(params, case):
    logits, targets = tensors(case)
    loss = SigmoidF1(beta=-params["S"], eta=params["E"])
    assert_matches(loss(logits, targets), logits, case)


def test_sigmoid_f1_of_sharp_decisions_is_the_f1_score():
    from sklearn.metrics import f1_score

    logits, targets = random_batch(rows=40)
    loss = SigmoidF1(beta=1e5, eta=-0.5)
    decided = (logits > 0).numpy()
    expected = 1 - f1_score(targets.numpy(), decided, average="macro")
    assert loss(logits, targets).item() == pytest.approx(expected, rel=1e-9)


@stored("ral", "ral_varied")
def test_ral_golden(params, case):
    logits, targets = tensors(case)
    loss = RobustAsymmetricLoss(
        gamma_neg=params["gamma_neg"],
        gamma_pos=params["gamma_pos"],
        clip=params["clip"],
        lamb=params["lamb"],
        poly_neg=params["epsilon_neg"],
        poly_pos=params["epsilon_pos"],
        poly_pos_square=params["epsilon_pos_pow"],
        eps=params["eps"],
        detach_focus=params["disable_torch_grad_focal_loss"],
    )
    assert_matches(loss(logits, targets), logits, case)


def test_ral_hardly_pushes_likely_misses():
    logits = torch.tensor([[2.27, 10.0]], requires_grad=True)
    middle, high = gradient(RobustAsymmetricLoss()(logits, torch.zeros(1, 2)), logits)[0].tolist()
    assert middle == pytest.approx(0.558, abs=1e-3)
    assert 0 < high < 0.01 * middle
    with pytest.raises(ValueError, match="eps must be above 0; got 0"):
        RobustAsymmetricLoss(eps=0)


@pytest.mark.parametrize(
    "kind",
    [
        RobustAsymmetricLoss,
        lambda **options: GeneralizedRobust(num_epochs=3, **options),
        lambda **options: PartialAsymmetricLoss(unknown="ignore", **options),
    ],
)
def test_mean_is_the_sum_divided_by_all_entries(kind):
    logits, targets = random_batch()
    total, mean = kind(reduction="sum")(logits, targets), kind(reduction="mean")(logits, targets)
    torch.testing.assert_close(total / targets.numel(), mean)


def some_unknown(targets, *, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return targets.masked_fill(torch.rand(targets.shape, generator=generator) < 0.4, -1)


@pytest.mark.parametrize("name", ["two_way", "zlpr", "p_asl", "sigmoid_f1"])
def test_unknown_labels_have_no_gradient_and_no_influence(name):
    """Whatever the logits of unknown labels are, value and other gradients stay."""
    logits, targets = random_batch()
    states = some_unknown(targets)
    partial = PartialLabels.from_states(states)
    loss = make(name)
    value = loss(logits, partial)
    grad = gradient(value, logits)
    assert not grad[states == -1].any()
    assert grad[states >= 0].any()
    moved = torch.where(states == -1, logits.detach() + 7, logits.detach()).requires_grad_()
    torch.testing.assert_close(loss(moved, partial), value, rtol=1e-12, atol=0)
    torch.testing.assert_close(gradient(loss(moved, partial), moved), grad)


@pytest.mark.parametrize("name", ["two_way", "zlpr", "p_asl", "sigmoid_f1", "csl"])
def test_unknown_labels_equal_a_double_loop(name):
    from tests.losses import reference_newer

    logits, targets = random_batch(rows=4, classes=30)
    states = some_unknown(targets)
    loss = make(name)
    expected = getattr(reference_newer, name)(logits.tolist(), states.tolist(), None, loss)
    value = loss(logits, PartialLabels.from_states(states))
    assert value.item() == pytest.approx(expected, rel=1e-10)


def test_a_loss_without_unknown_labels_refuses_them_by_type():
    """On any device, so the refusal reads no value."""
    targets = PartialLabels(*torch.zeros(2, 2, 3, dtype=torch.bool, device="meta"))
    for loss in (AUTKC(k=1), MultilabelMargin(), GeneralizedRobust(num_epochs=2)):
        with pytest.raises(ValueError, match="this loss takes no unknown labels: choose one"):
            loss(torch.zeros(2, 3), targets)


def test_partial_labels_of_another_shape_are_refused():
    targets = PartialLabels.from_states(torch.tensor([[1, 0, -1]]))
    with pytest.raises(ValueError, match=r"shape of logits, \(1, 4\); got \(1, 3\)"):
        ZLPR()(torch.zeros(1, 4), targets)


@every_loss
@pytest.mark.slow
def test_compiles_into_one_graph(name):
    """Also for every epoch: a schedule must not be a constant of the graph."""
    torch._dynamo.reset()
    logits, targets = random_batch()
    loss = make(name)
    graphs = []

    def count(module, _):
        graphs.append(module)
        return module.forward

    compiled = torch.compile(loss, fullgraph=True, backend=count)
    for epoch in range(10):
        if hasattr(loss, "set_epoch"):
            loss.set_epoch(epoch)
        torch.testing.assert_close(compiled(logits, targets), loss(logits, targets))
    assert len(graphs) == 1


@every_loss
def test_is_deterministic(name):
    logits, targets = random_batch()
    loss = make(name)
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        assert gradient(loss(logits, targets), logits).isfinite().all()
    finally:
        torch.use_deterministic_algorithms(before)
