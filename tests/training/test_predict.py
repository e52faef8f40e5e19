"""One pass over a data set gives the measures and the predictions of a run."""

import contextlib
import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from tests.short_runs import SMALL, train
from tkpr.data.dataset import Split
from tkpr.data.features import FeatureDataset
from tkpr.losses.label_lists import LabelLists
from tkpr.metrics import evaluate
from tkpr.runs.saved_model import load_predictions
from tkpr.training.predict import fabric_on, keep_best, measure, predict
from tkpr.training.trainer import Trainer
from tkpr.training.unreadable import UnreadableImages

RUN = [*SMALL, "trainer.epochs=2", "trainer.warmup_epochs=1"]


@pytest.fixture
def passes(monkeypatch):
    """The logits of every pass over the test set; each has noise of its own."""
    original, found = Trainer.predict, []

    def noisy(trainer, dataset, **options):
        found.append(original(trainer, dataset, **options) + torch.randn(len(dataset), 1))
        return found[-1]

    monkeypatch.setattr(Trainer, "predict", noisy)
    return found


def assert_of_one_pass(folder, logits):
    stored = load_predictions(folder)
    np.testing.assert_array_equal(stored["logits"], logits)
    measured = json.loads((folder / "metrics.json").read_text())["metrics"]
    assert measured == pytest.approx(evaluate(stored["logits"], stored["targets"]), rel=1e-12)
    last = (folder / "metrics.csv").read_text().splitlines()
    row = dict(zip(last[0].split(","), last[-1].split(","), strict=True))
    assert float(row["CF1"]) == measured["CF1"]


def test_the_test_set_is_predicted_once_per_epoch(passes, tmp_path):
    train(*RUN, folder=tmp_path)
    assert len(passes) == 2
    assert_of_one_pass(tmp_path, passes[-1])


