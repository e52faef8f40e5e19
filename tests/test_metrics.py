"""The measures against other libraries' stored values, scikit-learn, and plain loops."""

import itertools
import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn import metrics as sk
from torch.utils._python_dispatch import TorchDispatchMode

from tests.losses.golden import golden
from tkpr import metrics, ranking

KEYS = [
    *(f"{name}@{k}" for name in ("P", "R", "mAP", "NDCG") for k in (3, 5)),
    *(f"TKPR_a{alpha}@{k}" for alpha in (1, 2, 3) for k in (3, 5)),
    *("ranking_loss", "mAP", "CF1", "OF1"),
]


@st.composite
def batches(draw, max_rows=5, max_classes=7, levels=4):
    """Scores of few levels, so that ties abound, and any targets."""
    shape = (draw(st.integers(1, max_rows)), draw(st.integers(2, max_classes)))
    scores = draw(hnp.arrays(np.int64, shape, elements=st.integers(0, levels)))
    targets = draw(hnp.arrays(np.int64, shape, elements=st.integers(0, 1)))
    return scores / 2, targets


def worst_ranks(scores, targets):
    """Positions (from 1) of the relevant labels of a row, every tie broken against them."""
    order = sorted(range(len(scores)), key=lambda i: (-scores[i], targets[i]))
    return [place for place, label in enumerate(order, 1) if targets[label]]


def reference(scores, targets, k):
    """Every measure of one row by its definition, as plain sums over ranks."""
    ranks, num_classes = worst_ranks(scores, targets), len(scores)
    count, n_k = len(ranks), min(k, len(ranks))
    top = [r for r in ranks if r <= k]
    pairs = [
        scores[i] <= scores[j]
        for i in range(num_classes)
        for j in range(num_classes)
        if targets[i] and not targets[j]
    ]
    gain = sum(k + 1 - r for r in top) / k
    precision = {r: sum(q <= r for q in ranks) / r for r in top}
    ideal = sum(1 / math.log2(r + 1) for r in range(1, n_k + 1))
    return {
        "P": len(top) / k,
        "R": len(top) / count,
        "mAP": sum(precision.values()) / n_k,
        "NDCG": sum(1 / math.log2(r + 1) for r in top) / ideal,
        "TKPR_a1": gain,
        "TKPR_a2": gain / n_k,
        "TKPR_a3": gain / (n_k * (2 * k + 1 - n_k) / 2),
        "ranking_loss": sum(pairs) / len(pairs) if pairs else None,
    }


MEASURES = {
    "P": metrics.precision_at_k,
    "R": metrics.recall_at_k,
    "mAP": metrics.average_precision_at_k,
    "NDCG": metrics.ndcg_at_k,
    "TKPR_a1": lambda *a, **o: metrics.tkpr_at_k(*a, alpha=1, **o),
    "TKPR_a2": lambda *a, **o: metrics.tkpr_at_k(*a, alpha=2, **o),
    "TKPR_a3": lambda *a, **o: metrics.tkpr_at_k(*a, alpha=3, **o),
}


@given(batches(), st.data())
def test_every_row_equals_the_definition(batch, data):
    scores, targets = batch
    k = data.draw(st.integers(1, scores.shape[1]))
    got = {name: f(scores, targets, k, reduction="none") for name, f in MEASURES.items()}
    loss = metrics.ranking_loss(scores, targets, reduction="none")
    for row, (row_scores, row_targets) in enumerate(zip(scores, targets, strict=True)):
        if not row_targets.any():
            assert all(np.isnan(values[row]) for values in got.values())
            assert np.isnan(loss[row])
            continue
        expected = reference(row_scores, row_targets, k)
        for name, values in got.items():
            assert values[row] == pytest.approx(expected[name], rel=1e-12), name
        if expected["ranking_loss"] is None:
            assert np.isnan(loss[row])
        else:
            assert loss[row] == pytest.approx(expected["ranking_loss"], rel=1e-12)


