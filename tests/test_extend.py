"""A loss, a measure, a data set and a budget of one's own, added as CONTRIBUTING.md says."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

FILES = {
    "tkpr/losses/toy.py": '''
"""The mean square distance of probabilities and labels."""

from torch import Tensor, nn


class Toy(nn.Module):
    def __init__(self, *, num_classes: int) -> None:
        super().__init__()
        self.num_classes = num_classes  # a fact of the training set, asked for by its name

    def forward(self, logits: Tensor, targets: Tensor, index: Tensor | None = None) -> Tensor:
        return (logits.sigmoid() - targets).square().sum() / (len(logits) * self.num_classes)
''',
    "configs/loss/toy.yaml": "# A loss of one's own\n_target_: tkpr.losses.toy.Toy\n",
    "tkpr/data/toy.py": '''
"""Numbers and their signs."""

import numpy as np

from tkpr.data.dataset import MultiLabelData, Split

STORED_MODELS_MAY_BUILD = ("load_toy",)


def load_toy(*, size: int) -> MultiLabelData:
    values = np.random.default_rng(0).normal(size=(2 * size, 6)).astype(np.float32)
    labels = (values > 0.5).astype(np.uint8)
    labels[:, 0] |= labels.sum(1) == 0
    ids = [str(number) for number in range(2 * size)]
    return MultiLabelData(
        class_names=list("abcdef"),
        train=Split(values[:size], labels[:size], ids[:size]),
        test=Split(values[size:], labels[size:], ids[size:]),
    )
''',
    "configs/dataset/toy.yaml": """
# @package _global_
# Numbers and their signs
defaults:
  - override /transform: none
  - override /model: linear
  - _self_

recipes:
  full: tabular

dataset:
  _target_: tkpr.data.toy.load_toy
  size: 60
""",
    "configs/budget/toy.yaml": """
# @package _global_
# numbers and their signs: seconds
defaults:
  - override /dataset: toy
  - override /model: linear
  - override /transform: none
  - override /optimizer: adam
  - override /scheduler: onecycle

budget: toy
tkpr_k: 3
trainer:
  epochs: 2
  stop_after: null
  warmup_epochs: 1
  batch_size: 20
  head_lr_multiplier: 1
  ema_decay: null
  eval_weights: raw
  precision: 32-true
plan:
  about: "numbers and their signs"
""",
}
# after an entry of the table of measures, the entry of another one
ENTRY = '        Measure("R@K", "image", recall_rows, "R@K"),\n'
HIT = '        Measure("hit@K", "image", lambda top, k: top.hits.amax(1).clamp(max=1), "hit@K"),\n'


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A copy of the project with the files above."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in ("tkpr", "configs", "scripts"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "train.py", folder)
    for name, text in FILES.items():
        (folder / name).write_text(text.lstrip())
    table = folder / "tkpr" / "metrics" / "table.py"
    assert ENTRY in table.read_text()
    table.write_text(table.read_text().replace(ENTRY, ENTRY + HIT))
    return folder


def call(checkout, *words):
    """Run a script of the copy with the package of the copy."""
    done = subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=checkout,
        env=os.environ | {"PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_loss_data_set_and_measure_of_a_run(checkout):
    words = ["loss=toy", "dataset=toy", "trainer.epochs=2", "run_dir=runs/toy"]
    call(checkout, "train.py", *words, "trainer.monitor=hit@3")
    found = json.loads((checkout / "runs/toy/metrics.json").read_text())["metrics"]
    assert 0.5 < found["hit@3"] <= found["hit@5"] <= 1
    assert found["hit@5"] >= found["R@5"]
    assert "hit" in call(checkout, "scripts/evaluate.py", "runs/toy")
    assert "loss of one's own" in call(checkout, "train.py", "--help")


@pytest.mark.slow
def test_the_search_ranks_by_the_measure(checkout):
    words = ["loss=toy", "dataset=toy", "split.holdout=0.5", "optimizer.lr=0.1,1e-9"]
    call(checkout, "train.py", "-m", *words, "trainer.epochs=3")
    printed = call(checkout, "scripts/best.py", "runs/toy/toy", "--monitor", "hit@3")
    assert "optimizer.lr=0.1" in printed.splitlines()[-1]


@pytest.mark.slow
def test_a_table_at_the_budget_with_the_measure(checkout):
    table = "voc2012_mlml_ranking_resnet50"
    call(checkout, "train.py", "-m", f"experiment={table}", "budget=toy", "method=rank,tkpr_a2")
    printed = call(checkout, "scripts/tables.py", table, "--budget", "toy", "--paper")
    assert "numbers and their signs" in printed
    assert "hit@3" in printed
