"""Where to cut a network so that only its last stage is trained."""

import logging
from typing import Any

import timm

from tkpr.models.cut import CutNetwork

log = logging.getLogger(__name__)


def tail_cut(name: str, *, image_size: int) -> str | None:
    """Return the last layer to freeze in a network of timm, or None if it cannot be cut.

    What follows is its last stage; of networks whose stages are single blocks (ViT) it is the last
    sixth of them.

    Args:
        name: of the network.
        image_size: the side of the images in pixels.

    >>> tail_cut("resnet18", image_size=64), tail_cut("tf_efficientnet_lite0", image_size=64)
    ('layer3', 'blocks.5')
    """
    config = timm.get_pretrained_cfg(name)
    options: dict[str, Any] = {}
    if config is not None and config.fixed_input_size:
        options["img_size"] = image_size
    network = timm.create_model(name, **options)
    info = getattr(network, "feature_info", None) or []
    stages = [stage["module"] for stage in getattr(info, "info", info)]
    if len(stages) < 2:
        return None
    sequence, _, last = stages[-1].rpartition(".")
    cut = stages[-2]
    if last.isdecimal():
        cut = f"{sequence}.{int(last) - max(1, (int(last) + 1) // 6)}"
    try:
        CutNetwork(network, cut, image_size=image_size)
    except ValueError as error:
        log.info("%s: everything is trained", error)
        return None
    return cut
