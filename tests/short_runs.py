"""Run train.py's configuration inside a test."""

from pathlib import Path

from tkpr.runs.compose import compose as compose_words
from tkpr.runs.run import run

CONFIGS = Path(__file__).parents[1] / "configs"
# a mosaic of 40 + 23 images and a narrow network: an epoch takes a fraction of a second
SMALL = [
    "dataset.train_size=40",
    "dataset.test_size=23",
    "dataset.image_size=32",
    "transform.size=32",
    "model.width=8",
    "trainer.batch_size=8",
    "trainer.accelerator=cpu",
    "trainer.num_workers=0",
]


def compose(*overrides, folder):
    """Compose the configuration of ``python train.py run_dir=folder ...``."""
    return compose_words(CONFIGS, [f"run_dir={folder}", *overrides])


def train(*overrides, folder):
    """Train and return what metrics.json holds."""
    return run(compose(*overrides, folder=folder))
