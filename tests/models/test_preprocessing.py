"""Each network gets images as its weights want them, and the run's file says how."""

import json

import pytest
import torch
from hydra.utils import get_object
from omegaconf import OmegaConf
from safetensors import safe_open

from tests.short_runs import CONFIGS, SMALL, compose, train
from tkpr.config import build
from tkpr.models.preprocessing import NAMES, preprocessing
from tkpr.runs.evaluation import reconfigure
from tkpr.runs.saved_model import load_model
from tkpr.runs.settle import settle

IMAGENET = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
HALF = ([0.5, 0.5, 0.5], [0.5, 0.5, 0.5])


@pytest.mark.parametrize(
    ("model", "normal", "interpolation"),
    [
        ("resnet50", IMAGENET, "bilinear"),
        ("resnet101", IMAGENET, "bilinear"),
        ("resnet50_v1", IMAGENET, "bilinear"),
        ("ccd", IMAGENET, "bilinear"),
        ("swin_base", IMAGENET, "bicubic"),
        ("convnext_tiny", IMAGENET, "bicubic"),
        ("vit_small", HALF, "bicubic"),
        ("efficientnet_lite0", HALF, "bicubic"),
        ("tiny", ([0.0] * 3, [1.0] * 3), "bilinear"),
    ],
)
def test_the_weights_say_how_images_are_prepared(model, normal, interpolation, tmp_path):
    for transform in ("asl", "spml", "shift48"):
        cfg = compose(f"model={model}", f"transform={transform}", folder=tmp_path)
        settle(cfg)
        assert (cfg.transform.mean, cfg.transform.std) == normal
        pipeline = build(cfg.transform)
        assert pipeline.interpolation == interpolation
        white = pipeline.finish(torch.full((1, 3, 1, 1), 255, dtype=torch.uint8)).flatten()
        wanted = (1 - torch.tensor(normal[0])) / torch.tensor(normal[1])
        torch.testing.assert_close(white, wanted)


def test_tresnet_of_asl_wants_pixels_between_0_and_1():
    wanted = preprocessing({"_target_": "tkpr.models.backbone.create", "model_name": "tresnet_m"})
    assert (wanted["mean"], wanted["std"]) == ([0.0] * 3, [1.0] * 3)


def test_what_a_recipe_names_is_kept(tmp_path):
    words = ["model=efficientnet_lite0", "transform=asl", "transform.mean=0", "transform.std=1"]
    cfg = compose(*words, folder=tmp_path)
    settle(cfg)
    assert (cfg.transform.mean, cfg.transform.std) == (0, 1)
    assert cfg.transform.interpolation == "bicubic"


def test_a_transform_without_a_network_is_refused(tmp_path):
    with pytest.raises(ValueError, match="come from the network's weights"):
        build(compose(folder=tmp_path).transform)
    words = ["transform.interpolation=nearest"]
    cfg = compose(*words, folder=tmp_path)
    settle(cfg)
    with pytest.raises(ValueError, match="must be bilinear or bicubic; got 'nearest'"):
        build(cfg.transform)


def test_every_name_is_that_of_a_model():
    for target, name in NAMES.items():
        assert callable(get_object(target))
        assert preprocessing({"_target_": target}) == preprocessing({"model_name": name})


def test_the_run_and_its_model_carry_the_values(tmp_path):
    words = ["trainer.epochs=1", "trainer.warmup_epochs=0", "transform.mean=[0.1,0.2,0.3]"]
    results = train(*SMALL, *words, folder=tmp_path)
    assert results["config"]["transform"]["std"] == [1.0] * 3
    assert json.loads((tmp_path / "metrics.json").read_text())["config"] == results["config"]
    with safe_open(tmp_path / "model.safetensors", framework="pt") as opened:
        stored = OmegaConf.create(opened.metadata()["config"])
    assert stored.transform.mean == [0.1, 0.2, 0.3]
    trained = load_model(tmp_path)
    other = reconfigure(trained.cfg, CONFIGS, ["transform=spml", "transform.size=32"])
    assert other.transform.std == [1.0] * 3  # those of the model, not null
