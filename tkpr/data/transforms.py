"""Recipes: how the pixels of an image become the input of a network.

Every recipe first squashes the image to a square, so that the reader can do that while it decodes
and keep the result. What is left is an augmentation from uint8 pixels to uint8 pixels, for
training alone, and ``finish``, from a uint8 batch to the network's float input, on the device.
All random numbers are drawn from torch's generator.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor, nn
from torchvision.transforms import v2

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


class Finish(nn.Module):
    """Turn uint8 images ``[B, 3, H, W]`` into float32 in [0, 1], normalised when asked.

    Args:
        normalise: whether to subtract ImageNet's mean colour and divide by its deviation.

    Example:
        >>> Finish()(torch.full((1, 3, 1, 1), 255, dtype=torch.uint8)).flatten()
        tensor([1., 1., 1.])
    """

    scale: Tensor
    shift: Tensor | None

    def __init__(self, *, normalise: bool = False) -> None:
        super().__init__()
        std = torch.tensor(IMAGENET_STD if normalise else (1.0, 1.0, 1.0)).view(3, 1, 1)
        shift = -torch.tensor(IMAGENET_MEAN).view(3, 1, 1) / std if normalise else None
        self.register_buffer("scale", 1 / (255 * std), persistent=False)
        self.register_buffer("shift", shift, persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Scale and shift each channel, in one new tensor: memory is what takes time."""
        images = images.to(torch.float32, copy=True).mul_(self.scale)
        return images if self.shift is None else images.add_(self.shift)


@dataclass(frozen=True)
class Recipe:
    """What is done to an input.

    Attributes:
        size: the side of the square to which each image is squashed; None for features.
        augment: from a uint8 image ``[3, size, size]`` to another, in training alone.
        finish: from a batch as the data set gives it to a batch as the network takes it.
    """

    size: int | None
    augment: Callable[[Tensor], Tensor] | None
    finish: nn.Module


def asl(*, size: int, cutout: float, normalise: bool) -> Recipe:
    """Return the recipe of ASL and its followers: cutout, then RandAugment, no flip.

    Args:
        size: the side of the square images.
        cutout: the sides of the rectangle that is painted over, as a share of the image's.
        normalise: whether to normalise colours as for ImageNet; the originals do not.

    Example:
        >>> asl(size=448, cutout=0.5, normalise=False).augment
        Compose(
          Cutout(share=0.5)
          RandAugment()
        )
    """
    return Recipe(
        size, v2.Compose([Cutout(share=cutout), RandAugment()]), Finish(normalise=normalise)
    )


def spml(*, size: int, normalise: bool) -> Recipe:
    """Return the recipe of the single-positive papers: a horizontal flip of every second image.

    Args:
        size: the side of the square images.
        normalise: whether to normalise colours as for ImageNet; the originals do.

    Example:
        >>> spml(size=448, normalise=True).augment
        RandomHorizontalFlip(p=0.5)
    """
    return Recipe(size, v2.RandomHorizontalFlip(), Finish(normalise=normalise))


def shift(*, size: int, pixels: int, normalise: bool) -> Recipe:
    """Return a light recipe for small images, without mirror writing: shifts by a few pixels.

    Args:
        size: the side of the square images.
        pixels: the largest shift along either axis.
        normalise: whether to normalise colours as for ImageNet.

    Example:
        >>> shift(size=64, pixels=4, normalise=False).augment
        Shift(pixels=4)
    """
    return Recipe(size, Shift(pixels=pixels), Finish(normalise=normalise))


def none() -> Recipe:
    """Return the recipe for features: nothing is done to them.

    Example:
        >>> none()
        Recipe(size=None, augment=None, finish=Identity())
    """
    return Recipe(None, None, nn.Identity())


