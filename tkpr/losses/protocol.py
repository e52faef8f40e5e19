"""What a loss or a model may ask of the trainer.

A loss is an ``nn.Module`` with ``forward(logits, targets, index=None) -> scalar``; that is all most
losses need. The protocols below are optional: the trainer checks with ``isinstance`` and calls the
methods at the moments named here. A loss implements one by having its methods; it need not inherit.

| protocol | who | when the trainer calls it |
|---|---|---|
| `UsesEpoch` | SPLC, LL, GR, EM+APL | before every epoch, on the warm-up loss and the main loss |
| `UpdatesLabels` | EM+APL | after an epoch, with logits of the whole training set |
| `SharesState` | LL-Cp | before a checkpoint and after an epoch, in a run of several processes |
| `LearnsFaster` | ROLE | once, when the optimizer is built |
| `HasStages` (a model) | CCD | before epoch ``context_epochs`` |

A loss that needs numbers of the training set takes them as constructor arguments: arguments with
the names in :class:`TrainStats` are filled in unless the configuration sets them.

Per-sample state belongs in buffers or parameters of the loss, so that it is saved, resumed and
moved to the device with it; parameters are optimized along with the model's.
"""

from collections.abc import Callable, Iterable
from typing import NotRequired, Protocol, TypedDict, runtime_checkable

from torch import Tensor


class TrainStats(TypedDict):
    """Facts of the training set that a loss may take as constructor arguments."""

    num_samples: int
    num_classes: int
    class_counts: Tensor  # observed positives of each class, [C]
    expected_positives: float  # mean number of positives per image in the clean labels
    train_targets: NotRequired[Tensor]  # observed labels, [N, C]; not of a sparse data set
    num_epochs: int


@runtime_checkable
class UsesEpoch(Protocol):
    """Depends on the epoch.

    >>> from tkpr.losses import SPLC, TKPR
    >>> isinstance(SPLC(), UsesEpoch), isinstance(TKPR(k=5, alpha=2), UsesEpoch)
    (True, False)
    """

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, counted from 0."""


@runtime_checkable
class UpdatesLabels(Protocol):
    """Revises the labels of the training set between epochs."""

    def wants_update(self) -> bool:
        """Whether `update_labels` is due after this epoch."""

    def update_labels(self, logits: Tensor) -> None:
        """Revise the labels.

        Args:
            logits: of the whole training set, in the order of its index, ``[N, C]``; a row of
                ``inf`` where an image could not be read.
        """


@runtime_checkable
class SharesState(Protocol):
    """Keeps per-sample state that each process changes for its own samples."""

    def merge_state(self, all_reduce_max: Callable[[Tensor], Tensor]) -> None:
        """Bring the state of all processes together.

        Args:
            all_reduce_max: returns the elementwise maximum of a tensor over the processes.
        """


@runtime_checkable
class LearnsFaster(Protocol):
    """Has parameters with a learning rate of their own."""

    learning_rate_multiplier: float


@runtime_checkable
class HasStages(Protocol):
    """A model with a second stage, which starts from statistics of the training set."""

    context_epochs: int

    def learn_confounders(
        self,
        batches: Iterable[tuple[Tensor, Tensor]],
        *,
        all_reduce_sum: Callable[[Tensor], Tensor],
    ) -> None:
        """Gather what the second stage needs.

        Args:
            batches: (inputs, targets) of the training set, on the model's device.
            all_reduce_sum: returns the sum of a tensor over the processes.
        """

    def start_stage_two(self) -> None:
        """Switch to the second stage; the optimizer, schedule and EMA then start again."""
