"""What one does with a finished run: evaluate, predict, export, choose the best."""

import csv
import importlib.util
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from tests.short_runs import SMALL, train
from tkpr import records
from tkpr.data.mosaic import load_mosaic
from tkpr.runs.saved_model import content_checksum, load_model, load_predictions

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run and what its metrics.json holds."""
    folder = tmp_path_factory.mktemp("run")
    words = ["trainer.epochs=1", "trainer.warmup_epochs=0", "loss=bce"]
    return folder, train(*SMALL, *words, folder=folder)


def script(name, *words, monkeypatch):
    """Call a script's main() as its command line would."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(sys, "argv", [name, *map(str, words)])
    module.main()


def test_evaluate_repeats_the_measures_of_the_run(run, tmp_path, monkeypatch, capsys):
    folder, results = run
    output = tmp_path / "out.json"
    script("evaluate", folder, "--output", output, monkeypatch=monkeypatch)
    found = json.loads(output.read_text())
    classes, confusions = found.pop("classes"), found.pop("confusions")
    assert found == pytest.approx(results["metrics"], rel=1e-9)
    assert sum(row["support"] for row in classes) == results["counts"]["test_labels"]
    assert {row["threshold"] for row in classes} == {0.5}
    assert all(pair["missed"] != pair["given"] for pair in confusions)
    printed = capsys.readouterr().out
    assert "TKPR_a2" in printed
    assert "precision  recall" in printed


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("model.safetensors", load_model),
        ("predictions.npz", load_predictions),
        ("metrics.csv", records.read_history),
    ],
)
def test_a_file_of_another_run_is_named(name, call, run, tmp_path):
    folder = shutil.copytree(run[0], tmp_path / "run")
    call(folder)
    words = ["trainer.epochs=1", "trainer.warmup_epochs=0", "loss=bce", "seed=1"]
    train(*SMALL, *words, folder=tmp_path / "other")
    shutil.copy(tmp_path / "other" / name, folder / name)
    with pytest.raises(ValueError, match=f"{name} is damaged or belongs to another run"):
        call(folder)


@pytest.mark.parametrize("damage", ["", "{", '{"metrics": {}}', "flip"])
def test_damaged_results_are_named(damage, run, tmp_path):
    folder = shutil.copytree(run[0], tmp_path / "run")
    file = folder / "metrics.json"
    flipped = file.read_text().replace('"epochs": 1', '"epochs": 2')
    file.write_text(flipped if damage == "flip" else damage)
    words = ["trainer.epochs=1", "trainer.warmup_epochs=0", "loss=bce"]
    with pytest.raises(ValueError, match=r"metrics\.json is damaged .*: restore it, or delete it"):
        train(*SMALL, *words, folder=folder)
    file.unlink()  # as the message says
    assert train(*SMALL, *words, folder=folder)["metrics"] == run[1]["metrics"]


def test_broken_settings_are_named(run, tmp_path):
    folder = shutil.copytree(run[0], tmp_path / "run")
    (folder / "config.yaml").write_text("loss: [")
    with pytest.raises(ValueError, match=r"config\.yaml is damaged, or .*: restore it, or delete"):
        train(*SMALL, folder=folder)
    (folder / "run.json").unlink()
    with pytest.raises(ValueError, match=r"config\.yaml cannot be read .*: restore it, or delete"):
        train(*SMALL, folder=folder)


@pytest.mark.parametrize("damage", ["", "epoch,mAP@3\n1,x\n", "epoch,mAP@3\n"])
def test_a_damaged_history_is_named(damage, tmp_path):
    (tmp_path / "metrics.csv").write_text(damage)
    with pytest.raises(ValueError, match=r"metrics\.csv is (damaged|empty)"):
        records.read_history(tmp_path)


def test_evaluate_on_another_split_and_data_set(run, tmp_path, monkeypatch):
    folder, results = run
    output = tmp_path / "out.json"
    script("evaluate", folder, "--split", "train", "--output", output, monkeypatch=monkeypatch)
    found = json.loads(output.read_text())
    assert found["mAP@3"] != pytest.approx(results["metrics"]["mAP@3"])
    assert len({*found} & {*results["metrics"]}) > 10
    weights = folder / "model.safetensors"
    words = ["dataset=mosaic", "dataset.seed=7", "dataset.train_size=1", "dataset.test_size=30"]
    words += ["dataset.image_size=32"]
    script("evaluate", weights, *words, "--ks", 1, "--output", output, monkeypatch=monkeypatch)
    assert "P@1" in json.loads(output.read_text())


