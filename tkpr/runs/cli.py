"""The command line: run names, and errors as one line that says what to do."""

import difflib
import hashlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from tkpr.config import MACHINE_SETTINGS
from tkpr.runs.script import one_line_errors, set_up


def run_name(dataset: str, loss: str, overrides: Sequence[str]) -> str:
    """Name a run by its settings, so that the same command finds the same folder.

    >>> run_name("coco", "tkpr_a2", ["dataset=coco", "loss=tkpr_a2", "loss.k=3", "seed=1"])
    'coco/tkpr_a2/loss.k=3,seed=1'
    >>> run_name("mosaic", "bce", ["loss=bce"])
    'mosaic/bce/default'
    """
    told = sorted(text for text in overrides if named_by(text.lstrip("+~").split("=")[0]))
    name = re.sub(r"[^\w.,=@+-]+", "_", ",".join(told))
    if len(name) > 120:
        name = f"{name[:100]}-{hashlib.sha256(name.encode()).hexdigest()[:12]}"
    return f"{dataset}/{loss}/{name or 'default'}"


def named_by(key: str) -> bool:
    """Whether a setting is part of the name of a run, besides data set and loss."""
    return key not in MACHINE_SETTINGS | {"dataset", "loss"} and not key.startswith("hydra")


def run_main(configs: Path, name: str, task: Callable[[DictConfig], Any]) -> None:
    """Compose a configuration from the command line and hand it to ``task``.

    Args:
        configs: the folder of the configuration.
        name: the primary configuration.
        task: what to do with it; under -m it is called once per combination.
    """
    OmegaConf.register_new_resolver("run_name", run_name, replace=True)
    set_up(log_to=sys.stdout)
    os.environ["HYDRA_FULL_ERROR"] = "1"  # let errors reach the lines below
    with one_line_errors():
        try:
            hydra.main(version_base="1.3", config_path=str(configs), config_name=name)(task)()
        except (HydraException, OmegaConfBaseException) as error:
            raise ValueError(explain(error, configs, name)) from error


def explain(error: Exception, configs: Path, name: str) -> str:
    """Say what is wrong with the command line, with the nearest valid names."""
    text = str(error)
    if isinstance(error, MissingConfigException) and error.options:
        group, _, option = str(error.missing_cfg_file).rpartition("/")
        return f"no option {option!r} in {group}=: {nearest(option, error.options)}"
    unknown = re.search(r"Could not override '([^']+)'", text)
    if unknown:
        key = unknown.group(1)
        cfg = compose_without(key, configs, name)
        if accepts(cfg, key):
            return f"{key} is not set in the configuration, but it can be: write +{key}=..."
        return f"no setting {key!r}: {nearest(key, keys(OmegaConf.to_container(cfg)))}"
    if isinstance(error, ConfigCompositionException) and error.__cause__:
        text = f"{text}: {error.__cause__}"
    return " ".join(text.split())


def nearest(name: str, options: Sequence[str]) -> str:
    """Name the options most like ``name``.

    >>> nearest("trainer.epoch", ["trainer.epochs", "seed"])
    'did you mean trainer.epochs?'
    """
    near = difflib.get_close_matches(name, options, n=3, cutoff=0.5)
    if near:
        return f"did you mean {' or '.join(near)}?"
    return f"choose one of {', '.join(sorted(options))}"


def compose_without(key: str, configs: Path, name: str) -> DictConfig:
    """Compose the configuration of this command line without the setting that failed."""
    kept = [
        word
        for word in sys.argv[1:]
        if re.match(r"[\w@/.+~]+=", word) and not word.lstrip("+~").startswith((f"{key}=", "hydra"))
    ]
    GlobalHydra.instance().clear()
    with hydra.initialize_config_dir(str(configs), version_base="1.3"):
        first = [re.sub(r"=([^,\[\]'\"]*),.*", r"=\1", word) for word in kept]
        return hydra.compose(name, first)


def keys(tree: Any, prefix: str = "") -> list[str]:
    """List the dotted keys of nested settings.

    >>> keys({"loss": {"k": 5}, "seed": 0})
    ['loss', 'loss.k', 'seed']
    """
    found = []
    for key, value in tree.items():
        found.append(f"{prefix}{key}")
        if isinstance(value, dict):
            found += keys(value, f"{prefix}{key}.")
    return found


def accepts(cfg: DictConfig, key: str) -> bool:
    """Whether the object that a node builds takes an argument of that name."""
    parent, _, argument = key.rpartition(".")
    node = OmegaConf.select(cfg, parent) if parent else None
    if not isinstance(node, DictConfig) or "_target_" not in node:
        return False
    return argument in inspect.signature(hydra.utils.get_object(node._target_)).parameters
