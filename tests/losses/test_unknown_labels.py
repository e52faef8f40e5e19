"""Unknown labels: which losses take them, and that these lose nothing but the unknown entries."""

import re
from pathlib import Path

import pytest
import torch

from tests.losses.test_battery import NAMES, NUM_CLASSES, batch, make
from tkpr.losses import LSEP, TKPR, PartialLabels, RankingLoss
from tkpr.losses.inputs import REDUCTIONS

ROOT = Path(__file__).parents[2]
ROW_BY_ROW = [
    *("rank", "u1", "u2", "u3", "u4", "lsep", "tkml", "tkpr_a1", "tkpr_a2", "tkpr_a3", "zlpr")
]
ENTRY_BY_ENTRY = ["bce", "an", "an_ls", "wan"]
SUMS = ["asl", "ral", "hill", "splc"]


def takes_unknown(name):
    logits, targets, index = batch()
    try:
        make(name)(logits, PartialLabels(targets == 1, targets == 0), index)
    except ValueError as error:
        return "takes no unknown labels" not in str(error)
    return True


TAKERS = [name for name in NAMES if takes_unknown(name)]


def some_unknown(seed=0):
    """Each row keeps at least seven of nine labels: K + 1 of them are needed by an oracle."""
    logits, targets, index = batch()
    hidden = torch.rand(targets.shape, generator=torch.Generator().manual_seed(seed))
    unknown = hidden <= hidden.sort(1).values[:, 1:2]
    unknown[2] = False
    return logits, PartialLabels((targets == 1) & ~unknown, (targets == 0) & ~unknown), index


def test_the_page_of_losses_says_who_takes_them():
    page = (ROOT / "docs" / "losses.md").read_text()
    rows = re.findall(r"^\| (`[^|]*`) \|.*\| ([^|]*) \|$", page, re.MULTILINE)
    named = {name for names, states in rows if "unknown" in states for name in names.split("`")}
    assert {name for name in named if name in NAMES} == set(TAKERS)


@pytest.mark.parametrize("name", TAKERS)
def test_without_unknown_entries_partial_labels_are_plain_ones(name):
    logits, targets, index = batch()
    plain = make(name)(logits, targets, index)
    partial = make(name)(logits, PartialLabels(targets == 1, targets == 0), index)
    torch.testing.assert_close(partial, plain, rtol=1e-12, atol=0)


@pytest.mark.parametrize("name", [name for name in TAKERS if name != "csl"])
def test_an_unknown_entry_has_no_gradient_and_no_influence(name):
    logits, targets, index = some_unknown()
    unknown = ~(targets.relevant | targets.irrelevant)
    loss = make(name)
    value = loss(logits, targets, index)
    (gradient,) = torch.autograd.grad(value, logits)
    assert not gradient[unknown].any()
    assert gradient[~unknown].any()
    moved = logits.detach() + 9.0 * unknown
    torch.testing.assert_close(loss(moved, targets, index), value.detach(), rtol=1e-12, atol=0)


@pytest.mark.parametrize("name", ["u1", "u2", "u3", "u4"])
@pytest.mark.parametrize("score", [torch.inf, torch.nan])
def test_not_even_infinite_scores_of_unknown_labels_have_an_influence(name, score):
    logits, targets, index = some_unknown()
    expected = make(name)(logits, targets, index)
    unknown = ~(targets.relevant | targets.irrelevant)
    found = make(name)(logits.detach().masked_fill(unknown, score), targets, index)
    torch.testing.assert_close(found, expected.detach(), rtol=1e-12, atol=0)


def of_known_columns(name, logits, targets, row):
    """The loss of one row from which the unknown columns are cut."""
    known = targets.relevant[row] | targets.irrelevant[row]
    return make(name)(logits[row : row + 1, known], targets.relevant[row : row + 1, known].double())


