"""Models with two stages (CCD): the change from the first to the second between two epochs."""

import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from torch import nn

from tkpr.losses.protocol import HasStages
from tkpr.training.collectives import all_reduce, sync_buffers
from tkpr.training.loader import to_device

if TYPE_CHECKING:
    from tkpr.training.trainer import Trainer


def stage_one_epochs(model: nn.Module) -> int:
    """How many epochs the first stage takes; 0 for a model without stages.

    >>> stage_one_epochs(nn.Linear(2, 2))
    0
    """
    return model.context_epochs if isinstance(model, HasStages) else 0


def change_stage(trainer: "Trainer") -> None:
    """Start the second stage if this epoch is its first."""
    model, progress, fabric = trainer.module, trainer.progress, trainer.fabric
    if not isinstance(model, HasStages) or not progress.epoch or progress.step:
        return
    if progress.epoch == model.context_epochs:
        sync_buffers(fabric, trainer.module)
        model.learn_confounders(
            training_pass(trainer), all_reduce_sum=functools.partial(all_reduce, fabric)
        )
        model.start_stage_two()
        trainer.set_up()


def training_pass(trainer: "Trainer") -> Iterator[tuple[Any, Any]]:
    """Yield (inputs, targets) of the training set without training; save or stop where asked."""
    channels_last = trainer.settings.channels_last
    batches = to_device(
        trainer.loader, trainer.fabric, trainer.data.finish, channels_last=channels_last
    )
    for inputs, targets, index in batches:
        if len(index):
            yield inputs, targets
        trainer.pause_if_asked()
