"""The answer to --explain: each setting, its value and the file that set it."""

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from tkpr.config import build, build_dataset, flat
from tkpr.data.assemble import TrainingData
from tkpr.runs.compose import compose, own_hydra, resolve_words
from tkpr.runs.settle import is_pretrained, left_to_labels, settle, settle_to_labels


def explain(configs: Path, words: Sequence[str], *, name: str = "train") -> str:
    """List the settings of a command, a line each: name, value, where it comes from.

    What is left to the network, the machine or the labels is filled in as in a run, and marked
    ``(auto)``; labels are looked up where the data set can be read.

    Args:
        configs: the folder of the configuration.
        words: as on the command line.
        name: the primary configuration.
    """
    cfg = compose(configs, words, name=name, hydra_config=True)
    HydraConfig.instance().set_config(cfg)
    cfg = OmegaConf.create({key: value for key, value in _plain(cfg).items() if key != "hydra"})
    left_open = flat(_plain(cfg))
    settle(cfg)
    if left_to_labels(cfg):
        with contextlib.suppress(Exception):  # there are no data yet, or they are damaged
            settle_to_labels(cfg, build(cfg.labels)(build_dataset(cfg.dataset).train).targets)
    settings = flat(_plain(cfg))
    origin = sources(configs, words, name=name)
    for key in settings:
        if settings[key] != left_open[key]:
            origin[key] = f"{origin.get(key, 'derived')} (auto)"
    width = max(len(f"{key} = {value}") for key, value in settings.items() if len(str(value)) < 50)
    return "\n".join(
        f"{f'{key} = {value}':<{width}}  {origin.get(key, 'derived')}"
        for key, value in settings.items()
    )


def sources(configs: Path, words: Sequence[str], *, name: str = "train") -> dict[str, str]:
    """Return the file that set each setting, or ``command line``.

    Hydra merges the files of the defaults list in order, so the last one that names a key set it.
    """
    resolved = resolve_words(configs, words, name=name)
    with own_hydra(configs):
        loader = GlobalHydra.instance().config_loader()
        defaults = loader.compute_defaults_list(name, resolved, RunMode.RUN).defaults
    origin: dict[str, str] = {}
    for default in defaults:
        file = configs / f"{default.config_path}.yaml"
        if not file.is_file():  # Hydra's own
            continue
        tree = OmegaConf.to_container(OmegaConf.load(file), resolve=False)
        if isinstance(tree, dict):
            tree.pop("defaults", None)
            origin |= dict.fromkeys(
                flat(tree, default.package or ""), str(file.relative_to(configs.parent))
            )
    for word in resolved:
        by = "command line" if word in words else "recipe=auto"
        origin[word.lstrip("+").partition("=")[0]] = by
    return origin


def _plain(cfg: object) -> dict[str, Any]:
    """Resolve a configuration to plain values; what is missing stays ``???``."""
    return OmegaConf.to_container(cfg, resolve=True)  # type: ignore[return-value]


def summary(cfg: DictConfig, choices: Mapping[str, str]) -> str:
    """Describe a run in five lines: recipe, loss, schedule, model, data.

    Args:
        cfg: the whole configuration.
        choices: the word that chose each group, such as ``bce`` of ``loss=bce``.
    """

    def chosen(group: str, node: DictConfig) -> str:
        return choices.get(group) or _name(node)

    trainer, loss, optimizer = cfg.trainer, cfg.loss, cfg.optimizer
    epochs = f"{trainer.epochs} epoch{'s' if trainer.epochs != 1 else ''}"
    if trainer.stop_after:
        epochs = f"{trainer.stop_after} of {epochs} planned"
    warmup = ""
    if trainer.warmup_epochs:
        warmup = f"after {trainer.warmup_epochs} epochs of {chosen('loss@warmup', cfg.warmup)}"
    given = {k: v for k, v in loss.items() if k not in ("_target_", "reduction")}
    options = ", ".join(f"{key} {value}" for key, value in given.items())
    if trainer.temperature != 1:
        options += f"{', ' if options else ''}temperature {trainer.temperature:g}"
    averaged = f"averaged weights ({trainer.ema_decay})" if trainer.ema_decay else "last weights"
    how = "recipe=auto" if cfg.auto_recipe else "as named"
    model = cfg.model.get("model_name") or str(cfg.model._target_).split(".")[-2]
    if cfg.model.get("cut"):
        model += f" after {cfg.model.cut}"
    if "probe" in cfg and is_pretrained(cfg):
        model += f" from a linear probe ({chosen('loss@probe', cfg.probe)})"
    return "\n".join(
        [
            f"recipe {cfg.recipe} ({how}): {_name(optimizer)} {optimizer.lr:g}, "
            f"weight decay {optimizer.weight_decay:g}, {_name(cfg.scheduler)}",
            f"loss {chosen('loss', loss)}{f' ({options})' if options else ''} {warmup}".rstrip(),
            f"{epochs}, batch {trainer.batch_size}, {trainer.precision}, {averaged}",
            f"model {model}, transform {chosen('transform', cfg.transform)}"
            + (f" at {cfg.transform.size} px" if "size" in cfg.transform else ""),
            f"data {chosen('dataset', cfg.dataset)}, labels {chosen('labels', cfg.labels)}, "
            f"seed {cfg.seed}",
        ]
    )


def data_summary(data: TrainingData) -> str:
    """Describe the data of a run in one line: samples, labels, classes.

    Args:
        data: what the run learns from and is tested on.
    """
    counts = data.counts
    images, labels = int(counts["train_images"]), int(counts["train_labels"])
    unseen = int((np.asarray(data.train_targets.sum(axis=0)) == 0).sum())
    return (
        f"{images:,} training samples with {labels / images:.1f} labels on average, "
        f"{counts['test_images']:,} test samples, {counts['classes']:,} classes"
        + (f", {unseen:,} of them without a training sample" if unseen else "")
    )


def _name(node: DictConfig) -> str:
    """Return the last part of what a node builds."""
    return str(node._target_).rpartition(".")[2]
