"""A result is of the data it claims: other data is never skipped, resumed or evaluated silently."""

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from tests.data.miniature import make_csv
from tests.short_runs import train
from tkpr.data.features import save_features

PHOTOS = [
    *("dataset=csv", "model=tiny", "model.width=8", "transform=shift48", "transform.size=32"),
    *("trainer.batch_size=4", "trainer.accelerator=cpu", "trainer.ks=[1,2]", "trainer.epochs=2"),
    *("trainer.monitor=mAP@1", "loss=bce", "trainer.warmup_epochs=0"),
]
FEATURES = [
    *("dataset=features", "trainer.batch_size=8", "trainer.accelerator=cpu", "trainer.ks=[1,2]"),
    *("trainer.monitor=mAP@1", "loss=bce", "trainer.warmup_epochs=0", "trainer.epochs=3"),
]


@pytest.fixture
def photos(tmp_path):
    """Photographs with a CSV file."""
    return make_csv(tmp_path / "A")


def finished(photos, tmp_path):
    """Train on photographs; return the words and the results."""
    return train(*PHOTOS, f"dataset.root={photos}", folder=tmp_path / "run")


def edit_labels(root):
    file = root / "labels.csv"
    lines = file.read_text().splitlines()
    lines[2], lines[3] = lines[3], lines[2]
    file.write_text("\n".join(lines) + "\n")


def edit_image(root):
    """Another picture of the same size in bytes."""
    file = root / "photos" / "03.jpg"
    content = bytearray(file.read_bytes())
    content[-20] ^= 1
    file.write_bytes(content)


def swap_images(root):
    first, second, aside = (root / "photos" / name for name in ("02.jpg", "03.jpg", "aside"))
    first.rename(aside)
    second.rename(first)
    aside.rename(second)


@pytest.mark.parametrize(
    ("edit", "differs"),
    [
        (edit_labels, "train_labels"),
        (edit_image, "train_inputs"),
        (swap_images, "inputs"),
    ],
)
def test_a_finished_run_is_not_skipped_for_other_data(edit, differs, photos, tmp_path):
    finished(photos, tmp_path)
    other = shutil.copytree(photos, tmp_path / "B")
    edit(other)
    with pytest.raises(ValueError, match=rf"holds a run on other data \(.*{differs}.* differ\)"):
        finished(other, tmp_path)
    edit(photos)  # in place, too
    with pytest.raises(ValueError, match="holds a run on other data"):
        finished(photos, tmp_path)


def test_nor_for_data_that_is_not_there(photos, tmp_path):
    finished(photos, tmp_path)
    with pytest.raises(FileNotFoundError, match="/nowhere"):
        train(*PHOTOS, "dataset.root=/nowhere", folder=tmp_path / "run")


def test_the_same_data_in_another_folder_is_the_same(photos, tmp_path):
    first = finished(photos, tmp_path)
    moved = shutil.copytree(photos, tmp_path / "B")  # with other dates
    shutil.rmtree(photos)
    assert finished(moved, tmp_path) == json.loads(json.dumps(first))


def write_features(file, seed):
    rng = np.random.default_rng(seed)
    labels = np.eye(4, dtype=np.uint8)[np.arange(40) % 4]
    save_features(
        file,
        rng.normal(size=(40, 6)).astype(np.float32),
        labels=labels,
        ids=[f"{n:02}" for n in range(40)],
        split=["train"] * 24 + ["test"] * 16,
        class_names=list("abcd"),
    )


