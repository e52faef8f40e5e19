"""The first ResNet-50, whose stages halve the map in their first 1 x 1 convolution."""

from pathlib import Path
from typing import Any

import timm
from torch import nn

from tkpr.models.cut import CutNetwork
from tkpr.models.weights import load_weights, read_weights

STORED_MODELS_MAY_BUILD = ("create",)


def create(
    num_classes: int,
    *,
    pretrained: bool = True,
    checkpoint: str | None = None,
    cut: str | None = None,
    image_size: int = 224,
    **options: Any,
) -> nn.Module:
    """Create ResNet-50 as He et al. published it, with a new classifier.

    timm's ResNet-50 halves the map in the 3 x 3 convolution; weights of the original (Caffe,
    later Keras) need the stride in the 1 x 1 convolution before it, and batch norm with
    eps = 1e-3. The names of the weights are timm's and torchvision's.

    Args:
        num_classes: C (0: features only).
        pretrained: load the weights in ``checkpoint``.
        checkpoint: a local file; its classifier is left out.
        cut: the last frozen layer (:mod:`tkpr.models.cut`); None: everything is trained.
        image_size: side of the input in pixels, for a cut.
        **options: handed to ``timm.create_model``.

    >>> model = create(0, pretrained=False)
    >>> model.layer2[0].conv1.stride, model.layer2[0].conv2.stride, model.bn1.eps
    ((2, 2), (1, 1), 0.001)
    """
    if pretrained and checkpoint is None:
        raise ValueError(
            "model=resnet50_v1 takes its weights from a local file: model.checkpoint=..., or "
            "model.pretrained=false to start from scratch"
        )
    model: Any = timm.create_model("resnet50.tv_in1k", num_classes=num_classes, **options)
    if pretrained:
        file = Path(str(checkpoint))
        load_weights(model, read_weights(file), source=file)
    for stage in (model.layer2, model.layer3, model.layer4):
        stage[0].conv1.stride, stage[0].conv2.stride = (2, 2), (1, 1)
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.eps = 1e-3
    return model if cut is None else CutNetwork(model, cut, image_size=image_size)
