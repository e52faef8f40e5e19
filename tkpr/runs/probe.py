"""Start a run's classifier from a linear probe, which runs that differ later only can share."""

import contextlib
import hashlib
import json
import logging
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from omegaconf import DictConfig, OmegaConf
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from torch import nn

from tkpr import atomic
from tkpr.config import build
from tkpr.data.assemble import TrainingData
from tkpr.data.fingerprint import digest
from tkpr.data.maps import MapDataset
from tkpr.data.targets import known_where
from tkpr.runs.maps import map_folder, only_one
from tkpr.runs.saved_model import content_checksum
from tkpr.training.probe import classifier_inputs, fit
from tkpr.training.trainer import train_stats

log = logging.getLogger(__name__)


def start_from_probe(model: Any, cfg: DictConfig, data: TrainingData, fabric: Fabric) -> None:
    """Set the weights of a model's linear classifier to those of a probe, on rank 0.

    The probe is trained by ``cfg.probe``, a loss, on the features that the model now gives. With
    stored maps it is kept beside them; another run with the same maps, labels and seed reads it.
    All ranks compute features; the others take over the weights of rank 0 with its model.

    Args:
        model: one without a linear classifier (CCD) is left as it is.
        cfg: the whole configuration.
        data: what the run learns from.
        fabric: launched.
    """
    classifier = model.get_classifier() if hasattr(model, "get_classifier") else None
    if not isinstance(classifier, nn.Linear):
        log.info("no linear classifier: the run starts without a probe")
        return
    file = probe_file(model, cfg, data)
    with contextlib.ExitStack() as stack:
        state, denied = None, None
        if file is not None and fabric.is_global_zero:
            denied = stack.enter_context(only_one(file))
            state = read_probe(file, classifier)
        if not fabric.broadcast(state is not None):
            state = train_probe(model, cfg, data, fabric)
            if file is not None and state is not None and not denied:
                atomic.write(file, save(state, {"checksum": content_checksum(state, {})}))
    if state is not None:
        classifier.load_state_dict(state)


def read_probe(file: Path, classifier: nn.Linear) -> dict[str, torch.Tensor] | None:
    """Return the weights of a stored probe; None if there is none, or only a damaged one.

    Args:
        file: of the probe.
        classifier: whose weights they are to become.
    """
    if not file.exists():
        return None
    try:
        with safe_open(file, framework="pt") as opened:
            about = opened.metadata() or {}
        state = load_file(file)
    except (SafetensorError, OSError):
        about, state = {}, {}
    shapes = {name: value.shape for name, value in classifier.state_dict().items()}
    if about.get("checksum") == content_checksum(state, {}) and shapes == {
        name: value.shape for name, value in state.items()
    }:
        return state
    log.warning("%s is damaged: the probe is trained again", file)
    return None


def train_probe(
    model: nn.Module, cfg: DictConfig, data: TrainingData, fabric: Fabric
) -> dict[str, torch.Tensor] | None:
    """Return weight and bias of a classifier trained by ``cfg.probe``, on rank 0."""
    features, rows = classifier_inputs(
        *(model, data, fabric),
        batch_size=cfg.trainer.batch_size,
        num_workers=cfg.trainer.num_workers,
    )
    if not fabric.is_global_zero:
        return None
    targets, known = torch.from_numpy(data.train_targets), known_where(data.train_unknown)
    loss = build(cfg.probe, facts=train_stats(data, cfg.trainer.epochs))
    known = None if known is None else known[rows]
    features = fabric.to_device(features)
    weight, bias = fit(features, targets[rows], rows, loss, seed=cfg.seed, known=known)
    log.info("the classifier starts from a linear probe on %d samples", len(features))
    return {"weight": weight.cpu().contiguous(), "bias": bias.cpu()}


def probe_file(model: Any, cfg: DictConfig, data: TrainingData) -> Path | None:
    """Where the probe of a run with stored maps is kept: named by all that it depends on."""
    if not isinstance(data.train, MapDataset):
        return None
    depends = {
        "maps": Path(str(data.train.maps.filename)).name,
        "model": OmegaConf.to_container(cfg.model, resolve=True),
        "weights": weights_below(model),
        "probe": OmegaConf.to_container(cfg.probe, resolve=True),
        "epochs": cfg.trainer.epochs,
        "labels": [data.counts["train_checksum"], data.counts["train_labels_all"]],
        "rows": hashlib.sha256(data.train.rows.tobytes()).hexdigest(),
        "seed": cfg.seed,
        "precision": cfg.trainer.precision,
    }
    key = hashlib.sha256(json.dumps(depends, sort_keys=True).encode()).hexdigest()[:16]
    return map_folder(cfg) / f"probe-{key}.safetensors"


def weights_below(model: Any) -> str:
    """Return a digest of a model's weights without those of its classifier."""
    classifier = model.get_classifier()
    own = next(name for name, part in model.named_modules() if part is classifier)
    state = {
        name: value.detach().cpu().numpy()
        for name, value in sorted(model.state_dict().items())
        if not name.startswith(f"{own}.")
    }
    return digest(part for pair in state.items() for part in pair)
