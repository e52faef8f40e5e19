"""Compose a configuration: Hydra's groups, and the recipe that fits them where none is named.

``recipe=auto``, the default, follows the data set, the labels, the network and the loss: a data set
names its recipes (``recipes`` in its YAML), a competitor of the paper brings its authors' own.
"""

import contextlib
import functools
import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from tkpr.config import MACHINE_SETTINGS

# losses whose authors published how to train with them; all others are trained as TKPR
AUTHORS = {
    "asl": "asl",
    **dict.fromkeys(("hill", "splc"), "hill"),
    **dict.fromkeys(("ccd", "ccd_half_asl"), "ccd"),
    **dict.fromkeys(("an", "an_ls", "wan", "epr", "pr", "em", "em_apl"), "spml"),
    "role": "role",
    **dict.fromkeys(("ll_r", "ll_ct", "ll_cp"), "ll"),
    "gr": "gr",
}
WITHOUT_IMAGES = ("tabular", "sparse")
# the network that goes with a recipe
NETWORKS = {
    "paper_cnn": ["model=resnet101"],
    "paper_cnn_voc2007": ["model=resnet101"],
    "paper_mlml": ["model=resnet50"],
    "paper_swin": ["model=swin_base"],
    "ccd": ["model=ccd"],
    "ccd_swin": [
        "model=ccd",
        "model.model_name=swin_base_patch4_window12_384.ms_in22k",
        "model.context_epochs=3",
    ],
}


def choose_recipe(choices: Any, recipes: Any, *, pretrained: bool = False) -> list[str]:
    """Return the words that stand for ``recipe=auto``.

    Args:
        choices: what was chosen in the groups dataset, labels, model and loss.
        recipes: the recipes of the data set: one per label setting, ``swin`` for Swin networks, and
            ``authors``, whether losses are trained as their authors did.
        pretrained: whether the user has named a pretrained network. It is fine-tuned on any images
            but those of the paper's data sets.

    >>> coco = {"full": "paper_cnn", "swin": "paper_swin", "authors": True}
    >>> choices = {"dataset": "coco", "labels": "full", "model": "resnet101", "loss": "tkpr_a2"}
    >>> choose_recipe(choices, coco)
    ['recipe=paper_cnn', 'model=resnet101']
    >>> choose_recipe(choices | {"loss": "asl", "model": "swin_base"}, coco)
    ['recipe=asl_swin', 'model=swin_base']
    """
    swin = "swin" in recipes and choices["model"].startswith("swin")
    labels = choices["labels"] if choices["labels"] in recipes else "partial"
    recipe = recipes["swin"] if swin else recipes[labels]
    if pretrained and not recipes["authors"] and recipe not in WITHOUT_IMAGES:
        recipe = "finetune"
    if recipe == "finetune" and choices["model"] == "ccd":  # no single classifier to start from
        recipe = "ccd"
    network = NETWORKS.get(recipe, [])
    own = AUTHORS.get(choices.get("loss"))
    if recipes["authors"] and own:
        recipe = f"{own}_swin" if swin and own in ("asl", "hill", "ccd") else own
        if choices["loss"] == "em_apl" and choices["dataset"].startswith("voc"):
            recipe = "em_apl_voc"
    return [f"recipe={recipe}", *NETWORKS.get(recipe, network)]


@contextlib.contextmanager
def own_hydra(configs: Path) -> Iterator[None]:
    """Give Hydra's compose API a folder, also inside a running Hydra job."""
    state = GlobalHydra.instance()
    outer, state.hydra = state.hydra, None
    try:
        with hydra.initialize_config_dir(str(configs), version_base="1.3"):
            yield
    finally:
        GlobalHydra.instance().hydra = outer


def compose(
    configs: Path, words: Sequence[str], *, name: str = "train", hydra_config: bool = False
) -> DictConfig:
    """Compose a configuration outside of a running job.

    Args:
        configs: the folder of the configuration.
        words: as on the command line.
        name: the primary configuration.
        hydra_config: whether to keep the node ``hydra``.
    """
    words = resolve_words(configs, words, name=name)
    with own_hydra(configs):
        cfg = hydra.compose(name, words, return_hydra_config=True)
    with open_dict(cfg):
        cfg.recipe = cfg.hydra.runtime.choices.recipe
        for node in (cfg.loss, cfg.warmup, cfg.trainer, cfg.model):
            OmegaConf.resolve(node)
        if not hydra_config:
            del cfg["hydra"]
    return cfg


