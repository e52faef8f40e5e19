import pytest
import timm
import torch

from tests.losses.golden import cases
from tkpr.models.ccd import CCD, CCDHead, InterventionalClassifier, ccd


@pytest.mark.parametrize(
    ("params", "case"), [pytest.param(*rest, id=name) for name, *rest in cases("ccd_head")]
)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("form", ["tokens", "map"])
def test_head_is_the_original(params, case, form, training):
    extra = {
        name: torch.tensor(value, dtype=torch.float64) for name, value in case["extra"].items()
    }
    num_classes, in_features = extra["memory"].shape
    head = CCDHead(
        in_features,
        num_classes,
        num_heads=params["num_head"],
        tau=params["tau"],
        beta=params["beta"],
    ).double()
    with torch.no_grad():
        head.context.weight.copy_(extra["context_weight"])
        head.debiased.weight.copy_(extra["logit_weight"])
        head.selector.weight.copy_(extra["selector_weight"])
        head.selector.bias.copy_(extra["selector_bias"])
    head.set_memory(extra["memory"])
    if extra["stage"] == 2:
        head.start_stage_two()
    features = extra["features"].requires_grad_()
    logits = head.train(training)(features if form == "tokens" else features.unsqueeze(3))
    torch.testing.assert_close(logits, extra["output"], rtol=1e-10, atol=1e-12)
    value = (logits * extra["projection"]).sum()
    assert value.item() == pytest.approx(case["value"], rel=1e-10)
    (grad,) = torch.autograd.grad(value, features)
    stored = torch.tensor(case["grad"], dtype=torch.float64)
    scale = stored.abs().max()
    torch.testing.assert_close(grad / scale, stored / scale, rtol=1e-10, atol=1e-10)


def test_logits_do_not_depend_on_the_length_of_the_features_and_are_bounded():
    classifier = InterventionalClassifier(16, 5, tau=8.0)
    features = torch.randn(3, 16)
    logits = classifier(features)
    torch.testing.assert_close(classifier(100 * features), logits)
    assert classifier.weight.abs().max() <= 1 / 4
    with torch.no_grad():
        classifier.weight.copy_(1e4 * features[:1].repeat(5, 1))
    torch.testing.assert_close(classifier(features[:1]), torch.full((1, 5), 8.0), rtol=1e-4, atol=0)


def test_features_of_zero_give_finite_logits_and_gradients():
    features = torch.zeros(2, 8, 4, requires_grad=True)
    head = CCDHead(8, 5)
    head.start_stage_two()
    logits = head(features)
    assert logits.isfinite().all()
    assert torch.autograd.grad(logits.sum(), features)[0].isfinite().all()


def test_heads_must_divide_the_features():
    with pytest.raises(ValueError, match="multiple of the 4 heads; got 10"):
        InterventionalClassifier(10, 5)


def test_memory_and_stage_are_saved_and_restored():
    head, other = CCDHead(8, 5), CCDHead(8, 5)
    head.set_memory(torch.randn(5, 8))
    head.start_stage_two()
    features = torch.randn(2, 8, 3, 3)
    other.load_state_dict(head.state_dict())
    assert other(features).equal(head(features))


def test_the_first_stage_leaves_the_weights_of_the_second_without_a_gradient():
    head = CCDHead(8, 5)
    head(torch.randn(2, 8, 4)).sum().backward()
    assert [name for name, weight in head.named_parameters() if weight.grad is not None] == [
        "context.weight"
    ]
    head.start_stage_two()
    head(torch.randn(2, 8, 4)).sum().backward()
    assert all(weight.grad is not None for weight in head.parameters())


@pytest.mark.parametrize("stage", [1, 2])
def test_a_head_in_evaluation_mode_can_be_exported(stage):
    head = CCDHead(8, 5).eval()
    head.set_memory(torch.randn(5, 8))
    if stage == 2:
        head.start_stage_two()
    features = torch.randn(2, 8, 4)
    exported = torch.export.export(head, (features,)).module()
    torch.testing.assert_close(exported(features), head(features))


def test_memory_of_the_wrong_shape_is_refused():
    with pytest.raises(ValueError, match=r"memory must be \[C, D\], \(5, 8\); got \(8, 5\)"):
        CCDHead(8, 5).set_memory(torch.zeros(8, 5))