class Shift(v2.Transform):
    """Move an image ``[3, H, W]`` at random; what comes in is the border mirrored.

    Args:
        pixels: the largest shift along either axis.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> Shift(pixels=1)(torch.arange(9, dtype=torch.uint8).view(1, 3, 3))
        tensor([[[4, 3, 4],
                 [7, 6, 7],
                 [4, 3, 4]]], dtype=torch.uint8)
    """

    def __init__(self, *, pixels: int) -> None:
        super().__init__()
        self.pixels = pixels

    def make_params(self, flat_inputs: list[Tensor]) -> dict[str, Any]:
        """Draw which part of the enlarged image is kept."""
        return {"corner": torch.randint(2 * self.pixels + 1, (2,)).tolist()}

    def transform(self, inpt: Tensor, params: dict[str, Any]) -> Tensor:
        """Cut it out."""
        top, left = params["corner"]
        height, width = inpt.shape[-2:]
        enlarged = nn.functional.pad(inpt, [self.pixels] * 4, mode="reflect")
        return enlarged[:, top : top + height, left : left + width]


class Cutout(v2.Transform):
    """Paint a rectangle over a uint8 image ``[3, H, W]``, in one random colour.

    Its sides are ``share`` of the image's, its centre is any pixel, and it is clipped at the
    border. Both ends count, as they do for Pillow's rectangle, with which the original paints.

    Args:
        share: height and width of the rectangle as a share of the image's.

    Example:
        >>> painted = Cutout(share=0.5)(torch.zeros(3, 8, 8, dtype=torch.uint8))
        >>> painted.shape, bool(painted.any())
        (torch.Size([3, 8, 8]), True)
    """

    def __init__(self, *, share: float) -> None:
        super().__init__()
        self.share = share

    def make_params(self, flat_inputs: list[Tensor]) -> dict[str, Any]:
        """Draw the rectangle and its colour."""
        box = []
        for side in flat_inputs[0].shape[-2:]:
            half = int(self.share * side + 0.5) // 2
            centre = int(torch.randint(side, ()))
            box.append(slice(max(0, centre - half), centre + half + 1))
        return {"box": box, "colour": torch.randint(256, (3, 1, 1), dtype=torch.uint8)}

    def transform(self, inpt: Tensor, params: dict[str, Any]) -> Tensor:
        """Paint a copy."""
        painted = inpt.clone()  # keeps the order of the pixels in memory
        painted[(..., *params["box"])] = params["colour"]
        return painted


FILL = (128, 128, 128)


class RandAugment(v2.Transform):
    """The RandAugment of the ASL recipe (the package ``randaugment`` 1.0.2, not torchvision's).

    Two pairs of an operation and a level (1 to 9) are drawn from all 15 x 9 = 135, and each of the
    two is applied with probability 1/2. Pixels that come in from outside are grey.

    Example:
        >>> image = torch.randint(256, (3, 32, 32), dtype=torch.uint8)
        >>> RandAugment()(image).shape
        torch.Size([3, 32, 32])
    """

    def make_params(self, flat_inputs: list[Tensor]) -> dict[str, Any]:
        """Draw the operations that are applied, each with its strength."""
        drawn = []
        for _ in range(2):
            function, first, last, signed = OPERATIONS[int(torch.randint(len(OPERATIONS), ()))]
            strength = first + (last - first) * int(torch.randint(1, 10, ())) / 9
            if signed and torch.rand(()) < 0.5:
                strength = -strength
            if torch.rand(()) < 0.5:
                drawn.append((function, strength))
        return {"drawn": drawn}

    def transform(self, inpt: Tensor, params: dict[str, Any]) -> Tensor:
        """Apply the drawn operations with Pillow, as the original does."""
        if not params["drawn"]:
            return inpt
        image = Image.fromarray(inpt.permute(1, 2, 0).numpy())
        for function, strength in params["drawn"]:
            image = function(image, strength)
        return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def shear(image: Image.Image, slope: float) -> Image.Image:
    """Shear an RGB image: row y then shows what lay ``slope * y`` pixels further right.

    This is Pillow's affine transform with bicubic interpolation. As rows stay rows, interpolating
    along them is enough, which takes a third of the time.

    Example:
        >>> white = Image.new("RGB", (4, 4), "white")
        >>> np.asarray(shear(white, 0.5))[..., 0]
        array([[255, 255, 255, 255],
               [255, 255, 255, 128],
               [255, 255, 255, 128],
               [255, 255, 128, 128]], dtype=uint8)
    """
    pixels = np.asarray(image)
    height, width, channels = pixels.shape
    offsets = slope * (np.arange(height) + 0.5)
    whole = np.floor(offsets).astype(int)
    reach = int(np.abs(whole).max()) + 2
    # The border goes on for the two pixels that the interpolation needs; the rest becomes grey.
    padded = np.empty((height, width + 2 * reach, channels), np.uint8)
    padded[:, reach - 2 : reach] = pixels[:, :1]
    padded[:, reach : reach + width] = pixels
    padded[:, reach + width : reach + width + 2] = pixels[:, -1:]
    starts = (whole + reach - 1) * channels
    length = (width + 3) * channels
    rows = zip(padded.reshape(height, -1), starts, strict=True)
    aligned = torch.from_numpy(np.stack([row[start : start + length] for row, start in rows]))
    aligned = aligned.float()
    # The cubic kernel with a = -1 at the four pixels around a point t behind the second of them.
    t = torch.from_numpy(offsets - whole).float()[:, None]
    kernel = (-t * (1 - t) ** 2, 1 - t * t * (2 - t), t * (1 + t - t * t), -t * t * (1 - t))
    # Pillow cuts off fractions; a thousandth keeps whole numbers whole in single precision.
    values = torch.full((height, width * channels), 0.001)
    for tap, weight in enumerate(kernel):
        values.addcmul_(aligned[:, tap * channels : (tap + width) * channels], weight)
    sheared = values.clamp_(0, 255).to(torch.uint8).numpy().reshape(pixels.shape)
    for row, offset in zip(sheared, offsets, strict=True):
        row[: max(0, math.ceil(-0.5 - offset))] = FILL
        row[max(0, math.ceil(width - 0.5 - offset)) :] = FILL
    return Image.fromarray(sheared)


