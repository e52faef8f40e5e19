"""What a network's weights expect of an image: mean, deviation, interpolation."""

from collections.abc import Mapping
from typing import Any

import timm

# models of this project under the name of the timm network whose preprocessing they share
NAMES = {
    "tkpr.models.efficientnet_lite0.create": "tf_efficientnet_lite0",
    "tkpr.models.resnet50_v1.create": "resnet50.tv_in1k",
}


def preprocessing(model: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``mean``, ``std`` and ``interpolation`` of the images that a network was trained on.

    Args:
        model: the settings of a model. One that starts from scratch takes pixels in [0, 1].

    >>> preprocessing({"_target_": "tkpr.models.efficientnet_lite0.create"})
    {'mean': [0.5, 0.5, 0.5], 'std': [0.5, 0.5, 0.5], 'interpolation': 'bicubic'}
    >>> preprocessing({"_target_": "tkpr.models.tiny.tiny", "width": 16})
    {'mean': [0.0, 0.0, 0.0], 'std': [1.0, 1.0, 1.0], 'interpolation': 'bilinear'}
    """
    name = model.get("model_name") or NAMES.get(str(model.get("_target_")))
    weights = timm.get_pretrained_cfg(name) if name and timm.is_model(name) else None
    if weights is None:
        return {"mean": [0.0] * 3, "std": [1.0] * 3, "interpolation": "bilinear"}
    return {
        "mean": list(weights.mean),
        "std": list(weights.std),
        "interpolation": weights.interpolation,
    }