@pytest.fixture
def photos(tmp_path):
    """Two mosaics as files."""
    images = load_mosaic(train_size=1, test_size=2, image_size=64, seed=3).test.inputs
    folder = tmp_path / "photos"
    folder.mkdir()
    for name, pixels in zip("ba", images, strict=True):
        Image.fromarray(np.asarray(pixels)).save(folder / f"{name}.png")
    return folder


def test_predict_writes_the_top_labels(run, photos, tmp_path, monkeypatch, capsys):
    folder, _ = run
    script("predict", folder, photos, "--top", 3, monkeypatch=monkeypatch)
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert [Path(row["image"]).name for row in rows] == ["a.png"] * 3 + ["b.png"] * 3
    assert [row["rank"] for row in rows] == ["1", "2", "3"] * 2
    scores = [float(row["score"]) for row in rows[:3]]
    assert scores == sorted(scores, reverse=True)

    output = tmp_path / "labels.json"
    words = [photos / "a.png", "--threshold", 0.0, "--output", output]
    script("predict", folder, *words, monkeypatch=monkeypatch)
    assert len(json.loads(output.read_text())) == 10


@pytest.mark.parametrize("kind", ["csv", "json"])
def test_names_are_no_formulas_for_a_spreadsheet(kind, run, photos, tmp_path, monkeypatch):
    (photos / "b.png").rename(tmp_path / "=cmd|calc!A1.png")
    output = tmp_path / f"labels.{kind}"
    monkeypatch.chdir(tmp_path)
    words = ["=cmd|calc!A1.png", "--top", 1, "--output", output]
    script("predict", run[0], *words, monkeypatch=monkeypatch)
    if kind == "json":
        assert json.loads(output.read_text())[0]["image"] == "=cmd|calc!A1.png"
    else:
        assert next(csv.DictReader(output.open()))["image"] == "'=cmd|calc!A1.png"


@pytest.mark.parametrize("value", ["nan", "2", "-0.1"])
def test_a_threshold_is_a_probability(value, run, photos, monkeypatch):
    with pytest.raises(ValueError, match="--threshold must be from 0 to 1; got "):
        script("predict", run[0], photos, f"--threshold={value}", monkeypatch=monkeypatch)


@pytest.mark.parametrize("limit", ["0", "-3", "1.5"])
def test_a_limit_is_a_number_of_samples(limit, run, monkeypatch):
    with pytest.raises(ValueError, match=f"split.limit must be a whole number .*; got {limit}"):
        script("evaluate", run[0], f"split.limit={limit}", monkeypatch=monkeypatch)


@pytest.mark.parametrize(
    "words", [["evaluate", "RUN", "--batch-size"], ["compare", "RUN", "RUN", "--resamples"]]
)
def test_counts_are_at_least_one(words, run, monkeypatch, capsys):
    words = [str(run[0]) if word == "RUN" else word for word in words]
    with pytest.raises(SystemExit):
        script(*words, "0", monkeypatch=monkeypatch)
    assert "must be a whole number of at least 1; got 0" in capsys.readouterr().err


def test_predict_names_what_is_missing(run, tmp_path, monkeypatch):
    folder, _ = run
    with pytest.raises(FileNotFoundError, match="no such image or folder"):
        script("predict", folder, tmp_path / "nothing.jpg", monkeypatch=monkeypatch)
    (tmp_path / "broken.jpg").write_bytes(b"not a picture")
    with pytest.raises(ValueError, match=r"broken\.jpg"):
        script("predict", folder, tmp_path / "broken.jpg", monkeypatch=monkeypatch)


