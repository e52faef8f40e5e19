"""The timing table measures what it says and lays it out as the paper does."""

import runpy
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch
from torch import nn

from tkpr.losses.pairwise import MultilabelMargin
from tkpr.reporting import benchmark, efficiency
from tkpr.reporting.efficiency import (
    LOSSES,
    Setting,
    beside_the_paper,
    layout,
    measure,
    peak_tensor_memory,
    ratios,
)
from tkpr.reporting.paper_numbers import paper_efficiency

ROOT = Path(__file__).parents[2]
QUICK = Setting(batch_size=2, k=15, trials=3, averaged=2)


@pytest.fixture(scope="module")
def times():
    return measure(ROOT / "configs", backbones=["none"], classes=[100, 1000], setting=QUICK)


def test_every_loss_and_size_is_timed(times):
    assert times.loss.tolist() == list(LOSSES) * 2
    assert times.num_classes.tolist() == [100] * 7 + [1000] * 7
    parts = times[["forward_s", "loss_s", "backward_s"]]
    assert (parts >= 0).all().all()
    assert times.total_s.tolist() == pytest.approx(parts.sum(axis=1).tolist())
    assert (times.peak_memory_mb > 0).all()


def test_losses_are_those_of_the_paper():
    assert list(LOSSES) == paper_efficiency().loss.unique().tolist()
    assert efficiency.make_loss(ROOT / "configs", "TKPR", QUICK).k == 15


def test_the_last_trials_are_averaged(monkeypatch):
    steps = iter([(9.0, 9.0, 9.0), (1.0, 2.0, 3.0), (3.0, 4.0, 5.0), (0.0, 0.0, 0.0)])
    monkeypatch.setattr(efficiency, "time_step", lambda *_, **__: next(steps))
    line = measure(
        ROOT / "configs", backbones=["none"], classes=[100], losses=["L_u1"], setting=QUICK
    ).iloc[0]
    assert (line.forward_s, line.loss_s, line.backward_s, line.total_s) == (2, 3, 4, 9)


def test_torchs_loss_is_timed_without_converting_its_targets():
    """The form of the labels is made beforehand, and gives the value of the project's own."""
    criterion = efficiency.make_loss(ROOT / "configs", "torch.ml", QUICK)
    assert type(criterion) is nn.MultiLabelMarginLoss
    logits, targets = torch.randn(5, 9), (torch.rand(5, 9) < 0.4).float()
    targets[0] = 0
    value = criterion(logits, efficiency.label_lists(targets))
    assert value == pytest.approx(MultilabelMargin()(logits, targets).item(), rel=1e-6)


def test_each_part_is_timed_by_itself(monkeypatch):
    events, model = [], nn.Linear(3, 3)
    model.register_forward_hook(lambda *_: events.append("forward"))
    model.weight.register_hook(lambda grad: events.append("backward"))
    monkeypatch.setattr(
        benchmark, "clock", lambda device: events.append("clock") or 2.0 ** len(events)
    )

    def criterion(logits, targets):
        events.append("loss")
        return (logits - targets).square().sum()

    inputs, targets = torch.ones(2, 3), torch.ones(2, 3)
    parts = efficiency.time_step(model, criterion, inputs, targets, device="cpu")
    assert events == ["clock", "forward", "clock", "loss", "clock", "backward", "clock"]
    assert parts == [2**3 - 2, 2**5 - 2**3, 2**7 - 2**5]
    assert model.weight.grad is None  # nothing is left for the next step


def test_peak_memory_counts_what_lives_at_once():
    size = 2**18  # numbers of 4 bytes: 1 MB

    def step():
        first = torch.zeros(size)
        second = torch.zeros(size)
        del first
        third = torch.zeros(size)
        return second, third

    assert peak_tensor_memory(step, "cpu") == pytest.approx(2.0, abs=0.01)


