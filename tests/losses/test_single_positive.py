import math

import pytest
import torch

from tests.losses import reference_single_positive as reference
from tests.losses.golden import assert_matches, cases, tensors
from tkpr.losses.partial_labels import PartialLabels
from tkpr.losses.single_positive import (
    ROLE,
    AssumeNegative,
    ExpectedPositiveRegularisation,
    PairwiseRanking,
)

OBSERVED = torch.tensor([[1, 0, 0], [0, 0, 1], [0, 1, 0], [0, 1, 0], [1, 0, 0]], dtype=torch.uint8)


def parametrize(*names):
    stored = cases(*names)
    return pytest.mark.parametrize(
        ("params", "case"), [pytest.param(*rest, id=name) for name, *rest in stored]
    )


def all_losses():
    return [
        AssumeNegative(),
        AssumeNegative(eps=0),
        AssumeNegative(label_smoothing=0.1),
        AssumeNegative(weak_negatives=True),
        ExpectedPositiveRegularisation(expected_positives=1.5),
        PairwiseRanking(),
        ROLE(expected_positives=1.5, train_targets=OBSERVED),
    ]


@parametrize("spml_bce", "spml_an", "spml_bce_ls", "spml_an_ls", "spml_wan")
def test_assume_negative_is_the_original(params, case):
    logits, targets = tensors(case)
    loss = AssumeNegative(
        label_smoothing=params.get("ls_coef", 0.0), weak_negatives=params["loss"] == "wan"
    )
    assert_matches(loss(logits, targets), logits, case)


@parametrize("spml_epr")
def test_epr_is_the_original(params, case):
    logits, targets = tensors(case)
    loss = ExpectedPositiveRegularisation(expected_positives=params["expected_num_pos"])
    assert_matches(loss(logits, targets), logits, case)


@parametrize("spml_pr")
def test_pr_is_the_original(params, case):
    logits, targets = tensors(case)
    assert_matches(PairwiseRanking()(logits, targets), logits, case)


@parametrize("spml_role")
def test_role_is_the_original(params, case):
    logits, targets = tensors(case)
    index = torch.arange(len(logits)).flip(0)  # rows of theta in another order than the batch
    loss = ROLE(expected_positives=params["expected_num_pos"], train_targets=targets).double()
    with torch.no_grad():
        loss.theta[index] = torch.tensor(case["extra"]["est_logits"], dtype=torch.float64)
    value = loss(logits, targets, index)
    assert_matches(value, logits, case)
    (grad,) = torch.autograd.grad(value, loss.theta)
    stored = torch.tensor(case["extra"]["grad_est_logits"], dtype=torch.float64)
    scale = stored.abs().max()
    torch.testing.assert_close(grad[index] / scale, stored / scale, rtol=1e-10, atol=1e-10)


def test_bce_with_exact_logarithm_is_torch_bce():
    torch.manual_seed(0)
    logits = 10 * torch.randn(8, 20, dtype=torch.float64, requires_grad=True)
    targets = torch.bernoulli(torch.full_like(logits, 0.3))
    ours = AssumeNegative(eps=0)(logits, targets)
    theirs = torch.nn.functional.binary_cross_entropy_with_logits(logits, targets)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=0)
    torch.testing.assert_close(
        *(torch.autograd.grad(value, logits)[0] for value in (ours, theirs)), rtol=1e-12, atol=1e-15
    )


@pytest.mark.parametrize("labels_per_row", [0, 1, 3, 7])
def test_pr_without_pairs_is_the_sum_over_pairs(labels_per_row):
    torch.manual_seed(labels_per_row)
    logits = 3 * torch.randn(5, 7, dtype=torch.float64)
    targets = torch.zeros(5, 7)
    for row in targets:
        row[torch.randperm(7)[:labels_per_row]] = 1
    loss = PairwiseRanking()
    expected = reference.pr(logits.tolist(), targets.int().tolist(), None, loss)
    assert loss(logits, targets).item() == pytest.approx(expected, rel=1e-12, abs=1e-15)


def test_sum_is_the_number_of_entries_times_the_mean():
    logits, targets = torch.randn(4, 6), torch.eye(4, 6)
    for kind in (AssumeNegative, PairwiseRanking):
        total, mean = kind(reduction="sum"), kind(reduction="mean")
        torch.testing.assert_close(total(logits, targets), 24 * mean(logits, targets))


def test_all_of_a_label_can_be_smoothed_away():
    """With e = 1 a positive label counts as a negative one: log(1 + exp(s))."""
    loss = AssumeNegative(label_smoothing=1.0, eps=0)
    value = loss(torch.tensor([[2.0]], dtype=torch.float64), torch.tensor([[1]]))
    assert value.item() == pytest.approx(math.log1p(math.exp(2)))


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_few_known_labels_weigh_as_they_are(reduction):
    """One negative weighs 1, alone or beside a positive; the mean is over what is known."""
    loss = AssumeNegative(weak_negatives=True, eps=0, reduction=reduction)
    for states, entries in (([0, -1, -1], 1), ([1, 0, -1], 2)):
        value = loss(torch.zeros(1, 3), PartialLabels.from_states(torch.tensor([states])))
        terms = entries if reduction == "sum" else 1
        assert value.item() == pytest.approx(terms * math.log(2))


