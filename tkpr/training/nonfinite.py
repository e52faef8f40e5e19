"""Numbers that are not finite: stopped before a checkpoint, left in a file that repeats them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tkpr import atomic
from tkpr.training import state as checkpoint


def check_weights(models: Mapping[str, nn.Module], folder: Path, *, place: str) -> None:
    """Refuse weights and batch statistics that are not finite.

    Args:
        models: what to look at, and how to call it.
        folder: the run folder.
        place: where in the run this is.

    >>> model = nn.Linear(1, 1, bias=False)
    >>> _ = nn.init.constant_(model.weight, torch.inf)
    >>> check_weights({"weights": model}, Path("runs/a"), place="epoch 2, step 3")
    Traceback (most recent call last):
    FloatingPointError: the weights (weight) are not finite in epoch 2, step 3, though the losses
    were; no state was saved yet: lower the learning rate or clip the gradient (trainer.clip_norm=1)
    """
    for kind, model in models.items():
        for name, values in model.state_dict().items():
            if not values.isfinite().all():
                raise FloatingPointError(
                    f"the {kind} ({name}) are not finite in {place}, though the losses were; "
                    f"{advice(folder)}"
                )


def save_batch(file: Path, content: Mapping[str, Any]) -> None:
    """Write what a step was computed from; ``torch.load(file, weights_only=True)`` reads it."""
    atomic.write(file, lambda opened: torch.save(on_cpu(content), opened))


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


def advice(folder: Path) -> str:
    """What to do about numbers that are not finite."""
    file = checkpoint.path(folder)
    kept = f"the last good state is in {file}" if file.exists() else "no state was saved yet"
    return f"{kept}: lower the learning rate or clip the gradient (trainer.clip_norm=1)"
