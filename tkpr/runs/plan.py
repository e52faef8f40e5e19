"""What a table takes: its runs, their epochs and images, their search; from the configuration.

The node ``plan`` of a budget, recipe or method is read here and is no setting of a run:
``plan.search`` holds the values to try, by setting; a budget also says what it is (``plan.about``),
how many combinations each row tries (``plan.tries``; without it all of them) and which rows it
cannot have (``plan.unsupported_rows``).
"""

import shlex
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
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
from tkpr.runs.compose import own_hydra

# with several values of these the runs of a row would differ in cost
COSTS = {
    *("trainer.epochs", "trainer.stop_after", "split.limit", "split.holdout"),
    *("budget", "dataset", "recipe", "trainer"),
}


@dataclass(frozen=True)
class Budget:
    """A scale at which tables are computed: a file of configs/budget.

    Attributes:
        name: of the file.
        about: one line for the notes below a table.
        unsupported_rows: rows that it cannot have, and why.
    """

    name: str
    about: str = ""
    unsupported_rows: dict[str, str] = field(default_factory=dict)


def load_budgets(configs: Path) -> dict[str, Budget]:
    """Read the budgets, by name.

    Args:
        configs: the folder of the configuration.
    """
    found = {}
    for file in sorted((configs / "budget").glob("*.yaml")):
        plan = OmegaConf.select(OmegaConf.load(file), "plan") or {}
        rows = dict(plan.get("unsupported_rows", {}))
        found[file.stem] = Budget(file.stem, plan.get("about", ""), rows)
    return found


def find_budget(configs: Path, name: str) -> Budget:
    """Read one budget.

    Args:
        configs: the folder of the configuration.
        name: of the budget.
    """
    budgets = load_budgets(configs)
    if name not in budgets:
        raise ValueError(f"no budget {name!r}: choose one of {', '.join(budgets)}")
    return budgets[name]


def tables(configs: Path) -> list[str]:
    """The experiments that are tables: those of the paper and others, but no sweeps or searches.

    Args:
        configs: the folder of the configuration.
    """
    files = sorted((configs / "experiment").glob("*.yaml"))
    found = {file.stem: OmegaConf.load(file) for file in files}
    return [
        name
        for name, experiment in found.items()
        if OmegaConf.select(experiment, "table") == name
        and not OmegaConf.select(experiment, "hydra.sweeper.params")
    ]


@dataclass(frozen=True)
class PlannedRun:
    """A row that a table asks for.

    Attributes:
        method: what to choose with ``method=``.
        row: the row it fills.
        runs: number of runs, by seeds and other settings that are swept.
        epochs: of each run.
        images: training images of an epoch; None if unknown before reading them.
        search: the values to try for each setting of the row.
        settings: identify the experiment, to be compared with those of a finished run.
        why_not: why it cannot be run at this budget; empty where it can.
        tries: how many combinations of the search to try; None: all.
    """

    method: str
    row: str
    runs: int
    epochs: int
    images: int | None
    search: dict[str, list[str]]
    settings: dict[str, Any]
    why_not: str = ""
    tries: int | None = None