@pytest.mark.parametrize("name", ROW_BY_ROW)
@pytest.mark.parametrize("seed", [0, 1])
def test_a_row_counts_as_if_it_had_its_known_columns_only(name, seed):
    logits, targets, _ = some_unknown(seed)
    rows = [of_known_columns(name, logits, targets, row) for row in range(len(logits))]
    expected = torch.stack(rows).mean()
    value = make(name)(logits, targets)
    torch.testing.assert_close(value, expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(
        *(torch.autograd.grad(one, logits)[0] for one in (value, expected)), rtol=1e-10, atol=1e-12
    )


@pytest.mark.parametrize("name", ENTRY_BY_ENTRY)
def test_the_mean_is_over_the_known_entries(name):
    logits, targets, _ = some_unknown()
    known = (targets.relevant | targets.irrelevant).sum(1)
    rows = [of_known_columns(name, logits, targets, row) for row in range(len(logits))]
    expected = (torch.stack(rows) * known).sum() / known.sum()
    torch.testing.assert_close(make(name)(logits, targets), expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("name", SUMS)
@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_the_sum_is_over_the_known_entries(name, reduction):
    logits, targets, _ = some_unknown()
    rows = [of_known_columns(name, logits, targets, row) for row in range(len(logits))]
    expected = torch.stack(rows).sum()
    if reduction == "mean":
        expected = expected / (targets.relevant | targets.irrelevant).sum()
    loss = make(name)
    loss.reduction = REDUCTIONS[reduction]
    value = loss(logits, targets)
    torch.testing.assert_close(value, expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("name", SUMS)
@pytest.mark.parametrize("known", [0, 1])
def test_one_known_entry_is_the_mean_and_none_is_zero(name, known):
    loss = make(name)
    logits, relevant = torch.tensor([[0.5, -1.0]]).double(), torch.tensor([[known == 1, False]])
    summed = loss(logits, PartialLabels(relevant, torch.zeros_like(relevant)))
    loss.reduction = torch.mean
    assert loss(logits, PartialLabels(relevant, torch.zeros_like(relevant))) == summed
    assert (summed > 0) == bool(known)


@pytest.mark.parametrize("scores", ["sigmoid", "softmax", "raw"])
@pytest.mark.parametrize("surrogate", ["square", "exponential", "logistic"])
def test_tkpr_with_every_score_and_surrogate(scores, surrogate):
    logits, targets, _ = some_unknown()
    loss = TKPR(k=5, alpha=3, surrogate=surrogate, scores=scores)
    expected = 0
    for row in range(len(logits)):
        known = targets.relevant[row] | targets.irrelevant[row]
        expected += loss(
            logits[row : row + 1, known], targets.relevant[row : row + 1, known].long()
        )
    value = loss(logits, targets)
    torch.testing.assert_close(value, expected / len(logits))
    torch.testing.assert_close(
        *(torch.autograd.grad(one, logits)[0] for one in (value, expected / len(logits)))
    )


def test_tkpr_compares_with_the_known_labels_where_they_are_few():
    """K = 3, but two labels are known: l(0) + l(s_0 - s_1), over K."""
    logits = torch.tensor([[1.0, 0.5, 9.0, 9.0, 9.0]], requires_grad=True)
    targets = PartialLabels.from_states(torch.tensor([[1, 0, -1, -1, -1]]))
    value = TKPR(k=3, alpha=1, surrogate="square", scores="raw")(logits, targets)
    assert value.item() == pytest.approx((1 + 0.5**2) / 3)
    (gradient,) = torch.autograd.grad(value, logits)
    torch.testing.assert_close(gradient, torch.tensor([[-1 / 3, 1 / 3, 0, 0, 0]]))


@pytest.mark.parametrize("name", [name for name in TAKERS if name != "csl"])
def test_rows_of_which_nothing_is_known_have_no_gradient(name):
    logits, _, index = batch()
    nothing = torch.zeros(len(logits), NUM_CLASSES, dtype=torch.bool)
    value = make(name)(logits, PartialLabels(nothing, nothing), index)
    assert value.isfinite()
    (gradient,) = torch.autograd.grad(value, logits, allow_unused=True)
    assert gradient is None or not gradient.any()


def test_sampled_pairs_never_have_an_unknown_label():
    logits, targets, _ = some_unknown()
    unknown = ~(targets.relevant | targets.irrelevant)
    for _ in range(20):
        (gradient,) = torch.autograd.grad(LSEP(max_pairs=4)(logits, targets), logits)
        assert not gradient[unknown].any()


def test_rows_without_a_known_pair_can_leave_the_mean():
    logits = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    targets = PartialLabels.from_states(torch.tensor([[1, 0], [1, -1]]))
    assert RankingLoss(rows="valid")(logits, targets).item() == pytest.approx(-torch.pi / 4)
    assert RankingLoss(rows="all")(logits, targets).item() == pytest.approx(-torch.pi / 8)
