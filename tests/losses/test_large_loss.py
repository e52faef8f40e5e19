import math

import pytest
import torch

from tests.losses.golden import assert_matches, cases, tensors
from tkpr.losses.large_loss import LargeLoss

SCHEMES = {"LL-R": "reject", "LL-Ct": "correct_temporarily", "LL-Cp": "correct_permanently"}


def build(scheme, num_samples=8, num_classes=6, delta_rel=0.1, **changes):
    return LargeLoss(
        scheme=scheme,
        delta_rel=delta_rel,
        num_samples=num_samples,
        num_classes=num_classes,
        **changes,
    )


def batch(num_samples=8, num_classes=6):
    torch.manual_seed(0)
    targets = torch.nn.functional.one_hot(torch.arange(num_samples) % num_classes, num_classes)
    return 3 * torch.randn(num_samples, num_classes), targets, torch.arange(num_samples)


@pytest.mark.parametrize(
    ("name", "params", "case"),
    [pytest.param(*row, id=row[0]) for row in cases("ll_r", "ll_ct", "ll_cp", "ll_cp_from_cli")],
)
def test_large_loss_is_the_original(name, params, case):
    logits, targets = tensors(case)
    extra = case["extra"]
    loss = build(
        SCHEMES[params["mod_scheme"]],
        *targets.shape,
        delta_rel=params["delta_rel"],
        cli_bug=name.startswith("ll_cp_from_cli"),
    )
    if extra["epoch"] is None:
        loss.clean_rate = extra["clean_rate"]
    else:
        loss.set_epoch(extra["epoch"] - 1)
    assert loss.clean_rate == extra["clean_rate"]
    assert loss.num_modified(logits.numel()) == extra["k"]
    index = torch.arange(len(logits)).flip(0)
    assert_matches(loss(logits, targets, index), logits, case)
    if name.startswith("ll_cp-"):
        corrected = torch.zeros_like(targets, dtype=torch.bool)
        if extra["correction_idx"] is not None:
            corrected[
                tuple(torch.tensor(side, dtype=torch.long) for side in extra["correction_idx"])
            ] = True
        assert loss.corrections[index].equal(corrected)
    else:
        assert not loss.state_dict()


def test_the_clean_rate_falls_by_repeated_subtraction():
    loss = build("reject", delta_rel=0.1)
    rate = 1.0
    for epoch in range(10):
        loss.set_epoch(epoch)
        assert loss.clean_rate == rate
        rate -= 0.1
    # 1 - 3 * 0.1 and 1 - 0.1 - 0.1 - 0.1 round to different numbers, which ceil tells apart
    loss.set_epoch(3)
    assert loss.num_modified(1000) == 300
    assert math.ceil(1000 * (1 - (1 - 3 * 0.1))) == 301
    loss.set_epoch(100)
    assert loss.num_modified(1000) == 1000


def test_by_default_an_epoch_costs_two_in_a_thousand():
    loss = LargeLoss(scheme="reject")
    loss.set_epoch(1)
    assert loss.clean_rate == pytest.approx(0.998)


def test_the_epoch_may_be_set_in_any_order():
    loss = build("reject", delta_rel=0.002)
    loss.set_epoch(7)
    rate = loss.clean_rate
    loss.set_epoch(2)
    loss.set_epoch(7)
    assert loss.clean_rate == rate


@pytest.mark.parametrize("scheme", SCHEMES.values())
def test_the_first_epoch_is_binary_cross_entropy(scheme):
    logits, targets, index = batch()
    expected = torch.nn.functional.binary_cross_entropy_with_logits(logits, targets.float())
    torch.testing.assert_close(build(scheme)(logits, targets, index), expected)


def test_rejected_entries_get_no_gradient_and_corrected_ones_the_opposite():
    logits, targets, index = batch()
    logits = logits.double().requires_grad_()
    slopes = {}
    for scheme in ("reject", "correct_temporarily"):
        loss = build(scheme)
        loss.set_epoch(1)
        slopes[scheme] = torch.autograd.grad(loss(logits, targets, index), logits)[0]
    ranked = logits.detach().masked_fill(targets == 1, -torch.inf).flatten()
    highest = ranked.topk(math.ceil(48 * 0.1)).indices
    assert (slopes["reject"] == 0).flatten().nonzero().flatten().tolist() == sorted(
        highest.tolist()
    )
    expected = (torch.sigmoid(logits.detach()) - 1).flatten()[highest] / 48
    torch.testing.assert_close(slopes["correct_temporarily"].flatten()[highest], expected)