@pytest.mark.parametrize(
    ("name", "arguments", "shape"),
    [
        ("resnet18", {}, (2, 512, 2, 2)),
        ("swin_tiny_patch4_window7_224", {"img_size": 64}, (2, 768, 2, 2)),
        ("convnext_tiny", {}, (2, 768, 2, 2)),
        ("vit_small_patch16_224", {"img_size": 64}, (2, 384, 16)),
        ("mobilenetv3_small_050", {}, (2, 1024, 2, 2)),
    ],
)
def test_backbones_of_all_layouts_give_channels_first(name, arguments, shape):
    model = ccd(name, 5, context_epochs=1, pretrained=False, **arguments).eval()
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        feature_map = model.feature_map(images)
        assert feature_map.shape == shape
        assert model(images).shape == (2, 5)
        context = model.head.context_features(feature_map)
        if name.startswith(("resnet", "swin")):
            # these pool last, so that timm's own average pooling gives the same features
            pooled = timm.create_model(name, num_classes=0, global_pool="avg", **arguments).eval()
            pooled.load_state_dict(model.backbone.state_dict())
            torch.testing.assert_close(context, pooled(images), rtol=1e-4, atol=1e-5)
        if name.startswith("vit"):
            tokens = model.backbone(images)
            torch.testing.assert_close(17 * tokens.mean(1) - 16 * context, tokens[:, 0])


def test_pooled_backbone_is_refused():
    model = CCD(timm.create_model("resnet18", num_classes=0), CCDHead(512, 5), context_epochs=1)
    with pytest.raises(ValueError, match=r"features before pooling; got \(2, 512\)"):
        model(torch.randn(2, 3, 64, 64))


class TestConfounders:
    def model(self):
        torch.manual_seed(0)
        return ccd("resnet18", 4, context_epochs=1, pretrained=False)

    def data(self):
        torch.manual_seed(1)
        targets = torch.tensor([[1.0, 0, 1, 0], [1, 0, 0, 0], [0, 0, 1, 0], [1, 1, 0, 0], [0] * 4])
        return torch.randn(5, 3, 64, 64), targets

    def test_memory_is_the_mean_over_the_images_of_each_class(self):
        model, (images, targets) = self.model(), self.data()
        model.learn_confounders([(images[:2], targets[:2]), (images[2:], targets[2:])])
        assert model.training
        model.eval()
        with torch.no_grad():
            features = model.backbone(images).mean((2, 3))
        for label, rows in enumerate([[0, 1, 3], [3], [0, 2]]):
            mean = features[rows].mean(0)
            torch.testing.assert_close(model.head.memory[label], mean, rtol=1e-4, atol=1e-5)
        assert (model.head.memory[3] == 0).all()

    def test_the_pass_leaves_statistics_and_gradients_alone(self):
        model, (images, targets) = self.model(), self.data()
        before = {name: value.clone() for name, value in model.backbone.state_dict().items()}
        sums, counts = model.eval().confounder_sums(images, targets)
        assert not sums.requires_grad
        assert counts.tolist() == [3, 1, 2, 0]
        model.learn_confounders([(images, targets)])
        assert all(value.equal(before[name]) for name, value in model.backbone.state_dict().items())
        assert torch.is_grad_enabled()

    def test_processes_add_up_to_the_whole(self):
        whole, part, (images, targets) = self.model(), self.model(), self.data()
        whole.learn_confounders([(images, targets)])
        sums, counts = part.eval().confounder_sums(images[3:], targets[3:])
        others = {sums.shape: sums, counts.shape: counts}
        part.learn_confounders(
            [(images[:3], targets[:3])], all_reduce_sum=lambda mine: mine + others[mine.shape]
        )
        torch.testing.assert_close(part.head.memory, whole.head.memory, rtol=1e-4, atol=1e-5)

    def test_sums_are_float32_under_autocast(self):
        model, (images, targets) = self.model(), self.data()
        with torch.autocast("cpu", torch.bfloat16):
            sums, counts = model.confounder_sums(images, targets)
        assert sums.dtype == counts.dtype == torch.float32
