"""Pretrained weights from a file: read without running code, loaded whole or not at all."""

import logging
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

log = logging.getLogger(__name__)

# under which a training script may keep the weights of its model, averaged ones first
DICTIONARIES = (
    *("state_dict_ema", "model_ema", "ema_state_dict", "ema"),
    *("state_dict", "model_state_dict", "model", "module"),
)
# which wrappers put before the names of a model's weights
PREFIXES = ("module.", "_orig_mod.", "model.", "backbone.")


def read_weights(file: Path) -> dict[str, Tensor]:
    """Read a file of weights; one that would run code is refused.

    Args:
        file: .safetensors, or what ``torch.save`` has made of a state dict or of a dictionary that
            holds one; averaged weights are preferred where there are any.
    """
    if not file.is_file():
        raise FileNotFoundError(f"no weights at {file}: check model.checkpoint")
    try:
        if file.suffix == ".safetensors":
            state: Any = load_file(file)
        else:
            state = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # a truncated file and one with code inside fail in many ways
        reason = (str(error).strip() or repr(error)).splitlines()[0]
        raise ValueError(
            f"{file} is not a whole file of plain weights ({reason}): get it again, or name "
            "another with model.checkpoint=..."
        ) from error
    weights = {name: value for name, value in _state(state).items() if isinstance(value, Tensor)}
    if not weights:
        raise ValueError(f"{file} holds no weights: name another file with model.checkpoint=...")
    return weights


def _state(content: Any) -> Mapping[str, Any]:
    """Return the state dict inside a checkpoint."""
    if not isinstance(content, Mapping):
        return {}
    for key in DICTIONARIES:
        if isinstance(content.get(key), Mapping):
            return _state(content[key])
    return content


def load_weights(model: nn.Module, weights: Mapping[str, Tensor], *, source: Path) -> None:
    """Load all weights of a model but its classifier's, which stays as it is.

    Prefixes of wrappers (``module.``, ``model.``, ``backbone.``) are left out, and names and shapes
    of other projects are converted where timm can.

    Args:
        model: a timm model.
        weights: by name.
        source: their file, for messages.

    >>> model = nn.Sequential(nn.Linear(2, 2))
    >>> load_weights(model, {"module.0.weight": torch.ones(2, 2)}, source=Path("w.pth"))
    Traceback (most recent call last):
    ValueError: w.pth does not fit the model: 1 of its 2 weights are missing or have another shape:
    0.bias
    """
    classifier = _classifier(model)
    wanted = {
        name: value.shape
        for name, value in model.state_dict().items()
        if not name.startswith(classifier) and not name.endswith("num_batches_tracked")
    }
    nearest: list[str] = list(wanted)
    for candidate in _candidates(model, weights):
        missing = [
            name
            for name, shape in wanted.items()
            if name not in candidate or candidate[name].shape != shape
        ]
        if not missing:
            known = model.state_dict()
            found = {
                name: value
                for name, value in candidate.items()
                if name in known and not name.startswith(classifier)
            }
            model.load_state_dict(found, strict=False)
            log.info("%d weights loaded from %s", len(found), source)
            return
        nearest = min(nearest, missing, key=len)
    names = ", ".join(nearest[:5]) + (", ..." if len(nearest) > 5 else "")
    raise ValueError(
        f"{source} does not fit the model: {len(nearest)} of its {len(wanted)} weights are missing "
        f"or have another shape: {names}"
    )


def _classifier(model: nn.Module) -> tuple[str, ...]:
    """Return the beginnings of the names of a classifier's weights."""
    layers = model.get_classifier() if hasattr(model, "get_classifier") else ()  # type: ignore[operator]
    layers = layers if isinstance(layers, tuple | list) else (layers,)
    return tuple(
        f"{name}." for name, module in model.named_modules() if any(module is x for x in layers)
    )


def _candidates(model: nn.Module, weights: Mapping[str, Tensor]) -> Iterator[Mapping[str, Tensor]]:
    """Yield the weights under the names that they may have in timm: as they are, then unwrapped."""
    convert = getattr(sys.modules[type(model).__module__], "checkpoint_filter_fn", None)
    while weights:
        yield weights
        if convert is not None:
            try:
                yield convert(dict(weights), model)
            except Exception as error:  # weights of something else fail in many ways
                log.debug("timm cannot convert the weights: %r", error)
        weights = next(
            (
                {name.removeprefix(prefix): weights[name] for name in inside}
                for prefix in PREFIXES
                if (inside := [name for name in weights if name.startswith(prefix)])
            ),
            {},
        )