@pytest.mark.parametrize(("kind", "name"), [("safetensors", "m.safetensors"), ("torch", "m.pt2")])
def test_export_checks_the_outputs(run, kind, name, tmp_path, monkeypatch, capsys):
    folder, _ = run
    output = tmp_path / name
    script("export", folder, "--format", kind, "--output", output, monkeypatch=monkeypatch)
    assert output.exists()
    assert "outputs differ by at most" in capsys.readouterr().out


@pytest.mark.slow
def test_export_onnx(run, tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    folder, _ = run
    words = ["--format", "onnx", "--output", tmp_path / "m.onnx"]
    script("export", folder, *words, monkeypatch=monkeypatch)
    assert (tmp_path / "m.onnx").stat().st_size > 1000


def test_foreign_objects_in_a_file_of_weights_are_refused(run, tmp_path, monkeypatch):
    folder, _ = run
    from safetensors import safe_open

    with safe_open(folder / "model.safetensors", framework="pt") as opened:
        about = opened.metadata()
    about["config"] = about["config"].replace("tkpr.models.tiny.tiny", "subprocess.check_output")
    weights = load_file(folder / "model.safetensors")
    del about["checksum"]
    about["checksum"] = content_checksum(weights, about)
    save_file(weights, tmp_path / "evil.safetensors", about)
    with pytest.raises(ValueError, match=r"refused: its settings name .* subprocess.check_output"):
        script("evaluate", tmp_path / "evil.safetensors", monkeypatch=monkeypatch)


@pytest.mark.parametrize("damage", ["truncated", "missing", "foreign", "empty", "a bit flipped"])
def test_damaged_weights_are_named(run, damage, tmp_path, monkeypatch):
    folder, _ = run
    file = tmp_path / "model.safetensors"
    whole = (folder / "model.safetensors").read_bytes()
    if damage == "truncated":
        file.write_bytes(whole[: len(whole) // 2])
    elif damage == "empty":
        file.touch()
    elif damage == "a bit flipped":
        file.write_bytes(whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:])
    elif damage == "foreign":
        save_file({"weight": torch.zeros(2)}, file)
    with pytest.raises((ValueError, FileNotFoundError), match=r"model\.safetensors"):
        script("evaluate", file, monkeypatch=monkeypatch)


@pytest.mark.parametrize(
    ("monitor", "patience", "command"),
    [
        ("mAP@3", None, "python train.py loss=tkpr_a2 loss.k=2"),  # the last epoch counts
        ("mAP@3", 5, "python train.py loss=tkpr_a2 loss.k=3 trainer.stop_after=2"),
        ("train_loss", 5, "python train.py loss=tkpr_a2 loss.k=4 trainer.stop_after=3"),
    ],
)
def test_best_names_the_winner_and_its_command(
    tmp_path, monkeypatch, capsys, monitor, patience, command
):
    """Early stopping: the best epoch of the main loss; less is better for a loss."""
    curves = {2: ("0.9 0.5 0.3", "3 2 2"), 3: ("0.1 0.8 0.2", "3 3 3"), 4: ("0.1 0.7 0.1", "4 3 1")}
    for k, (measures, losses) in curves.items():
        folder = tmp_path / f"k{k}"
        folder.mkdir()
        overrides = ["experiment=search/k", "loss=tkpr_a2", f"loss.k={k}", "split.holdout=0.2"]
        config = {"split": {"holdout": 0.2}, "loss": 1, "warmup": 2}
        config["trainer"] = {"warmup_epochs": 1, "patience": patience}
        stored = {"config": config, "overrides": overrides, "metrics": {}, "seconds": 1}
        records.write(folder / "metrics.json", stored)
        lines = zip(range(1, 4), measures.split(), losses.split(), strict=True)
        text = "".join(f"{epoch},{value},{loss}\n" for epoch, value, loss in lines)
        (folder / "metrics.csv").write_text(f"epoch,mAP@3,train_loss\n{text}")
    script("best", tmp_path, "--monitor", monitor, monkeypatch=monkeypatch)
    assert capsys.readouterr().out.strip().endswith(command)
    with pytest.raises(ValueError, match="no measure 'speed'"):
        script("best", tmp_path, "--monitor", "speed", monkeypatch=monkeypatch)
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="no finished run on a held-out split"):
        script("best", tmp_path / "empty", monkeypatch=monkeypatch)
