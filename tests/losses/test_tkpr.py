"""TKPR and AUTKC against stored values, and what they refuse."""

import pytest
import torch

from tests.losses.golden import assert_matches, cases, tensors
from tkpr.losses.autkc import AUTKC
from tkpr.losses.surrogates import OVER_TOP, SURROGATES
from tkpr.losses.tkpr import SCORES, TKPR

SHORT = {"sq": "square", "exp": "exponential", "logit": "logistic"}
TKPR_FILES = [
    f"formula_tkpr_{name}_{scores}" for name in SHORT for scores in ("softmax", "sigmoid")
]


@pytest.mark.parametrize(("name", "params", "case"), cases(*TKPR_FILES))
def test_tkpr_golden(name, params, case):
    extra = case["extra"]
    loss = TKPR(
        alpha=int(extra["alpha_name"][-1]),
        k=extra["K"],
        surrogate=SHORT[params["surrogate"]],
        scores=params["normalise"],
    )
    logits, targets = tensors(case)
    assert_matches(loss(logits, targets), logits, case)


@pytest.mark.parametrize(
    ("name", "params", "case"), cases("autkc_exp", "autkc_hinge", "autkc_logit", "autkc_sq")
)
def test_autkc_golden(name, params, case):
    surrogate = (SHORT | {"hinge": "hinge"})[params["surrogate"].lower()]
    scores = "raw" if surrogate == "hinge" else "softmax"
    loss = AUTKC(k=case["extra"]["K"], surrogate=surrogate, scores=scores)
    logits, targets = tensors(case)
    one_label = torch.zeros_like(targets)
    one_label[torch.arange(len(targets)), case["extra"]["y"]] = 1
    assert_matches(loss(logits, one_label), logits, case)


@pytest.mark.parametrize("k", [0, -1, 2.5])
def test_autkc_needs_a_whole_k(k):
    with pytest.raises(ValueError, match=f"k must be an integer of at least 1; got {k}"):
        AUTKC(k=k)


def test_autkc_takes_the_mean_over_relevant_labels():
    torch.manual_seed(0)
    logits = torch.randn(1, 7, dtype=torch.float64)
    loss = AUTKC(k=3)
    single = [loss(logits, torch.eye(7)[[i]]) for i in (1, 4, 5)]
    several = loss(logits, torch.eye(7)[[1, 4, 5]].sum(0, keepdim=True))
    torch.testing.assert_close(several, torch.stack(single).mean())


@pytest.mark.parametrize("scores", ["sigmoid", "softmax", "raw"])
@pytest.mark.parametrize("surrogate", ["square", "exponential", "logistic"])
@pytest.mark.parametrize("alpha", [1, 2, 3])
def test_gradcheck(alpha, surrogate, scores):
    torch.manual_seed(1)
    logits = torch.randn(3, 6, dtype=torch.float64, requires_grad=True)
    targets = torch.tensor([[1, 0, 1, 0, 0, 0], [0, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1]])
    loss = TKPR(alpha=alpha, k=3, surrogate=surrogate, scores=scores)
    assert torch.autograd.gradcheck(lambda s: loss(s, targets), (logits,))