def test_a_killed_run_is_not_resumed_on_other_features(tmp_path, monkeypatch):
    file = tmp_path / "features.npz"
    write_features(file, seed=0)
    with monkeypatch.context() as patch:
        patch.setattr("tkpr.runs.run.write_results", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            train(*FEATURES, f"dataset.file={file}", folder=tmp_path / "run")
    write_features(file, seed=1)
    with pytest.raises(ValueError, match=r"on other data \(test_inputs, train_inputs differ\)"):
        train(*FEATURES, f"dataset.file={file}", folder=tmp_path / "run")
    write_features(tmp_path / "moved.npz", seed=0)
    results = train(*FEATURES, f"dataset.file={tmp_path / 'moved.npz'}", folder=tmp_path / "run")
    assert results["epochs"] == 3


def test_other_pretrained_weights_are_other_data(photos, tmp_path):
    from tkpr.models.backbone import create

    file = tmp_path / "weights.pth"
    words = [*PHOTOS, f"dataset.root={photos}", "model=timm", "model.model_name=test_resnet"]
    words = [word for word in words if word not in ("model=tiny", "model.width=8")]
    torch.manual_seed(0)
    for _ in range(2):
        torch.save(create("test_resnet", 4, pretrained=False).state_dict(), file)
        if not (tmp_path / "run").exists():
            train(*words, f"model.checkpoint={file}", folder=tmp_path / "run")
    with pytest.raises(ValueError, match=r"other data \(weights differ\)"):
        train(*words, f"model.checkpoint={file}", folder=tmp_path / "run")


def test_weights_of_the_hub_count_by_their_content(photos, tmp_path):
    """The same name, other weights: as after an update of the repository they come from."""
    from tkpr.models.backbone import create

    file = tmp_path / "hub.pth"
    words = [word for word in PHOTOS if word not in ("model=tiny", "model.width=8")]
    words += [f"dataset.root={photos}", "model=timm", "model.model_name=test_resnet"]
    words += [f"+model.pretrained_cfg_overlay={{file: {file}, num_classes: 4}}"]
    torch.manual_seed(0)
    torch.save(create("test_resnet", 4, pretrained=False).state_dict(), file)
    first = train(*words, folder=tmp_path / "run")
    assert train(*words, folder=tmp_path / "run") == first
    torch.save(create("test_resnet", 4, pretrained=False).state_dict(), file)
    with pytest.raises(ValueError, match=r"other data \(weights differ\)"):
        train(*words, folder=tmp_path / "run")


def test_the_same_weights_in_another_format_are_the_same(photos, tmp_path):
    from tkpr.models.backbone import create

    words = [word for word in PHOTOS if word not in ("model=tiny", "model.width=8")]
    words += [f"dataset.root={photos}", "model=timm", "model.model_name=test_resnet"]
    weights = create("test_resnet", 4, pretrained=False).state_dict()
    torch.save({"state_dict": weights}, tmp_path / "a.pth")
    save_file(weights, tmp_path / "b.safetensors")
    run = tmp_path / "run"
    first = train(*words, f"model.checkpoint={tmp_path / 'a.pth'}", folder=run)
    assert train(*words, f"model.checkpoint={tmp_path / 'b.safetensors'}", folder=run) == first


def test_a_run_without_its_record_of_data_is_not_continued(photos, tmp_path):
    finished(photos, tmp_path)
    (tmp_path / "run" / "run.json").unlink()
    with pytest.raises(ValueError, match=r"has no run\.json, which says what data last\.ckpt was"):
        finished(photos, tmp_path)


def test_results_name_their_data_and_processes(photos, tmp_path):
    results = finished(photos, tmp_path)
    other = shutil.copytree(photos, tmp_path / "B")
    edit_image(other)
    again = train(*PHOTOS, f"dataset.root={other}", folder=tmp_path / "other")
    assert again["fingerprint"] != results["fingerprint"]
    assert again["counts"]["train_checksum"] == results["counts"]["train_checksum"]
    assert results["processes"] == 1


@pytest.mark.slow
def test_a_checkpoint_of_another_run_is_named(photos, tmp_path, monkeypatch):
    """Same settings, same data, another seed: only the id tells them apart."""
    with monkeypatch.context() as patch:
        patch.setattr("tkpr.runs.run.write_results", lambda *_: 1 / 0)
        for seed in (0, 1):
            words = [*PHOTOS, f"dataset.root={photos}", f"seed={seed}"]
            with pytest.raises(ZeroDivisionError):
                train(*words, folder=tmp_path / f"{seed}")
    shutil.copy(tmp_path / "1" / "last.ckpt", tmp_path / "0" / "last.ckpt")
    with pytest.raises(ValueError, match=r"0/last\.ckpt and run\.json belong to different runs"):
        train(*PHOTOS, f"dataset.root={photos}", "seed=0", folder=tmp_path / "0")


def test_flipped_bits_in_a_checkpoint_are_noticed(photos, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("tkpr.runs.run.write_results", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            finished(photos, tmp_path)
    file = tmp_path / "run" / "last.ckpt"
    whole = file.read_bytes()
    state = torch.load(file, weights_only=True)["model"]
    value = next(v for v in state.values() if v.ndim == 4).numpy().tobytes()
    content = bytearray(whole)
    content[whole.index(value) + 1] ^= 1
    file.write_bytes(content)
    assert torch.load(file, weights_only=True)["epoch"] == 2  # torch itself does not notice
    with pytest.raises(ValueError, match=r"last\.ckpt cannot be read .* does not match its checks"):
        finished(photos, tmp_path)
    file.write_bytes(b"")
    with pytest.raises(ValueError, match=r"last\.ckpt cannot be read as a checkpoint .*: delete"):
        finished(photos, tmp_path)
