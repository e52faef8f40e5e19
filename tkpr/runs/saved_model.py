"""Finished runs: their settings, predictions and models, read without running foreign code."""

import hashlib
import inspect
import json
import math
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hydra.utils
import numpy as np
import torch
from omegaconf import DictConfig, OmegaConf
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from torch import Tensor, nn

from tkpr import records
from tkpr.config import build, model_facts
from tkpr.data.files import read_arrays
from tkpr.runs.untrusted import check_targets, first_line, read_settings

# every weight comes from the file, whatever its settings say of other files and of the internet
NO_OTHER_WEIGHTS: dict[str, Any] = {
    "pretrained": False,
    "pretrained_cfg": None,
    "pretrained_cfg_overlay": None,
    "checkpoint_path": None,
    "cache_dir": None,
}
# where the machine that trained the model kept files; no stored file chooses where others write
FOLDERS_TO_WRITE = ("cache_dir", "dataset.cache_dir", "map_dir", "run_dir")


@dataclass(frozen=True)
class TrainedModel:
    """A model with its weights, in evaluation mode, and what it was trained for.

    Of the settings, the model, the data set, the labels and the transform may be built; the others
    (loss, optimizer, ...) were not checked.

    Attributes:
        cfg: the settings of the run.
        class_names: the names of the classes.
        model: from inputs to logits.
        input_shape: of one input, ``(3, H, W)`` or ``(D,)``.
        run: the id of the run.
        data: the fingerprint of its data (:mod:`tkpr.data.fingerprint`).
        temperature: by which logits are divided before the sigmoid.
        thresholds: the probability from which on each label is given; None: not chosen yet.
    """

    cfg: DictConfig
    class_names: list[str]
    model: nn.Module
    input_shape: tuple[int, ...]
    run: str
    data: dict[str, str]
    temperature: float = 1.0
    thresholds: list[float] | None = None


def save_model(file: Path, trained: TrainedModel) -> None:
    """Write a model.safetensors: weights and, as metadata, what :func:`load_model` needs."""
    if file.name == "model.safetensors" and records.run_id(file.parent) not in (None, trained.run):
        raise ValueError(f"{file} is the model of another run: name another file to write to")
    weights = {key: value.contiguous().cpu() for key, value in trained.model.state_dict().items()}
    about = {
        "class_names": json.dumps(trained.class_names),
        "input_shape": json.dumps(trained.input_shape),
        "config": OmegaConf.to_yaml(trained.cfg, resolve=True),
        "run": trained.run,
        "data": json.dumps(trained.data),
        "temperature": json.dumps(trained.temperature),
        "thresholds": json.dumps(trained.thresholds),
    }
    content = save(weights, about | {"checksum": content_checksum(weights, about)})
    records.replace_file(file, content, trained.run)


def load_model(path: Path) -> TrainedModel:
    """Rebuild the model of a run from its folder or from its model.safetensors alone."""
    file = path / "model.safetensors" if path.is_dir() else path
    if not file.is_file():
        raise FileNotFoundError(f"no weights at {file}: name a finished run's folder or its file")
    try:
        with safe_open(file, framework="pt") as opened:
            about = opened.metadata() or {}
        weights = load_file(file)
    except (SafetensorError, OSError) as error:  # of an empty file, for instance
        raise ValueError(f"{file} is not a whole safetensors file: {error}") from error
    if "config" not in about:
        raise ValueError(f"{file} was not written by train.py: it does not hold its settings")
    if about.pop("checksum", "") != content_checksum(weights, about):
        raise ValueError(f"{file} is damaged: its checksum does not match its content; restore it")
    if file.name == "model.safetensors":  # under this name, the model of the run in its folder
        records.check_file(file)
        records.check_run(file, about.get("run"))
    cfg = read_settings(about["config"], file)
    check_targets(cfg.get("model"), file, package="tkpr.models")
    for group in ("dataset", "labels", "transform"):
        if group in cfg:
            check_targets(cfg[group], file, package="tkpr.data")
    for key in FOLDERS_TO_WRITE:
        if OmegaConf.select(cfg, key) is not None:
            OmegaConf.update(cfg, key, None)
    known = read_about(about, file)
    class_names, shape = known["class_names"], known["input_shape"]
    wanted = inspect.signature(hydra.utils.get_object(cfg.model._target_)).parameters
    others = NO_OTHER_WEIGHTS if "pretrained" in wanted or "options" in wanted else {}
    try:
        model = build(cfg.model, facts=model_facts(shape, len(class_names)), **others)
        model.load_state_dict(weights)
    except Exception as error:  # untrusted input can raise almost anything
        raise ValueError(f"{file}: its model cannot be rebuilt: {first_line(error)}") from error
    return TrainedModel(cfg=cfg, model=model.eval(), **known)


