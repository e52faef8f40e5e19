"""A ResNet for images of some 64 pixels, small enough for a CPU."""

from typing import Any

from timm.models.resnet import BasicBlock, ResNet
from torch import nn


def tiny(num_classes: int, *, width: int) -> nn.Module:
    """Four stages of one block each; the stem is narrow and halves the image once, not twice.

    Args:
        num_classes: C (0: features only).
        width: channels of the stem and of the first stage, doubled at each of the others.

    >>> sum(p.numel() for p in tiny(10, width=16).parameters())
    308826
    """
    channels = tuple(width * 2**stage for stage in range(4))
    block: Any = BasicBlock
    model: Any = ResNet(block, (1, 1, 1, 1), num_classes=num_classes, channels=channels)
    model.conv1 = nn.Conv2d(3, width, kernel_size=3, stride=2, padding=1, bias=False)
    model.bn1 = nn.BatchNorm2d(width)
    model.maxpool = nn.Identity()
    model.layer1[0] = BasicBlock(width, width)
    return model
