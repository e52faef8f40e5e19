import math

import pytest
import torch

from tests.losses.golden import assert_matches, cases, tensors
from tkpr.losses.entropy import EMAPL, EntropyMaximisation


def parametrize(*names):
    stored = cases(*names)
    return pytest.mark.parametrize(
        ("params", "case"), [pytest.param(*rest, id=name) for name, *rest in stored]
    )


def em_apl(observed, **changes):
    settings = {"alpha": 0.1, "beta": 0.9, "warmup_epochs": 2, "num_epochs": 6}
    return EMAPL(train_targets=observed, **(settings | changes))


def observed_labels(num_samples, num_classes):
    return torch.nn.functional.one_hot(torch.arange(num_samples) % num_classes, num_classes)


@parametrize("em_coco", "em_pascal")
def test_em_is_the_original(params, case):
    logits, targets = tensors(case)
    loss = EntropyMaximisation(alpha=params["alpha"])
    assert_matches(loss(logits, targets), logits, case)


@parametrize("em_apl_coco", "em_apl_pascal")
def test_em_apl_is_the_original(params, case):
    logits, labels = tensors(case)  # 1 positive, 0 unknown, -q pseudo-negative
    targets = (labels == 1).double()
    index = torch.arange(len(logits)).flip(0)
    loss = em_apl(targets, alpha=params["alpha"], beta=params["beta"]).double()
    loss.labels[index] = labels
    assert_matches(loss(logits, targets, index), logits, case)


@parametrize("apl_state")
def test_pseudo_labels_are_the_originals(params, case):
    logits, observed = tensors(case)
    settings = case["extra"]["P"]
    loss = em_apl(
        observed,
        warmup_epochs=settings["warmup_epoch"],
        num_epochs=settings["num_epochs"],
        negative_proportion=settings["neg_proportion"],
    ).double()
    for number in (1, 2):
        loss.update_labels(logits)
        after = torch.tensor(case["extra"][f"obs_after_pass_{number}"], dtype=torch.float64)
        torch.testing.assert_close(loss.labels, after, rtol=1e-10, atol=0)
        assert (loss.labels < 0).equal(after < 0)


def test_without_pseudo_labels_em_apl_is_em():
    observed = observed_labels(6, 4)
    logits, index = torch.randn(6, 4), torch.arange(6)
    em = EntropyMaximisation(alpha=0.1)(logits, observed)
    assert em_apl(observed)(logits, observed, index).equal(em)


def test_unknown_labels_are_drawn_towards_one_half():
    logits = torch.tensor([[2.0, -2.0, 0.0]], dtype=torch.float64, requires_grad=True)
    value = EntropyMaximisation(alpha=0.1, eps=0)(logits, torch.zeros(1, 3))
    (grad,) = torch.autograd.grad(value, logits)
    assert grad.sign().tolist() == [[1, -1, 0]]


def test_updates_run_from_the_warmup_epoch_to_the_last_but_one():
    loss = em_apl(observed_labels(6, 4), warmup_epochs=3, num_epochs=6)
    wanted = []
    for epoch in range(6):
        loss.set_epoch(epoch)
        wanted.append(loss.wants_update())
    assert wanted == [False, False, True, True, True, False]


def test_a_run_shorter_than_the_warmup_never_updates():
    loss = em_apl(observed_labels(6, 4), warmup_epochs=3, num_epochs=2)
    for epoch in range(2):
        loss.set_epoch(epoch)
        assert not loss.wants_update()


def test_each_update_labels_the_same_number_per_class_until_none_is_left():
    torch.manual_seed(0)
    observed = torch.bernoulli(torch.linspace(0.1, 0.9, 7).repeat(50, 1))
    loss = em_apl(observed, warmup_epochs=2, num_epochs=6)
    unobserved = (observed == 0).sum(0)
    step = torch.tensor([math.floor(0.9 * u / 4) for u in unobserved.tolist()])
    for number in range(1, 8):
        before = loss.labels.clone()
        loss.update_labels(torch.randn(50, 7))
        count = (loss.labels < 0).sum(0)
        assert count.equal(torch.minimum(number * step, unobserved))
        assert loss.labels[before != 0].equal(before[before != 0])
    assert (loss.labels == 1).equal(observed == 1)


