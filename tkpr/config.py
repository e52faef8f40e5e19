"""From a configuration to objects: the one caller of Hydra's ``instantiate``."""

import inspect
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import hydra.utils
from hydra.errors import InstantiationException
from omegaconf import DictConfig, ListConfig, OmegaConf

# settings that say where and how fast a run computes, not what: they may change on a resume, and
# a run is not named by them
MACHINE_SETTINGS = {
    *("run_dir", "cache_dir", "dataset.root", "dataset.cache_dir", "map_dir"),
    *("trainer.accelerator", "trainer.devices", "trainer.num_nodes", "trainer.num_workers"),
    *("trainer.checkpoint_minutes", "trainer.timeout_minutes"),
}

# settings that say where data and weights are: runs are compared by their content instead
LOCATIONS = {"dataset.root", "dataset.file", "model.checkpoint"}

# settings that act through others only, which a run stores as well
DERIVED_SETTINGS = {
    *("methods", "methods_on_features", "feature_file", "tkpr_k", "tkpr_warmup_epochs"),
    *("db_neg_scale", "db_map_gamma", "em_apl_alpha", "em_apl_beta", "ccd.gamma_pos"),
    "lsep_max_pairs",
    *("auto_epochs.samples", "auto_epochs.fewest", "auto_epochs.most"),
    *("default_cut", "recipe", "auto_recipe", "sweep.k", "sweep.warmup_epochs"),
    *(f"recipes.{name}" for name in ("full", "single_positive", "partial", "swin", "authors")),
}


def epochs_to_train(trainer: Any) -> int:
    """Number of epochs to train: ``trainer.epochs``, or ``trainer.stop_after`` if it is smaller.

    >>> epochs_to_train(OmegaConf.create({"epochs": 80, "stop_after": 41}))
    41
    """
    return min(trainer.epochs, trainer.stop_after or trainer.epochs)


def build(
    cfg: DictConfig, *args: Any, facts: Mapping[str, Any] | None = None, **kwargs: Any
) -> Any:
    """Build the object that ``cfg._target_`` names.

    Args:
        cfg: a config node with ``_target_``.
        *args: positional arguments.
        facts: what is known of the training set (``num_samples``, ``num_classes``,
            ``class_counts``, ``expected_positives``, ``train_targets``, ``num_epochs``). Those that
            the target asks for by name are handed to it, unless the config sets them.
        **kwargs: keyword arguments.
    """
    if facts:
        wanted = inspect.signature(hydra.utils.get_object(cfg._target_)).parameters
        kwargs |= {
            name: value for name, value in facts.items() if name in wanted and name not in cfg
        }
        if "train_targets" in wanted and "train_targets" not in facts:
            raise ValueError(
                f"{cfg._target_} needs the matrix of all labels, which a sparse data set lacks: "
                "choose another loss"
            )
    try:
        return hydra.utils.instantiate(cfg, *args, **kwargs)
    except InstantiationException as error:
        if isinstance(error.__cause__, ValueError | OSError | ImportError):
            raise error.__cause__ from None  # clearer than the wrapper
        raise


def model_facts(input_shape: tuple[int, ...], num_classes: int) -> dict[str, Any]:
    """What a model may ask to know: the number of classes and the size of its inputs.

    >>> model_facts((3, 224, 224), 20)
    {'num_classes': 20, 'image_size': 224}
    """
    size = (
        {"in_features": input_shape[0]}
        if len(input_shape) == 1
        else {"image_size": input_shape[-1]}
    )
    return {"num_classes": num_classes, **size}


def build_dataset(cfg: DictConfig) -> Any:
    """Read the data set that a node names; ``on_error`` is not an argument of the loader."""
    cfg = cfg.copy()
    OmegaConf.set_struct(cfg, False)
    cfg.pop("on_error", None)
    hints = get_type_hints(hydra.utils.get_object(cfg._target_))
    for key, value in cfg.items():
        if key in hints and (wanted := misfit(value, hints[key])):
            raise ValueError(f"dataset.{key} must be {wanted}; got {value!r}")
    return build(cfg)


# the types of a setting by the annotation of the argument, and what they are called
KINDS: dict[Any, tuple[str, tuple[type, ...]]] = {
    bool: ("true or false", (bool,)),
    int: ("an integer", (int,)),
    float: ("a number", (int, float)),
    str: ("a text", (str,)),
    Path: ("a path", (str, Path)),
    type(None): ("null", (type(None),)),
    Sequence: ("a list", (list, ListConfig)),
    Collection: ("a list", (list, ListConfig)),
}


def misfit(value: Any, hint: Any) -> str:
    """Return what a setting must be according to an annotation, or nothing if it fits.

    >>> misfit(1.5, int), misfit("a", int | None), misfit(True, float)
    ('an integer', 'an integer or null', 'a number')
    >>> misfit(1, float), misfit(None, str | None), misfit(["a"], Sequence[str])
    ('', '', '')
    """
    hints = get_args(hint) if get_origin(hint) is UnionType else (hint,)
    kinds = [KINDS.get(get_origin(option) or option) for option in hints]
    for kind in kinds:
        if kind is None or (
            isinstance(value, kind[1]) and (not isinstance(value, bool) or bool in kind[1])
        ):
            return ""
    return " or ".join(kind[0] for kind in kinds if kind)


def flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Turn nested settings into one level with dotted keys.

    >>> flat({"loss": {"k": 5}, "seed": 0})
    {'loss.k': 5, 'seed': 0}
    """
    if not isinstance(tree, Mapping):
        return {prefix: tree}
    parts = [flat(value, f"{prefix}.{key}" if prefix else str(key)) for key, value in tree.items()]
    return {key: value for part in parts for key, value in part.items()}


def experiment_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings by which two runs are the same experiment, but for the seed.

    Settings that are null count as absent.

    >>> config = {"loss": {"k": 5}, "seed": 1, "trainer": {"patience": None, "devices": 2}}
    >>> experiment_settings(config)
    {'loss.k': 5}
    """
    aside = {*MACHINE_SETTINGS, *DERIVED_SETTINGS, "seed"}
    return {
        key: value for key, value in flat(config).items() if key not in aside and value is not None
    }