class TestPermanentCorrections:
    def test_they_grow_and_act_as_observed_positives(self):
        logits, targets, index = batch()
        loss = build("correct_permanently")
        loss.set_epoch(1)
        counts = []
        for _ in range(3):
            loss(logits, targets, index)
            counts.append(int(loss.corrections.sum()))
        # ceil(48 * 0.1) = 5 entries reach the threshold, 4 lie strictly above it
        assert counts == [4, 8, 12]
        assert not (loss.corrections & (targets == 1)).any()
        loss.set_epoch(0)
        observed = (targets == 1) | loss.corrections
        expected = torch.nn.functional.binary_cross_entropy_with_logits(logits, observed.float())
        torch.testing.assert_close(loss(logits, targets, index), expected)

    def test_the_last_one_can_be_kept_too(self):
        loss = build("correct_permanently", keep_last=True)
        loss.set_epoch(1)
        loss(*batch())
        assert loss.corrections.sum() == 5

    def test_they_are_made_in_training_mode_alone(self):
        loss = build("correct_permanently").eval()
        loss.set_epoch(1)
        value = loss(*batch())
        assert not loss.corrections.any()
        assert loss.train()(*batch()).equal(value)
        assert loss.corrections.any()

    def test_a_sample_that_is_twice_in_the_batch_gets_the_corrections_of_both_rows(self):
        loss = build("correct_permanently", delta_rel=0.25)
        loss.set_epoch(1)
        logits = torch.tensor([[5.0, 0, 0, 0, 0, 0], [0, 6, 0, 0, 0, 0]])
        loss(logits, torch.zeros(2, 6), torch.tensor([3, 3]))
        assert loss.corrections.nonzero().tolist() == [[3, 0], [3, 1]]

    def test_they_are_saved_and_restored(self):
        loss, other = build("correct_permanently"), build("correct_permanently")
        loss.set_epoch(1)
        loss(*batch())
        other.load_state_dict(loss.state_dict())
        assert other.corrections.any()
        other.set_epoch(2)
        loss.set_epoch(2)
        assert other(*batch()).equal(loss(*batch()))
        assert other.corrections.equal(loss.corrections)

    def test_processes_agree_after_a_merge(self):
        ranks = [build("correct_permanently") for _ in range(2)]
        logits, targets, index = batch()
        for half, loss in zip((slice(0, 4), slice(4, 8)), ranks, strict=True):
            loss.set_epoch(3)
            loss(logits[half], targets[half], index[half])
        made = [loss.corrections.clone() for loss in ranks]
        assert not made[0].equal(made[1])
        for loss, other in zip(ranks, reversed(made), strict=True):
            loss.merge_state(lambda mine, theirs=other: torch.maximum(mine, theirs.to(mine.dtype)))
            assert loss.corrections.equal(made[0] | made[1])

    def test_the_size_of_the_training_set_is_needed(self):
        for known in ({}, {"num_samples": 8}, {"num_classes": 6}):
            with pytest.raises(ValueError, match="give num_samples and num_classes"):
                LargeLoss(scheme="correct_permanently", **known)

    @pytest.mark.host_only
    def test_index_is_needed_and_checked(self):
        loss = build("correct_permanently")
        logits, targets, index = batch()
        with pytest.raises(ValueError, match="keeps a state per sample"):
            loss(logits, targets)
        with pytest.raises(ValueError, match="within the training set, 0 to 7; got 1 to 8"):
            loss(logits, targets, index + 1)


def test_unknown_scheme_is_named():
    with pytest.raises(ValueError, match="unknown scheme 'LL-R': choose one of reject, correct"):
        build("LL-R")


@pytest.mark.parametrize("scheme", SCHEMES.values())
@pytest.mark.parametrize("label", [0, 1, None])
def test_extreme_logits_and_degenerate_rows_are_finite(scheme, label):
    _, targets, index = batch()
    targets = targets if label is None else torch.full_like(targets, label)
    logits = (100 * (-1.0) ** torch.arange(48).reshape(8, 6)).requires_grad_()
    loss = build(scheme)
    for epoch in (0, 1, 5):
        loss.set_epoch(epoch)
        value = loss(logits, targets, index)
        assert value.shape == ()
        assert value.isfinite()
        assert torch.autograd.grad(value, logits)[0].isfinite().all()


@pytest.mark.parametrize("scheme", SCHEMES.values())
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_autocast_computes_in_float32(scheme, dtype):
    logits, targets, index = batch()
    loss = build(scheme).eval()
    loss.set_epoch(2)
    logits = logits.to(dtype)
    outside = loss(logits.float(), targets, index)
    with torch.autocast("cpu", torch.bfloat16):
        inside = loss(logits, targets, index)
    assert inside.dtype == torch.float32
    assert inside.equal(outside)
