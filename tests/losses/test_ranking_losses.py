"""The ranking losses against the original implementations, and their special cases."""

import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.losses.golden import assert_matches, cases, tensors
from tkpr.losses.pairwise import LSEP, TKML, MultilabelMargin, RankingLoss
from tkpr.losses.univariate import Univariate, label_weights

# how the stored files call the surrogates
SURROGATES = {"exp": "exponential", "logistic": "logistic", "-arctan(t)": "arctan"}

LOSSES = {
    **{f"rank-{name}": RankingLoss(name) for name in ("arctan", "exponential", "logistic")},
    "rank-square": RankingLoss("square"),
    "rank-valid": RankingLoss(rows="valid"),
    "lsep": LSEP(),
    "lsep-sampled": LSEP(max_pairs=4),
    "tkml": TKML(k=3),
    "multilabel_margin": MultilabelMargin(),
    **{u: Univariate(u) for u in ("u1", "u2", "u3", "u4")},
    "u2-exponential": Univariate("u2", base="exponential"),
    "u4-exponential": Univariate("u4", base="exponential"),
}
every_loss = pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES.keys())


def stored(*names):
    return pytest.mark.parametrize(("name", "params", "case"), cases(*names))


def batch(rows=5, classes=8, *, seed=0, scale=1.0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(rows, classes, generator=generator, dtype=torch.float64)
    targets = (torch.rand(rows, classes, generator=generator) < 0.4).to(dtype)
    targets[:, 0], targets[:, 1] = 1, 0
    return logits.to(dtype).requires_grad_(), targets


def gradient(value, logits):
    return torch.autograd.grad(value, logits)[0]


@stored("rank_exp", "rank_logistic", "formula_rank_arctan")
def test_rank_golden(name, params, case):
    logits, targets = tensors(case)
    surrogate = SURROGATES[params.get("surrogate") or params["base_loss"]]
    rows = "valid" if name.startswith("rank_exp") else "all"
    assert_matches(RankingLoss(surrogate, rows=rows)(logits, targets), logits, case)


@stored("lsep")
def test_lsep_golden(name, params, case):
    logits, targets = tensors(case)
    assert params["pairs"] == "all"
    assert_matches(LSEP()(logits, targets), logits, case)


@stored("tkml")
def test_tkml_golden(name, params, case):
    logits, targets = tensors(case)
    loss = TKML(k=case["extra"]["k"], margin=params["margin"])
    assert_matches(loss(logits, targets), logits, case)
    per_sample = [loss(logits[i : i + 1], targets[i : i + 1]).item() for i in range(len(logits))]
    assert per_sample == pytest.approx(case["extra"]["per_sample"], rel=1e-10)


@stored("u1_logistic", "u2_logistic", "u3_logistic", "u4_logistic")
def test_univariate_golden(name, params, case):
    logits, targets = tensors(case)
    weighting = params["option"].removeprefix("surrogate_loss_")
    loss = Univariate(weighting, base=SURROGATES[params["base_loss"]])
    assert_matches(loss(logits, targets), logits, case)
    cost = torch.tensor(case["extra"]["cost"], dtype=torch.float64)
    counts = targets.sum(1, keepdim=True)
    own, others = label_weights(counts, targets.shape[1] - counts, weighting=weighting)
    torch.testing.assert_close(torch.where(targets == 1, own, others), cost)


@stored("formula_u2_exp")
def test_u2_exponential_golden(name, params, case):
    logits, targets = tensors(case)
    loss = Univariate("u2", base=SURROGATES[params["base_loss"]])
    assert_matches(loss(logits, targets), logits, case)


def test_multilabel_margin_is_the_double_loop():
    logits, targets = batch(dtype=torch.float64)
    total = 0.0
    for scores, labels in zip(logits.tolist(), targets.tolist(), strict=True):
        for i, j in [(i, j) for i in range(8) for j in range(8)]:
            if labels[i] == 1 and labels[j] == 0:
                total += max(0.0, 1 - scores[i] + scores[j]) / 8
    assert MultilabelMargin()(logits, targets).item() == pytest.approx(total / 5, rel=1e-12)


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
    torch.manual_seed(0)
    expected = loss(exact, targets)
    torch.manual_seed(0)
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
    grad = gradient(value, logits)
    assert grad.isfinite().all()
    if isinstance(loss, Univariate) and loss.weighting == "u1":
        assert value > 0
    elif isinstance(loss, TKML) and label == 1:
        assert value >= loss.margin
    else:
        assert value == 0
        assert (grad == 0).all()


def test_degenerate_rows_in_the_mean():
    logits, targets = batch(rows=4, dtype=torch.float64)
    targets[2], targets[3] = 0, 1
    two = RankingLoss()(logits[:2], targets[:2])
    torch.testing.assert_close(RankingLoss()(logits, targets), two / 2)
    torch.testing.assert_close(RankingLoss(rows="valid")(logits, targets), two)


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


class LargestTensor(TorchDispatchMode):
    """Remembers the number of elements of the largest tensor that an operation returned."""

    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else [out]:
            if isinstance(tensor, torch.Tensor):
                self.numel = max(self.numel, tensor.numel())
        return out


@every_loss
@pytest.mark.host_only
def test_no_tensor_of_all_pairs(loss):
    num_rows, num_classes = 6, 300
    logits = torch.randn(num_rows, num_classes, requires_grad=True)
    targets = torch.zeros(num_rows, num_classes)
    targets[:, :3] = 1
    with LargestTensor() as largest:
        loss(logits, targets).backward()
    assert num_rows * num_classes <= largest.numel <= 3 * num_rows * num_classes


@pytest.mark.host_only
def test_rank_memory_follows_the_number_of_labels():
    """One row with many labels does not blow up the others."""
    targets = torch.zeros(50, 100)
    targets[:, 0] = 1
    targets[0, :99] = 1
    with LargestTensor() as largest:
        RankingLoss()(torch.randn(50, 100), targets)
    assert largest.numel == targets.sum() * 100


def test_arctan_is_antisymmetric():
    """l(t) + l(-t) = 0: the loss of the flipped logits is the negative loss."""
    logits, targets = batch()
    torch.testing.assert_close(
        RankingLoss()(-logits, targets), -RankingLoss()(logits, targets), rtol=1e-6, atol=0
    )


def test_lsep_of_a_wide_gap_is_the_gap():
    value = LSEP()(torch.tensor([[-100.0, 100.0]]), torch.tensor([[1, 0]]))
    assert value == 200


def test_lsep_with_enough_pairs_is_the_full_loss():
    logits, targets = batch(dtype=torch.float64)
    targets[0], targets[1] = 0, 1
    full, sampled = LSEP()(logits, targets), LSEP(max_pairs=16)(logits, targets)
    torch.testing.assert_close(sampled, full, rtol=1e-12, atol=0)
    torch.testing.assert_close(gradient(sampled, logits), gradient(full, logits))


def test_lsep_samples_without_replacement():
    """Five of six pairs: the sum lacks one pair, no other."""
    logits = torch.tensor([[0.3, -0.2, 1.0, 2.0, -1.0]], dtype=torch.float64)
    targets = torch.tensor([[1, 1, 0, 0, 0]])
    terms = [math.exp(j - i) for i in (0.3, -0.2) for j in (1.0, 2.0, -1.0)]
    possible = [math.log(1 + sum(terms) - term) for term in terms]
    seen = set()
    torch.manual_seed(0)
    for _ in range(60):
        value = LSEP(max_pairs=5)(logits, targets).item()
        assert value < LSEP()(logits, targets).item()
        matching = [n for n, one in enumerate(possible) if value == pytest.approx(one, rel=1e-12)]
        assert len(matching) == 1
        seen.update(matching)
    assert seen == set(range(6))


def test_lsep_samples_uniformly():
    num_rows = 6000
    logits = torch.zeros(num_rows, 5, requires_grad=True)
    targets = torch.tensor([1.0, 0, 1, 0, 0]).repeat(num_rows, 1)
    torch.manual_seed(0)
    grad = gradient(LSEP(max_pairs=1)(logits, targets), logits)
    pairs = torch.stack([grad.argmin(1), grad.argmax(1)], dim=1)
    (kinds, counts) = pairs.unique(dim=0, return_counts=True)
    assert kinds.tolist() == [[0, 1], [0, 3], [0, 4], [2, 1], [2, 3], [2, 4]]
    # five standard deviations of a binomial count with p = 1/6
    assert (counts - num_rows / 6).abs().max() < 5 * math.sqrt(num_rows * 5 / 36)


def test_tkml_with_more_than_k_labels_is_at_least_the_margin():
    logits = torch.tensor([[5.0, 4.0, 3.0, -2.0]])
    targets = torch.tensor([[1, 1, 1, 0]])
    assert TKML(k=3)(logits, targets) == 0
    assert TKML(k=2)(logits, targets) == 1
    assert TKML(k=1)(logits, targets) == 2


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RankingLoss("cubic"), "unknown surrogate 'cubic'"),
        (lambda: RankingLoss(rows="some"), "unknown rows 'some'"),
        (lambda: LSEP(max_pairs=0), "max_pairs must be an integer of at least 1"),
        (lambda: TKML(k=0), "k must be an integer of at least 1; got 0"),
        (lambda: Univariate("u5"), "unknown weighting 'u5': choose one of u1, u2, u3, u4"),
        (lambda: Univariate("u1", base="hinge"), "unknown base 'hinge'"),
    ],
)
def test_wrong_constants(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_tkml_needs_more_classes_than_k():
    with pytest.raises(ValueError, match="number of classes, 4; got k = 4"):
        TKML(k=4)(torch.zeros(2, 4), torch.zeros(2, 4))


@pytest.mark.host_only
@pytest.mark.parametrize("weighting", ["u2", "u3", "u4"])
def test_weights_of_few_labels_of_either_kind(weighting):
    """A single relevant or irrelevant label makes pairs; none of a kind makes no pair."""
    formulas = {
        "u2": lambda n, m: (1 / (n * m), 1 / (n * m)),
        "u3": lambda n, m: (1 / n, 1 / m),
        "u4": lambda n, m: (1 / min(n, m), 1 / min(n, m)),
    }
    for n, m in [(1, 1), (1, 4), (4, 1), (2, 3), (0, 5), (5, 0)]:
        numbers = torch.tensor([float(n)]), torch.tensor([float(m)])
        found = [weight.item() for weight in label_weights(*numbers, weighting=weighting)]
        expected = formulas[weighting](n, m) if n and m else (0, 0)
        assert found == pytest.approx(expected), (n, m)


def test_a_row_with_a_single_pair_counts():
    """Two classes: -arctan of the gaps 0.5 and -1; the third row has no pair."""
    logits = torch.tensor([[1.0, 0.5], [0.0, -1.0], [3.0, 1.0]], dtype=torch.float64)
    targets = torch.tensor([[1, 0], [0, 1], [1, 1]])
    total = -math.atan(0.5) + math.atan(1.0)
    assert RankingLoss(rows="valid")(logits, targets).item() == pytest.approx(total / 2)
    assert RankingLoss(rows="all")(logits, targets).item() == pytest.approx(total / 3)


@pytest.mark.parametrize(
    ("classes", "grad", "recomputed"),
    [(256, True, 0), (257, True, 2), (600, True, 6), (600, False, 0)],
)
def test_many_classes_are_taken_in_slices_that_are_computed_again(
    classes, grad, recomputed, monkeypatch
):
    """Of at most 2^16 pairs per row; value and gradient are those of a loop over the rows."""
    from tkpr.losses import pairwise
    from tkpr.losses.partial_labels import PartialLabels

    calls, checkpoint = [], pairwise.checkpoint

    def counted(*arguments, **options):
        calls.append(arguments)
        return checkpoint(*arguments, **options)

    monkeypatch.setattr(pairwise, "checkpoint", counted)
    logits, targets = batch(3, classes, dtype=torch.float64)
    known = torch.rand(targets.shape, generator=torch.Generator().manual_seed(2)) < 0.5
    labels = PartialLabels((targets == 1) & known, (targets == 0) & known)
    with torch.set_grad_enabled(grad):
        value = RankingLoss("logistic")(logits, labels)
    assert len(calls) == recomputed
    expected = torch.zeros((), dtype=torch.float64)
    for row, relevant, irrelevant in zip(logits, *labels, strict=True):
        gaps = row[relevant].unsqueeze(1) - row[irrelevant]
        expected = expected + torch.log1p(torch.exp(-gaps)).mean() / 3
    torch.testing.assert_close(value, expected, check_dtype=False)
    if grad:
        torch.testing.assert_close(gradient(value, logits), gradient(expected, logits))


def test_a_random_key_of_0_is_a_draw_too(monkeypatch):
    """Six pairs without a gap, of which four are drawn."""
    monkeypatch.setattr(torch, "rand_like", torch.zeros_like)
    value = LSEP(max_pairs=4)(torch.zeros(1, 5), torch.tensor([[1, 1, 0, 0, 0]]))
    assert value.exp().item() == pytest.approx(5)