def test_unknown_reduction_is_named():
    with pytest.raises(ValueError, match="unknown reduction 'median': choose one of"):
        AssumeNegative(reduction="median")


@pytest.mark.parametrize("loss", all_losses(), ids=lambda loss: type(loss).__name__)
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("rows", ["one positive", "no positive", "only positives"])
def test_extreme_logits_and_degenerate_rows_are_finite(loss, sign, rows):
    index = torch.tensor([4, 1, 2])
    targets = {
        "one positive": OBSERVED[index].float(),
        "no positive": torch.zeros(3, 3),
        "only positives": torch.ones(3, 3),
    }[rows]
    logits = (sign * torch.tensor([[100.0, -100, 100]])).repeat(3, 1).requires_grad_()
    value = loss(logits, targets, index)
    assert value.shape == ()
    assert value.isfinite()
    assert torch.autograd.grad(value, logits)[0].isfinite().all()


@pytest.mark.parametrize("loss", all_losses(), ids=lambda loss: type(loss).__name__)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_autocast_computes_in_float32(loss, dtype):
    index = torch.tensor([4, 1, 2])
    logits = torch.tensor([[0.3, -2.0, 5.0], [-7.0, 1.0, 0.1], [0.0, 3.0, -4.0]]).to(dtype)
    outside = loss(logits.float(), OBSERVED[index].float(), index)
    with torch.autocast("cpu", torch.bfloat16):
        inside = loss(logits, OBSERVED[index].float(), index)
    assert inside.dtype == torch.float32
    assert inside.equal(outside)


def test_weak_negatives_of_a_single_class():
    loss = AssumeNegative(weak_negatives=True, eps=0)
    assert loss(torch.zeros(2, 1), torch.zeros(2, 1)).item() == pytest.approx(math.log(2))


class TestROLE:
    def test_first_estimates_are_the_papers(self):
        observed = torch.bernoulli(torch.full((300, 20), 0.1))
        theta = ROLE(expected_positives=2.0, train_targets=observed).theta.detach()
        assert theta.dtype == torch.float32
        estimates = torch.sigmoid(theta)
        torch.testing.assert_close(
            estimates[observed == 1], torch.full((int(observed.sum()),), 0.995)
        )
        rest = theta[observed == 0] / math.log(0.6 / 0.4)
        assert rest.abs().max() <= 1
        # a uniform variable on [-1, 1] has mean 0 and variance 1/3
        assert rest.mean().abs() < 0.05
        assert (rest.var() - 1 / 3).abs() < 0.02

    def test_first_estimates_depend_on_the_seed_alone(self):
        def first(seed):
            return ROLE(expected_positives=2.0, train_targets=OBSERVED, seed=seed).theta

        torch.manual_seed(1)
        before = torch.random.get_rng_state()
        one = first(3)
        assert torch.random.get_rng_state().equal(before)
        torch.manual_seed(2)
        assert first(3).equal(one)
        assert not first(4).equal(one)

    def test_estimates_are_a_parameter_with_a_rate_of_its_own(self):
        loss = ROLE(expected_positives=2.0, train_targets=OBSERVED)
        assert [name for name, _ in loss.named_parameters()] == ["theta"]
        assert loss.learning_rate_multiplier == 10

    def test_only_the_rows_of_the_batch_learn(self):
        loss = ROLE(expected_positives=2.0, train_targets=OBSERVED)
        index = torch.tensor([3, 0])
        loss(torch.randn(2, 3), OBSERVED[index], index).backward()
        assert loss.theta.grad.abs().sum(1).nonzero().flatten().tolist() == [0, 3]

    def test_estimates_are_saved_and_restored(self):
        loss = ROLE(expected_positives=2.0, train_targets=OBSERVED, seed=1)
        other = ROLE(expected_positives=2.0, train_targets=OBSERVED, seed=2)
        other.load_state_dict(loss.state_dict())
        batch = torch.randn(5, 3), OBSERVED, torch.arange(5)
        assert other(*batch).equal(loss(*batch))

    @pytest.mark.parametrize("index", [[0], [0, 1, 2], [[0, 1]]])
    def test_there_is_an_index_for_each_row(self, index):
        """A single one would be taken for all of them."""
        loss = ROLE(expected_positives=2.0, train_targets=OBSERVED)
        with pytest.raises(ValueError, match=r"index must have shape \(2,\); got \("):
            loss(torch.zeros(2, 3), OBSERVED[:2], torch.tensor(index))

    @pytest.mark.host_only
    def test_index_is_needed_and_checked(self):
        loss = ROLE(expected_positives=2.0, train_targets=OBSERVED)
        with pytest.raises(ValueError, match="keeps a state per sample"):
            loss(torch.zeros(1, 3), OBSERVED[:1])
        with pytest.raises(ValueError, match="within the training set, 0 to 4; got 5 to 5"):
            loss(torch.zeros(1, 3), OBSERVED[:1], torch.tensor([5]))