@given(batches(), st.data())
def test_the_three_formulations_of_tkpr_agree(batch, data):
    """Eq. (tkpr) with k running to K + 1, Eq. (tkpr_point), and Prop. 2 on rows without ties.

    Relevant labels that tie with each other lose a place in the pairwise form only, so scores are
    made distinct first.
    """
    scores, targets = batch
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    scores = scores + rng.permutation(scores.size).reshape(scores.shape) / 1000
    k = data.draw(st.integers(1, scores.shape[1] - 1))
    listwise = metrics.tkpr_at_k(scores, targets, k, alpha=1, reduction="none", empty="zero")
    for row, labels, value in zip(scores, targets, listwise, strict=True):
        descending = sorted(row, reverse=True)
        relevant = [s for s, y in zip(row, labels, strict=True) if y]
        pairwise = sum(s > descending[i] for s in relevant for i in range(k + 1)) / k
        pointwise = (
            sum(s >= descending[i] for s in relevant for i in range(k)) / k
        )  # m_k: within the top i + 1
        assert value == pytest.approx(pairwise, rel=1e-12)
        assert value == pytest.approx(pointwise, rel=1e-12)


@given(batches(), st.data())
def test_tkpr_is_linear_dcg_over_k(batch, data):
    scores, targets = batch
    k = data.draw(st.integers(1, scores.shape[1]))
    ndcg = metrics.ndcg_at_k(scores, targets, k, discount="linear", reduction="none")
    tkpr = metrics.tkpr_at_k(scores, targets, k, alpha=3, reduction="none")
    np.testing.assert_allclose(tkpr, ndcg / k, rtol=1e-12)


@given(batches(), st.data())
def test_average_precision_is_at_most_k_times_tkpr(batch, data):
    """Thm. 2: AP@K <= K TKPR^{alpha_1}."""
    scores, targets = batch
    k = data.draw(st.integers(1, scores.shape[1]))
    ap = metrics.average_precision_at_k(scores, targets, k, reduction="none", empty="zero")
    tkpr = metrics.tkpr_at_k(scores, targets, k, alpha=1, reduction="none", empty="zero")
    assert (ap <= k * tkpr + 1e-12).all()


def zero_one_tkpr_loss(scores, targets, k):
    """N times alpha / N L_K^alpha of Prop. 3: the 0-1 loss against the K + 1 largest, over K."""
    top = sorted(scores, reverse=True)[: k + 1]
    return sum(s <= t for s, y in zip(scores, targets, strict=True) if y for t in top) / k


@given(batches(max_rows=1), st.data())
def test_the_ranking_loss_is_bounded_by_the_tkpr_loss(batch, data):
    """Prop. 3 says L_rank <= alpha / N L_K^alpha for every K; it holds for K <= N_- + 1.

    Take a relevant label with m irrelevant and p >= 1 relevant labels (itself one) level or above.
    Its share of the left side is m / N_-, of the right side min(K + 1, m + p) / K. The latter
    exceeds 1 if K + 1 is the smaller one; else (m + p) / K >= m / N_- as K <= N_- (1 + 1 / m).
    """
    (scores,), (targets,) = batch
    k = data.draw(st.integers(1, len(scores) - 1))
    num_irrelevant = int((targets == 0).sum())
    if targets.any() and num_irrelevant and k <= num_irrelevant + 1:
        loss = metrics.ranking_loss(scores[None], targets[None])
        assert loss <= zero_one_tkpr_loss(scores, targets, k) / targets.sum() + 1e-12


def test_the_smallest_case_in_which_that_bound_fails():
    """One irrelevant label above four relevant ones, K = 4: L_rank is 1, the bound 14/16."""
    scores, targets = np.array([5.0, 4, 3, 2, 1]), np.array([0, 1, 1, 1, 1])
    assert metrics.ranking_loss(scores[None], targets[None]) == 1
    assert zero_one_tkpr_loss(scores, targets, 4) / 4 == 14 / 16