def test_a_run_stopped_before_its_results_measures_what_it_stores(passes, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("tkpr.runs.run.write_results", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            train(*RUN, folder=tmp_path)
    train(*RUN, folder=tmp_path)
    assert len(passes) == 3
    assert_of_one_pass(tmp_path, passes[-1])


@pytest.mark.parametrize("batch_size", [1, 2, 3, 7])
def test_rows_come_in_the_order_of_the_data_set(batch_size):
    inputs = np.random.default_rng(0).normal(size=(7, 4)).astype(np.float32)
    dataset = FeatureDataset(Split(inputs, np.eye(7, 3, dtype=np.uint8), list("abcdefg")))
    model = nn.Linear(4, 3).train()
    calls = []
    outputs = predict(
        model,
        dataset,
        nn.Identity(),
        fabric_on("cpu"),
        batch_size=batch_size,
        after_batch=lambda: calls.append(1),
    )
    torch.testing.assert_close(outputs, model(torch.from_numpy(inputs)).detach())
    assert not outputs.requires_grad
    assert not model.training
    assert len(calls) == -(-7 // batch_size)


@pytest.mark.parametrize("device", ["tpu", "cuda:99", "cpu:x", ""])
def test_a_device_that_is_not_there_is_named(device):
    with pytest.raises(ValueError, match=f"the device '{device}' is not available here"):
        fabric_on(device)


class OneOfTwo:
    """The Fabric of one of two processes; of the other one only the width of its rows is known."""

    world_size, device = 2, torch.device("cpu")

    def __init__(self, rank, width):
        self.global_rank, self.width = rank, torch.tensor(width)

    def to_device(self, batch):
        return batch

    def autocast(self):
        return contextlib.nullcontext()

    def all_reduce(self, tensor, reduce_op):
        return torch.maximum(tensor, self.width) if reduce_op == "max" else tensor


def rows(count):
    inputs = np.random.default_rng(count).normal(size=(count, 4)).astype(np.float32)
    return FeatureDataset(Split(inputs, np.eye(count, 3, dtype=np.uint8), list("abcdefg"[:count])))


@pytest.mark.parametrize(
    ("rank", "count", "batch_size", "filled", "calls"),
    [
        (0, 7, 3, [0, 2, 4, 6], 2),
        (1, 7, 3, [1, 3, 5], 2),  # one batch of its own, and a call for the second of rank 0
        (1, 7, 2, [1, 3, 5], 2),
        (1, 1, 2, [], 1),  # no batch at all
    ],
)
def test_a_process_fills_in_its_rows_and_is_called_as_often_as_the_first(
    rank, count, batch_size, filled, calls
):
    dataset, model, called = rows(count), nn.Linear(4, 3), []
    outputs = predict(
        model,
        dataset,
        nn.Identity(),
        OneOfTwo(rank, 3),
        batch_size=batch_size,
        after_batch=lambda: called.append(1),
    )
    expected = torch.zeros(count, 3)
    expected[filled] = model(dataset.inputs[filled]).detach()
    torch.testing.assert_close(outputs, expected)
    assert len(called) == calls


class Broken(FeatureDataset):
    """Rows of which some cannot be read."""

    def __init__(self, count, *broken):
        targets = np.eye(count, 3, dtype=np.uint8)
        super().__init__(Split(np.eye(count), targets, list("abcdef"[:count])))
        self.broken = broken

    def __getitems__(self, indices):
        good = [row for row in indices if row not in self.broken]
        self.unreadable[[row for row in indices if row in self.broken]] = True
        return super().__getitems__(torch.tensor(good, dtype=torch.long))


def test_rows_that_cannot_be_read_are_0_and_named(caplog):
    """The second batch is empty: neither the model nor what converts pixels sees it."""
    sizes, called = [], []

    class Finish(nn.Module):
        def forward(self, inputs):
            sizes.append(len(inputs))
            return inputs

    dataset, model = Broken(6, 0, 2, 3), nn.Linear(6, 3)
    outputs = predict(
        model,
        dataset,
        Finish(),
        fabric_on("cpu"),
        batch_size=2,
        after_batch=lambda: called.append(1),
    )
    expected = model(torch.eye(6)).detach()
    expected[[0, 2, 3]] = 0
    torch.testing.assert_close(outputs, expected)
    assert (sizes, len(called)) == ([1, 2], 3)
    assert [record.args for record in caplog.records] == [("a",), ("c",), ("d",)]


def test_images_that_were_named_before_are_not_named_again(caplog):
    fabric, dataset = fabric_on("cpu"), Broken(3, 1)
    unreadable = UnreadableImages(fabric)
    unreadable.restore(dataset, torch.tensor([1]))
    model = nn.Linear(3, 3)
    predict(model, dataset, nn.Identity(), fabric, batch_size=2, unreadable=unreadable)
    assert not caplog.records


def test_a_data_set_of_which_nothing_can_be_read_is_refused():
    dataset, model = Broken(2, 0, 1), nn.Linear(2, 3)
    with pytest.raises(ValueError, match="not one of the 2 images can be read"):
        predict(model, dataset, nn.Identity(), fabric_on("cpu"), batch_size=1)


class Pictures:
    """Two images, channels last, as a decoder gives them; they are loaded in this process."""

    ids, unreadable = ("a", "b"), torch.zeros(2, dtype=torch.bool)

    def __init__(self):
        self.loaded = 0

    def __len__(self):
        return 2

    def __getitems__(self, indices):
        self.loaded += len(indices)
        pictures = torch.rand(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)
        return pictures, torch.zeros(2, 3), torch.tensor(indices)


@pytest.mark.parametrize(
    ("precision", "options", "plain", "mixed"),
    [
        ("32-true", {}, True, False),
        ("32-true", {"channels_last": True}, False, False),
        ("bf16-mixed", {}, True, True),
    ],
)
def test_images_have_the_layout_and_models_the_precision_asked_for(
    precision, options, plain, mixed
):
    seen = []

    class Mean(nn.Module):
        def forward(self, inputs):
            seen.append((inputs.is_contiguous(), torch.is_autocast_enabled("cpu")))
            return inputs.mean((2, 3)).bfloat16()

    fabric, dataset = fabric_on("cpu", precision), Pictures()
    outputs = predict(Mean(), dataset, nn.Identity(), fabric, batch_size=2, **options)
    assert outputs.dtype == torch.float32
    assert seen == [(plain, mixed)]
    assert dataset.loaded == 2


@pytest.mark.parametrize("seed", range(5))
def test_ties_among_the_best_are_broken_against_relevant_labels(seed):
    """Scores are few numbers; a loop takes the highest, irrelevant labels first."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randint(0, 4, (6, 9), generator=generator).float()
    relevant = torch.rand(6, 9, generator=generator) < 0.4
    relevant[0] = False
    for k in (1, 3, 9):
        kept = keep_best(logits, LabelLists.from_sparse(relevant.float().to_sparse()), k=k)
        labels, scores = kept[:, :k].long(), kept[:, k:]
        assert kept.shape == (6, 2 * k)
        for row in range(6):
            order = sorted(zip((-logits[row]).tolist(), relevant[row].tolist(), strict=True))[:k]
            found = sorted(
                zip((-scores[row]).tolist(), relevant[row][labels[row]].tolist(), strict=True)
            )
            assert found == order
            assert scores[row].tolist() == logits[row][labels[row]].tolist()
            assert scores[row].tolist() == sorted(scores[row].tolist(), reverse=True)


def test_measures_leave_out_what_is_unknown_or_unreadable():
    generator = torch.Generator().manual_seed(0)
    logits = torch.rand(8, 5, generator=generator)
    known = torch.rand(8, 5, generator=generator) < 0.8
    targets = (known & (torch.rand(8, 5, generator=generator) < 0.5)).float()
    unreadable = torch.tensor([0, 0, 1, 0, 0, 0, 1, 0]).bool()
    good = [0, 1, 3, 4, 5, 7]
    for there in (known, None):
        test = SimpleNamespace(targets=targets, known=there, unreadable=unreadable)
        found = measure(SimpleNamespace(test=test), logits, [1, 3])
        unknown = None if there is None else ~known[good]
        expected = evaluate(logits[good], targets[good], [1, 3], unknown=unknown)
        assert found == expected


def test_a_device_is_one_process():
    assert fabric_on("cpu").world_size == 1
    assert fabric_on("cpu").strategy.precision.precision == "32-true"
    with pytest.raises(ValueError, match=r"^the device 'cuda:99' is not available here: [^\n]+$"):
        fabric_on("cuda:99")
