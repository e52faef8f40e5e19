"""Non-finite numbers: the run stops before a checkpoint and leaves a file that reproduces them."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from tkpr import atomic
from tkpr.losses.chunked import ChunkedLogits
from tkpr.losses.label_lists import LabelLists
from tkpr.losses.partial_labels import PartialLabels
from tkpr.models.sparse_linear import Bags
from tkpr.training import state

if TYPE_CHECKING:
    from tkpr.training.trainer import Trainer


class LossReading:
    """The value of a loss, and whether it and the logits are finite, without a host sync.

    The check runs on the device, right after the forward pass. A GPU copies the answer to pinned
    memory while it computes the backward pass; :meth:`read` waits for that copy only, so the device
    always has work queued. The weights are still those of the step when the answer is read, which
    is what the file of :func:`raise_nonfinite` needs.

    Args:
        loss: a scalar.
        logits: ``[B, C]``; of chunked ones, the features are checked.

    >>> LossReading(torch.tensor(0.5), torch.tensor([[1.0, torch.nan]])).read()
    (0.5, False)
    """

    def __init__(self, loss: Tensor, logits: Tensor | ChunkedLogits) -> None:
        answer = torch.stack((loss.detach(), known(logits).detach().isfinite().all()))
        self.copied: torch.cuda.Event | None = None
        if answer.is_cuda:
            self.answer = torch.empty(2, dtype=answer.dtype, pin_memory=True)
            self.answer.copy_(answer, non_blocking=True)
            self.copied = torch.cuda.Event()
            self.copied.record()
        else:
            self.answer = answer.cpu()

    def read(self) -> tuple[float, bool]:
        """Return the value of the loss and whether all is finite."""
        if self.copied:
            self.copied.synchronize()
        value, whole = self.answer.numpy().tolist()
        return value, bool(whole) and math.isfinite(value)


def raise_nonfinite(
    trainer: "Trainer",
    value: float,
    inputs: Tensor | Bags,
    targets: Tensor | LabelLists | PartialLabels,
    index: Tensor,
    logits: Tensor | ChunkedLogits,
) -> None:
    """Write what a non-finite loss was computed from, and stop.

    ``bad_batch_rank0.pt`` holds the batch, the weights and the numbers for
    :func:`tkpr.training.seeding.seed_everything`. The state of the loss is the one after the step;
    of the losses here only LL-Cp changes its own, which holds 0 and 1.
    """
    progress, fabric = trainer.progress, trainer.fabric
    names = [trainer.data.train.ids[row] for row in index.tolist()]
    file = trainer.folder / f"bad_batch_rank{fabric.global_rank}.pt"
    content = {
        **{"inputs": plain(inputs), "targets": plain(targets), "index": index, "ids": names},
        **{"logits": known(logits), "loss_value": value},
        **{"epoch": progress.epoch, "step": progress.step, "seed": list(trainer.step_seed())},
        **{"model": trainer.module.state_dict(), "stage": trainer.stage},
        "loss": trainer.losses[trainer.stage].state_dict(),
    }
    atomic.write(file, lambda opened: torch.save(on_cpu(content), opened))
    what = "the logits are not finite" if math.isfinite(value) else f"the loss is {value}"
    raise FloatingPointError(
        f"{what} in epoch {progress.epoch + 1}, step {progress.step}, on the samples "
        f"{', '.join(names[:8])}{' ...' if len(names) > 8 else ''}; batch, weights and seed "
        f"are in {file}, {advice(trainer.folder)}"
    )


def check_weights(models: Mapping[str, nn.Module], folder: Path, *, position: str) -> None:
    """Refuse weights and batch statistics that are not finite.

    Args:
        models: what to check, by the name to call it.
        folder: the run folder.
        position: where in the run this is.

    >>> model = nn.Linear(1, 1, bias=False)
    >>> _ = nn.init.constant_(model.weight, torch.inf)
    >>> check_weights({"weights": model}, Path("runs/a"), position="epoch 2, step 3")
    Traceback (most recent call last):
    FloatingPointError: the weights (weight) are not finite in epoch 2, step 3, though the losses
    were; no state was saved yet: lower the learning rate or clip the gradient (trainer.clip_norm=1)
    """
    for kind, model in models.items():
        for name, values in model.state_dict().items():
            if not values.isfinite().all():
                raise FloatingPointError(
                    f"the {kind} ({name}) are not finite in {position}, though the losses were; "
                    f"{advice(folder)}"
                )


def known(logits: Tensor | ChunkedLogits) -> Tensor:
    """Return the logits, or the features of chunked ones."""
    return logits.features if isinstance(logits, ChunkedLogits) else logits


def on_cpu(tree: Any) -> Any:
    """Return nested values with each tensor detached, on the CPU.

    >>> on_cpu({"step": 3, "model": {"weight": torch.ones(1, requires_grad=True)}})
    {'step': 3, 'model': {'weight': tensor([1.])}}
    """
    if isinstance(tree, Tensor):
        return tree.detach().cpu()
    if isinstance(tree, Mapping):
        return {key: on_cpu(value) for key, value in tree.items()}
    return tree


def plain(batch: Tensor | Bags | LabelLists | PartialLabels) -> Tensor | dict[str, Tensor]:
    """Return what a file without code can hold: a tensor, or tensors by name."""
    if isinstance(batch, LabelLists):
        return {"rows": batch.rows, "columns": batch.columns}
    return batch._asdict() if isinstance(batch, Bags | PartialLabels) else batch


def advice(folder: Path) -> str:
    """What to do about non-finite numbers."""
    file = state.path(folder)
    kept = f"the last good state is in {file}" if file.exists() else "no state was saved yet"
    return f"{kept}: lower the learning rate or clip the gradient (trainer.clip_norm=1)"