@pytest.mark.parametrize("case", golden("metrics")["cases"], ids=lambda case: case["name"])
def test_other_libraries_stored_values(case):
    """Seven libraries on the same scores; each convention they follow is one of our options."""
    scores, targets = np.array(case["scores"]), np.array(case["targets"])
    values = case["values"]
    num_relevant = targets.sum(1)
    empty_rows = (num_relevant == 0).any()
    ks = [k for k in (1, 3, 5, 10) if k <= scores.shape[1]]
    ours = metrics.evaluate(scores, targets, ks, empty="zero")
    ours["macro_mAP"] = ours["mAP"]
    full = (num_relevant == 0) | (num_relevant == targets.shape[1])
    lrap = metrics.label_ranking_average_precision(scores, targets, reduction="none")
    ours["LRAP"] = float(np.where(full, 1, lrap).mean())
    ours["coverage_error"] = metrics.coverage_error(scores, targets, empty="zero")
    ours["NDCG_all"] = metrics.ndcg_at_k(scores, targets, scores.shape[1], empty="zero")
    for k in ks:
        ours[f"AUTKC@{k}"] = 100 * ours[f"TKPR_a1@{k}"]
        top = np.argsort(-scores, axis=1)[:, :k]
        hits = np.take_along_axis(targets, top, axis=1).sum()
        ours[f"R@{k}_micro"] = hits / targets.sum()
        for alpha, suffix in ((1, "M"), (2, "L"), (3, "Q")):
            ours[f"TKPR_alpha{alpha}@{k} (AUTKC_{suffix})"] = ours[f"TKPR_a{alpha}@{k}"]
    # torchmetrics was handed sigmoids and sums in float32: there large scores tie
    in_float32 = (1 / (1 + np.exp(-scores))).astype(np.float32)
    if any(len(set(row)) < len(row) for row in in_float32.tolist()):
        del values["torchmetrics"]
    checked = 0
    for library, measured in values.items():
        for name, value in measured.items():
            if isinstance(value, str):
                assert empty_rows, "only rows without relevant labels make a library return NaN"
                continue
            expected, tolerance = ours.get(name), 1e-10
            if library in ("torchmetrics", "pyxclib") or library.startswith("XCurve"):
                tolerance = 1e-6
            if library.startswith("ASL"):
                expected, tolerance = 100 * ours["mAP"], 1e-7
            if library.startswith("MLR"):
                expected = metrics.ranking_loss(scores, targets)
            assert value == pytest.approx(expected, rel=tolerance), (library, name)
            checked += 1
    assert checked > 30


@pytest.mark.parametrize("ties", [False, True])
def test_scikit_learn(ties):
    rng = np.random.default_rng(0)
    scores = rng.integers(0, 6 if ties else 10**9, (200, 12)).astype(float)
    targets = (rng.random((200, 12)) < 0.3).astype(int)
    targets[:, 0] |= targets.sum(1) == 0
    assert metrics.ranking_loss(scores, targets) == pytest.approx(
        sk.label_ranking_loss(targets, scores), rel=1e-12
    )
    assert metrics.coverage_error(scores, targets) == pytest.approx(
        sk.coverage_error(targets, scores), rel=1e-12
    )
    for k in (1, 3, 12):
        assert metrics.ndcg_at_k(scores, targets, k, ties="average") == pytest.approx(
            sk.ndcg_score(targets, scores, k=k), rel=1e-12
        )
    if not ties:
        assert metrics.label_ranking_average_precision(scores, targets) == pytest.approx(
            sk.label_ranking_average_precision_score(targets, scores), rel=1e-12
        )
        assert metrics.mean_average_precision(scores, targets) == pytest.approx(
            sk.average_precision_score(targets, scores, average="macro"), rel=1e-12
        )
    median = np.median(scores)
    predicted = scores > median
    assert metrics.overall_f1(scores, targets, threshold=median) == pytest.approx(
        sk.f1_score(targets, predicted, average="micro"), rel=1e-12
    )
    precision = sk.precision_score(targets, predicted, average="macro")
    recall = sk.recall_score(targets, predicted, average="macro")
    assert metrics.class_f1(scores, targets, threshold=median) == pytest.approx(
        2 * precision * recall / (precision + recall), rel=1e-12
    )


def test_f1_at_top_k_predicts_k_labels_of_every_row():
    rng = np.random.default_rng(1)
    scores, targets = rng.random((50, 9)), (rng.random((50, 9)) < 0.3).astype(int)
    top = np.argsort(-scores, axis=1)[:, :3]
    predicted = np.zeros_like(targets)
    np.put_along_axis(predicted, top, 1, axis=1)
    assert metrics.overall_f1(scores, targets, k=3) == pytest.approx(
        sk.f1_score(targets, predicted, average="micro"), rel=1e-12
    )