def resolve_words(configs: Path, words: Sequence[str], *, name: str = "train") -> list[str]:
    """Replace ``recipe=auto`` by the recipe that fits; what the user names stays.

    With several data sets or losses in one sweep the words stay as they are: each job resolves its
    own (:func:`in_job`).
    """
    groups = [word for word in words if _is_group(word, configs)]
    if any("," in word for word in groups):
        return list(words)
    recipe = _recipe_words(configs, tuple(groups), name)
    if not recipe:
        return list(words)
    named = {word.partition("=")[0] for word in words} - {"recipe"}
    found = [
        word
        for word in [*recipe, "auto_recipe=true"]
        if word.partition("=")[0].partition(".")[0] not in named
    ]
    return [*found, *(word for word in words if word != "recipe=auto")]


@functools.lru_cache  # the same for all runs of a sweep
def _recipe_words(configs: Path, groups: tuple[str, ...], name: str) -> list[str]:
    """The words that stand for ``recipe=auto``; none where a recipe is chosen."""
    with own_hydra(configs):
        cfg = hydra.compose(name, list(groups), return_hydra_config=True)
    choices = cfg.hydra.runtime.choices
    if choices.recipe != "auto":
        return []
    named = any(word.startswith("model=") for word in groups)
    pretrained = named and bool(cfg.model.get("pretrained"))
    words = choose_recipe(choices, cfg.recipes, pretrained=pretrained)
    if choices.budget:
        at_scale = [word for word in groups if not word.startswith("budget=")]
        with own_hydra(configs):
            whole = hydra.compose(name, at_scale, return_hydra_config=True)
        if choices.model != whole.hydra.runtime.choices.model:  # the budget has its own network
            return words[:1]
    return words


def _is_group(word: str, configs: Path) -> bool:
    """Whether a word chooses a file, not a value."""
    key = word.partition("=")[0].lstrip("+~").partition("@")[0]
    return "=" in word and (configs / key).is_dir()


def in_job(configs: Path) -> DictConfig:
    """Return the configuration of the running Hydra job, its recipe resolved.

    The choices of the job, which a run is described by, become those of the recipe as well.

    Args:
        configs: the folder of the configuration.
    """
    job: Any = HydraConfig.get()
    name = job.job.config_name or "train"
    cfg = compose(configs, list(job.overrides.task), name=name, hydra_config=True)
    with read_write(job):
        job.runtime.choices = cfg.hydra.runtime.choices
    with open_dict(cfg):
        del cfg["hydra"]
    return cfg


def for_tkpr(loss: str, value: Any) -> Any:
    """Return the value where the loss is TKPR, else 0: other losses are not warmed up unasked.

    >>> for_tkpr("tkpr.losses.tkpr.TKPR", 30), for_tkpr("tkpr.losses.robust.Hill", 30)
    (30, 0)
    """
    return value if loss.endswith(".TKPR") else 0


def loader_workers() -> int:
    """Return how many processes load data unless the user says: one per core, at most 8."""
    return min(8, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 4)


def typed(overrides: Sequence[str]) -> list[str]:
    """Return the words that the user has typed, without those that ``recipe=auto`` put before them.

    >>> typed(["recipe=asl", "auto_recipe=true", "loss=asl"])
    ['loss=asl']
    """
    words = list(overrides)
    return words[words.index("auto_recipe=true") + 1 :] if "auto_recipe=true" in words else words


def run_name(dataset: str, loss: str, overrides: Sequence[str]) -> str:
    """Name a run by its settings, so that the same command finds the same folder.

    >>> run_name("coco", "tkpr_a2", ["dataset=coco", "loss=tkpr_a2", "loss.k=3", "seed=1"])
    'coco/tkpr_a2/loss.k=3,seed=1'
    >>> run_name("mosaic", "bce", ["loss=bce"])
    'mosaic/bce/default'
    >>> run_name("coco", "asl", ["recipe=asl", "auto_recipe=true", "loss=asl"])
    'coco/asl/default'
    """
    settings = sorted(
        text for text in typed(overrides) if _names_run(text.lstrip("+~").split("=")[0])
    )
    name = re.sub(r"[^\w.,=@+-]+", "_", ",".join(settings))
    if len(name) > 120:
        name = f"{name[:100]}-{hashlib.sha256(name.encode()).hexdigest()[:12]}"
    return f"{dataset}/{loss}/{name or 'default'}"


def _names_run(key: str) -> bool:
    """Whether a setting is part of the name of a run, besides data set and loss."""
    return key not in MACHINE_SETTINGS | {"dataset", "loss"} and not key.startswith("hydra")


for _resolver in (for_tkpr, loader_workers, run_name):
    OmegaConf.register_new_resolver(_resolver.__name__, _resolver, replace=True)
