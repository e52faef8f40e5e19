"""What a table would take: its runs, their epochs and images, from the configuration alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, cast

import hydra
import numpy as np
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from tkpr.config import epochs_to_train, experiment_settings
from tkpr.data.files import absolute
from tkpr.data.reference_counts import reference_counts

# rows that a budget cannot have, and why
UNSUPPORTED_ROWS = {"features": {"CCD": "needs feature maps"}}
# with several values of these the runs of a row would differ in what they take
COSTS = {
    *("trainer.epochs", "trainer.stop_after", "split.limit", "split.holdout"),
    *("budget", "dataset", "recipe", "trainer"),
}


@dataclass(frozen=True)
class PlannedRun:
    """A row that a table asks for.

    Attributes:
        method: what to choose with ``method=``.
        row: the row it fills.
        runs: how many runs, by seeds and other settings that are swept.
        epochs: of each run.
        images: training images of an epoch; None where nobody knows before reading them.
        warms_up: whether another loss is used for the first epochs.
        has_k: whether the loss has a K.
        recipe: what was chosen with ``recipe=``, by the table or by the method itself.
        settings: what makes it another experiment, to be compared with those of a finished run.
        why_not: why it cannot be run at this budget; empty where it can.
    """

    method: str
    row: str
    runs: int
    epochs: int
    images: int | None
    warms_up: bool
    has_k: bool
    recipe: str | None
    settings: dict[str, Any]
    why_not: str = ""


def plan(configs: Path, experiment: str, overrides: Sequence[str] = ()) -> list[PlannedRun]:
    """List the rows that ``python train.py -m experiment=...`` would run, and those it cannot.

    Args:
        configs: the folder of the configuration.
        experiment: a table or a sensitivity experiment.
        overrides: further words of the command, such as ``budget=smoke`` or ``seed=0,1,2``.
    """
    names = sorted(file.stem for file in (configs / "experiment").glob("*.yaml"))
    if experiment not in names:
        raise ValueError(f"no experiment {experiment!r}: choose one of {', '.join(names)}")
    try:
        with hydra.initialize_config_dir(str(configs), version_base="1.3"):
            words, swept = cut(overrides)
            if costs := [key for key in swept if key in COSTS or key.startswith("dataset.")]:
                raise ValueError(f"runs with several {costs[0]} take differently long: name one")
            named = [f"experiment={experiment}", *words]
            cfg = hydra.compose("train", named, return_hydra_config=True)
            if "methods" not in cfg:
                raise ValueError(f"{experiment} has no rows: it is a search, not a table")
            named_keys = {word.partition("=")[0] for word in words}
            params = [
                f"{k}={v}" for k, v in cfg.hydra.sweeper.params.items() if k not in named_keys
            ]
            swept = cut(params)[1] | swept
            methods = swept.pop("method", None) or [cfg.hydra.runtime.choices.method or cfg.methods]
            runs = prod(len(values) for values in swept.values())
            planned = [_row(named, method, runs) for method in methods]
            whole = hydra.compose("train", [f"experiment={experiment}"]).methods.split(",")
            if "method" not in named_keys:
                planned += [_row(named, one, runs) for one in whole if one not in methods]
    except HydraException as error:
        raise ValueError(" ".join(str(error).split())) from error
    return planned


def cut(words: Sequence[str]) -> tuple[list[str], dict[str, list[str]]]:
    """Cut the words of a sweep into those of its first run and the values that are swept.

    >>> cut(["budget=smoke", "seed=0,1,2"])
    (['budget=smoke', 'seed=0'], {'seed': ['0', '1', '2']})
    """
    first, swept = [], {}
    for word, told in zip(
        words, OverridesParser.create().parse_overrides(list(words)), strict=True
    ):
        if not told.is_sweep_override():
            first.append(word)
            continue
        key, values = told.get_key_element(), [*map(str, told.sweep_string_iterator())]
        first.append(f"{key}={values[0]}")
        swept[key] = values
    return first, swept


def _row(words: Sequence[str], method: str, runs: int) -> PlannedRun:
    """Compose the configuration of a row and read off what it takes."""
    words = [word for word in words if not word.startswith("method=")]
    cfg = hydra.compose("train", [*words, f"method={method}"], return_hydra_config=True)
    trainer, choices = cfg.trainer, cfg.hydra.runtime.choices
    plain = OmegaConf.masked_copy(cfg, [str(key) for key in cfg if key not in ("hydra", "run_dir")])
    return PlannedRun(
        method,
        cfg.row,
        runs,
        epochs_to_train(trainer),
        count_images(cfg),
        warms_up=trainer.warmup_epochs > 0 and cfg.warmup != cfg.loss,
        has_k="k" in cfg.loss,
        recipe=choices.recipe,
        settings=experiment_settings(cast(dict, OmegaConf.to_container(plain, resolve=True))),
        why_not=UNSUPPORTED_ROWS.get(cfg.budget, {}).get(cfg.row, ""),
    )


def count_images(cfg: DictConfig) -> int | None:
    """How many training images a configuration has in an epoch, as far as is known beforehand."""
    dataset = cfg.dataset
    known = reference_counts(dataset._target_, {str(key): value for key, value in dataset.items()})
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
