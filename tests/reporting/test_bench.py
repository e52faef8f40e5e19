"""The benchmarks run and write what they measured; how fast anything is, is not tested."""

import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

ROOT = Path(__file__).parents[2]


def load(name):
    """Import a script."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def measured(tmp_path, monkeypatch):
    """Call a script with --quick; return what it wrote."""
    threads = torch.get_num_threads()

    def run(name, *words):
        output = tmp_path / "new" / f"{name}.json"
        monkeypatch.setattr(sys, "argv", [name, "--quick", "--output", str(output), *words])
        load(name).main()
        return json.loads(output.read_text())

    yield run
    torch.set_num_threads(threads)


def test_bench_data(measured, capsys):
    data = measured("bench_data")
    rows = {(row["mode"], row["pipeline"]): row for row in data["pipelines"]}
    assert len(rows) == 10
    assert all(row["images_per_second"] > 0 for row in rows.values())
    assert rows["training", "plain"]["times_faster"] == 1
    assert len(data["operations"]) == 15
    for row in data["operations"]:
        # the same pixels: exactly, or for shears to within one grey level
        if row["operation"] != "square":
            assert row["largest_difference"] <= row["operation"].startswith("shear")
    assert data["machine"]["threads"] == 1
    assert "training, cache" in capsys.readouterr().out


def test_bench_data_on_photographs_of_a_folder(measured, tmp_path):
    for number in range(3):
        Image.new("RGB", (90, 70), (9, 99, number)).save(tmp_path / f"{number}.JPG")
    (tmp_path / "notes.txt").touch()
    data = measured("bench_data", "--images", str(tmp_path))
    assert data["photographs"] == 3
    assert data["pixels"]["largest_difference"] == 0


def test_bench_data_without_photographs(measured, tmp_path):
    with pytest.raises(SystemExit, match=r"no \.jpg files in"):
        measured("bench_data", "--images", str(tmp_path))


def test_plain_cutout_paints_half_of_each_side():
    script = load("bench_data")
    black = Image.new("RGB", (40, 40))
    sides = set()
    for _ in range(200):
        painted = np.asarray(script.plain_cutout(black)).any(-1)
        sides |= {int(painted.any(0).sum()), int(painted.any(1).sum())}
    assert max(sides) == 21  # Pillow counts both ends
    assert min(sides) >= 10  # clipped at the border


def test_bench_trainer(measured, capsys):
    data = measured("bench_trainer")
    bare, ours, _ = data["loop"]["rows"]
    assert bare["loop"] == "bare"
    assert ours["images_per_second"] > 0
    # both loops did the same
    assert ours["first_loss"] == pytest.approx(bare["first_loss"], rel=1e-5)
    parts = data["epoch"]["seconds_per_epoch"]
    assert {"training", "prediction", "metrics", "logging", "checkpoint"} <= set(parts)
    assert all(seconds > 0 for part, seconds in parts.items() if part != "other")
    assert 0 < data["epoch"]["share_of_metrics_and_logging"] < 1
    assert data["start"]["times_import_hydra"] > 0
    assert "metrics and logging" in capsys.readouterr().out