def test_average_over_ties_is_the_mean_over_all_orders():
    """Shake the scores by amounts too small to change anything but the order inside a tie."""
    rng = np.random.default_rng(2)
    scores = np.array([[2.0, 1, 1, 1, 0, 0]])
    targets = np.array([[0, 1, 0, 1, 1, 0]])
    shaken = scores + rng.random((20000, 6)) * 1e-3
    many = np.repeat(targets, len(shaken), axis=0)
    for name, measure in MEASURES.items():
        exact = measure(scores, targets, 3, ties="average")
        assert exact == pytest.approx(measure(shaken, many, 3), abs=0.01), name
    assert metrics.ranking_loss(scores, targets, ties="average") == pytest.approx(
        metrics.ranking_loss(shaken, many), abs=0.01
    )


@pytest.mark.parametrize("targets", [[1, 1, 0, 1, 0, 1], [0, 1, 1, 1, 0, 0], [1, 0, 1, 1, 1, 0]])
def test_average_over_ties_is_exact(targets):
    """All orders of a tie of two and of one of three labels, one by one."""
    scores, targets = np.array([[2.0, 2, 1, 1, 1, 0]]), np.array([targets])
    orders = [
        scores + 1e-3 * np.array([[*two, *three, 0]])
        for two in itertools.permutations(range(2))
        for three in itertools.permutations(range(3))
    ]
    for name, measure in MEASURES.items():
        for k in range(1, 6):
            mean = np.mean([measure(order, targets, k) for order in orders])
            assert measure(scores, targets, k, ties="average") == pytest.approx(mean), name


@settings(max_examples=50)
@given(batches(max_rows=4, max_classes=7), st.integers(0, 1000))
def test_order_of_rows_and_columns_does_not_matter(batch, seed):
    scores, targets = batch
    if not targets.any():
        return
    rng = np.random.default_rng(seed)
    rows, columns = rng.permutation(len(scores)), rng.permutation(scores.shape[1])
    shuffled = np.ix_(rows, columns)
    before = metrics.evaluate(scores, targets, [1, 2], empty="zero")
    after = metrics.evaluate(scores[shuffled], targets[shuffled], [1, 2], empty="zero")
    assert after == pytest.approx(before, rel=1e-12)
    assert (
        metrics.rank_distribution(scores, targets)
        == metrics.rank_distribution(scores[shuffled], targets[shuffled])
    ).all()


def test_evaluate_agrees_with_the_single_functions_for_tensors_and_arrays(monkeypatch):
    rng = np.random.default_rng(3)
    scores = rng.normal(size=(37, 8)).astype(np.float32)
    targets = (rng.random((37, 8)) < 0.3).astype(np.uint8)
    whole = metrics.evaluate(scores, targets)
    assert set(whole) == set(KEYS)
    assert metrics.evaluate(torch.tensor(scores), torch.tensor(targets)) == whole
    for name, measure in MEASURES.items():
        for k in (3, 5):
            assert whole[f"{name}@{k}"] == measure(scores, targets, k)
    assert whole["ranking_loss"] == metrics.ranking_loss(scores, targets)
    monkeypatch.setattr(ranking, "CHUNK", 5 * 8)
    assert metrics.evaluate(scores, targets) == whole


def test_rank_distribution_counts_the_ranks():
    scores = np.array([[3.0, 2, 1, 0], [1, 1, 0, 2]])
    targets = np.array([[1, 0, 1, 0], [1, 0, 0, 1]])
    assert metrics.rank_distribution(scores, targets).tolist() == [2, 0, 2, 0]


def test_empty_rows_are_left_out_or_zero_and_counted():
    scores = np.array([[1.0, 0], [1, 0], [1, 0]])
    targets = np.array([[0, 0], [1, 0], [1, 1]])
    assert metrics.precision_at_k(scores, targets, 1) == 1
    assert metrics.precision_at_k(scores, targets, 1, empty="zero") == pytest.approx(2 / 3)
    assert metrics.ranking_loss(scores, targets, reduction="none").tolist()[1] == 0
    assert np.isnan(metrics.ranking_loss(scores, targets, reduction="none")[[0, 2]]).all()
    assert metrics.count_empty(targets) == {
        "rows": 3,
        "rows_without_relevant": 1,
        "rows_without_irrelevant": 1,
    }
    with pytest.raises(ValueError, match="no row has the relevant"):
        metrics.recall_at_k(scores[:1], targets[:1], 1)


