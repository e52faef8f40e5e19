"""Which epoch of a run counts, and when to stop looking for a better one.

Only epochs of the main loss are compared: what the warm-up loss reaches says nothing about it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tkpr.metrics import lower_is_better


def first_main_epoch(config: Any) -> int:
    """Number of epochs by another loss than the main one, or in the first stage of CCD.

    Args:
        config: of a run.

    >>> config = {"trainer": {"warmup_epochs": 3}, "warmup": {"a": 1}, "loss": {"a": 2}}
    >>> first_main_epoch(config), first_main_epoch(config | {"loss": {"a": 1}})
    (3, 0)
    >>> first_main_epoch(config | {"model": {"context_epochs": 6}})
    6
    """
    warmup = 0 if config["warmup"] == config["loss"] else config["trainer"]["warmup_epochs"]
    return max(warmup, config.get("model", {}).get("context_epochs", 0))


def best_epoch(history: Sequence[Mapping[str, float]], monitor: str, *, skip: int = 0) -> int:
    """Return the epoch, counted from 1, with the best value; the first among equals.

    Args:
        history: a row of measures per epoch.
        monitor: the measure that decides.
        skip: warm-up epochs, which do not count.

    >>> best_epoch([{"mAP@3": 0.9}, {"mAP@3": 0.5}, {"mAP@3": 0.6}], "mAP@3", skip=1)
    3
    """
    if len(history) <= skip:
        raise ValueError(f"{len(history)} epochs, {skip} of warm-up: none of the main loss")
    if monitor not in history[-1]:
        raise ValueError(f"no measure {monitor!r}: there are {', '.join(history[-1])}")
    sign = 1 if lower_is_better(monitor) else -1
    return min(range(skip, len(history)), key=lambda epoch: sign * history[epoch][monitor]) + 1


def out_of_patience(
    history: Sequence[Mapping[str, float]], monitor: str, *, patience: int | None, skip: int = 0
) -> bool:
    """Early stopping: no better value in the last ``patience`` epochs of the main loss.

    Args:
        history: a row of measures per epoch.
        monitor: the measure that decides.
        patience: None trains all epochs.
        skip: warm-up epochs, which do not count.

    >>> rows = [{"train_loss": value} for value in (3.0, 2.0, 1.0, 1.5, 1.2)]
    >>> out_of_patience(rows, "train_loss", patience=2), out_of_patience(rows, "mAP@3", patience=5)
    (True, False)
    """
    if not patience or len(history) <= skip + patience:
        return False
    return best_epoch(history, monitor, skip=skip) <= len(history) - patience


def counted_epoch(history: Sequence[Mapping[str, float]], monitor: str, config: Any) -> int:
    """The epoch by which a run on held-out images is ranked, and for which it is retrained.

    The best one of the main loss where the run stopped early (``trainer.patience``); otherwise the
    last one, as in any run that trains for a fixed number of epochs.

    Args:
        history: a row of measures per epoch.
        monitor: the measure that decides.
        config: of the run.
    """
    if not config["trainer"].get("patience"):
        best_epoch(history, monitor)  # the measure must be there
        return len(history)
    return best_epoch(history, monitor, skip=first_main_epoch(config))
