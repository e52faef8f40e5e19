"""The benchmark scripts run and write well-formed files; how fast anything is, no test asks."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
LOSSES = {path.stem for path in (ROOT / "configs" / "loss").glob("*.yaml")}


def run(script, tmp_path):
    output = tmp_path / "new" / "measured.json"
    command = [sys.executable, ROOT / "scripts" / script, "--quick", "--output", output]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    measured = json.loads(output.read_text())
    assert measured["machine"]["threads"] == 1
    return measured, done.stdout


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


def test_bench_metrics(tmp_path):
    measured, printed = run("bench_metrics.py", tmp_path)
    times = measured["times"]
    assert times["numbers"] == 18
    assert len(times["seconds"]) == 4
    assert all(seconds > 0 for seconds in times["seconds"].values())
    assert times["times_faster"] > 0
    assert len(measured["memory"]) == 1
    assert "label_ranking_loss" in printed


def test_peak_memory_sees_what_torch_allocates():
    from tkpr.reporting.benchmark import peak_memory

    peak = peak_memory(allocate, 2**24)
    if peak is None:
        pytest.skip("needs /proc")
    assert 2**26 <= peak < 2**26 + 2**24


def allocate(numel):
    import torch

    return lambda: torch.ones(numel).sum()
