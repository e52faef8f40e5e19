"""Every loss, model and data set trains; runs resume, are skipped, refused, and shared."""

import csv
import json
import multiprocessing
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open

from tests.data.miniature import make_arff, make_coco, make_csv, make_nuswide, make_voc
from tests.short_runs import SMALL, compose, train
from tkpr import records
from tkpr.metrics import evaluate
from tkpr.runs.run import InUse, claim
from tkpr.runs.saved_model import load_predictions
from tkpr.training import state as checkpoint

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
        "db_voc": ["labels=full"],
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


@pytest.mark.parametrize("model", MODELS)
def test_every_model_family_trains(model, tmp_path):
    settings = ["recipe=debug", f"model={model}", "loss=bce"]
    results = train(*settings, "transform.size=32", *MODELS[model], folder=tmp_path)
    assert 0 <= results["metrics"]["mAP@3"] <= 1


def on_features(folder):
    """Settings for a miniature table of features with three labels."""
    make_arff(folder)
    return [
        *("dataset=arff", f"dataset.root={folder}", "dataset.name=mini"),
        *("loss.k=2", "trainer.ks=[1,2]", "trainer.monitor=mAP@1"),
    ]


@pytest.mark.parametrize("model", ["linear", "mlp"])
def test_models_on_features_train(model, tmp_path):
    settings = [*on_features(tmp_path / "data"), "recipe=debug", f"model={model}"]
    assert train(*settings, folder=tmp_path / "run")["metrics"]["mAP@1"] >= 0


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
    results = train(
        f"dataset={dataset}",
        f"dataset.root={tmp_path / 'data'}",
        *(["dataset.cache_dir=null"] if dataset == "coco" else []),
        "model.model_name=resnet18",
        "transform.size=32",
        "recipe=debug",
        "trainer.ks=[1,2]",
        "trainer.monitor=mAP@1",
        "loss.k=2",
        "labels=single_positive",
        folder=tmp_path / "run",
    )
    assert 0 <= results["metrics"]["mAP@1"] <= 1


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


@pytest.mark.parametrize(
    "options",
    [
        ["optimizer=sgd", "scheduler=cosine", "trainer.clip_norm=1"],
        ["optimizer=adamw", "scheduler=constant", "trainer.accumulate=2"],
        ["trainer.ema_decay=0.9", "trainer.eval_weights=ema"],
        ["trainer.precision=bf16-mixed", "trainer.channels_last=true"],
        ["trainer.head_lr_multiplier=10", "trainer.drop_last=true"],
    ],
    ids=lambda options: options[0],
)
def test_options(options, tmp_path):
    results = train(
        *SMALL, "trainer.epochs=2", "trainer.warmup_epochs=1", *options, folder=tmp_path
    )
    assert np.isfinite(list(results["metrics"].values())).all()


def test_accumulation_equals_a_larger_batch(tmp_path):
    """On a model without batch statistics, two batches of 2 make the step of one of 4."""
    settings = [*on_features(tmp_path / "data"), "trainer.epochs=2", "trainer.drop_last=true"]
    settings += ["scheduler=constant", "optimizer=sgd"]
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
    with pytest.raises(ValueError, match=r"stop_after must be at least 1, or null; got 0"):
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
    assert results["epochs"] < 5
    assert results["counts"]["test_rows"] == 8


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


def command(*words, cwd, **environment):
    """Run a command line of ours."""
    import os

    return subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
    )


def test_command_line(tmp_path):
    """One run by hand: the table, the folder named by the settings, and the same again."""
    words = [ROOT / "train.py", *SMALL, *ONE_EPOCH, "loss=bce"]
    first = command(*words, cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    assert "TKPR_a2" in first.stdout
    folder = tmp_path / first.stdout.strip().splitlines()[-1].removeprefix("run folder: ")
    assert folder.parent == tmp_path / "runs" / "mosaic" / "bce"
    assert (folder / "metrics.json").exists()
    again = command(*words, cwd=tmp_path)
    assert "is finished: skipped" in again.stdout


def test_sweep_from_the_command_line(tmp_path):
    words = ["-m", "loss=tkpr_a1,tkpr_a2", "loss.k=2,3", *ONE_EPOCH, *SMALL]
    done = command(ROOT / "train.py", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "runs").rglob("metrics.json"))) == 4


def test_help_lists_every_option_without_loading_torch(tmp_path):
    done = command("-X", "importtime", ROOT / "train.py", "--help", cwd=tmp_path)
    for name in LOSSES:
        assert f" {name} " in done.stdout
    assert "trainer.epochs=18" in done.stdout
    assert "torch" not in done.stderr


@pytest.mark.parametrize(
    ("word", "answer"),
    [
        ("loss=tkpr_a4", "no option 'tkpr_a4' in loss=: did you mean tkpr_a"),
        ("trainer.epoch=3", "no setting 'trainer.epoch': did you mean trainer.epochs"),
        ("lose=bce", "did you mean loss"),
        ("loss.rows=valid", "write +loss.rows="),
        ("dataset=coco", "data/coco"),
        ("model=timm", "model.model_name"),
        ("loss.k=99", "k + 1 may not exceed the number of classes, 10"),
    ],
)
def test_mistakes_are_answered_in_one_line(word, answer, tmp_path):
    words = ["loss=rank"] if word.startswith("loss.rows") else []
    done = command(ROOT / "train.py", "recipe=debug", *words, word, cwd=tmp_path)
    assert done.returncode != 0
    assert answer in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 3])
def test_several_processes_evaluate_as_one(processes, tmp_path):
    """23 test images do not divide by 2 or 3; with lr 0 all runs must agree to the last digit."""
    settings = [*SMALL, "optimizer.lr=0", *ONE_EPOCH, "model.width=8"]
    one = train(*settings, folder=tmp_path / "one")
    done = command(
        *("-m", "torch.distributed.run", f"--nproc-per-node={processes}", "--standalone"),
        *(ROOT / "train.py", *settings, f"run_dir={tmp_path / 'many'}"),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    many = json.loads((tmp_path / "many" / "metrics.json").read_text())
    assert len(load_predictions(tmp_path / "many")["logits"]) == 23
    assert set(many["metrics"]) == set(one["metrics"])


@pytest.mark.slow
def test_devices_from_the_command_line(tmp_path):
    done = command(ROOT / "train.py", *SMALL, *ONE_EPOCH, "trainer.devices=2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "runs").rglob("metrics.json"))) == 1
