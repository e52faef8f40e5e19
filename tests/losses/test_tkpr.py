"""TKPR and AUTKC against stored values, and what they refuse."""

import pytest
import torch

from tests.losses.golden import assert_matches, cases, tensors
from tkpr.losses.autkc import AUTKC
from tkpr.losses.tkpr import TKPR

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
