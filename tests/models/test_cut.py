"""A network in two parts is the same network; only its second part learns."""

import copy

import pytest
import timm
import torch
from torch import nn

from tkpr.models.backbone import create
from tkpr.models.ccd import ccd
from tkpr.models.cut import CutNetwork, cuts, fold_batch_norm

NETWORKS = {
    "test_resnet": ["maxpool", "layer3", "layer4.0"],
    "test_efficientnet": ["blocks.1", "blocks.2", "conv_head"],
    "test_convnext": ["stages.1"],
    "test_vit": ["blocks.3"],
    "test_byobnet": ["stages.2"],
    "swin_tiny_patch4_window7_224": ["layers.2"],
    "mobilenetv3_small_050": ["blocks.4"],
    "densenet121": ["features.denseblock3"],
}
CASES = [(name, cut) for name, places in NETWORKS.items() for cut in places]


def network(name, **options):
    """A network with statistics of its own in every batch norm."""
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=5, **options).eval()
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            for values in (layer.running_mean, layer.running_var, layer.weight, layer.bias):
                values.data.uniform_(0.5, 1.5)
    return model


@pytest.mark.parametrize(("name", "cut"), CASES, ids=lambda value: str(value))
def test_both_parts_make_up_the_whole(name, cut):
    size = timm.get_pretrained_cfg(name).input_size[-1]
    whole = network(name)
    parts = CutNetwork(copy.deepcopy(whole), cut, image_size=size).eval()
    images = torch.rand(2, 3, size, size)
    with torch.no_grad():
        wanted, maps = whole(images), parts.maps(images)
        scale = wanted.abs().max().item()
        torch.testing.assert_close(parts(images), wanted, rtol=1e-3, atol=1e-4 * scale)
        assert torch.equal(parts(maps), parts(images))
    assert maps.shape[1:] == parts.map_shape


def test_only_the_tail_learns():
    model = CutNetwork(network("test_resnet"), "layer3", image_size=64).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    model(torch.rand(4, 3, 64, 64)).square().sum().backward()
    optimizer.step()
    changed = {name for name, value in model.state_dict().items() if not value.equal(before[name])}
    assert changed == {name for name, _ in model.named_parameters() if name.startswith("tail.")}
    assert any(name.endswith("conv1.bias") for name in changed)  # of the folded batch norm


def test_batch_norm_that_cannot_be_folded_keeps_its_statistics():
    model = CutNetwork(network("test_efficientnet"), "conv_head", image_size=64).train()
    layers = [layer for layer in model.tail.modules() if isinstance(layer, nn.BatchNorm2d)]
    assert len(layers) == 1
    before = layers[0].running_mean.clone()
    model(torch.rand(4, 3, 64, 64))
    assert layers[0].running_mean.equal(before)


def test_a_convolution_for_two_keeps_its_batch_norms_apart():
    """Batch norm is folded only where it takes the output of a convolution as it is."""
    layers = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), nn.BatchNorm2d(4)).eval()
    fold_batch_norm(layers, torch.rand(1, 3, 2, 2))
    assert isinstance(layers[2], nn.BatchNorm2d)


def test_the_digest_changes_with_the_frozen_weights_alone():
    model = network("test_resnet")
    first = CutNetwork(model, "layer3", image_size=64).digest
    model.fc.weight.data += 1
    assert CutNetwork(model, "layer3", image_size=64).digest == first
    model.conv1[0].weight.data += 1
    assert CutNetwork(model, "layer3", image_size=64).digest != first


def test_a_cut_that_does_not_exist_or_work_is_refused():
    with pytest.raises(ValueError, match=r"no layer layer9; model\.cut can be layer"):
        create("test_resnet", 5, pretrained=False, cut="layer9", image_size=64)
    # the shortcut of the block goes past the cut
    with pytest.raises(ValueError, match=r"cannot be cut at layer2\.0\.conv1"):
        create("test_resnet", 5, pretrained=False, cut="layer2.0.conv1", image_size=64)


def test_cuts_are_listed_in_order():
    assert cuts(timm.create_model("resnet18"))[:3] == ["layer1.0", "layer1.1", "layer2.0"]


def test_ccd_gets_the_maps_it_needs():
    options = {"context_epochs": 1, "pretrained": False, "image_size": 64}
    torch.manual_seed(0)
    whole = ccd("test_resnet", 5, **options).eval()
    torch.manual_seed(0)
    parts = ccd("test_resnet", 5, cut="layer3", **options).eval()
    parts.head.load_state_dict(whole.head.state_dict())
    images = torch.rand(2, 3, 64, 64)
    maps = parts.backbone.maps(images)
    for stage in (1, 2):
        if stage == 2:
            whole.head.start_stage_two()
            parts.head.start_stage_two()
        torch.testing.assert_close(parts(maps), whole(images), rtol=1e-3, atol=1e-4)
