"""Every loss, model and data set trains; runs resume, are skipped, refused, and shared."""

import csv
import itertools
import json
import multiprocessing
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open

from tests.data.miniature import make_arff, make_coco, make_csv, make_nuswide, make_voc
from tests.short_runs import SMALL, compose, train
from tkpr import records
from tkpr.metrics import evaluate
from tkpr.runs.run import InUse, build_data, build_model, claim
from tkpr.runs.saved_model import load_model, load_predictions
from tkpr.runs.settle import settle
from tkpr.training import state as checkpoint
from tkpr.training.predict import fabric_on, predict
from tkpr.training.seeding import seed_everything

ROOT = Path(__file__).parents[2]
ONE_EPOCH = ["trainer.epochs=1", "trainer.warmup_epochs=0"]
LOSSES = sorted(path.stem for path in (ROOT / "configs" / "loss").glob("*.yaml"))


@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss_trains_and_resumes_bit_for_bit(loss, tmp_path):
    """Two epochs in one go, and with a stop between them, give the same measures and weights."""
    settings = [*SMALL, f"loss={loss}", "labels=single_positive", "trainer.warmup_epochs=1"]
    settings += {
        "em_apl": ["loss.warmup_epochs=1"],
        "db": ["labels=full"],  # among 40 single labels some class is missing
    }.get(loss, [])
    whole = train(*settings, "trainer.epochs=3", folder=tmp_path / "whole")
    stop_after(1, *settings, "trainer.epochs=3", folder=tmp_path / "parts")
    parts = train(*settings, "trainer.epochs=3", folder=tmp_path / "parts")
    assert parts["metrics"] == whole["metrics"]
    one, other = (checkpoint.load(tmp_path / name) for name in ("whole", "parts"))
    assert_equal(one["model"], other["model"])
    for loss_state, other_state in zip(one["losses"], other["losses"], strict=True):
        assert_equal(loss_state, other_state)


def stop_after(epochs, *settings, folder):
    """Interrupt a run after so many epochs, as a crash would."""
    from tkpr.training.trainer import Trainer

    class Crash(Exception):
        pass

    save = Trainer.save

    def crash(trainer):
        save(trainer)
        if trainer.progress.epoch == epochs:
            raise Crash

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "save", crash)
        with pytest.raises(Crash):
            train(*settings, folder=folder)


def assert_equal(one, other):
    assert one.keys() == other.keys()
    for key, value in one.items():
        assert torch.equal(value, other[key]), key


MODELS = {
    "resnet50": ["model.model_name=resnet18"],
    "swin_tiny": ["model.model_name=swin_tiny_patch4_window7_224", "transform.size=64"],
    "convnext_tiny": ["model.model_name=convnext_atto"],
    "vit_small": ["model.model_name=vit_tiny_patch16_224"],
    "ccd": ["model.model_name=resnet18", "model.context_epochs=1", "trainer.epochs=2"],
    "timm": ["model.model_name=mobilenetv3_small_050"],
    "boostlu": ["model.model_name=resnet18", "loss=ll_cp", "labels=single_positive"],
}


def untrained(*settings):
    """The data and the model of a run before its first step."""
    cfg = compose(*settings, folder="nowhere")
    settle(cfg)
    seed_everything(cfg.seed)
    data = build_data(cfg)
    return data, build_model(cfg, data)


def assert_trained(folder, results, *settings):
    """Every weight has learnt; the saved model gives the predictions, they give the measures."""
    data, model = untrained(*settings)
    trained, stored = load_model(folder), load_predictions(folder)
    now = dict(trained.model.named_parameters())
    kept = [name for name, before in model.named_parameters() if torch.equal(before, now[name])]
    assert not kept
    assert stored["ids"].tolist() == list(data.test.ids)
    np.testing.assert_array_equal(stored["targets"], data.test.targets.numpy())
    logits = predict(trained.model, data.test, data.finish, fabric_on("cpu"), batch_size=3)
    np.testing.assert_allclose(stored["logits"], logits, rtol=1e-4, atol=1e-5)
    again = evaluate(stored["logits"], stored["targets"], results["config"]["trainer"]["ks"])
    assert results["metrics"] == pytest.approx(again, rel=1e-12)


@pytest.mark.parametrize("model", MODELS)
def test_every_model_family_trains(model, tmp_path):
    settings = ["recipe=debug", f"model={model}", "loss=bce", "transform.size=32", *MODELS[model]]
    settings += ["optimizer=adam", "optimizer.lr=1e-3", "scheduler=constant"]
    results = train(*settings, folder=tmp_path)
    assert_trained(tmp_path, results, *settings)