def test_a_network_is_timed_too():
    setting = Setting(batch_size=1, k=5, trials=1, averaged=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(efficiency.BACKBONES, "resnet50", ("test_resnet", 64))
        line = measure(
            ROOT / "configs", backbones=["resnet50"], classes=[20], losses=["TKPR"], setting=setting
        ).iloc[0]
    assert line.forward_s > 0
    with pytest.raises(ValueError, match="no backbone 'vgg': choose one of resnet50, swin, none"):
        measure(ROOT / "configs", backbones=["vgg"], classes=[20], setting=setting)


def test_ratios_of_the_paper():
    paper = paper_efficiency()
    steps = paper.assign(ratio=ratios(paper, "total_s")).set_index(
        ["backbone", "num_classes", "loss"]
    )
    assert steps.loc[("resnet50", 10000, "torch.ml"), "ratio"] == pytest.approx(0.2907 / 0.0510)
    assert steps.loc[("swin", 5000, "TKPR"), "ratio"] == pytest.approx(0.4704 / 0.4600)
    assert (steps.xs("L_u1", level="loss").ratio == 1).all()


def test_layout_and_comparison():
    """With the paper's own times, ours and the paper's ratios are the same."""
    paper = paper_efficiency().assign(peak_memory_mb=1.0)
    blocks = layout(paper)
    assert blocks.count("C = ") == 4
    line = next(
        line
        for line in blocks.partition("C = 5,000")[2].splitlines()
        if line.startswith("| L_rank")
    )
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    expected = [
        "0.01650",
        "0.01030",
        "0.08940",
        "0.11620",
        "0.15090",
        "0.01090",
        "0.36070",
        "0.52260",
    ]
    assert cells == ["L_rank", *expected, "1.0", "1.0"]
    beside = beside_the_paper(paper)
    pairs = [
        cell.split(" / ")
        for line in beside.splitlines()
        if line.startswith("| ") and " / " in line
        for cell in line.strip("| ").split(" | ")[1:]
    ]
    assert len(pairs) == 2 * 7 * 4
    assert all(ours == theirs for ours, theirs in pairs)
    assert "nan" not in beside


def test_loss_alone_stands_beside_the_papers_loss_time(times):
    beside = beside_the_paper(times)
    assert "loss alone" in beside
    line = next(line for line in beside.splitlines() if line.startswith("| torch.ml"))
    assert line.split(" | ")[2].split(" / ")[1].strip("| ") == "6.50"  # 0.0013 / 0.0002


@pytest.mark.parametrize(
    ("words", "backbones", "classes", "batch", "trials", "averaged"),
    [
        # Sec. 6.3 of the paper
        ([], ["resnet50", "swin"], [100, 1000, 5000, 10000], 16, 300, 200),
        (["--light"], ["none"], [100, 1000, 5000, 10000], 8, 60, 40),
        # what is said counts, also with --light
        (["--light", "--batch-size", "4", "--trials", "50"], ["none"], None, 4, 50, 40),
        (["--light", "--backbones", "swin", "--averaged", "7"], ["swin"], None, 8, 60, 7),
        (["--backbones", "none", "--classes", "50"], ["none"], [50], 16, 300, 200),
    ],
)
def test_script_asks_for_what_the_paper_does(
    tmp_path, monkeypatch, words, backbones, classes, batch, trials, averaged
):
    asked = {}

    def measured(_, **options):
        asked.update(options)
        return paper_efficiency().assign(peak_memory_mb=1.0)

    monkeypatch.setattr(efficiency, "measure", measured)
    monkeypatch.setattr(sys, "argv", ["efficiency.py", *words, "--output", str(tmp_path)])
    runpy.run_path(str(ROOT / "scripts" / "efficiency.py"), run_name="__main__")
    assert asked["backbones"] == backbones
    assert asked["classes"] == (classes or [100, 1000, 5000, 10000])
    got = asked["setting"]
    assert (got.batch_size, got.trials, got.averaged, got.k) == (batch, trials, averaged, 15)
    assert (
        tmp_path / ("efficiency-light.csv" if "--light" in words else "efficiency.csv")
    ).exists()


def test_inputs_are_as_large_as_in_the_paper():
    sizes = {name: side for name, (_, side) in efficiency.BACKBONES.items()}
    assert (sizes["resnet50"], sizes["swin"]) == (448, 384)
    assert Setting() == Setting(batch_size=16, k=15, trials=300, averaged=200)


@pytest.mark.parametrize(
    ("device", "waited"),
    [("cuda", ["cuda"]), ("cuda:1", ["cuda:1"]), ("mps", ["mps"]), ("cpu", [])],
)
def test_the_clock_waits_for_the_device(monkeypatch, device, waited):
    """It reads the time only after the device has finished."""
    events = []
    monkeypatch.setattr(torch.cuda, "synchronize", events.append)
    monkeypatch.setattr(torch.mps, "synchronize", lambda: events.append("mps"))
    monkeypatch.setattr(benchmark.time, "perf_counter", lambda: events.append("time") or 5.0)
    assert benchmark.clock(device) == 5.0
    assert events == [*waited, "time"]


def test_script(tmp_path, monkeypatch, capsys):
    words = ["--backbones", "none", "--classes", "50", "--trials", "2", "--averaged", "1"]
    monkeypatch.setattr(
        sys, "argv", ["efficiency.py", *words, "--device", "cpu", "--output", str(tmp_path)]
    )
    runpy.run_path(str(ROOT / "scripts" / "efficiency.py"), run_name="__main__")
    assert len(pd.read_csv(tmp_path / "efficiency.csv")) == 7
    assert capsys.readouterr().out.startswith((tmp_path / "efficiency.md").read_text())
