"""Finished runs: their settings, predictions and models, read without running foreign code."""

import json
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

TRUSTED = ("tkpr.", "torch.", "torchvision.", "timm.")


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
    """Refuse settings that would build anything but our own, torch's or timm's objects."""
    if OmegaConf.is_dict(cfg):
        target = cfg.get("_target_")
        if target is not None and not str(target).startswith(TRUSTED):
            raise ValueError(f"{source} is refused: its settings name the foreign object {target}")
        for key in cfg:
            check_targets(cfg._get_node(key), source)
    elif OmegaConf.is_list(cfg):
        for item in cfg:
            check_targets(item, source)


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
