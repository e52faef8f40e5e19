"""Finished runs: their settings, predictions and models, read without running foreign code."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hydra
import numpy as np
import torch
from omegaconf import DictConfig, OmegaConf
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import nn

from tkpr.config import build
from tkpr.data.assemble import loader

PACKAGES = ("tkpr.", "torch.", "torchvision.", "timm.")
# what stored settings may build: our own parts, and networks of torch and its family. Not all that
# can be reached through them: torch.hub.load or tkpr.run.subprocess.run would run anything
TRUSTED = re.compile(
    r"tkpr\.(losses|models|schedules)(\.\w+)+"
    r"|tkpr\.data\.(\w+\.load_\w+|labels\.(full|partial|single_positive)|transforms\.\w+)"
    r"|torch\.(nn|optim)(\.\w+)+|torchvision\.(models|transforms)(\.\w+)+"
    r"|timm\.(models\._factory\.create_model|(layers|optim)(\.\w+)+)"
)


@dataclass(frozen=True)
class TrainedModel:
    """A model with its weights, in evaluation mode, and what it was trained for."""

    cfg: DictConfig
    class_names: list[str]
    model: nn.Module
    input_shape: tuple[int, ...]


def load_model(path: Path) -> TrainedModel:
    """Rebuild the model of a run from its folder or from its model.safetensors alone."""
    file = path / "model.safetensors" if path.is_dir() else path
    if not file.is_file():
        raise FileNotFoundError(f"no weights at {file}: name a finished run's folder or its file")
    try:
        with safe_open(file, framework="pt") as opened:
            about = opened.metadata() or {}
        weights = load_file(file)
    except SafetensorError as error:
        raise ValueError(f"{file} is not a whole safetensors file: {error}") from error
    if "config" not in about:
        raise ValueError(f"{file} was not written by train.py: it does not hold its settings")
    cfg = OmegaConf.create(about["config"])
    check_targets(cfg, file)
    class_names, shape = json.loads(about["class_names"]), json.loads(about["input_shape"])
    if "pretrained" in cfg.model:  # every weight comes from the file
        cfg.model.pretrained = False
    model = build(cfg.model, facts=model_facts(shape, len(class_names)))
    model.load_state_dict(weights)
    return TrainedModel(cfg, class_names, model.eval(), tuple(shape))


def model_facts(input_shape: tuple[int, ...], num_classes: int) -> dict[str, Any]:
    """What a model may ask to know: the number of classes and the size of its inputs."""
    size = (
        {"in_features": input_shape[0]}
        if len(input_shape) == 1
        else {"image_size": input_shape[-1]}
    )
    return {"num_classes": num_classes, **size}


def check_targets(cfg: Any, source: Path) -> None:
    """Refuse settings that would build anything but our own parts, torch's or timm's.

    Args:
        cfg: the settings as they were stored, or a part of them.
        source: where they come from.
    """
    tree = OmegaConf.to_container(cfg, resolve=False) if OmegaConf.is_config(cfg) else cfg
    if isinstance(tree, dict):
        if "_target_" in tree and not trusted(str(tree["_target_"])):
            raise ValueError(
                f"{source} is refused: its settings name the foreign object {tree['_target_']}"
            )
        tree = [*tree, *tree.values()]
    if isinstance(tree, list):
        for item in tree:
            check_targets(item, source)
    elif isinstance(tree, str) and "${" in tree:  # could be replaced by an object after this check
        raise ValueError(f"{source} is refused: its settings hold the formula {tree}")


def trusted(name: str) -> bool:
    """Whether an object may be built for a file from others: by where it is at home, not its alias.

    >>> trusted("torch.optim.Adam"), trusted("torch.hub.load"), trusted("tkpr.run.subprocess.run")
    (True, False, False)
    """
    if not name.startswith(PACKAGES):  # not even imported
        return False
    try:
        found = hydra.utils.get_object(name)
    except (ImportError, AttributeError, ValueError):
        return False
    home = getattr(found, "__module__", None), getattr(found, "__qualname__", None)
    return TRUSTED.fullmatch(".".join(map(str, home))) is not None


def load_predictions(folder: Path) -> dict[str, np.ndarray]:
    """Return logits, targets, ids and class_names of a finished run's test set."""
    file = folder / "predictions.npz"
    if not file.is_file():
        raise FileNotFoundError(f"no {file}: {folder} is not the folder of a finished run")
    try:
        with np.load(file, allow_pickle=False) as stored:
            return {name: stored[name] for name in ("logits", "targets", "ids", "class_names")}
    except Exception as error:  # truncated archives, foreign ones, pickles
        raise ValueError(f"{file} cannot be read as predictions: {error}") from error


def reconfigure(cfg: DictConfig, configs: Path, overrides: list[str]) -> DictConfig:
    """Return the settings of a run with another data set, transform or split.

    Args:
        cfg: the stored settings.
        configs: the folder of the configuration.
        overrides: words as for train.py, such as ``dataset=voc2012 dataset.root=/data``.
    """
    with hydra.initialize_config_dir(str(configs), version_base="1.3"):
        composed = hydra.compose("train", overrides)
    for group in ("dataset", "labels", "transform", "split"):
        if any(word.lstrip("+").startswith((f"{group}=", f"{group}.")) for word in overrides):
            cfg[group] = composed[group]
    return cfg


@torch.inference_mode()
def predict(
    model: nn.Module, dataset: Any, finish: nn.Module, *, batch_size: int, device: str
) -> np.ndarray:
    """Return fp32 logits ``[N, C]`` of a data set's samples, in order, but for unreadable ones.

    Args:
        model: in evaluation mode.
        dataset: as :func:`tkpr.data.assemble.assemble` makes it.
        finish: from a batch of the data set to one that the model takes.
        batch_size: samples at a time.
        device: where to compute.
    """
    model.to(device)
    rows = [
        model(finish(inputs.to(device)).contiguous()).float().cpu()
        for inputs, _, _ in loader(dataset, batch_size=batch_size)
    ]
    return torch.cat(rows).numpy()
