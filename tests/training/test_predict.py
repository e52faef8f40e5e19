"""One pass over a data set gives the measures and the predictions of a run."""

import json

import numpy as np
import pytest
import torch
from torch import nn

from tests.short_runs import SMALL, train
from tkpr.data.dataset import Split
from tkpr.data.features import FeatureDataset
from tkpr.metrics import evaluate
from tkpr.runs.saved_model import load_predictions
from tkpr.training.predict import fabric_on, predict
from tkpr.training.trainer import Trainer

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
