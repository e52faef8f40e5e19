"""Runs with model.head=chunked: equal to those with a dense head, and small for many classes."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from scipy.sparse import csr_array
from torch.utils._python_dispatch import TorchDispatchMode

from tests.data.miniature import make_xmc
from tests.short_runs import train
from tkpr.data import features as feature_files
from tkpr.data.features import save_features
from tkpr.training.lazy_adam import LazyAdam
from tkpr.training.trainer import Trainer

PLAIN_SGD = [
    *("optimizer=sgd", "optimizer.momentum=0", "optimizer.nesterov=false", "optimizer.lr=0.5"),
    "optimizer.weight_decay=0",
]
COMMON = ["trainer.accelerator=cpu", "trainer.ks=[1,3]", "trainer.monitor=P@1", "trainer.epochs=2"]


def make_features(folder, *, samples=60, classes=20, width=8, lists=True):
    """Features that tell the three labels of each sample."""
    generator = np.random.default_rng(0)
    directions = generator.normal(size=(classes, width)).astype(np.float32)
    columns = np.stack([generator.permutation(classes)[:3] for _ in range(samples)])
    inputs = directions[columns].sum(1) + generator.normal(size=(samples, width))
    indptr = np.arange(0, 3 * samples + 1, 3)
    labels = csr_array(
        (np.ones(3 * samples, np.uint8), columns.ravel(), indptr), (samples, classes)
    )
    folder.mkdir(exist_ok=True)
    save_features(
        folder / "features.npz",
        inputs.astype(np.float32),
        labels=labels if lists else labels.toarray(),
        ids=[f"sample {row}" for row in range(samples)],
        split=["train", "train", "test"] * (samples // 3),
        class_names=[f"class {label}" for label in range(classes)],
    )
    return ["dataset=features", f"dataset.file={folder / 'features.npz'}", *COMMON]


def xmc(folder):
    root = make_xmc(folder / "data")
    return [
        *("dataset=xmc", f"dataset.root={root}", "dataset.name=mini", "model.hidden=4", *COMMON),
        "trainer.batch_size=4",
    ]


def runs(folder, words):
    """Train with both heads and return measures, losses and weights of each."""
    found = []
    for head in ("dense", "chunked"):
        results = train(*words, *PLAIN_SGD, f"model.head={head}", folder=folder / head)
        rows = np.genfromtxt(folder / head / "metrics.csv", delimiter=",", names=True)
        weights = load_file(folder / head / "model.safetensors")
        found.append((results["metrics"], rows["train_loss"], weights))
    return found


def assert_equal_runs(first, second):
    assert first[0] == pytest.approx(second[0], rel=1e-6)
    np.testing.assert_allclose(first[1], second[1], rtol=1e-5)
    assert first[2].keys() == second[2].keys()
    for name, weight in first[2].items():
        torch.testing.assert_close(weight, second[2][name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("loss", ["tkpr_a2", "bce", "asl"])
@pytest.mark.parametrize("warmup", [0, 1])
def test_equal_to_a_dense_head(tmp_path, loss, warmup):
    """On features with a label matrix, where all measures are computed."""
    k = ["loss.k=3"] if loss == "tkpr_a2" else []
    words = [*make_features(tmp_path, lists=False), f"loss={loss}", "loss@warmup=bce", *k]
    dense, chunked = runs(tmp_path, [*words, f"trainer.warmup_epochs={warmup}"])
    assert_equal_runs(dense, chunked)
    assert {"P@1", "mAP", "ranking_loss"} <= dense[0].keys()


@pytest.mark.parametrize("model", [["model=linear"], ["model=mlp", "model.dropout=0"]])
def test_equal_to_a_dense_head_with_lists(tmp_path, model, monkeypatch, caplog):
    """Above the limit labels are lists; the gradient of the layers below the head is exact."""
    monkeypatch.setattr(feature_files, "MOST_DENSE_CLASSES", 19)
    caplog.set_level("INFO", logger="tkpr")
    words = [*make_features(tmp_path), "loss.k=3", "trainer.warmup_epochs=0", *model]
    dense, chunked = runs(tmp_path, words)
    assert_equal_runs(dense, chunked)
    assert "mAP" not in dense[0]
    assert "NDCG@3" in dense[0]
    assert "no measure that needs the whole ranking, only those @K" in caplog.text
    monkeypatch.setattr(feature_files, "MOST_DENSE_CLASSES", 20)
    (all_measures, *rest), _ = runs(tmp_path / "matrix", words)
    assert_equal_runs((dense[0], *rest), dense)
    assert {name: all_measures[name] for name in dense[0]} == pytest.approx(dense[0])


def test_equal_to_a_dense_head_on_sparse_features(tmp_path):
    words = [*xmc(tmp_path), "loss.k=2", "loss@warmup=bce", "trainer.warmup_epochs=1"]
    dense, chunked = runs(tmp_path, [*words, "trainer.temperature=0.5"])
    assert_equal_runs(dense, chunked)
    assert "PSP@3" in dense[0]


class LargestTensor(TorchDispatchMode):
    """See the largest result of any operator but the weights and what is of their size."""

    def __init__(self, weights):
        super().__init__()
        self.sizes, self.shape = set(weights), None
        self.numel = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for one in result if isinstance(result, tuple | list) else [result]:
            if isinstance(one, torch.Tensor) and tuple(one.shape) not in self.sizes:
                numel = one._values().numel() if one.is_sparse else one.numel()
                if numel > self.numel:
                    self.numel, self.shape = numel, tuple(one.shape)
        return result


def test_many_classes_take_little_memory(tmp_path):
    """With 100,000 classes, a batch of 32 would have 3,200,000 logits and as many targets."""
    classes, width, samples = 100_000, 4, 96
    words = make_features(tmp_path, samples=samples, classes=classes, width=width)
    words += ["recipe=chunked", "trainer.batch_size=32"]
    weights = [(classes, width), (width, classes), (classes,)]
    as_bytes = [(4 * classes * width,), (4 * classes,)]
    with LargestTensor(weights + as_bytes) as largest:
        found = train(*words, folder=tmp_path / "run")
    assert found["metrics"]["P@1"] >= 0
    assert 32 * 2048 <= largest.numel < 2 * 32 * 16_384, largest.shape
    stored = np.load(tmp_path / "run" / "predictions.npz")
    assert stored["labels"].shape == (samples // 3, 3)
    assert np.load(tmp_path / "run" / "observed_labels.npz")["observed"].shape == (2, 2 * samples)


def test_a_run_is_resumed_and_evaluated(tmp_path):
    from tkpr.runs.saved_model import load_model

    words = [*make_features(tmp_path), "recipe=chunked", "loss.k=3", "trainer.epochs=4"]
    whole = train(*words, folder=tmp_path / "whole")
    update = Trainer.update_labels

    def interrupted(trainer):
        if trainer.progress.epoch == 2:
            raise InterruptedError
        update(trainer)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "update_labels", interrupted)
        with pytest.raises(InterruptedError):
            train(*words, folder=tmp_path / "resumed")
    resumed = train(*words, folder=tmp_path / "resumed")
    assert resumed["metrics"] == whole["metrics"]
    model = load_model(tmp_path / "whole").model
    assert model(torch.zeros(2, 8)).shape == (2, 20)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["loss=lsep"], "loss does not fit the data set: this loss needs all logits at once"),
        (["loss@warmup=rank", "trainer.warmup_epochs=1"], "warmup does not fit .* all logits at"),
        (["loss.scores=softmax"], "set loss.scores to sigmoid or raw, or model.head=dense"),
        (["optimizer=adam"], "set optimizer=lazy_adam, or optimizer=sgd without momentum"),
        (["optimizer=sgd"], "set optimizer.momentum=0 optimizer.nesterov=false"),
        (["optimizer.weight_decay=1e-4"], "set optimizer.weight_decay=0"),
        (["trainer.clip_norm=1"], "set trainer.clip_norm=null"),
        (["model.head=small"], "unknown head 'small': choose one of dense, chunked"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(tmp_path, words, message, monkeypatch):
    monkeypatch.setattr(Trainer, "fit", lambda _: pytest.fail("training has begun"))
    common = [*make_features(tmp_path), "recipe=chunked"]
    with pytest.raises(ValueError, match=message) as caught:
        train(*common, *words, folder=tmp_path / "run")
    assert "\n" not in str(caught.value)


def test_sparse_features_need_a_width_in_between(tmp_path):
    words = [*xmc(tmp_path), "recipe=chunked", "model.hidden=null"]
    with pytest.raises(
        ValueError, match=r"model.head=chunked needs model.hidden, for instance 128"
    ):
        train(*words, folder=tmp_path / "run")


def test_lazy_adam_is_adam_where_all_rows_have_a_gradient():
    """As Adam for dense gradients, for sparse ones of all rows, and in turns."""
    torch.manual_seed(0)
    start, gradients = torch.randn(5, 3), torch.randn(6, 5, 3)
    results = []
    for sparse in ([], range(6), [1, 2, 5]):
        weight = torch.nn.Parameter(start.clone())
        kind = torch.optim.Adam if sparse == [] else LazyAdam
        optimizer = kind([weight], lr=0.1, betas=(0.8, 0.9), eps=1e-3)
        for step, gradient in enumerate(gradients):
            weight.grad = gradient.to_sparse(1) if step in sparse else gradient.clone()
            optimizer.step()
        results.append(weight.detach())
    for result in results[1:]:
        torch.testing.assert_close(result, results[0])


def test_lazy_adam_is_sparse_adam_for_some_rows():
    torch.manual_seed(0)
    start, results = torch.randn(5, 3), []
    for kind in (torch.optim.SparseAdam, LazyAdam):
        torch.manual_seed(1)
        weight = torch.nn.Parameter(start.clone())
        optimizer = kind([weight], lr=0.1, eps=1e-12)
        for _ in range(6):
            rows = torch.randint(4, (1, 3))  # a row may be there twice, the last one never
            weight.grad = torch.sparse_coo_tensor(
                rows, torch.randn(3, 3), (5, 3), check_invariants=True
            )
            optimizer.step()
        results.append(weight.detach())
    torch.testing.assert_close(*results)
    assert torch.equal(results[1][4], start[4])
    weight = torch.nn.Parameter(start)
    weight.grad = start.to_sparse(1)
    with pytest.raises(ValueError, match="weight_decay must be 0"):
        LazyAdam([weight], weight_decay=0.1).step()