def _shear_down(image: Image.Image, slope: float) -> Image.Image:
    """Shear the columns of an image."""
    turn = Image.Transpose.TRANSPOSE
    return shear(image.transpose(turn), slope).transpose(turn)


def _translate(image: Image.Image, share: float, *, vertical: bool) -> Image.Image:
    """Move an image by a share of its side."""
    width, height = image.size
    matrix = (1, 0, 0 if vertical else share * width, 0, 1, share * height if vertical else 0)
    return image.transform(image.size, Image.Transform.AFFINE, matrix, fillcolor=FILL)


def _square(image: Image.Image, side: float) -> Image.Image:
    """Paint a small square somewhere."""
    half = round(side) // 2
    left, top = (int(torch.randint(length, ())) for length in image.size)
    image = image.copy()
    image.paste((125, 122, 113), (left - half, top - half, left + half, top + half))
    return image


def _enhance(kind: Callable[[Image.Image], Any]) -> Callable[[Image.Image, float], Image.Image]:
    """Return the operation that makes more, or less, of some quality of an image."""
    return lambda image, change: kind(image).enhance(1 + change)


# Each operation with its strength at level 0 and at level 9, and whether its sign is random.
OPERATIONS: tuple[tuple[Callable[[Image.Image, float], Image.Image], float, float, bool], ...] = (
    (lambda image, _: ImageOps.invert(image), 0, 0, False),
    (lambda image, _: ImageOps.autocontrast(image), 0, 0, False),
    (lambda image, _: ImageOps.equalize(image), 0, 0, False),
    (lambda image, threshold: ImageOps.solarize(image, math.ceil(threshold)), 256, 0, False),
    (lambda image, bits: ImageOps.posterize(image, round(bits)), 8, 4, False),
    (_square, 0, 20, False),
    (lambda image, degrees: image.rotate(degrees, fillcolor=FILL), 0, 30, False),
    (shear, 0, 0.3, True),
    (_shear_down, 0, 0.3, True),
    (partial(_translate, vertical=False), 0, 150 / 331, True),
    (partial(_translate, vertical=True), 0, 150 / 331, True),
    (_enhance(ImageEnhance.Color), 0, 0.9, True),
    (_enhance(ImageEnhance.Contrast), 0, 0.9, True),
    (_enhance(ImageEnhance.Sharpness), 0, 0.9, True),
    (_enhance(ImageEnhance.Brightness), 0, 0.9, True),
)
