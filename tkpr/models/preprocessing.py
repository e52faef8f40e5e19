"""What a network's weights expect of an image: size, mean, deviation, interpolation."""

from collections.abc import Mapping
from typing import Any

import timm

# models of this project under the name of the timm network whose preprocessing they share
NAMES = {"tkpr.models.resnet50_v1.create": "resnet50.tv_in1k"}


def timm_name(model: Mapping[str, Any]) -> str | None:
    """Return the name of the timm network that a model is, None if it is none.

    Args:
        model: the settings of a model.
    """
    name = model.get("model_name") or NAMES.get(str(model.get("_target_")))
    return name if name and timm.is_model(name) else None


def preprocessing(model: Mapping[str, Any]) -> dict[str, Any]:
    """Return size, mean, deviation and interpolation of the images a network was trained on.

    Args:
        model: the settings of a model. One that starts from scratch takes pixels in [0, 1].

    >>> preprocessing({"model_name": "tf_efficientnet_lite0"})
    {'size': 224, 'mean': [0.5, 0.5, 0.5], 'std': [0.5, 0.5, 0.5], 'interpolation': 'bicubic'}
    >>> preprocessing({"_target_": "tkpr.models.tiny.tiny", "width": 16})
    {'size': 224, 'mean': [0.0, 0.0, 0.0], 'std': [1.0, 1.0, 1.0], 'interpolation': 'bilinear'}
    """
    name = timm_name(model)
    weights = timm.get_pretrained_cfg(name) if name else None
    if weights is None:
        return {"size": 224, "mean": [0.0] * 3, "std": [1.0] * 3, "interpolation": "bilinear"}
    return {
        "size": weights.input_size[-1],
        "mean": list(weights.mean),
        "std": list(weights.std),
        "interpolation": weights.interpolation,
    }
