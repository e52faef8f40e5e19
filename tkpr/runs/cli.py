"""The command line: run names, and errors as one line that says what to do."""

import argparse
import contextlib
import difflib
import functools
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from tkpr.runs.compose import compose, in_job, resolve_words
from tkpr.runs.explain import explain as explain_settings
from tkpr.runs.script import one_line_errors, set_up

_OVERRIDE = re.compile(r"[\w@/.+~]+=")  # a word of the command line that is no option


def run_main(configs: Path, name: str, task: Callable[[DictConfig], Any]) -> None:
    """Compose a configuration from the command line and hand it to ``task``.

    Args:
        configs: the folder of the configuration.
        name: the primary configuration.
        task: what to do with it; under -m it is called once per combination.
    """
    set_up(log_to=sys.stdout)
    os.environ["HYDRA_FULL_ERROR"] = "1"  # let errors reach the lines below

    @functools.wraps(task)
    def job(_: DictConfig) -> Any:
        return task(in_job(configs))

    with one_line_errors():
        try:
            words = [word for word in sys.argv[1:] if _OVERRIDE.match(word)]
            if "--explain" in sys.argv:
                print(explain_settings(configs, words, name=name))
                return
            options = [word for word in sys.argv[1:] if not _OVERRIDE.match(word)]
            sys.argv[1:] = [*options, *resolve_words(configs, words, name=name)]
            with without_help_check():
                hydra.main(version_base="1.3", config_path=str(configs), config_name=name)(job)()
        except (HydraException, OmegaConfBaseException) as error:
            raise ValueError(explain(error, configs, name)) from error


@contextlib.contextmanager
def without_help_check() -> Iterator[None]:
    """Let Hydra 1.3 start on Python 3.14, whose argparse wants every help text to be a string.

    Hydra hands it an object that makes the text on demand (facebookresearch/hydra#3121).
    """
    check = getattr(argparse.ArgumentParser, "_check_help", None)
    if check is None:  # Python 3.13 and older
        yield
        return
    argparse.ArgumentParser._check_help = lambda *_: None  # type: ignore[attr-defined]
    try:
        yield
    finally:
        argparse.ArgumentParser._check_help = check  # type: ignore[attr-defined]


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
    return compose(configs, [re.sub(r"=([^,\[\]'\"]*),.*", r"=\1", w) for w in kept], name=name)


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
