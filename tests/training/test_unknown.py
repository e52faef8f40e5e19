"""Unknown labels from a file through training, predictions and scripts."""

import json
import logging
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.short_runs import train
from tkpr.data.features import save_features
from tkpr.metrics import evaluate
from tkpr.runs.saved_model import load_predictions

ROOT = Path(__file__).parents[2]
CODES = np.random.default_rng(0).choice([1, 0, -1], size=(60, 7), p=[0.3, 0.2, 0.5])


@pytest.fixture
def words(tmp_path):
    """A file of features in which 0 is unknown."""
    rng = np.random.default_rng(1)
    features = (CODES == 1) + 0.3 * rng.standard_normal(CODES.shape)
    save_features(
        tmp_path / "features.npz",
        features.astype(np.float32),
        labels=CODES,
        ids=[str(row) for row in range(60)],
        split=["train"] * 40 + ["test"] * 20,
        class_names=list("abcdefg"),
    )
    return [
        *("dataset=features", f"dataset.file={tmp_path / 'features.npz'}"),
        *("dataset.difficult=unknown", "trainer.epochs=3", "trainer.batch_size=8"),
        *("trainer.accelerator=cpu", "trainer.warmup_epochs=1"),
    ]


@pytest.mark.parametrize("loss", ["tkpr_a2", "bce", "zlpr", "csl"])
def test_unknown_labels_are_left_out_of_training_and_of_the_measures(words, loss, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    run = tmp_path / "run"
    found = train(*words, "labels=ignore", f"loss={loss}", folder=run)
    assert found["counts"]["train_unknown"] == (CODES[:40] == 0).sum()
    assert found["counts"]["test_unknown"] == (CODES[40:] == 0).sum()
    assert "unknown labels of the test set are left out of the rankings" in caplog.text
    stored = load_predictions(run)
    assert np.array_equal(stored["unknown"], CODES[40:] == 0)
    assert np.array_equal(stored["targets"], CODES[40:] == 1)
    expected = evaluate(stored["logits"], stored["targets"], [3, 5], unknown=stored["unknown"])
    assert found["metrics"] == pytest.approx(expected)
    assert found["metrics"] != pytest.approx(evaluate(stored["logits"], stored["targets"], [3, 5]))


def test_unknown_labels_can_be_taken_as_negative_on_both_sides(words, tmp_path):
    words = [*words, "loss=bce", "trainer.warmup_epochs=0"]
    chosen = ["labels=assume_negative", "split.test_unknown=negative"]
    found = train(*words, *chosen, folder=tmp_path / "run")
    plain = [word.replace("difficult=unknown", "difficult=negative") for word in words]
    old = train(*plain, folder=tmp_path / "old")
    assert found["metrics"] == old["metrics"]
    assert found["counts"] == old["counts"]


def test_what_cannot_be_is_refused_before_training(words, tmp_path):
    for more, match in (
        (["labels=full"], "unknown: choose labels=ignore .* or labels=assume_negative"),
        (["labels=ignore", "loss=gr"], "loss does not fit the data set: this loss takes no unkno"),
        (
            ["labels=ignore", "loss@warmup=em"],
            "warmup does not fit the data set: this loss takes",
        ),
        (
            ["labels=ignore", "split.test_unknown=drop"],
            "must be one of leave_out, negative; got 'd",
        ),
    ):
        folder = tmp_path / f"run{len(list(tmp_path.iterdir()))}"
        with pytest.raises(ValueError, match=match) as caught:
            train(*words, *more, folder=folder)
        assert "\n" not in str(caught.value)
        assert not (folder / "last.ckpt").exists()


@pytest.mark.slow
def test_scripts_leave_unknown_labels_out(words, tmp_path):
    run = tmp_path / "run"
    found = train(*words, "labels=ignore", "loss=bce", folder=run)["metrics"]

    def call(script, *more):
        command = [sys.executable, str(ROOT / "scripts" / script), str(run), *more]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    printed = call("evaluate.py", "--output", str(tmp_path / "measured.json"))
    unknown = (CODES[40:] == 0).sum()
    assert f"{unknown} unknown labels are left out of the rankings" in printed
    measured = json.loads((tmp_path / "measured.json").read_text())
    assert {name: measured[name] for name in found} == pytest.approx(found)
    stored = load_predictions(run)
    given = (stored["logits"] >= 0) & ~stored["unknown"]
    for row, name in enumerate("abcdefg"):
        report = next(one for one in measured["classes"] if one["class"] == name)
        hits = (given & (stored["targets"] == 1))[:, row].sum()
        assert report["precision"] == pytest.approx(hits / max(given[:, row].sum(), 1))
    assert "temperature" in call("thresholds.py", "--split", "test", "--calibrate")