def test_k_equal_to_the_last_position_is_allowed_and_beyond_is_not():
    logits, targets = torch.randn(2, 5), torch.eye(5)[:2]
    assert TKPR(k=4)(logits, targets).isfinite()
    with pytest.raises(ValueError, match="k \\+ 1 may not exceed the number of classes, 5"):
        TKPR(k=5)(logits, targets)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"k": 0}, "k must be an integer of at least 1; got 0"),
        ({"k": 2.5}, "k must be an integer of at least 1; got 2.5"),
        ({"k": 3, "alpha": 4}, "alpha must be 1, 2 or 3; got 4"),
        ({"k": 3, "surrogate": "hinge"}, "unknown surrogate 'hinge'"),
        ({"k": 3, "scores": "tanh"}, "unknown scores 'tanh': choose one of sigmoid, softmax, raw"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        TKPR(**arguments)


def test_many_classes_against_autograd():
    """Beyond a few hundred classes the largest scores are sought in groups."""
    torch.manual_seed(2)
    logits = torch.randn(4, 3000, dtype=torch.float64, requires_grad=True)
    targets = (torch.rand(4, 3000) < 0.002).double()
    for scores, function in SCORES.items():
        s = function(logits)
        pairs = torch.log1p(torch.exp(s.topk(6).values.unsqueeze(1) - s.unsqueeze(2))).sum(2)
        expected = ((pairs * targets).sum(1) / targets.sum(1).clamp(1, 5) / 5).mean()
        got = TKPR(k=5, surrogate="logistic", scores=scores)(logits, targets)
        torch.testing.assert_close(got, expected, rtol=1e-12, atol=0)
        torch.testing.assert_close(
            torch.autograd.grad(got, logits), torch.autograd.grad(expected, logits)
        )


def test_the_gradient_scales_with_the_factor_of_the_loss_and_repeats():
    logits = torch.randn(3, 8, dtype=torch.float64, requires_grad=True)
    value = TKPR(k=2, scores="softmax")(logits, torch.eye(8)[:3])
    (once,) = torch.autograd.grad(value, logits, retain_graph=True)
    (again,) = torch.autograd.grad(value, logits, retain_graph=True)
    (tripled,) = torch.autograd.grad(3 * value, logits)
    assert torch.equal(once, again)
    torch.testing.assert_close(tripled, 3 * once)


@pytest.mark.parametrize("memory", ["transposed", "every second"])
def test_memory_layout_of_the_logits(memory):
    torch.manual_seed(3)
    apart = torch.randn(9, 4).T if memory == "transposed" else torch.randn(4, 18)[:, ::2]
    logits, targets = apart.detach().requires_grad_(), torch.eye(9)[[0, 3, 3, 8]]
    dense = apart.contiguous().requires_grad_()
    for scores in SCORES:
        loss = TKPR(k=3, scores=scores)
        got, expected = loss(logits, targets), loss(dense, targets)
        torch.testing.assert_close(got, expected)
        torch.testing.assert_close(
            torch.autograd.grad(got, logits), torch.autograd.grad(expected, dense)
        )


@pytest.mark.host_only
@pytest.mark.parametrize("scores", ["raw", "sigmoid"])
def test_between_forward_and_backward_only_few_entries_are_held(scores):
    logits = torch.randn(4, 1000, requires_grad=True)
    node = TKPR(k=3, scores=scores)(logits, torch.eye(1000)[:4]).grad_fn
    assert [saved for saved in node.saved_tensors if saved is not None] == [logits]
    assert all(len(part.reshape(-1)) <= 4 * 4 for part in node.found)


@pytest.mark.parametrize("margin", [-900.0, -700.5, -3.0, 0.0, 0.4, 3.0, 900.0])
@pytest.mark.parametrize("name", OVER_TOP)
def test_sums_over_the_top_scores_and_their_slopes(name, margin):
    """Against the sum of the surrogate itself; the exponential of the whole sum is bounded."""
    top = torch.tensor([[2.0, 1.5, 0.25]], dtype=torch.float64)
    own = torch.tensor([[margin]], dtype=torch.float64)
    gaps = (top - own).requires_grad_()
    pairs = SURROGATES[name](-gaps).sum(1, keepdim=True)
    bounded = name == "exponential" and gaps.logsumexp(1) > 700
    expected = SURROGATES[name](torch.tensor([[-999.0]]).double()) if bounded else pairs
    (slopes,) = torch.autograd.grad(pairs.sum(), gaps)
    if bounded:
        slopes = torch.zeros_like(slopes)
    over_top = OVER_TOP[name]
    close = {"rtol": 1e-12, "atol": 0}
    torch.testing.assert_close(over_top.of_gaps(gaps.detach()), expected.detach(), **close)
    torch.testing.assert_close(over_top.slopes(gaps.detach()), slopes, **close)
    torch.testing.assert_close(over_top.of_scores(own, top), expected.detach(), **close)


def test_the_exponential_stops_before_it_overflows():
    """At exponents of 79.7 and 700, where thousands of terms still have a finite sum."""
    highest = SURROGATES["exponential"](torch.tensor([-1e4]))
    assert highest.log().item() == pytest.approx(79.7, abs=0.05)
    assert (5000 * highest).isfinite()
    highest = SURROGATES["exponential"](torch.tensor([-1e4], dtype=torch.float64))
    assert highest.log().item() == pytest.approx(700.8, abs=0.05)


@pytest.mark.parametrize("alpha", [1, 2, 3])
def test_k_may_be_one(alpha):
    """One relevant label against the two best: itself and the other one."""
    loss = TKPR(k=1, alpha=alpha, surrogate="square", scores="sigmoid")
    logits, targets = torch.tensor([[0.0, 1.0, -1.0]]), torch.tensor([[1, 0, 0]])
    scores = logits.sigmoid()[0].tolist()
    best = sorted(scores)[-2:]
    expected = sum((1 - (scores[0] - other)) ** 2 for other in best)
    assert loss(logits, targets).item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.host_only
def test_the_gradient_is_the_analytic_one_unless_it_is_traced():
    logits, targets = torch.randn(4, 6, requires_grad=True), torch.eye(6)[:4]
    loss = TKPR(k=2)
    assert "_TopPairs" in loss(logits, targets).grad_fn.name()
    traced = torch.func.grad(lambda values: loss(values, targets))(logits.detach())
    (analytic,) = torch.autograd.grad(loss(logits, targets), logits)
    torch.testing.assert_close(traced, analytic)
