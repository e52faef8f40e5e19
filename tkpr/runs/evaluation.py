"""What evaluate.py measures a stored model on: its own data, or as the command line says."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import hydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from tkpr.config import build
from tkpr.data.assemble import TrainingData, assemble
from tkpr.data.dataset import MultiLabelData
from tkpr.data.fingerprint import fingerprint
from tkpr.data.labels import ignore
from tkpr.data.splits import holdout
from tkpr.runs.cli import accepts, explain, keys, nearest
from tkpr.runs.run import load_data
from tkpr.runs.saved_model import TrainedModel
from tkpr.runs.settle import settle
from tkpr.training.predict import fabric_on, predict, what_to_keep

log = logging.getLogger(__name__)

GROUPS = ("dataset", "transform")
SETTINGS = ("split.limit", "cache_dir")


def reconfigure(cfg: DictConfig, configs: Path, words: list[str]) -> DictConfig:
    """Return the settings of a run with others in place of some; an override changes nothing else.

    Another data set is measured on its test split, whatever the run has held out of its own.

    Args:
        cfg: the stored settings.
        configs: the folder of the configuration.
        words: as for train.py, such as ``dataset=voc2012 dataset.root=/data transform.size=224``.
    """
    cfg = cfg.copy()
    OmegaConf.set_struct(cfg, False)
    try:
        overrides = OverridesParser.create().parse_overrides(words)
        for override in sorted(overrides, key=lambda one: one.key_or_group not in GROUPS):
            _apply(override, cfg, configs)
    except HydraException as error:
        raise ValueError(explain(error, configs, "train")) from error
    settle(cfg)
    return cfg


def _apply(override: Override, cfg: DictConfig, configs: Path) -> None:
    """Apply one override to the settings."""
    key, word = override.key_or_group, override.input_line
    group = key.partition(".")[0]
    if override.is_sweep_override() or override.is_delete():
        raise ValueError(f"{word}: a model is evaluated with one value of each setting")
    if key in GROUPS:
        with hydra.initialize_config_dir(str(configs), version_base="1.3"):
            cfg[key] = hydra.compose("train", [f"{key}={override.value()}"])[key]
        if key == "dataset":
            cfg.split.holdout = 0
        return
    if group not in GROUPS and key not in SETTINGS:
        what = ", ".join([*(f"{name}=" for name in GROUPS), *(f"{name}.*=" for name in GROUPS)])
        ks = "; --ks sets the K of the measures" if key == "trainer.ks" else ""
        raise ValueError(
            f"{word} does not change how a model is evaluated: choose among {what}, "
            f"{', '.join(f'{name}=' for name in SETTINGS)}{ks}"
        )
    if OmegaConf.select(cfg, key, default=word) == word and not accepts(cfg, key):
        known = [name for name in keys(OmegaConf.to_container(cfg)) if name.startswith(group)]
        raise ValueError(f"no setting {key!r}: {nearest(key, known)}")
    OmegaConf.update(cfg, key, override.value())


def evaluation_data(cfg: DictConfig, data: MultiLabelData, split: str | None) -> TrainingData:
    """Return the samples to measure a model on as the ``test`` part, with all their labels.

    Args:
        cfg: the settings of the run.
        data: loaded.
        split: "test", the official test split; "holdout", the part of the training split that the
            run has held out; "train", the rest of it. None: what the run itself was tested on.
    """
    share = cfg.split.holdout
    if split == "holdout" and not share:
        raise ValueError("--split holdout: the run has held out nothing; choose test or train")
    if split == "train" or (split != "test" and share):
        part = data.train
        if share:
            kept, held = holdout(len(data.train), share)
            part = data.train.subset(kept if split == "train" else held)
        data = replace(data, test=part)
    return assemble(
        data,
        labels=ignore,
        pipeline=build(cfg.transform),
        cache_dir=cfg.cache_dir,
        on_error=cfg.dataset.get("on_error", "raise"),
        test_unknown=cfg.split.get("test_unknown", "leave_out"),
    )


def evaluate_on(
    trained: TrainedModel,
    configs: Path,
    words: list[str],
    *,
    split: str | None,
    device: str,
    batch_size: int,
    ks: Sequence[int],
) -> tuple[TrainingData, Tensor]:
    """Predict what the command line asks a model to be measured on.

    Args:
        trained: the model.
        configs: the folder of the configuration.
        words: overrides (:func:`reconfigure`).
        split: part of the data (:func:`evaluation_data`).
        device: where to compute.
        batch_size: samples at a time.
        ks: the K of the measures.

    Returns:
        The data, of which the ``test`` part was predicted, and the outputs.
    """
    cfg = reconfigure(trained.cfg, configs, words)
    loaded = load_data(cfg)
    if not any(word.startswith(("dataset=", "split.limit=")) for word in words):
        changed = [key for key, v in fingerprint(loaded).items() if trained.data.get(key) != v]
        if changed:
            log.warning("the data are not those of the run: %s differ", ", ".join(changed))
    data = evaluation_data(cfg, loaded, split)
    if data.class_names != trained.class_names:
        raise ValueError(
            f"the model knows {len(trained.class_names)} classes ({trained.class_names[0]}, ...), "
            f"the data set has {len(data.class_names)} ({data.class_names[0]}, ...)"
        )
    outputs = predict(
        trained.model,
        data.test,
        data.finish,
        fabric_on(device),
        batch_size=batch_size,
        **what_to_keep(data.test, ks),
    )
    return data, outputs
