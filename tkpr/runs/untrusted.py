"""Settings from a file of others: read as plain values; only what this package lists is built."""

import importlib
import importlib.util
import re
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf


def read_settings(text: str, source: Path) -> DictConfig:
    """Return settings as they were stored, plain values only.

    Args:
        text: YAML, as train.py stores it.
        source: where it comes from.
    """
    try:
        depth = 0
        for event in yaml.parse(text, yaml.SafeLoader):
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            # references to references ..., and lists in lists ..., would take memory or time
            if isinstance(event, yaml.AliasEvent) or depth > 20:
                raise ValueError("they hold a reference, or more than 20 levels")
        cfg = OmegaConf.create(text)
        if not isinstance(cfg, DictConfig):
            raise ValueError("they have no names")
        check_plain(OmegaConf.to_container(cfg, resolve=False))
    except Exception as error:  # broken and foreign text fails in many ways
        raise ValueError(
            f"{source} is refused: its settings cannot be used: {first_line(error)}"
        ) from error
    return cfg


def first_line(error: Exception) -> str:
    """Return what an error says first, or its name where it says nothing.

    >>> first_line(ValueError("no weights")), first_line(AssertionError())
    ('no weights', 'AssertionError()')
    """
    return (str(error).strip() or repr(error)).splitlines()[0]


def check_targets(cfg: Any, source: Path, *, package: str) -> None:
    """Refuse settings that would build anything but what a module allows, from plain values.

    A module of ``tkpr.models`` or ``tkpr.data`` names the functions that any file may ask for in
    ``STORED_MODELS_MAY_BUILD``. Whole packages would be too much: with all of torch or torchvision,
    settings alone can import any module and call anything in it.

    Args:
        cfg: the settings of one object as they were stored.
        source: where they come from.
        package: "tkpr.models" or "tkpr.data".

    >>> check_targets({"_target_": "torch.hub.load"}, Path("m.safetensors"), package="tkpr.models")
    Traceback (most recent call last):
    ValueError: m.safetensors is refused: its settings name the foreign object torch.hub.load, which
    no module of tkpr.models lists in STORED_MODELS_MAY_BUILD
    """
    tree: Any = OmegaConf.to_container(cfg, resolve=False) if OmegaConf.is_config(cfg) else cfg
    name = tree.get("_target_") if isinstance(tree, dict) else tree
    if not isinstance(name, str) or not may_build(name, package):
        raise ValueError(
            f"{source} is refused: its settings name the foreign object {name}, which no module of "
            f"{package} lists in STORED_MODELS_MAY_BUILD"
        )
    # all that Hydra understands begins with _; a function of labels waits for the labels
    own = ("_target_", "_partial_") if name.startswith("tkpr.data.labels.") else ("_target_",)
    try:
        check_plain({key: value for key, value in tree.items() if key not in own}, forbidden="_")
    except ValueError as error:
        raise ValueError(f"{source} is refused: its settings cannot be used: {error}") from error


def may_build(name: str, package: str) -> bool:
    """Whether a module of the package lists the object of that full name for stored models.

    >>> may_build("tkpr.models.tiny.tiny", "tkpr.models"), may_build("os.system", "tkpr.models")
    (True, False)
    """
    found = re.fullmatch(rf"({re.escape(package)}\.\w+)\.(\w+)", name, flags=re.ASCII)
    if found is None or importlib.util.find_spec(found[1]) is None:
        return False
    module = importlib.import_module(found[1])
    return found[2] in getattr(module, "STORED_MODELS_MAY_BUILD", ())


def check_plain(tree: Any, *, forbidden: str | None = None) -> None:
    """Refuse formulas, which OmegaConf would replace by what they stand for, at any depth.

    Args:
        tree: nested settings.
        forbidden: refuse keys that begin so as well.

    >>> check_plain({"sizes": [8, "${oc.env:HOME}"]})
    Traceback (most recent call last):
    ValueError: they hold the formula ${oc.env:HOME}
    """
    if isinstance(tree, dict):
        for key in tree:
            if forbidden and str(key).startswith(forbidden):
                raise ValueError(f"they hold the key {key}")
        tree = [*tree, *tree.values()]
    if isinstance(tree, list):
        for part in tree:
            check_plain(part, forbidden=forbidden)
    elif isinstance(tree, str) and ("${" in tree or tree == "???"):
        raise ValueError(f"they hold the formula {tree}")