def content_checksum(weights: dict[str, Tensor], about: dict[str, str]) -> str:
    """Return the SHA-256 of weights and metadata."""
    digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
    for name, tensor in sorted(weights.items()):
        digest.update(f"{name}{tensor.dtype}{tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def read_about(about: dict[str, str], source: Path) -> dict[str, Any]:
    """Return what is stored beside weights and settings, each value as it must be."""
    try:
        found = {
            key: json.loads(about[key])
            for key in ("class_names", "input_shape", "data", "temperature", "thresholds")
        }
        names, shape, thresholds = found["class_names"], found["input_shape"], found["thresholds"]
        if not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
            raise ValueError("class_names are not a list of names")
        if not (isinstance(shape, list) and len(shape) in (1, 3) and all(map(is_count, shape))):
            raise ValueError(f"input_shape is {shape}, not one or three positive numbers")
        if not isinstance(found["data"], dict):
            raise ValueError("it does not say what data it was trained on")
        if not (isinstance(found["temperature"], float) and 0 < found["temperature"] < math.inf):
            raise ValueError(f"temperature is {found['temperature']}, not a positive number")
        if thresholds is not None and not (
            isinstance(thresholds, list)
            and len(thresholds) == len(names)
            and all(isinstance(value, float) and 0 <= value <= 1 for value in thresholds)
        ):
            raise ValueError("thresholds are not one probability per class")
        return found | {"input_shape": tuple(shape), "run": about["run"]}
    except (KeyError, ValueError, RecursionError) as error:
        raise ValueError(f"{source} was not written by train.py: {error}") from error


def is_count(value: Any) -> bool:
    """Whether a value from a file is a whole number above 0.

    >>> is_count(3), is_count(0), is_count(True), is_count("3")
    (True, False, False, False)
    """
    return type(value) is int and value > 0


def load_decisions(folder: Path) -> tuple[float, list[float] | None]:
    """Return temperature and thresholds of a finished run's model without building it."""
    file = folder / "model.safetensors"
    if not file.is_file():
        raise FileNotFoundError(f"no {file}: {folder} is not the folder of a finished run")
    records.check_file(file)
    try:
        with safe_open(file, framework="pt") as opened:
            about = opened.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{file} is not a whole safetensors file: {error}") from error
    known = read_about(about, file)
    return known["temperature"], known["thresholds"]


def has_all_scores(folder: Path) -> bool:
    """Whether a run has stored the scores of all classes, not only the best as for sparse sets."""
    file = folder / "predictions.npz"
    return (
        file.is_file()
        and zipfile.is_zipfile(file)
        and "logits" in np.load(file, allow_pickle=False).files
    )


def load_predictions(folder: Path) -> dict[str, np.ndarray]:
    """Return logits, targets, ids and class_names of a finished run's test set.

    ``unknown`` marks the labels to leave out of the ranking; without any there is no such array.
    """
    file = folder / "predictions.npz"
    if not file.is_file():
        raise FileNotFoundError(f"no {file}: {folder} is not the folder of a finished run")
    records.check_file(file)
    try:
        names = ["logits", "targets", "ids", "class_names"]
        stored = read_arrays(file, [*names, "labels", "run", "unknown"])
        if "labels" in stored:
            raise ValueError("it holds the best labels of a sparse data set, not all scores")
        found = {name: stored[name] for name in [*names, *({"unknown"} & stored.keys())]}
    except Exception as error:  # truncated archives, foreign ones, pickles
        raise ValueError(f"{file} cannot be read as predictions: {error}") from error
    records.check_run(file, str(stored.get("run")))
    return found
