"""Weights from a package: those of the network that is named, or a message."""

import sys

import pytest
import timm
import torch

from tkpr.models.backbone import create
from tkpr.models.packaged import packaged_weights

NAME = "test_resnet"


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A folder for the files of an installed package that holds the weights of a network."""
    folder = tmp_path / "site" / "weights_of_test_resnet"
    folder.mkdir(parents=True)
    (folder / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(folder.parent))
    monkeypatch.setattr("tkpr.models.packaged.PACKAGES", {f"{NAME}.r160_in1k": folder.name})
    yield folder
    sys.modules.pop(folder.name, None)


def renamed(state):
    """Weights under the names of another project, which has the same layers in the same order."""
    return {f"net{at}.{name.rpartition('.')[2]}": v for at, (name, v) in enumerate(state.items())}


def test_weights_are_taken_in_their_order(package):
    torch.manual_seed(3)
    state = timm.create_model(NAME).state_dict()
    torch.save(renamed(state), package / "model.pth")
    for name in (NAME, f"{NAME}.r160_in1k"):
        found = packaged_weights(name)
        assert list(found) == list(state)
        assert all(torch.equal(found[key], value) for key, value in state.items())
    assert torch.equal(create(NAME, 5).conv1[0].weight, state["conv1.0.weight"])


def test_another_tag_means_other_weights(package):
    torch.save(renamed(timm.create_model(NAME).state_dict()), package / "model.pth")
    assert packaged_weights(f"{NAME}.other") is None
    with pytest.raises(
        ValueError, match=r"no weights 'test_resnet\.other'; it knows test_resnet\.r1"
    ):
        create(f"{NAME}.other", 5)


@pytest.mark.parametrize("damage", ["no file", "two files", "another order", "fewer"])
def test_a_package_of_something_else_is_named(package, damage):
    state = renamed(timm.create_model(NAME).state_dict())
    if damage == "another order":  # of equal shapes: mean and variance of a batch norm
        state = dict(reversed(state.items()))
    if damage == "fewer":
        state.popitem()
    for name in {"no file": [], "two files": ["a.pth", "b.pth"]}.get(damage, ["a.pth"]):
        torch.save(state, package / name)
    message = r"^the package weights_of_test_resnet does not hold the weights of test_resnet: "
    with pytest.raises(ValueError, match=message) as caught:
        create(NAME, 5)
    assert "\n" not in str(caught.value)


def test_damaged_weights_of_a_package_are_named(package):
    torch.save(renamed(timm.create_model(NAME).state_dict()), package / "a.pth")
    content = (package / "a.pth").read_bytes()
    (package / "a.pth").write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match=r"a\.pth is not a whole file of plain weights"):
        create(NAME, 5)
