"""BoostLU: raise the positive activations of each class before they are pooled.

Trained on labels that are mostly missing, a network gives its objects lower activations than one
trained on full labels does, at the same positions. BoostLU scales them up. It belongs with the
large-loss methods (`loss=ll_r`, `ll_ct` or `ll_cp`), which then find missed labels sooner.
"""

from typing import Any

import torch
from torch import Tensor, nn

from tkpr.models.backbone import create, feature_map, map_channels

STORED_MODELS_MAY_BUILD = ("boostlu",)


class BoostLU(nn.Module):
    """alpha a for an activation a > 0, a itself otherwise (Kim et al., CVPR 2023).

    Args:
        alpha: the factor.

    >>> BoostLU(alpha=5)(torch.tensor([-1.0, 0.0, 2.0]))
    tensor([-1.,  0., 10.])
    """

    def __init__(self, *, alpha: float = 5.0) -> None:
        super().__init__()
        self.alpha = alpha

    def forward(self, activations: Tensor) -> Tensor:
        """Return the boosted activations, of the same shape."""
        return torch.where(activations > 0, self.alpha * activations, activations)


class BoostedClassifier(nn.Module):
    """A backbone with a classifier at every position of its last map, BoostLU and average pooling.

    With alpha = 1 this is average pooling and a linear layer. The boost is active in training and
    in evaluation.

    Args:
        backbone: a timm model without classifier and pooling
            (``timm.create_model(..., num_classes=0, global_pool="")``).
        num_classes: C.
        alpha: the factor of positive activations.

    >>> model = boostlu("resnet18", 5, pretrained=False)
    >>> model(torch.randn(2, 3, 64, 64)).shape
    torch.Size([2, 5])
    """

    def __init__(self, backbone: nn.Module, num_classes: int, *, alpha: float) -> None:
        super().__init__()
        self.backbone = backbone
        self.classifier = nn.Linear(map_channels(backbone), num_classes)
        self.boost = BoostLU(alpha=alpha)

    def get_classifier(self) -> nn.Module:
        """Return the classifier, which may learn faster than the backbone."""
        return self.classifier

    def forward(self, images: Tensor) -> Tensor:
        """Return logits ``[B, C]`` of images ``[B, 3, H, W]``."""
        places = feature_map(self.backbone, images).flatten(2).mT
        return self.boost(self.classifier(places)).mean(dim=1)


def boostlu(
    model_name: str,
    num_classes: int,
    *,
    alpha: float = 5.0,
    image_size: int | None = None,
    **options: Any,
) -> BoostedClassifier:
    """Build a timm backbone with a boosted classifier.

    Args:
        model_name: the backbone's name in timm.
        num_classes: C.
        alpha: the factor of positive activations.
        image_size: side of the input in pixels.
        **options: further arguments of :func:`tkpr.models.backbone.create`.

    >>> boostlu("resnet18", 5, pretrained=False).get_classifier()
    Linear(in_features=512, out_features=5, bias=True)
    """
    backbone = create(model_name, 0, global_pool="", image_size=image_size, **options)
    return BoostedClassifier(backbone, num_classes, alpha=alpha)
