"""Settings that the configuration leaves open: filled in from the network, machine and labels."""

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig, OmegaConf

from tkpr.config import epochs_to_train
from tkpr.models.preprocessing import preprocessing, timm_name
from tkpr.models.tail import tail_cut

log = logging.getLogger(__name__)

LOSSES = ("loss", "warmup", "probe")


def settle(cfg: DictConfig) -> None:
    """Fill in, in place, what depends on network and machine: preprocessing, cut, precision.

    Args:
        cfg: the whole configuration.

    >>> from omegaconf import OmegaConf
    >>> transform = {"size": None, "mean": None, "std": 1, "interpolation": None}
    >>> model = {"model_name": "tf_efficientnet_lite0"}
    >>> cfg = OmegaConf.create({"transform": transform, "model": model})
    >>> settle(cfg)
    >>> cfg.transform
    {'size': 224, 'mean': [0.5, 0.5, 0.5], 'std': 1, 'interpolation': 'bicubic'}
    """
    if "mean" in cfg.transform:
        for key, value in preprocessing(cfg.model).items():
            if key in cfg.transform and cfg.transform[key] is None:
                cfg.transform[key] = value
    if cfg.model.get("cut") == "auto":
        cfg.model.cut = default_cut(cfg)
    if OmegaConf.select(cfg, "trainer.precision") == "auto":
        bf16 = gpu_has_bf16() if uses_gpu(cfg) else cpu_has_bf16()
        cfg.trainer.precision = "bf16-mixed" if bf16 else "32-true"


def default_cut(cfg: DictConfig) -> str | None:
    """Return the last frozen layer where ``model.cut`` is ``auto``.

    Without a GPU only the last stage of a pretrained network is trained, from stored maps, which
    can be mirrored but not augmented otherwise. In all other cases everything is trained.

    Args:
        cfg: the whole configuration, its image size settled.
    """
    if uses_gpu(cfg):
        return None
    name = timm_name(cfg.model)
    flips = cfg.transform._target_ == "tkpr.data.transforms.spml"
    if name is None or not flips or not is_pretrained(cfg):
        return None
    return tail_cut(name, image_size=cfg.transform.size)


def uses_gpu(cfg: DictConfig) -> bool:
    """Whether a run trains on a GPU: one is asked for, or it takes what the machine has."""
    gpu = torch.cuda.is_available() or torch.backends.mps.is_available()
    return cfg.trainer.accelerator != "cpu" and (gpu or cfg.trainer.accelerator != "auto")


def gpu_has_bf16() -> bool:
    """Whether there is a GPU that computes in bfloat16."""
    return torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)


def cpu_has_bf16() -> bool:
    """Whether the CPU has instructions for bfloat16; without them it is slower than float32."""
    capabilities: Mapping[str, Any] = {}
    if hasattr(torch.cpu, "get_capabilities"):  # not in older releases of torch
        capabilities = torch.cpu.get_capabilities()
    return bool(capabilities.get("avx512_bf16"))


def is_pretrained(cfg: DictConfig) -> bool:
    """Whether the network starts from pretrained weights."""
    return bool(cfg.model.get("pretrained") and not cfg.trainer.random_weights)


def left_to_labels(cfg: DictConfig) -> bool:
    """Whether a setting is ``auto`` that :func:`settle_to_labels` fills in."""
    losses = [cfg[name].get("k") for name in LOSSES if name in cfg]
    return "auto" in (*losses, cfg.trainer.epochs, cfg.trainer.warmup_epochs)


def settle_to_labels(cfg: DictConfig, targets: Any) -> None:
    """Fill in, in place, what is ``auto`` and depends on the labels: K of the losses, epochs, E_w.

    The epochs are those in which ``auto_epochs.samples`` samples are seen, with repetition. The
    loss of the warm-up has two thirds of them.

    Args:
        cfg: the whole configuration.
        targets: observed labels of the training set, ``[N, C]``, dense or sparse.

    >>> from omegaconf import OmegaConf
    >>> losses = {"loss": {"k": "auto"}, "warmup": {}}
    >>> trainer = {"epochs": "auto", "stop_after": None, "warmup_epochs": "auto"}
    >>> rule = {"samples": 10_000, "fewest": 3, "most": 20}
    >>> cfg = OmegaConf.create({**losses, "trainer": trainer, "auto_epochs": rule})
    >>> settle_to_labels(cfg, np.ones((2000, 8)))
    >>> cfg.loss.k, cfg.trainer.epochs, cfg.trainer.warmup_epochs
    (7, 5, 4)
    """
    for name in LOSSES:
        if name in cfg and cfg[name].get("k") == "auto":
            cfg[name].k = fitting_k(targets)
    samples = targets.shape[0]
    if cfg.trainer.epochs == "auto":
        rule = cfg.auto_epochs
        cfg.trainer.epochs = min(max(rule.fewest, round(rule.samples / samples)), rule.most)
    if cfg.trainer.warmup_epochs == "auto":
        epochs = epochs_to_train(cfg.trainer)
        cfg.trainer.warmup_epochs = min((2 * epochs + 2) // 3, epochs - 1)  # rounded up


def fitting_k(targets: Any) -> int:
    """Return the K that ``auto`` stands for.

    A relevant label on top is pulled up by its K pairs and pushed down by one for each other
    relevant label. So K is twice the number of labels that 95 % of the samples do not exceed, at
    most half the number of classes (docs/training.md has the measurements). It is never below
    this number nor below 3, as far as the classes allow: K + 1 may not exceed their number.

    Args:
        targets: observed labels of the training set, ``[N, C]``, dense or sparse.

    >>> rows = [np.arange(20) < np.full((9, 1), labels) for labels in (1, 3, 6, 12, 20)]
    >>> [fitting_k(targets) for targets in rows]
    [3, 6, 10, 12, 19]
    """
    usual = int(np.quantile(label_counts(targets), 0.95, method="higher"))
    classes = targets.shape[1]
    return max(1, min(max(3, usual, min(2 * usual, classes // 2)), classes - 1))


def label_counts(targets: Any) -> np.ndarray:
    """Return the number of labels of each sample, ``[N]``; targets may be sparse."""
    return np.asarray(targets.sum(axis=1)).ravel()


def warn_of_small_k(cfg: DictConfig, targets: Any) -> None:
    """Warn where TKPR looks at fewer places than most samples have labels.

    Relevant labels then push each other out of the top K, and the loss learns little.

    Args:
        cfg: the whole configuration, settled.
        targets: observed labels of the training set, ``[N, C]``, dense or sparse.
    """
    if not cfg.loss._target_.endswith(".TKPR"):
        return
    k, better = cfg.loss.k, fitting_k(targets)
    share = np.mean(label_counts(targets) > k)
    if share > 0.5 and better > k:
        log.warning(
            "loss.k=%d is too small for these labels, TKPR will be weak: %.0f %% of the training "
            "samples have more than %d labels; set loss.k=auto (here %d) or a larger number",
            *(k, 100 * share, k, better),
        )
