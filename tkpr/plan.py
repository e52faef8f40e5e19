"""What a table would take: its runs, their epochs and images, from the configuration alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import hydra
import numpy as np
from omegaconf import DictConfig

from tkpr.data.files import absolute
from tkpr.data.known import known_counts


@dataclass(frozen=True)
class PlannedRun:
    """A run that a table asks for.

    Attributes:
        method: what to choose with ``method=``.
        row: the row it fills.
        epochs: how many.
        images: training images of an epoch; None where nobody knows before reading them.
        warms_up: whether another loss is used for the first epochs.
        has_k: whether the loss has a K.
    """

    method: str
    row: str
    epochs: int
    images: int | None
    warms_up: bool
    has_k: bool


def plan(configs: Path, experiment: str, overrides: Sequence[str] = ()) -> list[PlannedRun]:
    """List the rows that ``python train.py -m experiment=...`` would run.

    Args:
        configs: the folder of the configuration.
        experiment: a table.
        overrides: further words of the command, such as ``budget=smoke``.
    """
    with hydra.initialize_config_dir(str(configs), version_base="1.3"):
        words = [f"experiment={experiment}", *overrides]
        methods = hydra.compose("train", words).methods.split(",")
        planned = []
        for method in methods:
            cfg = hydra.compose("train", [*words, f"method={method}"])
            trainer = cfg.trainer
            planned.append(
                PlannedRun(
                    method,
                    cfg.row,
                    trainer.epochs,
                    count_images(cfg),
                    warms_up=trainer.warmup_epochs > 0 and cfg.warmup != cfg.loss,
                    has_k="k" in cfg.loss,
                )
            )
    return planned


def count_images(cfg: DictConfig) -> int | None:
    """How many training images a configuration has in an epoch, as far as is known beforehand."""
    dataset = cfg.dataset
    known = known_counts(dataset._target_, {str(key): value for key, value in dataset.items()})
    if known is not None:
        images = known.train.images
    elif "train_size" in dataset:
        images = dataset.train_size
    elif "train_split" in dataset and absolute(dataset.file).is_file():
        with np.load(absolute(dataset.file), allow_pickle=False) as stored:
            images = int((stored["split"] == dataset.train_split).sum())
    else:
        return None
    if cfg.split.limit:
        images = min(images, cfg.split.limit)
    return images - round(cfg.split.holdout * images)
