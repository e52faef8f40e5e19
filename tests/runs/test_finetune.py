"""Runs from stored maps: the same results again, and one network for images at the end."""

import json
import logging

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import save_file

from tests.data.miniature import make_csv
from tests.short_runs import train
from tests.training.test_train import assert_equal, stop_after
from tkpr.losses import TKPR
from tkpr.runs.run import build_data
from tkpr.runs.saved_model import load_model
from tkpr.training import state as checkpoint
from tkpr.training.predict import fabric_on, predict

NETWORK = ["model=timm", "model.model_name=test_resnet", "model.cut=layer3"]


@pytest.fixture
def words(tmp_path):
    """Settings for 12 + 6 images, a small network from a file, and a folder for its maps."""
    torch.manual_seed(0)
    save_file(timm.create_model("test_resnet").state_dict(), tmp_path / "w.safetensors")
    photos = make_csv(tmp_path / "data")
    return [
        *("dataset=csv", f"dataset.root={photos}", "budget=finetune", *NETWORK),
        *(f"model.checkpoint={tmp_path / 'w.safetensors'}", "transform.size=64"),
        *(f"map_dir={tmp_path / 'maps'}", "trainer.batch_size=4", "trainer.epochs=3"),
        *("trainer.ks=[1,2]", "trainer.monitor=mAP@1", "loss.k=2", "trainer.accelerator=cpu"),
        *("trainer.precision=32-true", "trainer.warmup_epochs=1"),
    ]


def test_a_run_resumes_bit_for_bit_and_reads_maps_and_probe_again(words, tmp_path):
    whole = train(*words, folder=tmp_path / "whole")
    made = {path: path.stat().st_mtime_ns for path in (tmp_path / "maps").iterdir()}
    assert sorted(path.suffix for path in made if path.suffix != ".lock") == [
        *(".json", ".npy", ".safetensors")
    ]
    stop_after(1, *words, folder=tmp_path / "parts")
    parts = train(*words, folder=tmp_path / "parts")
    assert parts["metrics"] == whole["metrics"]
    one, other = (checkpoint.load(tmp_path / name) for name in ("whole", "parts"))
    assert_equal(one["model"], other["model"])
    kept = {path: path.stat().st_mtime_ns for path in made if path.suffix != ".lock"}
    assert kept == {path: time for path, time in made.items() if path.suffix != ".lock"}


def test_the_result_is_one_network_for_images(words, tmp_path):
    train(*words, folder=tmp_path / "run")
    for file in (tmp_path / "maps").iterdir():
        file.unlink()  # nothing of it is needed any more
    trained = load_model(tmp_path / "run")
    assert trained.input_shape == (3, 64, 64)
    data = build_data(trained.cfg)
    logits = predict(trained.model, data.test, data.finish, fabric_on("cpu"), batch_size=4)
    stored = np.load(tmp_path / "run" / "predictions.npz")["logits"]
    # the maps were stored in half precision
    np.testing.assert_allclose(logits, stored, atol=0.01 * np.abs(stored).max())
    assert not (tmp_path / "maps").exists() or not list((tmp_path / "maps").glob("*.npy"))


def test_maps_of_other_images_are_not_used(words, tmp_path):
    train(*words, folder=tmp_path / "one")
    (file,) = (tmp_path / "maps").glob("*.npy")
    note = file.with_suffix(".json")
    header = json.loads(note.read_text())
    note.write_text(json.dumps(header | {"images": "0123456789abcdef"}))
    with pytest.raises(ValueError, match=r"holds other maps .images is 0123456789abcdef, not"):
        train(*words, folder=tmp_path / "two")
    note.write_text(json.dumps(header))
    (tmp_path / "data" / "photos" / "00.jpg").write_bytes(
        (tmp_path / "data" / "photos" / "01.jpg").read_bytes()
    )
    train(*words, folder=tmp_path / "three")
    assert len(list((tmp_path / "maps").glob("*.npy"))) == 2


def test_an_unreadable_image_is_named_or_left_out(words, tmp_path, caplog):
    (tmp_path / "data" / "photos" / "03.jpg").write_bytes(b"not a picture")
    with pytest.raises(ValueError, match=r"03\.jpg cannot be read"):
        train(*words, folder=tmp_path / "strict")
    assert not list((tmp_path / "maps").glob("*.npy"))
    with caplog.at_level(logging.WARNING, logger="tkpr"):
        results = train(*words, "dataset.on_error=skip", folder=tmp_path / "lenient")
    assert results["counts"]["train_unreadable"] == 1


def test_maps_can_only_be_mirrored(words, tmp_path):
    with pytest.raises(ValueError, match=r"use transform=spml, or model\.cut=null"):
        train(*words, "transform=asl", folder=tmp_path / "run")


def test_losses_see_the_logits_divided_by_the_temperature(words, tmp_path, monkeypatch):
    seen = {1: [], 4: []}
    forward = TKPR.forward
    for temperature, logits in seen.items():

        def record(loss, inputs, targets, index=None, kept=logits):
            kept.append(inputs.detach().clone())
            return forward(loss, inputs, targets, index)

        monkeypatch.setattr(TKPR, "forward", record)
        settings = ["trainer.epochs=1", "trainer.warmup_epochs=0", "optimizer.lr=1e-12"]
        settings += [f"trainer.temperature={temperature}"]
        train(*words, *settings, folder=tmp_path / f"{temperature}")
    for one, four in zip(*seen.values(), strict=True):
        torch.testing.assert_close(one, 4 * four)
    assert max(logits.abs().max() for logits in seen[1]) > 0.1
    with pytest.raises(ValueError, match="temperature must be a number above 0; got 0"):
        train(*words, "trainer.temperature=0", folder=tmp_path / "zero")


@pytest.mark.parametrize("damage", ["flip", "cut"])
def test_a_damaged_probe_is_trained_again(damage, words, tmp_path, caplog):
    whole = train(*words, folder=tmp_path / "whole")
    (file,) = (tmp_path / "maps").glob("probe-*.safetensors")
    content = bytearray(file.read_bytes())
    content[-2] ^= 64
    file.write_bytes(content if damage == "flip" else content[: len(content) // 2])
    again = train(*words, folder=tmp_path / "again")
    assert "is damaged: the probe is trained again" in caplog.text
    assert again["metrics"] == whole["metrics"]
    one, other = (checkpoint.load(tmp_path / name)["model"] for name in ("whole", "again"))
    assert_equal(one, other)