def test_the_lowest_scores_are_chosen_also_where_the_sigmoid_saturates():
    observed = torch.zeros(10, 1)
    loss = em_apl(observed, warmup_epochs=1, num_epochs=4)
    logits = torch.linspace(30, 40, 10)[:, None].flip(0)
    loss.update_labels(logits)
    assert (loss.labels < 0).flatten().nonzero().flatten().tolist() == [7, 8, 9]


def test_a_score_of_zero_stays_unknown():
    loss = em_apl(torch.zeros(10, 1), warmup_epochs=1, num_epochs=4)
    loss.update_labels(torch.full((10, 1), -200.0))
    assert (loss.labels == 0).all()


def test_the_callers_labels_are_not_changed():
    observed = torch.zeros(10, 2)
    loss = em_apl(observed, warmup_epochs=1, num_epochs=4)
    loss.update_labels(torch.randn(10, 2, requires_grad=True))
    assert (loss.labels < 0).any()
    assert (observed == 0).all()


def test_pseudo_labels_are_saved_and_restored():
    observed = observed_labels(20, 4)
    loss, other = em_apl(observed), em_apl(observed)
    loss.update_labels(torch.randn(20, 4))
    batch = torch.randn(20, 4), observed, torch.arange(20)
    assert not other(*batch).equal(loss(*batch))
    other.load_state_dict(loss.state_dict())
    assert other(*batch).equal(loss(*batch))
    scores = torch.randn(20, 4)
    loss.update_labels(scores)
    other.update_labels(scores)
    assert other.labels.equal(loss.labels)


def test_predictions_must_cover_the_training_set():
    with pytest.raises(ValueError, match=r"one row per training sample, \(6, 4\); got \(5, 4\)"):
        em_apl(observed_labels(6, 4)).update_labels(torch.zeros(5, 4))


@pytest.mark.host_only
def test_index_is_needed_and_checked():
    loss = em_apl(observed_labels(6, 4))
    with pytest.raises(ValueError, match="keeps a state per sample"):
        loss(torch.zeros(1, 4), torch.zeros(1, 4))
    with pytest.raises(ValueError, match="within the training set, 0 to 5; got -1 to -1"):
        loss(torch.zeros(1, 4), torch.zeros(1, 4), torch.tensor([-1]))


@pytest.mark.parametrize("rows", ["no positive", "only positives", "mixed"])
@pytest.mark.parametrize("kind", ["em", "em_apl"])
def test_extreme_logits_and_degenerate_rows_are_finite(kind, rows):
    targets = {
        "no positive": torch.zeros(2, 4),
        "only positives": torch.ones(2, 4),
        "mixed": torch.tensor([[0.0, 1, 0, 1], [0, 0, 0, 1]]),
    }[rows]
    loss = em_apl(targets) if kind == "em_apl" else EntropyMaximisation(alpha=0.1)
    if kind == "em_apl":
        loss.labels[(targets == 0) & (torch.arange(4) < 2)] = -0.1
    logits = torch.tensor([[100.0, 100, -100, -100], [-100, 100, 100, -100]], requires_grad=True)
    value = loss(logits, targets, torch.arange(2))
    assert value.shape == ()
    assert value.isfinite()
    assert torch.autograd.grad(value, logits)[0].isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("kind", ["em", "em_apl"])
def test_autocast_computes_in_float32(kind, dtype):
    observed = observed_labels(5, 4)
    loss = em_apl(observed) if kind == "em_apl" else EntropyMaximisation(alpha=0.1)
    if kind == "em_apl":
        loss.update_labels(torch.randn(5, 4))
    logits, index = (3 * torch.randn(5, 4)).to(dtype), torch.arange(5)
    outside = loss(logits.float(), observed, index)
    with torch.autocast("cpu", torch.bfloat16):
        inside = loss(logits, observed, index)
    assert inside.dtype == torch.float32
    assert inside.equal(outside)
