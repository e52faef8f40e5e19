"""A ResNet for images of some 50 pixels, small enough for a CPU."""

from typing import Any

from timm.models.resnet import BasicBlock, ResNet
from torch import nn

STORED_MODELS_MAY_BUILD = ("tiny",)


def tiny(num_classes: int, *, width: int) -> nn.Module:
    """Four stages of one block each, for small objects anywhere in a small image.

    The resolution is halved only three times, in the stem and in the second and third stage, so an
    object a quarter of the image wide still covers two cells of the last map.

    Args:
        num_classes: C (0: features only).
        width: channels of the stem and of the first stage; the others have two, three and four
            times as many.

    >>> sum(p.numel() for p in tiny(10, width=16).parameters())
    125434
    """
    channels = tuple(width * stage for stage in range(1, 5))
    block: Any = BasicBlock
    model: Any = ResNet(block, (1, 1, 1, 1), num_classes=num_classes, channels=channels)
    model.conv1 = nn.Conv2d(3, width, kernel_size=5, stride=2, padding=2, bias=False)
    model.bn1 = nn.BatchNorm2d(width)
    model.maxpool = nn.Identity()
    model.layer1[0] = BasicBlock(width, width)
    for layer in (model.layer4[0].conv1, model.layer4[0].downsample[0]):
        layer.stride = (1, 1)
    return model
