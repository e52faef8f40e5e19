"""The first ResNet-50 against one written out from its description."""

import pytest
import torch
from safetensors.torch import save_file
from torch.nn import functional as F

from tkpr.models.resnet50_v1 import create

DEPTHS = (3, 4, 6, 3)


def by_hand(weights, images):
    """He et al. 2015, Tab. 1: 50 layers, the stride in a stage's first convolutions."""

    def conv_bn(inputs, conv, norm, *, stride=1, padding=0):
        outputs = F.conv2d(inputs, weights[f"{conv}.weight"], stride=stride, padding=padding)
        parts = [weights[f"{norm}.{key}"] for key in ("running_mean", "running_var")]
        parts += [weights[f"{norm}.{key}"] for key in ("weight", "bias")]
        return F.batch_norm(outputs, *parts, eps=1e-3)

    values = conv_bn(images, "conv1", "bn1", stride=2, padding=3).relu()
    values = F.max_pool2d(values, 3, stride=2, padding=1)
    for stage, depth in enumerate(DEPTHS, 1):
        for block in range(depth):
            name, stride = f"layer{stage}.{block}.", 2 if stage > 1 and block == 0 else 1
            shortcut = values
            if block == 0:
                names = (f"{name}downsample.0", f"{name}downsample.1")
                shortcut = conv_bn(values, *names, stride=stride)
            values = conv_bn(values, f"{name}conv1", f"{name}bn1", stride=stride).relu()
            values = conv_bn(values, f"{name}conv2", f"{name}bn2", padding=1).relu()
            values = (conv_bn(values, f"{name}conv3", f"{name}bn3") + shortcut).relu()
    return values.mean((2, 3)) @ weights["fc.weight"].T + weights["fc.bias"]


def random_weights():
    torch.manual_seed(0)
    weights = create(7, pretrained=False).state_dict()
    return {
        key: value.abs() + torch.rand_like(value) if value.ndim == 1 else value
        for key, value in weights.items()
    }


def test_weights_from_a_file_give_the_network_of_the_paper(tmp_path):
    weights = random_weights()
    save_file(weights, tmp_path / "w.safetensors")
    model = create(7, checkpoint=str(tmp_path / "w.safetensors")).eval()
    images = torch.rand(2, 3, 64, 64)
    weights |= {f"fc.{key}": value for key, value in model.fc.state_dict().items()}
    with torch.no_grad():
        logits = model(images)
        torch.testing.assert_close(logits, by_hand(weights, images), rtol=1e-4, atol=1e-4)


def test_weights_must_be_named_and_fit(tmp_path):
    with pytest.raises(ValueError, match=r"from a local file: model\.checkpoint="):
        create(7)
    save_file({"conv1.weight": torch.zeros(1)}, tmp_path / "w.safetensors")
    with pytest.raises(ValueError, match="does not fit the model: 265 of its 265"):
        create(7, checkpoint=str(tmp_path / "w.safetensors"))