def on_features(folder):
    """Settings for a miniature table of features with three labels."""
    make_arff(folder)
    return [
        *("dataset=arff", f"dataset.root={folder}", "dataset.name=mini"),
        *("loss.k=2", "trainer.ks=[1,2]", "trainer.monitor=mAP@1"),
    ]


@pytest.mark.parametrize("model", ["linear", "mlp"])
def test_models_on_features_train(model, tmp_path):
    settings = [*on_features(tmp_path / "data"), "recipe=debug", f"model={model}", "loss=bce"]
    settings.remove("loss.k=2")
    results = train(*settings, folder=tmp_path / "run")
    assert_trained(tmp_path / "run", results, *settings)


DATASETS = {
    "coco": make_coco,
    "voc2007": lambda folder: make_voc(folder, 2007),
    "voc2012": lambda folder: make_voc(folder, 2012),
    "nuswide": lambda folder: make_nuswide(folder, "lists"),
    "csv": make_csv,
}


@pytest.mark.parametrize("dataset", DATASETS)
def test_every_data_set_trains(dataset, tmp_path):
    DATASETS[dataset](tmp_path / "data")
    settings = [
        f"dataset={dataset}",
        f"dataset.root={tmp_path / 'data'}",
        *(["dataset.cache_dir=null"] if dataset == "coco" else []),
        "model.model_name=resnet18",
        "model.pretrained=false",
        "transform.size=32",
        "recipe=debug",
        "trainer.ks=[1,2]",
        "trainer.monitor=mAP@1",
        "loss=bce",
        "labels=single_positive",
    ]
    results = train(*settings, folder=tmp_path / "run")
    assert_trained(tmp_path / "run", results, *settings)
    counts = results["counts"]
    assert counts["train_labels"] == counts["train_images"] < counts["train_labels_all"]


def test_the_run_folder(tmp_path):
    results = train(*SMALL, "trainer.epochs=2", "trainer.warmup_epochs=1", folder=tmp_path)
    stored = records.read(tmp_path / "metrics.json")
    assert stored == results
    assert stored["config"]["loss"]["alpha"] == 2
    assert stored["seed"] == 0
    assert torch.__version__.startswith(stored["versions"]["torch"])
    assert stored["counts"]["train_images"] == 40
    assert stored["counts"]["test_rows"] == 23

    rows = list(csv.DictReader((tmp_path / "metrics.csv").open()))
    assert [row["epoch"] for row in rows] == ["1", "2"]
    assert float(rows[-1]["mAP@3"]) == stored["metrics"]["mAP@3"]

    predictions = load_predictions(tmp_path)
    again = evaluate(predictions["logits"], predictions["targets"])
    assert again == pytest.approx(stored["metrics"], rel=1e-12)
    assert len(set(predictions["ids"])) == 23

    with safe_open(tmp_path / "model.safetensors", framework="pt") as weights:
        assert json.loads(weights.metadata()["class_names"])[0] == "zero"


