"""Thresholds travel with the model: chosen on a hold-out, used by predict, evaluate and export."""

import ast
import csv
import io
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.data.miniature import make_csv
from tests.runs.test_scripts import script
from tests.short_runs import train
from tkpr.runs.saved_model import load_model

WORDS = [
    *("dataset=csv", "model=tiny", "model.width=8", "transform=shift48", "transform.size=32"),
    *("trainer.batch_size=4", "trainer.accelerator=cpu", "trainer.ks=[1,2]", "trainer.epochs=3"),
    *("trainer.monitor=mAP@1", "loss=bce", "trainer.warmup_epochs=0", "split.holdout=0.5"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run with a hold-out, and its photographs."""
    folder = tmp_path_factory.mktemp("run")
    make_csv(folder / "data")
    train(*WORDS, f"dataset.root={folder / 'data'}", folder=folder / "run")
    with pytest.MonkeyPatch.context() as patch:
        script("thresholds", folder / "run", "--calibrate", monkeypatch=patch)
    return folder


def predicted(capsys, monkeypatch, *words):
    """The rows that predict.py prints."""
    script("predict", *words, monkeypatch=monkeypatch)
    return list(csv.DictReader(capsys.readouterr().out.splitlines()))


def test_thresholds_are_stored_and_used(folder, tmp_path, monkeypatch, capsys):
    trained = load_model(folder / "run")  # the checksum in metrics.json is that of the new file
    assert len(trained.thresholds) == 4
    assert trained.temperature != 1
    photos = folder / "data" / "photos"
    rows = predicted(capsys, monkeypatch, folder / "run", photos)
    cut = dict(zip(trained.class_names, trained.thresholds, strict=True))
    everything = predicted(capsys, monkeypatch, folder / "run", photos, "--top", 4)
    expected = [row for row in everything if float(row["score"]) >= cut[row["label"]]]
    assert [(r["image"], r["label"]) for r in rows] == [(r["image"], r["label"]) for r in expected]
    assert len(everything) == 18 * 4

    script(
        "evaluate",
        folder / "run",
        "--ks",
        1,
        "--output",
        tmp_path / "e.json",
        monkeypatch=monkeypatch,
    )
    classes = json.loads((tmp_path / "e.json").read_text())["classes"]
    assert [row["threshold"] for row in classes] == trained.thresholds


def test_a_wanted_precision(folder, tmp_path, monkeypatch, capsys):
    words = ["--precision", 1.0, "--output", tmp_path / "m.safetensors"]
    script("thresholds", folder / "run", *words, monkeypatch=monkeypatch)
    assert "precision 1.0000" in capsys.readouterr().out
    assert (
        load_model(tmp_path / "m.safetensors").thresholds != load_model(folder / "run").thresholds
    )


def test_nothing_is_chosen_on_the_test_set_unasked(folder, tmp_path, monkeypatch):
    words = [word for word in WORDS if "holdout" not in word]
    train(*words, f"dataset.root={folder / 'data'}", folder=tmp_path / "run")
    with pytest.raises(ValueError, match="held out nothing to choose thresholds on"):
        script("thresholds", tmp_path / "run", monkeypatch=monkeypatch)
    script("thresholds", tmp_path / "run", "--split", "test", monkeypatch=monkeypatch)
    assert load_model(tmp_path / "run").thresholds


@pytest.mark.parametrize("words", [["--top", "-1"], ["--top", "0"], ["--batch-size", "0"]])
def test_nonsense_is_refused(words, folder, monkeypatch, capsys):
    with pytest.raises(SystemExit):
        script("predict", folder / "run", folder / "data", *words, monkeypatch=monkeypatch)
    assert "must be a whole number of at least 1" in capsys.readouterr().err


def test_images_from_lists_and_standard_input(folder, tmp_path, monkeypatch, capsys):
    """In many parts, the same rows."""
    photos = sorted((folder / "data" / "photos").iterdir())
    names = "\n".join(map(str, photos)) + "\n\n"
    words = [folder / "run", "--top", "2", "--batch-size", "1"]
    expected = predicted(capsys, monkeypatch, *words[:3], folder / "data" / "photos")
    monkeypatch.setattr("sys.stdin", io.StringIO(names))
    assert predicted(capsys, monkeypatch, *words, "-") == expected
    (tmp_path / "list.txt").write_text(names)
    output = tmp_path / "out.json"
    script(
        "predict",
        *words,
        "--list",
        tmp_path / "list.txt",
        "--output",
        output,
        monkeypatch=monkeypatch,
    )
    rows = json.loads(output.read_text())
    assert [row["label"] for row in rows] == [row["label"] for row in expected]
    (tmp_path / "list.txt").write_text("nothing.jpg\n")
    with pytest.raises(FileNotFoundError, match=r"list\.txt, line 1: no such image: nothing"):
        script("predict", *words, "--list", tmp_path / "list.txt", monkeypatch=monkeypatch)


def test_rows_are_written_as_they_come(folder, tmp_path, monkeypatch):
    """An image that breaks the run late leaves the rows of the parts before it."""
    photos = sorted((folder / "data" / "photos").iterdir())[:9]
    (tmp_path / "broken.jpg").write_bytes(b"nothing")
    output = tmp_path / "out.csv"
    words = [*photos, tmp_path / "broken.jpg", "--batch-size", "1", "--output", output]
    with pytest.raises(ValueError, match=r"broken\.jpg"):
        script("predict", folder / "run", *words, "--top", "1", monkeypatch=monkeypatch)
    assert len(output.read_text().splitlines()) == 1 + 8
    script(
        "predict",
        folder / "run",
        *words,
        "--top",
        "1",
        "--skip-unreadable",
        monkeypatch=monkeypatch,
    )
    assert len(output.read_text().splitlines()) == 1 + 9


# as in docs/training.md: nothing of this package is imported
ALONE = """
import json, sys
import numpy as np, torch
from PIL import Image, ImageOps
from torchvision.transforms.v2 import functional as F

if sys.argv[1].endswith(".onnx"):
    import onnxruntime
    session = onnxruntime.InferenceSession(sys.argv[1])
    about = session.get_modelmeta().custom_metadata_map
    run = lambda batch: session.run(None, {"input": batch.numpy()})[0]
else:
    about = dict.fromkeys(["class_names", "thresholds", "temperature", "preprocessing"], "")
    model = torch.export.load(sys.argv[1], extra_files=about).module()
    run = lambda batch: model(batch).detach().numpy()
names, thresholds, temperature, how = (
    json.loads(about[k]) for k in ("class_names", "thresholds", "temperature", "preprocessing")
)
image = ImageOps.exif_transpose(Image.open(sys.argv[2])).convert("RGB")
mode = F.InterpolationMode(how["interpolation"])
pixels = F.resize(F.pil_to_tensor(image), [how["size"], how["size"]], mode)
batch = F.normalize(pixels[None] / 255, how["mean"], how["std"])
scores = 1 / (1 + np.exp(-run(batch)[0] / temperature))
labels = [name for name, s, t in zip(names, scores, thresholds) if s >= t]
print(json.dumps([dict(zip(names, map(float, scores))), labels]))
assert not any(name.split(".")[0] == "tkpr" for name in sys.modules)
"""


@pytest.mark.slow
@pytest.mark.parametrize("photo", ["small", "large"])
def test_the_lines_in_the_docs_run(photo, folder, tmp_path, monkeypatch, capsys):
    """A large JPEG is decoded at a fraction of its size, by the lines as by predict.py."""
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    words = ["--format", "onnx", "--output", tmp_path / "model.onnx"]
    script("export", folder / "run", *words, monkeypatch=monkeypatch)
    page = (Path(__file__).parents[2] / "docs" / "training.md").read_text()
    lines = page.partition("```text\nimport json")[2].partition("```")[0]
    shutil.copy(folder / "data" / "photos" / "05.jpg", tmp_path / "photo.jpg")
    if photo == "large":
        noise = np.random.default_rng(0).integers(0, 256, (600, 800, 3), dtype=np.uint8)
        Image.fromarray(noise).save(tmp_path / "photo.jpg")
    done = subprocess.run(
        [sys.executable, "-c", f"import json{lines}"],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    capsys.readouterr()
    rows = predicted(capsys, monkeypatch, folder / "run", tmp_path / "photo.jpg", "--top", 4)
    scores = {row["label"]: float(row["score"]) for row in rows}
    assert ast.literal_eval(done.stdout) == pytest.approx(scores, abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name"), [("onnx", "m.onnx"), ("torch", "m.pt2")])
def test_an_exported_model_runs_without_this_package(
    kind, name, folder, tmp_path, monkeypatch, capsys
):
    if kind == "onnx":
        pytest.importorskip("onnxruntime")
        pytest.importorskip("onnxscript")
    script(
        "export",
        folder / "run",
        "--format",
        kind,
        "--output",
        tmp_path / name,
        monkeypatch=monkeypatch,
    )
    photo = tmp_path / "photo.png"
    noise = np.random.default_rng(0).integers(0, 256, (50, 70, 3), dtype=np.uint8)
    Image.fromarray(noise).save(photo)
    capsys.readouterr()
    rows = predicted(capsys, monkeypatch, folder / "run", photo, "--top", 4)
    given = predicted(capsys, monkeypatch, folder / "run", photo)
    done = subprocess.run(
        [sys.executable, "-c", ALONE, tmp_path / name, photo],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    scores, labels = json.loads(done.stdout)
    assert scores == pytest.approx({r["label"]: float(r["score"]) for r in rows}, abs=1e-4)
    assert set(labels) == {row["label"] for row in given}
