import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from hydra import compose, initialize_config_dir
from PIL import Image, ImageDraw, ImageEnhance, ImageOps
from torchvision.transforms import v2

from tkpr.config import build
from tkpr.data import transforms
from tkpr.data.transforms import OPERATIONS, Cutout, PixelsToFloat, RandAugment, Shift, shear

CONFIGS = Path(__file__).parents[2] / "configs" / "transform"
GREY = (128, 128, 128)


def picture(width=40, height=40):
    """A photograph-like picture: smooth colours, some edges, some noise."""
    rng = np.random.default_rng(0)
    x, y = np.meshgrid(np.linspace(0, 3, width), np.linspace(0, 2, height))
    pixels = np.stack([np.sin(x + y), np.cos(2 * x), np.sin(x * y)], axis=-1) * 90 + 128
    pixels[height // 3 : height // 2, width // 4 :] += 60
    pixels += rng.normal(0, 8, pixels.shape)
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def tensor(image):
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def affine(image, matrix, resample=Image.Resampling.NEAREST):
    return image.transform(
        image.size, Image.Transform.AFFINE, matrix, resample=resample, fillcolor=GREY
    )


def expected(image, level, sign):
    """What the fifteen operations give, by their description; None for the one placed at random."""
    width, height = image.size
    moved, slope, change = sign * level / 9 * 150 / 331, sign * level / 9 * 0.3, sign * level / 10
    cubic = Image.Resampling.BICUBIC
    return [
        ImageOps.invert(image),
        ImageOps.autocontrast(image),
        ImageOps.equalize(image),
        image.point(lambda value: value if value < 256 * (9 - level) / 9 else 255 - value),
        ImageOps.posterize(image, [8, 8, 7, 7, 6, 6, 5, 5, 4, 4][level]),
        None,
        image.rotate(level / 9 * 30, fillcolor=GREY),
        affine(image, (1, slope, 0, 0, 1, 0), cubic),
        affine(image, (1, 0, 0, slope, 1, 0), cubic),
        affine(image, (1, 0, moved * width, 0, 1, 0)),
        affine(image, (1, 0, 0, 0, 1, moved * height)),
        ImageEnhance.Color(image).enhance(1 + change),
        ImageEnhance.Contrast(image).enhance(1 + change),
        ImageEnhance.Sharpness(image).enhance(1 + change),
        ImageEnhance.Brightness(image).enhance(1 + change),
    ]


@pytest.mark.parametrize("level", [1, 4, 9])
@pytest.mark.parametrize("sign", [-1, 1])
def test_operations_are_those_of_the_original(level, sign):
    image = picture(61, 47)
    for (function, first, last, signed), wanted in zip(
        OPERATIONS, expected(image, level, sign), strict=True
    ):
        strength = first + (last - first) * level / 9
        got = function(np.asarray(image), sign * strength if signed else strength)
        if wanted is not None:
            difference = np.abs(np.asarray(got, int) - np.asarray(wanted, int))
            if function in (shear, transforms._shear_down):
                assert difference.max() <= 1
                assert (difference > 0).mean() < 0.005
            else:
                assert difference.max() == 0


@pytest.mark.parametrize("slope", [-1.7, -0.5, -0.01, 0.01, 0.5, 1.0, 3.0])
def test_shear_is_pillows(slope):
    image = picture(33, 21)
    wanted = affine(image, (1, slope, 0, 0, 1, 0), Image.Resampling.BICUBIC)
    difference = np.abs(np.asarray(shear(np.asarray(image), slope), int) - np.asarray(wanted, int))
    assert difference.max() <= 1
    assert (difference > 0).mean() < 0.01


def test_small_square_of_randaugment():
    white = np.full((60, 60, 3), 255, np.uint8)
    torch.manual_seed(0)
    sides = set()
    for _ in range(50):
        painted = (transforms._square(white, 20.0) == (125, 122, 113)).all(axis=-1)
        assert painted.sum() == painted.any(0).sum() * painted.any(1).sum()
        sides |= {painted.any(0).sum(), painted.any(1).sum()}
    assert max(sides) == 20
    assert min(sides) >= 10  # clipped at the border


def test_randaugment_draws_each_operation_and_level_equally_often():
    torch.manual_seed(0)
    drawn = [RandAugment().make_params([])["drawn"] for _ in range(6000)]
    numbers = np.bincount([len(pair) for pair in drawn]) / len(drawn)
    assert np.allclose(numbers, [0.25, 0.5, 0.25], atol=0.02)
    functions = [function for function, *_ in OPERATIONS]
    counts = np.bincount([functions.index(function) for pair in drawn for function, _ in pair])
    assert np.allclose(counts / counts.sum(), 1 / 15, atol=0.01)
    shears = [strength for pair in drawn for function, strength in pair if function is shear]
    levels = sorted({round(strength / 0.3 * 9, 6) for strength in shears})
    assert levels == [*range(-9, 0), *range(1, 10)]


def test_randaugment_leaves_images_alone_in_a_quarter_of_cases():
    image = tensor(picture())
    torch.manual_seed(0)
    same = [torch.equal(RandAugment()(image), image) for _ in range(400)]
    assert 0.2 < np.mean(same) < 0.4  # some operations change nothing, as a square of no size


def test_cutout_paints_what_pillow_paints():
    image = picture(40, 30)
    torch.manual_seed(3)
    rows, columns = (int(torch.randint(side, ())) for side in (30, 40))
    colour = torch.randint(256, (3, 1, 1), dtype=torch.uint8)
    torch.manual_seed(3)
    got = Cutout(share=0.5)(tensor(image))
    wanted = image.copy()
    box = [columns - 10, rows - 7, columns + 10, rows + 7]
    ImageDraw.Draw(wanted).rectangle(box, fill=tuple(colour.flatten().tolist()))
    assert torch.equal(got, tensor(wanted))
    assert not torch.equal(got, tensor(image))


def test_cutout_reaches_every_pixel_and_keeps_its_input():
    image = torch.zeros(3, 16, 16, dtype=torch.uint8)
    torch.manual_seed(0)
    painted = sum((Cutout(share=0.5)(image) > 0).any(0).int() for _ in range(200))
    assert (painted > 0).all()
    assert painted[8, 8] > painted[0, 0]  # clipped at the border, so corners are rarer
    assert image.sum() == 0


def test_shift_moves_and_mirrors():
    image = torch.arange(2 * 25, dtype=torch.uint8).view(2, 5, 5)
    torch.manual_seed(0)
    seen = set()
    for _ in range(100):
        moved = Shift(pixels=1)(image)
        top, left = divmod(int(moved[0, 1, 1]), 5)
        seen.add((top, left))
        padded = np.pad(image.numpy(), ((0, 0), (1, 1), (1, 1)), mode="reflect")
        assert np.array_equal(moved, padded[:, top : top + 5, left : left + 5])
    assert len(seen) == 9


def test_finish_equals_torchvision():
    images = torch.randint(256, (2, 3, 8, 8), dtype=torch.uint8)
    scaled = v2.functional.to_dtype(images, torch.float32, scale=True)
    torch.testing.assert_close(PixelsToFloat()(images), scaled)
    mean, std = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    normal = v2.functional.normalize(scaled, mean, std)
    torch.testing.assert_close(
        PixelsToFloat(mean=mean, std=std)(images), normal, rtol=1e-5, atol=1e-6
    )
    torch.testing.assert_close(
        PixelsToFloat()(scaled), images / 255**2
    )  # floats are not changed in place
    torch.testing.assert_close(scaled, images / 255)


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_recipe_can_be_built(path):
    with initialize_config_dir(str(CONFIGS.parent), version_base="1.3"):
        cfg = compose(f"transform/{path.stem}").transform
    if "size" in cfg:
        cfg.update({"size": 48, "mean": 0.5, "std": 0.5, "interpolation": "bicubic"})
    recipe = build(cfg)
    assert recipe.size == (48 if "size" in cfg else None)
    if recipe.size is not None:
        image = tensor(picture(48, 48))
        augmented = recipe.augment(image)
        assert augmented.dtype == torch.uint8
        assert augmented.shape == image.shape
        assert recipe.finish(augmented[None]).dtype == torch.float32
    pickle.loads(pickle.dumps(recipe))  # goes to workers


def test_spml_flips_every_second_image():
    spml = transforms.spml(size=8, mean=0, std=1, interpolation="bilinear")
    image = tensor(picture(8, 8))
    torch.manual_seed(0)
    seen = [spml.augment(image) for _ in range(20)]
    flipped = [torch.equal(other, image.flip(-1)) for other in seen]
    same = [torch.equal(other, image) for other in seen]
    assert any(flipped)
    assert any(same)
    assert all(a != b for a, b in zip(flipped, same, strict=True))