def test_tensorboard_holds_every_measure_of_every_epoch(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    results = train(*SMALL, "trainer.epochs=2", folder=tmp_path)
    events = EventAccumulator(str(tmp_path), size_guidance={"images": 0}).Reload()
    tags = events.Tags()
    for name in results["metrics"]:
        assert [event.step for event in events.Scalars(f"test/{name}")] == [1, 2], name
    assert events.Scalars("test/mAP@3")[-1].value == pytest.approx(results["metrics"]["mAP@3"])
    for name in ("train_loss", "lr", "images_per_second"):
        assert len(events.Scalars(f"train/{name}")) == 2
    assert "average_precision/zero" in tags["scalars"]
    assert "rank_of_relevant_labels" in tags["histograms"]
    assert len([tag for tag in tags["images"] if tag.startswith("predictions/")]) == 4


def test_a_finished_run_is_skipped_and_a_changed_one_refused(tmp_path):
    first = train(*SMALL, *ONE_EPOCH, folder=tmp_path)
    written = (tmp_path / "metrics.json").stat().st_mtime_ns
    assert train(*SMALL, *ONE_EPOCH, "trainer.num_workers=1", folder=tmp_path) == first
    assert (tmp_path / "metrics.json").stat().st_mtime_ns == written
    with pytest.raises(
        ValueError, match=r"other settings \(seed: 0 -> 1; trainer.epochs: 1 -> 2\)"
    ):
        train(*SMALL, *ONE_EPOCH, "trainer.epochs=2", "seed=1", folder=tmp_path)


def hold(folder, ready, done):
    with claim(folder, compose(*SMALL, folder=folder)) as mine:
        assert mine
        ready.set()
        done.wait(60)


@pytest.mark.slow
def test_a_folder_in_use_is_left_to_its_process(tmp_path):
    context = multiprocessing.get_context("spawn")
    ready, done = context.Event(), context.Event()
    other = context.Process(target=hold, args=(tmp_path, ready, done))
    other.start()
    assert ready.wait(60)
    with pytest.raises(InUse, match=f"another process is training in {tmp_path}: skipped"):
        train(*SMALL, folder=tmp_path)
    assert not (tmp_path / "metrics.json").exists()
    done.set()
    other.join()


def test_the_same_seed_gives_the_same_numbers_for_any_number_of_workers(tmp_path):
    settings = [*SMALL, "trainer.epochs=2"]
    first = train(*settings, folder=tmp_path / "0")
    second = train(*settings, "trainer.num_workers=2", folder=tmp_path / "2")
    other = train(*settings, "seed=1", folder=tmp_path / "seed")
    assert first["metrics"] == second["metrics"]
    assert first["metrics"] != other["metrics"]


def test_warm_up_switches_the_loss_and_the_epoch_reaches_both(tmp_path, monkeypatch):
    from tkpr.losses import SPLC, TKPR

    seen = []
    for kind in (SPLC, TKPR):
        forward = kind.forward

        def spy(self, *batch, forward=forward):
            if self.training:  # it is tried out before
                seen.append((type(self).__name__, getattr(self, "epoch", None)))
            return forward(self, *batch)

        monkeypatch.setattr(kind, "forward", spy)
    train(
        *SMALL, "loss@warmup=splc", "trainer.warmup_epochs=2", "trainer.epochs=3", folder=tmp_path
    )
    order = list(dict.fromkeys(seen))
    assert order == [("SPLC", 0), ("SPLC", 1), ("TKPR", None)]


# one step of plain SGD on 8 images
ONE_STEP = [word for word in SMALL if "train_size" not in word and "test_size" not in word]
ONE_STEP += ["dataset.train_size=8", "dataset.test_size=4", *ONE_EPOCH, "loss=bce"]
ONE_STEP += ["optimizer=sgd", "optimizer.momentum=0", "optimizer.nesterov=false"]
ONE_STEP += ["optimizer.weight_decay=0", "scheduler=constant"]


def step_of(*options, folder):
    """How one step moves the weights, by name."""
    train(*ONE_STEP, *options, folder=folder)
    _, before = untrained(*ONE_STEP, *options)
    after = checkpoint.load(folder)["model"]
    return {name: after[name] - value.detach() for name, value in before.named_parameters()}


def test_clipping_shortens_a_step_and_keeps_its_direction(tmp_path):
    free = step_of(folder=tmp_path / "free")
    clipped = step_of("trainer.clip_norm=0.001", folder=tmp_path / "clipped")
    one, other = (torch.cat([part.flatten() for part in step.values()]) for step in (free, clipped))
    assert one.norm() > 2 * 0.001 * 0.01
    assert other.norm().item() == pytest.approx(0.001 * 0.01, rel=1e-2)  # clip_norm * lr
    assert torch.cosine_similarity(one, other, dim=0) > 0.999
    loose = step_of("trainer.clip_norm=1000", folder=tmp_path / "loose")
    for name, part in free.items():
        torch.testing.assert_close(loose[name], part)


def test_the_head_alone_takes_longer_steps(tmp_path):
    plain = step_of(folder=tmp_path / "plain")
    faster = step_of("trainer.head_lr_multiplier=10", folder=tmp_path / "faster")
    for name, part in plain.items():
        times = 10 if name.startswith("fc.") else 1
        torch.testing.assert_close(faster[name], times * part, rtol=1e-3, atol=1e-7)


def test_averaged_weights_are_those_tested_and_kept(tmp_path):
    """With a decay of 0.9 they are far from the raw ones after two epochs."""
    words = [*SMALL, "trainer.epochs=2", "trainer.warmup_epochs=0", "optimizer.lr=0.01"]
    words += ["trainer.ema_decay=0.9"]
    train(*words, "trainer.eval_weights=ema", folder=tmp_path / "ema")
    train(*words, folder=tmp_path / "raw")
    state = checkpoint.load(tmp_path / "ema")
    averaged = {key.removeprefix("module."): value for key, value in state["ema"].items()}
    assert_equal(state["model"], checkpoint.load(tmp_path / "raw")["model"])
    for folder, weights in (("ema", averaged), ("raw", state["model"])):
        trained = load_model(tmp_path / folder)
        assert_equal(dict(trained.model.state_dict()), weights)
        data, _ = untrained(*words)
        logits = predict(trained.model, data.test, data.finish, fabric_on("cpu"), batch_size=8)
        stored = load_predictions(tmp_path / folder)["logits"]
        np.testing.assert_allclose(stored, logits, rtol=1e-5, atol=1e-6)
    one, other = (load_predictions(tmp_path / name)["logits"] for name in ("ema", "raw"))
    assert abs(one - other).max() > 0.01


def test_every_average_follows_its_formula(tmp_path):
    """After one step: decay times the weights before it and the rest times those after it."""
    step = step_of("trainer.ema_decay=0.75", folder=tmp_path)
    _, before = untrained(*ONE_STEP)
    averaged = checkpoint.load(tmp_path)["ema"]
    for name, value in before.named_parameters():
        expected = value.detach() + 0.25 * step[name]
        torch.testing.assert_close(averaged[f"module.{name}"], expected)


def test_schedules_and_optimizers_are_those_of_the_configuration(tmp_path):
    words = [*SMALL, "trainer.epochs=2", "trainer.warmup_epochs=1", "optimizer.lr=1e-4"]
    words += ["optimizer.weight_decay=0.1"]
    rates, weights = {}, {}
    for name in ("constant", "cosine", "onecycle"):
        folder = tmp_path / name
        train(*words, "optimizer=adamw", f"scheduler={name}", folder=folder)
        state = checkpoint.load(folder)
        rates[name] = [row["lr"] for row in state["history"]]
        weights[name] = state["model"]["fc.weight"]
    assert rates["constant"] == [1e-4, 1e-4]
    assert rates["cosine"] == pytest.approx([0.5e-4, 0.0], abs=1e-12)
    assert rates["onecycle"][0] > rates["onecycle"][1]
    train(*words, "optimizer=adam", "scheduler=constant", folder=tmp_path / "adam")
    weights["adam"] = checkpoint.load(tmp_path / "adam")["model"]["fc.weight"]
    for one, other in itertools.combinations(weights.values(), 2):
        assert not torch.equal(one, other)


def test_bfloat16_computes_in_fewer_digits_and_the_layout_does_not_matter(tmp_path):
    words = [*ONE_STEP, "optimizer.lr=0"]
    logits = {}
    for name, options in {
        "plain": [],
        "channels_last": ["trainer.channels_last=true"],
        "bf16": ["trainer.precision=bf16-mixed"],
    }.items():
        train(*words, *options, folder=tmp_path / name)
        logits[name] = load_predictions(tmp_path / name)["logits"]
    assert logits["bf16"].dtype == np.float32
    np.testing.assert_allclose(logits["channels_last"], logits["plain"], rtol=1e-4, atol=1e-5)
    difference = abs(logits["bf16"] - logits["plain"]).max()
    assert 1e-5 < difference < 0.1 * abs(logits["plain"]).max() + 0.05


@pytest.mark.parametrize(
    ("options", "updates"),
    [([], 3), (["trainer.drop_last=true"], 2), (["trainer.accumulate=2"], 2)],
    ids=str,
)
def test_an_epoch_has_the_right_number_of_updates(options, updates, tmp_path):
    """20 images in batches of 8: the last one has 4."""
    words = [word for word in SMALL if "train_size" not in word] + ["dataset.train_size=20"]
    train(*words, *ONE_EPOCH, "optimizer=adam", *options, folder=tmp_path)
    optimizer = checkpoint.load(tmp_path)["optimizer"]
    assert {int(state["step"]) for state in optimizer["state"].values()} == {updates}


def test_accumulation_equals_a_larger_batch(tmp_path):
    """On a model without batch statistics, two batches of 2 make the step of one of 4."""
    settings = [*on_features(tmp_path / "data"), "trainer.epochs=2", "trainer.drop_last=true"]
    settings += ["scheduler=constant", "optimizer=sgd", "trainer.warmup_epochs=1"]
    large = ["trainer.batch_size=4", "trainer.accumulate=1"]
    small = ["trainer.batch_size=2", "trainer.accumulate=2"]
    train(*settings, *large, folder=tmp_path / "large")
    train(*settings, *small, folder=tmp_path / "small")
    one, other = (checkpoint.load(tmp_path / name)["model"] for name in ("large", "small"))
    for key, value in one.items():
        torch.testing.assert_close(value, other[key], rtol=1e-4, atol=1e-6)


def test_a_run_may_stop_before_the_epochs_that_its_schedule_is_planned_for(tmp_path, caplog):
    """The first two of five epochs, with the same learning rates and weights as in the whole."""
    planned = [*SMALL, "trainer.epochs=5"]
    stop_after(2, *planned, folder=tmp_path / "whole")
    with caplog.at_level("INFO", logger="tkpr"):
        results = train(*planned, "trainer.stop_after=2", folder=tmp_path / "part")
    assert results["epochs"] == 2
    assert "epoch 2/2 " in caplog.text
    one, other = (checkpoint.load(tmp_path / name) for name in ("whole", "part"))
    assert_equal(one["model"], other["model"])
    assert [row["lr"] for row in one["history"]] == [row["lr"] for row in other["history"]]
    short = train(*SMALL, "trainer.epochs=2", "trainer.stop_after=5", folder=tmp_path / "short")
    assert short["epochs"] == 2
    with pytest.raises(ValueError, match=r"stop_after must be .* at least 1, or null; got 0"):
        train(*SMALL, "trainer.stop_after=0", folder=tmp_path / "none")


@pytest.mark.parametrize("words", [["trainer.epochs=2"], ["trainer.stop_after=2"]])
def test_a_warm_up_that_leaves_nothing_to_the_loss_is_refused(words, tmp_path):
    settings = [*SMALL, "trainer.warmup_epochs=2", *words]
    answer = r"warmup_epochs=2 leaves none of the 2 epochs to the main loss: set fewer"
    with pytest.raises(ValueError, match=answer):
        train(*settings, folder=tmp_path / "none")
    same = train(*settings, "loss=rank", "loss@warmup=rank", folder=tmp_path / "same")
    assert same["epochs"] == 2


def test_early_stopping_needs_a_held_out_split(tmp_path):
    with pytest.raises(ValueError, match=r"may not look at the test set: set split\.holdout"):
        train(*SMALL, "trainer.patience=1", folder=tmp_path)
    settings = ["trainer.patience=1", "split.holdout=0.2", "optimizer.lr=0", "trainer.epochs=5"]
    results = train(*SMALL, *settings, "scheduler=constant", folder=tmp_path)
    assert results["epochs"] == 3  # one of the warm-up, the best one, one without improvement
    assert results["counts"]["test_rows"] == 8


@pytest.mark.parametrize(
    ("words", "epochs"),
    [
        (["trainer.monitor=train_loss", "trainer.warmup_epochs=0"], 6),
        (["optimizer.lr=0", "trainer.warmup_epochs=0"], 2),
        (["optimizer.lr=0", "trainer.warmup_epochs=3"], 5),
    ],
    ids=["a loss that falls", "no change", "no change after a warm-up"],
)
def test_early_stopping_knows_the_direction_and_the_warm_up(words, epochs, tmp_path):
    settings = [*on_features(tmp_path / "data"), "model=linear", "trainer.accelerator=cpu"]
    settings += ["trainer.patience=1", "split.holdout=0.25", "trainer.epochs=6"]
    settings += ["scheduler=constant", "trainer.batch_size=16"]
    results = train(*settings, *words, folder=tmp_path / "run")
    assert results["epochs"] == epochs


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path):
    settings = ["optimizer=sgd", "optimizer.lr=1e30", "loss=lsep", "trainer.warmup_epochs=0"]
    with pytest.raises(
        FloatingPointError, match=r"the loss is .* in epoch 1, step \d+, on .*train-"
    ):
        train(*SMALL, *settings, "scheduler=constant", folder=tmp_path)
    assert (tmp_path / "bad_batch_rank0.pt").exists()


def test_a_checkpoint_of_another_version_is_refused(tmp_path):
    stop_after(1, *SMALL, "trainer.epochs=2", folder=tmp_path)
    state = checkpoint.load(tmp_path)
    checkpoint.save(tmp_path, state | {"format": 0})
    with pytest.raises(ValueError, match=r"last.ckpt was written by another version: .*delete"):
        train(*SMALL, "trainer.epochs=2", folder=tmp_path)


def test_a_truncated_checkpoint_is_named(tmp_path):
    stop_after(1, *SMALL, "trainer.epochs=2", folder=tmp_path)
    file = checkpoint.path(tmp_path)
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(ValueError, match=r"last.ckpt cannot be read as a checkpoint .*delete it"):
        train(*SMALL, "trainer.epochs=2", folder=tmp_path)