GOOD = np.array([[0.5, 0.2, 0.1]])
LABELS = np.array([[1, 0, 0]])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: metrics.evaluate(GOOD, LABELS[:, :2], [1]), r"shape of scores, \(1, 3\); got"),
        (lambda: metrics.evaluate(GOOD[0], LABELS[0], [1]), r"scores must be \[B, C\]"),
        (lambda: metrics.evaluate(GOOD, LABELS * 2, [1]), "hold only 0 and 1; got 2"),
        (
            lambda: metrics.evaluate(GOOD * np.nan, LABELS, [1]),
            "finite; got nan in row 0, column 0",
        ),
        (lambda: metrics.evaluate(GOOD, LABELS), "k must be an integer from 1 to 3; got 5"),
        (
            lambda: metrics.precision_at_k(GOOD, LABELS, 0),
            "k must be an integer from 1 to 3; got 0",
        ),
        (lambda: metrics.precision_at_k(GOOD, LABELS, 1.5), "got 1.5"),
        (lambda: metrics.ndcg_at_k(GOOD, LABELS, 1, discount="cubic"), "unknown discount 'cubic'"),
        (lambda: metrics.tkpr_at_k(GOOD, LABELS, 1, alpha=0), "alpha must be 1, 2 or 3; got 0"),
        (lambda: metrics.ranking_loss(GOOD, LABELS, ties="best"), "unknown ties 'best'"),
        (lambda: metrics.ranking_loss(GOOD, LABELS, empty="one"), "unknown empty 'one'"),
        (lambda: metrics.ranking_loss(GOOD, LABELS, reduction="sum"), "unknown reduction 'sum'"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()


class LargestNew(TorchDispatchMode):
    """Remembers the number of elements of the largest tensor that is no view of the inputs."""

    def __init__(self, *inputs):
        super().__init__()
        self.known = {tensor.untyped_storage().data_ptr() for tensor in inputs}
        self.numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else [out]:
            if isinstance(tensor, torch.Tensor):
                new = tensor.untyped_storage().data_ptr() not in self.known
                self.numel = max(self.numel, tensor.numel() * new)
        return out


@pytest.mark.parametrize("ties", ["worst", "average"])
def test_memory_does_not_grow_with_the_data(monkeypatch, ties):
    monkeypatch.setattr(ranking, "CHUNK", 2000)
    scores = torch.randn(900, 60, generator=torch.Generator().manual_seed(0))
    targets = (scores > 1).to(torch.uint8)
    with LargestNew(scores, targets) as largest:
        metrics.evaluate(scores, targets, ties=ties)
    assert largest.numel <= 2000 + 60


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.int64])
def test_any_type_of_scores_and_targets(dtype):
    scores = torch.tensor([[3, 1, 2], [0, 5, 4]])
    targets = torch.tensor([[1, 1, 0], [0, 0, 1]])
    expected = metrics.evaluate(scores.float(), targets, [1, 2])
    assert metrics.evaluate(scores.to(dtype), targets.to(dtype), [1, 2]) == expected
    assert metrics.evaluate(scores, targets.bool(), [1, 2]) == expected


@pytest.mark.parametrize("wrong", [-1.0, 0.5, 2.0, np.nan, np.inf])
def test_a_wrong_target_is_found_in_any_chunk(monkeypatch, wrong):
    monkeypatch.setattr(ranking, "CHUNK", 6)
    scores, targets = np.zeros((9, 3)), np.zeros((9, 3))
    targets[7, 1] = wrong
    with pytest.raises(ValueError, match=f"targets must hold only 0 and 1; got {wrong:.6g}"):
        metrics.ranking_loss(scores, targets)


def test_a_score_that_is_not_finite_is_named_by_its_place(monkeypatch):
    monkeypatch.setattr(ranking, "CHUNK", 6)
    scores = np.zeros((9, 3))
    scores[7, 1] = -np.inf
    for measure in (metrics.ranking_loss, metrics.mean_average_precision):
        with pytest.raises(ValueError, match="finite; got -inf in row 7, column 1"):
            measure(scores, np.zeros((9, 3)))


