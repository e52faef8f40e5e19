"""BoostLU, and the large-loss methods on it, against the original implementation."""

import pytest
import timm
import torch

from tests.losses.golden import assert_matches, cases
from tkpr.losses import LargeLoss
from tkpr.models.boostlu import BoostedClassifier, BoostLU, boostlu
from tkpr.training.optimizer import parameter_groups

SCHEMES = {"LL-R": "reject", "LL-Ct": "correct_temporarily", "LL-Cp": "correct_permanently"}


def stored(*names):
    return pytest.mark.parametrize(
        ("params", "case"), [pytest.param(*rest, id=name) for name, *rest in cases(*names)]
    )


def boosted(params, case):
    """The stored map, and its logits."""
    activations = torch.tensor(case["extra"]["cam"], dtype=torch.float64, requires_grad=True)
    return activations, BoostLU(alpha=params["alpha"])(activations).mean((2, 3))


@stored("boostlu")
def test_layer_golden(params, case):
    activations, logits = boosted(params, case)
    output, projection = (
        torch.tensor(case["extra"][name], dtype=torch.float64) for name in ("output", "projection")
    )
    torch.testing.assert_close(logits, output, rtol=1e-12, atol=1e-12)
    assert_matches((logits * projection).sum(), activations, case)


@stored("boostlu_ll_r", "boostlu_ll_ct", "boostlu_ll_cp")
def test_large_loss_golden(params, case):
    """Value, gradient at the map, and the entries that LL-Cp keeps."""
    activations, logits = boosted(params, case)
    targets = torch.tensor(case["targets"], dtype=torch.float64)
    loss = LargeLoss(
        scheme=SCHEMES[params["largelossmod_scheme"]],
        delta_rel=params["delta_rel"],
        num_samples=len(targets),
        num_classes=targets.shape[1],
        keep_last=True,
    )
    loss.set_epoch(case["extra"]["epoch"] - 1)
    assert loss.num_modified(targets.numel()) == case["extra"]["k"]
    assert_matches(loss(logits, targets, torch.arange(len(targets))), activations, case)
    if params["largelossmod_scheme"] == "LL-Cp":
        rows, columns = case["extra"]["correction_idx"] or ([], [])
        kept = {tuple(place) for place in loss.corrections.nonzero().tolist()}
        assert kept == set(zip(rows, columns, strict=True))


@pytest.mark.parametrize("name", ["resnet18", "swin_tiny_patch4_window7_224"])
def test_without_a_boost_it_is_pooling_and_a_linear_layer(name):
    options = {"img_size": 64} if name.startswith("swin") else {}
    plain = timm.create_model(name, num_classes=5, **options).eval()
    backbone = timm.create_model(name, num_classes=0, global_pool="", **options)
    model = BoostedClassifier(backbone, 5, alpha=1.0).eval()
    model.backbone.load_state_dict(plain.state_dict(), strict=False)
    head = plain.get_classifier()
    model.classifier.load_state_dict(head.state_dict())
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(model(images), plain(images), rtol=1e-4, atol=1e-5)
        model.boost.alpha = 5.0
        assert (model(images) > plain(images) + 1e-4).any()


def test_the_classifier_may_learn_faster():
    model = boostlu("resnet18", 5, pretrained=False)
    groups = parameter_groups(model, [], lr=0.1, weight_decay=0.0, head_lr_multiplier=10)
    fast = [group for group in groups if group["lr"] == 1.0]
    assert sum(p.numel() for group in fast for p in group["params"]) == 512 * 5 + 5
