"""From a configuration to objects: the one caller of Hydra's ``instantiate``."""

import inspect
from collections.abc import Mapping
from typing import Any

import hydra.utils
from omegaconf import DictConfig


def build(
    cfg: DictConfig, *args: Any, facts: Mapping[str, Any] | None = None, **kwargs: Any
) -> Any:
    """Build the object that ``cfg._target_`` names.

    Args:
        cfg: a config node with ``_target_``.
        *args: positional arguments, handed on.
        facts: what is known of the training set (``num_samples``, ``num_classes``,
            ``class_counts``, ``expected_positives``, ``train_targets``, ``num_epochs``). Those that
            the target asks for by name are handed to it, unless the config sets them.
        **kwargs: keyword arguments, handed on.
    """
    if facts:
        wanted = inspect.signature(hydra.utils.get_object(cfg._target_)).parameters
        kwargs |= {
            name: value for name, value in facts.items() if name in wanted and name not in cfg
        }
    return hydra.utils.instantiate(cfg, *args, **kwargs)