def test_one_row_without_its_brackets_is_refused_before_it_is_turned():
    """Torch warns where one turns a vector; the shape is looked at first."""
    row = torch.tensor([1.0, 0.0, 1.0])
    for scores, targets in ((row, row), (row[None], row), (row, row[None])):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(ValueError, match=r"must (be \[B, C\]|have the shape)"):
                metrics.mean_average_precision(scores, targets)


def test_the_table_holds_what_evaluate_returns():
    scores, targets = np.random.default_rng(0).normal(size=(6, 8)), np.eye(6, 8, dtype=int)
    values = metrics.evaluate(scores, targets)
    assert list(values) == metrics.measure_names() == KEYS
    for name, value in values.items():
        assert metrics.evaluate_one(name, scores, targets) == pytest.approx(value, rel=1e-12)
        entry, _ = metrics.find_measure(name)
        if entry.scope == "image":
            assert np.nanmean(metrics.per_image(name, scores, targets)) == pytest.approx(value)
        else:
            with pytest.raises(ValueError, match=f"{name} is no mean over images: choose one of"):
                metrics.per_image(name, scores, targets)
    assert [name for name in KEYS if metrics.lower_is_better(name)] == ["ranking_loss"]
    assert metrics.lower_is_better("train_loss")


def test_a_new_measure_is_one_entry(monkeypatch):
    first = metrics.Measure("first@K", "image", lambda top, k: top.relevance[:, 0], "first@K")
    worst = metrics.Measure("worst", "class", metrics.MEASURES["mAP"].function, "worst class")
    monkeypatch.setitem(metrics.MEASURES, "first@K", first)
    monkeypatch.setitem(metrics.MEASURES, "worst", worst)
    values = metrics.evaluate(np.array([[2.0, 1.0, 0.0]]), np.array([[1, 0, 0]]), [2])
    assert values["first@2"] == 1.0
    assert values["worst"] == values["mAP"]
    assert metrics.measure_names([2], ["image"])[-1] == "first@2"


@pytest.mark.parametrize("name", ["mAP@", "mAP@0", "mAP@-1", "mAP@x", "nothing", "OF1@3", "P"])
def test_an_unknown_measure_is_named(name):
    with pytest.raises(ValueError, match=r"no measure '.*': choose one of P@K, R@K"):
        metrics.find_measure(name)
    with pytest.raises(ValueError, match="no measure"):
        metrics.lower_is_better(name)


def test_training_quantities_are_not_measured():
    with pytest.raises(ValueError, match="train_loss is a number of the training loop"):
        metrics.evaluate_one("train_loss", np.eye(2), np.eye(2, dtype=int))


def test_alpha_is_two_by_default():
    scores, targets = np.array([[3.0, 2, 1, 0]]), np.array([[0, 1, 1, 1]])
    values = [metrics.tkpr_at_k(scores, targets, 3, alpha=alpha) for alpha in (1, 2, 3)]
    assert len(set(values)) == 3
    assert metrics.tkpr_at_k(scores, targets, 3) == values[1]


def test_f1_without_a_hit_is_zero():
    scores, targets = np.array([[1.0, -1], [1, -1]]), np.array([[0, 1], [0, 1]])
    assert metrics.class_f1(scores, targets, threshold=0.0) == 0
    assert metrics.overall_f1(scores, targets, threshold=0.0) == 0


def test_empty_rows_are_counted_one_by_one():
    targets = np.array([[0, 0], [0, 0], [0, 0], [1, 0], [1, 1], [1, 1]])
    counts = metrics.count_empty(targets)
    assert counts["rows_without_relevant"] == 3
    assert counts["rows_without_irrelevant"] == 2


def test_digits_as_in_the_papers_tables():
    digits = {"P@3": 3, "mAP@5": 3, "TKPR_a2@3": 3, "mAP": 3, "ranking_loss": 4, "train_loss": 4}
    assert {name: metrics.find_measure(name)[0].digits for name in digits} == digits


def test_a_measure_of_classes_is_not_one_of_images():
    answer = r"^mAP is no mean over images: choose one of P@K, R@K, .*, ranking_loss$"
    with pytest.raises(ValueError, match=answer):
        metrics.per_image("mAP", np.eye(2), np.eye(2))