def plan(
    configs: Path,
    experiment: str,
    overrides: Sequence[str] = (),
    *,
    search: Mapping[str, Sequence[str]] | None = None,
) -> list[PlannedRun]:
    """List the rows that ``python train.py -m experiment=...`` would run, and those it cannot.

    Args:
        configs: the folder of the configuration.
        experiment: a table or a sensitivity experiment.
        overrides: further words of the command, such as ``budget=smoke`` or ``seed=0,1,2``.
            Settings named here are not searched.
        search: values to search instead of those in the files, by setting; rows that lack a
            setting ignore it.
    """
    names = sorted(file.stem for file in (configs / "experiment").glob("*.yaml"))
    if experiment not in names:
        raise ValueError(f"no experiment {experiment!r}: choose one of {', '.join(names)}")
    try:
        with own_hydra(configs):
            words, swept = split_sweep(overrides)
            if costs := [key for key in swept if key in COSTS or key.startswith("dataset.")]:
                raise ValueError(f"runs with several {costs[0]} differ in cost: name one")
            named = [f"experiment={experiment}", *words]
            cfg = hydra.compose("train", named, return_hydra_config=True)
            if "methods" not in cfg:
                raise ValueError(f"{experiment} has no rows: it is a search, not a table")
            named_keys = {word.partition("=")[0] for word in words}
            params = [
                f"{k}={v}" for k, v in cfg.hydra.sweeper.params.items() if k not in named_keys
            ]
            swept = split_sweep(params)[1] | swept
            methods = swept.pop("method", None) or [cfg.hydra.runtime.choices.method or cfg.methods]
            runs = prod(len(values) for values in swept.values())
            planned = [_row(named, method, runs, search) for method in methods]
            whole = hydra.compose("train", [f"experiment={experiment}"]).methods.split(",")
            if "method" not in named_keys:
                planned += [_row(named, one, runs, search) for one in whole if one not in methods]
    except HydraException as error:
        raise ValueError(" ".join(str(error).split())) from error
    return planned


def split_sweep(words: Sequence[str]) -> tuple[list[str], dict[str, list[str]]]:
    """Split the words of a sweep into those of its first run and the values that are swept.

    >>> split_sweep(["budget=smoke", "seed=0,1,2"])
    (['budget=smoke', 'seed=0'], {'seed': ['0', '1', '2']})
    """
    first, swept = [], {}
    try:
        overrides = OverridesParser.create().parse_overrides(list(words))
    except HydraException as error:  # the grammar, with a link
        raise ValueError(f"{error} (of {shlex.join(words)})") from error
    for word, override in zip(words, overrides, strict=True):
        if not override.is_sweep_override():
            first.append(word)
            continue
        key, values = override.get_key_element(), [*map(str, override.sweep_string_iterator())]
        first.append(f"{key}={values[0]}")
        swept[key] = values
    return first, swept


def _row(
    words: Sequence[str], method: str, runs: int, search: Mapping[str, Sequence[str]] | None
) -> PlannedRun:
    """Compose the configuration of a row and read off what it takes."""
    from tkpr.runs.settle import settle  # loads timm, which listing budgets does not need

    words = [word for word in words if not word.startswith("method=")]
    cfg = hydra.compose("train", [*words, f"method={method}"], return_hydra_config=True)
    trainer = cfg.trainer
    aside = ("hydra", "run_dir", "plan")
    plain = OmegaConf.masked_copy(cfg, [str(key) for key in cfg if key not in aside])
    settle(plain)  # as a run does before it stores its settings
    return PlannedRun(
        method,
        cfg.row,
        runs,
        epochs_to_train(trainer),
        count_images(cfg),
        search=search_space(cfg, search or {}, fixed={word.partition("=")[0] for word in words}),
        settings=experiment_settings(
            cast(dict[str, Any], OmegaConf.to_container(plain, resolve=True))
        ),
        why_not=OmegaConf.select(cfg, "plan.unsupported_rows", default={}).get(cfg.row, ""),
        tries=OmegaConf.select(cfg, "plan.tries"),
    )


def search_space(
    cfg: DictConfig, named: Mapping[str, Sequence[str]], fixed: Container[str]
) -> dict[str, list[str]]:
    """The values to search, for the settings that this configuration has.

    A loss without K has no ``loss.k``; E_w is a setting only where another loss warms up.

    Args:
        cfg: of one row; ``plan.search`` names its values.
        named: values that replace those.
        fixed: settings that are not searched.
    """
    own = OmegaConf.select(cfg, "plan.search", default={}).items()
    values = {str(key): str(text).split(",") for key, text in own if text is not None}
    warms_up = cfg.trainer.warmup_epochs != 0 and cfg.warmup != cfg.loss
    space = {}
    for key, one in (values | {key: list(one) for key, one in named.items()}).items():
        node, _, name = key.rpartition(".")
        known = name in (OmegaConf.select(cfg, node) or ()) and key not in fixed
        if known and (key != "trainer.warmup_epochs" or warms_up):
            space[key] = one
    return space


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
