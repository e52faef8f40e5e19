"""Lists of labels in place of dense targets: equal values and gradients, and what is refused."""

import pytest
import torch

from tests.losses.test_battery import NAMES, batch, make
from tkpr.losses import TKPR, AssumeNegative, LabelLists, RankingLoss, Univariate
from tkpr.losses.inputs import find_relevant, prepare, relevant_labels

LOSSES = {
    **{
        f"tkpr-{surrogate}-{scores}": TKPR(k=3, surrogate=surrogate, scores=scores)
        for surrogate in ("square", "exponential", "logistic")
        for scores in ("raw", "softmax", "sigmoid")
    },
    "rank": RankingLoss(),
    "rank-valid": RankingLoss("exponential", rows="valid"),
    **{u: Univariate(u) for u in ("u1", "u2", "u3", "u4")},
    "u2-exponential": Univariate("u2", base="exponential"),
    "bce": AssumeNegative(eps=0),
    "an-ls": AssumeNegative(label_smoothing=0.1, reduction="sum"),
    "wan": AssumeNegative(weak_negatives=True),
}
every_loss = pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES.keys())


def many_classes(num_classes, *, rows=5, seed=0):
    """Rows with 0 to 4 relevant labels, in both forms, labels in no order."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, num_classes, generator=generator, dtype=torch.float64)
    labels = torch.stack(
        [torch.randperm(num_classes, generator=generator)[:4] for _ in range(rows)]
    )
    labels = labels.where(torch.arange(4) < torch.arange(rows)[:, None] % 5, -1)
    dense = torch.zeros(rows, num_classes)
    for row, chosen in enumerate(labels.tolist()):
        dense[row, [label for label in chosen if label >= 0]] = 1
    return logits.requires_grad_(), dense, labels


def value_and_gradient(loss, logits, targets):
    value = loss(logits, targets)
    (gradient,) = torch.autograd.grad(value, logits)
    return value, gradient


@every_loss
@pytest.mark.parametrize("num_classes", [12, 1000])
def test_lists_equal_dense_targets(loss, num_classes):
    logits, dense, labels = many_classes(num_classes)
    expected = value_and_gradient(loss, logits, dense)
    csr = dense.to_sparse_csr()
    for targets in (
        LabelLists(labels),
        LabelLists(labels.int().flip(1)),
        LabelLists.from_csr(csr.crow_indices(), csr.col_indices()),
        csr,
        dense.to_sparse_coo(),
    ):
        got = value_and_gradient(loss, logits, targets)
        torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", NAMES)
def test_every_loss_takes_lists(name):
    logits, targets, index = batch()
    lists = LabelLists.from_sparse(targets.float().to_sparse_csr())
    torch.testing.assert_close(make(name)(logits, lists, index), make(name)(logits, targets, index))


@every_loss
def test_rows_without_labels(loss):
    logits, dense, _ = many_classes(9)
    nothing = LabelLists(torch.full((5, 2), -1))
    got = value_and_gradient(loss, logits, nothing)
    expected = value_and_gradient(loss, logits, torch.zeros_like(dense))
    torch.testing.assert_close(got, expected)


def test_a_million_classes_without_a_dense_target():
    """By hand: three relevant labels of one row, scores 1, 2, 3 of which 3 and 2 are the top."""
    logits = torch.zeros(1, 1_000_000, dtype=torch.float64)
    logits[0, [7, 70, 999_999]] = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    loss = TKPR(k=1, alpha=1, surrogate="square", scores="raw")
    value = loss(logits, LabelLists(torch.tensor([[999_999, 7, 70]])))
    assert value == sum((1 - (own - top)) ** 2 for own in (1, 2, 3) for top in (3, 2))


def test_the_forms_agree_on_the_labels():
    lists = LabelLists(torch.tensor([[4, 0, -1], [-1, -1, -1], [-1, 2, -1]]))
    dense = torch.tensor([[1, 0, 0, 0, 1], [0, 0, 0, 0, 0], [0, 0, 1, 0, 0]])
    assert torch.equal(lists.dense(5), dense.bool())
    assert torch.equal(LabelLists(relevant_labels(dense)).dense(5), dense.bool())
    assert torch.equal(lists.to("cpu").dense(5), dense.bool())
    logits, targets = prepare(torch.zeros(3, 5), lists)
    assert torch.equal(targets, dense.float())
    _, relevant = find_relevant(logits, lists)
    assert relevant.counts.tolist() == [[2], [0], [1]]
    assert sorted(relevant.entries.tolist()) == [0, 4, 12]


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.uint8, torch.bool, torch.int64]
)
@pytest.mark.host_only
def test_relevant_labels_are_found_in_large_matrices(dtype):
    generator = torch.Generator().manual_seed(0)
    targets = torch.rand(64, 3000, generator=generator) < 0.001
    targets[0, 0] = targets[-1, -1] = True
    _, relevant = find_relevant(torch.zeros(64, 3000), targets.to(dtype))
    assert torch.equal(relevant.entries, targets.flatten().nonzero().squeeze(1))
    assert torch.equal(relevant.rows, targets.nonzero()[:, 0])
    assert torch.equal(relevant.counts.flatten(), targets.sum(1).float())


@pytest.mark.parametrize("wrong", [-1.0, 0.5, 2.0, torch.inf, torch.nan])
@pytest.mark.parametrize("shape", [(4, 9), (64, 3000)])
@pytest.mark.parametrize("check", [prepare, find_relevant])
@pytest.mark.host_only
def test_wrong_values_are_found_anywhere(check, shape, wrong):
    targets = torch.zeros(shape)
    targets[:, 2] = 1
    targets[2, 5] = wrong
    with pytest.raises(ValueError, match=f"targets must hold only 0 and 1; got {wrong:.6g}"):
        check(torch.zeros(shape), targets)


@pytest.mark.parametrize(
    ("make_lists", "message"),
    [
        (lambda: LabelLists(torch.tensor([[1, 2], [3, 3]])), "row 1 names 3 twice"),
        (lambda: LabelLists(torch.tensor([[1, -2]])), "0 or more, with -1 as padding; got -2"),
        (lambda: LabelLists(torch.tensor([1, 2])), r"integers \[B, P\].*shape \(2,\)"),
        (lambda: LabelLists(torch.tensor([[0.0, 1.0]])), "integers .*got torch.float32"),
        (lambda: LabelLists(torch.tensor([[True, False]])), "integers .*got torch.bool"),
        (
            lambda: LabelLists.from_csr(torch.tensor([0, 2]), torch.tensor([1, 1])),
            "row 0 names 1 twice",
        ),
        (
            lambda: LabelLists.from_csr(torch.tensor([0, 1]), torch.tensor([1, 2])),
            r"rise from 0 to the number of labels, 2; got \[0, 1\]",
        ),
        (
            lambda: LabelLists.from_csr(torch.tensor([0, 2, 1, 2]), torch.tensor([1, 2])),
            "must rise from 0",
        ),
        (lambda: LabelLists.from_sparse(2 * torch.eye(2).to_sparse_csr()), "store only 1; got 2"),
    ],
)
def test_wrong_lists(make_lists, message):
    with pytest.raises(ValueError, match=message):
        make_lists()


@every_loss
@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([[0], [9], [1]], "must be below the number of classes, 9; got 9"),
        ([[0], [1]], "a list for each row of logits, 3; got 2"),
    ],
)
def test_lists_that_do_not_fit_the_logits(loss, labels, message):
    with pytest.raises(ValueError, match=message):
        loss(torch.zeros(3, 9), LabelLists(torch.tensor(labels)))


@every_loss
def test_integers_are_not_taken_for_lists(loss):
    """A matrix of another shape is a mistake, whatever its type."""
    with pytest.raises(ValueError, match=r"shape of logits, \(3, 9\); got \(3, 2\)"):
        loss(torch.zeros(3, 9), torch.tensor([[1, 2], [3, -1], [0, -1]]))


def test_the_largest_label_of_few():
    assert LabelLists(torch.tensor([[5, -1]])).largest == 5
    none = LabelLists(torch.tensor([[-1], [-1]]))
    assert (none.largest, none.counts.tolist()) == (-1, [0, 0])
    assert none.dense(1).tolist() == [[False], [False]]


def test_labels_of_different_rows_are_never_the_same():
    """Six rows with the labels 0 and 1: a label stands twice in a row alone."""
    rows = torch.tensor([[1, -1], [0, -1], [0, 1], [-1, 0], [1, 0], [0, -1]])
    assert LabelLists(rows).counts.tolist() == [1, 1, 2, 1, 2, 1]


def test_a_single_wrong_entry_is_named():
    matrix = torch.eye(3)
    matrix[1, 1] = 0.25
    with pytest.raises(ValueError, match=r"sparse targets must store only 1; got 0\.25"):
        LabelLists.from_sparse(matrix.to_sparse_csr())


@pytest.mark.parametrize("options", [{}, {"non_blocking": False}, {"non_blocking": True}])
def test_a_copy_to_a_device_is_waited_for_unless_asked_otherwise(options):
    class Part:
        def to(self, device, non_blocking):
            return device, non_blocking

    lists = LabelLists(torch.tensor([[2]]))
    lists.rows = lists.columns = lists.counts = Part()
    moved = lists.to("there", **options)
    expected = ("there", bool(options.get("non_blocking")))
    assert (moved.rows, moved.columns, moved.counts) == (expected,) * 3
    assert (moved.num_rows, moved.largest) == (1, 2)
