"""Training on sparse features and lists of labels: dataset=xmc from file to measures."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.data.miniature import TRAIN, make_xmc
from tests.short_runs import train
from tkpr.data.xmc import load_xmc
from tkpr.metrics import evaluate
from tkpr.runs.saved_model import load_predictions

ROOT = Path(__file__).parents[2]


def settings(folder, *words):
    root = make_xmc(folder / "data")
    return [
        *("dataset=xmc", f"dataset.root={root}", "dataset.name=mini", "trainer.ks=[1,3]"),
        *("trainer.batch_size=4", "trainer.epochs=2", "trainer.warmup_epochs=1", "loss.k=2"),
        *("trainer.monitor=P@1", *words),
    ]


@pytest.mark.parametrize("hidden", ["null", "3"])
def test_measures_are_those_of_all_scores(tmp_path, hidden):
    """The stored weights, applied to dense features, give the measures and the best labels."""
    words = settings(tmp_path, f"model.hidden={hidden}")
    found = train(*words, folder=tmp_path / "run")["metrics"]
    data = load_xmc(tmp_path / "data", name="mini", split=0, normalise=True, a=0.55, b=1.5).test
    weights = load_file(tmp_path / "run" / "model.safetensors")
    logits = torch.from_numpy(data.inputs.toarray()) @ weights["weight"]
    if hidden != "null":
        logits = logits @ weights["output.weight"].T
    logits = logits + weights["bias"]
    expected = evaluate(logits, data.targets.toarray(), [1, 3])
    ranked = {name: value for name, value in found.items() if not name.startswith("PS")}
    assert ranked == pytest.approx({name: expected[name] for name in ranked}, rel=1e-6)
    assert {"P@1", "NDCG@3", "TKPR_a2@3"} <= ranked.keys()
    assert 0 < found["PSP@3"] <= 1
    assert 0 < found["PSnDCG@3"] <= 1
    stored = np.load(tmp_path / "run" / "predictions.npz")
    np.testing.assert_array_equal(stored["labels"], logits.topk(3).indices.numpy())
    np.testing.assert_allclose(stored["scores"], logits.topk(3).values.numpy(), rtol=1e-5)
    assert stored["ids"].tolist() == list(data.ids)
    with pytest.raises(ValueError, match="the best labels of a sparse data set, not all scores"):
        load_predictions(tmp_path / "run")


@pytest.mark.parametrize(
    "loss", ["tkpr_a1", "rank", "bce", "u3", "zlpr", "two_way", "lsep", "splc"]
)
def test_losses_learn_from_lists(tmp_path, loss):
    words = [word for word in settings(tmp_path, f"loss={loss}") if word != "loss.k=2"]
    words += ["loss.k=2"] if loss == "tkpr_a1" else []
    found = train(*words, folder=tmp_path / "run")
    assert found["counts"]["train_images"] == TRAIN
    assert found["counts"]["train_without_label"] >= 1
    assert 0 <= found["metrics"]["P@1"] <= 1


def test_a_held_out_part_and_a_second_start(tmp_path):
    words = settings(tmp_path, "split.holdout=0.25")
    found = train(*words, folder=tmp_path / "run")
    assert found["counts"]["test_images"] == TRAIN // 4
    again = train(*words, folder=tmp_path / "run")  # finished: read, not trained
    assert (again["metrics"], again["seconds"]) == (found["metrics"], found["seconds"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["labels=single_positive"], "labels=single_positive cannot draw from lists of labels"),
        (["labels=partial"], "labels=partial cannot draw from lists of labels: use labels=full"),
        (["loss=role", "~loss.k"], "ROLE needs the matrix of all labels, which a sparse data set"),
        (["trainer.ks=[1,9]"], "asks for more labels than the 5 of the data set"),
    ],
)
def test_what_lists_cannot_do_is_refused_in_one_line(tmp_path, words, message):
    chosen = [word for word in settings(tmp_path) if "~loss.k" not in words or word != "loss.k=2"]
    words = [word for word in words if word != "~loss.k"]
    with pytest.raises(ValueError, match=message) as caught:
        train(*chosen, *words, folder=tmp_path / "run")
    assert "\n" not in str(caught.value)


def test_a_loss_that_is_not_finite_leaves_its_batch(tmp_path):
    with pytest.raises(FloatingPointError, match=r"bad_batch_rank0\.pt"):
        train(*settings(tmp_path, "optimizer=sgd", "optimizer.lr=1e30"), folder=tmp_path / "run")
    batch = torch.load(tmp_path / "run" / "bad_batch_rank0.pt", weights_only=True)
    assert batch["inputs"].keys() == {"ids", "offsets", "weights"}
    assert batch["targets"].keys() == {"rows", "columns"}


MEASURE = """
import resource, sys
from tests.short_runs import train
train(*sys.argv[2:], folder=sys.argv[1])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


def synthetic(folder, samples, labels=100_000):
    """Three labels of each sample, which its features tell."""
    folder.mkdir()
    generator = np.random.RandomState(0)
    for part in ("train", "test"):
        lines = [f"{samples} 300 {labels}"]
        for first in generator.randint(labels // 3, size=samples).tolist():
            names = ",".join(str(first + third * (labels // 3)) for third in range(3))
            lines.append(f"{names} {first % 300}:1")
        (folder / f"large_{part}.txt").write_text("\n".join(lines) + "\n")
    return folder


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss has another unit elsewhere")
def test_memory_grows_with_the_labels_present(tmp_path):
    """With 100,000 labels, 4,000 more samples would be 400 MB as bytes, 1.6 GB as logits."""
    peaks = []
    for samples in (500, 4500):
        root = synthetic(tmp_path / f"data{samples}", samples)
        words = [
            *("dataset=xmc", f"dataset.root={root}", "dataset.name=large", "model.hidden=8"),
            *("loss=rank", "trainer.epochs=1", "trainer.warmup_epochs=0", "trainer.batch_size=16"),
            *("trainer.accelerator=cpu", "trainer.monitor=P@1"),
        ]
        command = [sys.executable, "-c", MEASURE, str(tmp_path / f"run{samples}"), *words]
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
        peaks.append(int(done.stdout.split()[-1]))
    assert peaks[1] - peaks[0] < 100
