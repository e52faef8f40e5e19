"""The benchmarks run and write what they measured; speed itself is not tested."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas
import pytest
import torch
from PIL import Image

from tkpr.reporting.benchmark import peak_memory

ROOT = Path(__file__).parents[2]
LOSSES = {path.stem for path in (ROOT / "configs" / "loss").glob("*.yaml")}


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


def run(script, tmp_path):
    """Call a script with --quick in a process of its own; return what it wrote and printed."""
    output = tmp_path / "new" / "measured.json"
    command = [sys.executable, ROOT / "scripts" / script, "--quick", "--output", output]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    measured = json.loads(output.read_text())
    assert measured["machine"]["threads"] == 1
    return measured, done.stdout


@pytest.mark.slow
def test_bench_loss(tmp_path):
    measured, printed = run("bench_loss.py", tmp_path)
    names = {row["loss"] for row in measured["times"]}
    assert names >= LOSSES | {"BCEWithLogitsLoss", "MultiLabelMarginLoss", "tkpr_raw lists"}
    for row in measured["times"]:
        assert row["seconds"] > 0
        assert row["times_BCEWithLogitsLoss"] > 0
        assert row["times_MultiLabelMarginLoss"] > 0
        assert row["loss"] in printed
    assert {(row["batch"], row["classes"]) for row in measured["times"]} == {(4, 20), (4, 40)}
    assert [row["loss"] for row in measured["memory"]] == ["rank"]


@pytest.mark.slow
def test_bench_loss_writes_the_range_over_runs(tmp_path):
    table = tmp_path / "loss.csv"
    command = ["--quick", "--losses", "bce", "--runs", "2", "--csv", table]
    command += ["--output", tmp_path / "loss.json"]
    subprocess.run([sys.executable, ROOT / "scripts" / "bench_loss.py", *command], check=True)
    rows = pandas.read_csv(table)
    assert set(rows["loss"]) == {"BCEWithLogitsLoss", "bce"}
    assert (rows["runs"] == 2).all()
    assert (rows["times_bce_lowest"] <= rows["times_bce"]).all()
    assert (rows["times_bce"] <= rows["times_bce_highest"]).all()


@pytest.mark.slow
def test_bench_head(tmp_path):
    table = tmp_path / "new" / "head.csv"
    command = [sys.executable, ROOT / "scripts" / "bench_head.py", "--quick", "--output", table]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = pandas.read_csv(table)
    assert len(rows) == 4 * 4  # optimizers and numbers of classes, heads
    assert (rows["milliseconds"] > 0).all()
    assert (rows[rows["head"] == "nn.Linear + BCE"]["times_as_fast_highest"] == 1).all()
    assert "chunks + TKPR" in done.stdout


@pytest.mark.slow
def test_bench_metrics(tmp_path):
    measured, printed = run("bench_metrics.py", tmp_path)
    times = measured["times"]
    assert times["numbers"] == 18
    assert len(times["seconds"]) == 4
    assert all(seconds > 0 for seconds in times["seconds"].values())
    assert times["times_faster"] > 0
    assert len(measured["memory"]) == 1
    assert "label_ranking_loss" in printed


@pytest.mark.slow
def test_peak_memory_sees_what_torch_allocates():
    peak = peak_memory(allocate, 2**24)
    if peak is None:
        pytest.skip("needs /proc")
    assert 2**26 <= peak < 2**26 + 2**24


def allocate(numel):
    return lambda: torch.ones(numel).sum()
