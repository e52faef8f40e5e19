"""Recipes: how the pixels of an image become the input of a network.

Every recipe first squashes the image to a square, so that the reader can do that while it decodes
and keep the result. What is left is an augmentation from uint8 pixels to uint8 pixels, for
training alone, and ``finish``, from a uint8 batch to the network's float input, on the device.
All random numbers are drawn from torch's generator.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor, nn
from torchvision.transforms import v2

STORED_MODELS_MAY_BUILD = ("asl", "none", "shift", "spml")

Channels = Sequence[float] | float


class PixelsToFloat(nn.Module):
    """Turn uint8 images ``[B, 3, H, W]`` into float32: (pixels / 255 - mean) / deviation.

    Args:
        mean: of each channel, or one number for all.
        std: the deviation of each channel, or one number for all.

    Example:
        >>> PixelsToFloat(mean=0.5, std=0.5)(torch.tensor([[[[0, 255]]]], dtype=torch.uint8))
        tensor([[[[-1.,  1.]]]])
    """

    scale: Tensor
    shift: Tensor | None

    def __init__(self, *, mean: Channels = 0.0, std: Channels = 1.0) -> None:
        super().__init__()
        centre, spread = _per_channel(mean), _per_channel(std)
        shift = -centre / spread if centre.any() else None
        self.register_buffer("scale", 1 / (255 * spread), persistent=False)
        self.register_buffer("shift", shift, persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Scale and shift each channel, in one new tensor: memory is what takes time."""
        images = images.to(torch.float32, copy=True).mul_(self.scale)
        return images if self.shift is None else images.add_(self.shift)


def _per_channel(values: Channels) -> Tensor:
    """Return ``[3, 1, 1]``, or one number if all channels have the same, which is faster."""
    tensor = torch.tensor(values, dtype=torch.float32).reshape(-1)
    if tensor.numel() not in (1, 3):
        raise ValueError(f"transform.mean and transform.std need 1 or 3 numbers; got {values}")
    return tensor[0] if tensor.unique().numel() == 1 else tensor.view(3, 1, 1)


@dataclass(frozen=True)
class ImagePipeline:
    """What is done to an input.

    Attributes:
        size: the side of the square to which each image is squashed; None for features.
        augment: from a uint8 image ``[3, size, size]`` to another, in training alone.
        finish: from a batch as the data set gives it to a batch as the network takes it.
        interpolation: how an image is squashed, ``bilinear`` or ``bicubic``.
    """

    size: int | None
    augment: Callable[[Tensor], Tensor] | None
    finish: nn.Module
    interpolation: str = "bilinear"


def asl(*, size: int, cutout: float, **weights: Any) -> ImagePipeline:
    """Return the recipe of ASL and its followers: cutout, then RandAugment, no flip.

    Args:
        size: the side of the square images.
        cutout: the sides of the rectangle that is painted over, as a share of the image's.
        **weights: ``mean``, ``std`` and ``interpolation`` that the weights were trained with.

    Example:
        >>> asl(size=448, cutout=0.5, mean=0, std=1, interpolation="bilinear").augment
        Compose(
          Cutout(share=0.5)
          RandAugment()
        )
    """
    return _pipeline(size, v2.Compose([Cutout(share=cutout), RandAugment()]), **weights)


def spml(*, size: int, **weights: Any) -> ImagePipeline:
    """Return the recipe of the single-positive papers: a horizontal flip of every second image.

    Args:
        size: the side of the square images.
        **weights: ``mean``, ``std`` and ``interpolation`` that the weights were trained with.

    Example:
        >>> spml(size=448, mean=0.5, std=0.5, interpolation="bicubic").augment
        RandomHorizontalFlip(p=0.5)
    """
    return _pipeline(size, v2.RandomHorizontalFlip(), **weights)


def shift(*, size: int, pixels: int, **weights: Any) -> ImagePipeline:
    """Return a light recipe for small images, without mirror writing: shifts by a few pixels.

    Args:
        size: the side of the square images.
        pixels: the largest shift along either axis.
        **weights: ``mean``, ``std`` and ``interpolation`` that the weights were trained with.

    Example:
        >>> shift(size=64, pixels=4, mean=0, std=1, interpolation="bilinear").augment
        Shift(pixels=4)
    """
    return _pipeline(size, Shift(pixels=pixels), **weights)


def none() -> ImagePipeline:
    """Return the recipe for features: nothing is done to them.

    Example:
        >>> none()
        ImagePipeline(size=None, augment=None, finish=Identity(), interpolation='bilinear')
    """
    return ImagePipeline(None, None, nn.Identity())


def _pipeline(
    size: int,
    augment: v2.Transform,
    *,
    mean: Channels | None,
    std: Channels | None,
    interpolation: str | None,
) -> ImagePipeline:
    """Put a recipe for images together."""
    if mean is None or std is None or interpolation is None:
        raise ValueError(
            "transform.mean, transform.std and transform.interpolation come from the network's "
            "weights; where there are none, set them"
        )
    if interpolation not in ("bilinear", "bicubic"):
        raise ValueError(
            f"transform.interpolation must be bilinear or bicubic; got {interpolation!r}"
        )
    return ImagePipeline(size, augment, PixelsToFloat(mean=mean, std=std), interpolation)


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
        part = painted.permute(1, 2, 0)[tuple(params["box"])]
        # A whole row of pixels at a time is many times faster than one pixel at a time.
        part.copy_(params["colour"].flatten().repeat(part.shape[1], 1))
        return painted


STRIP = 64  # rows worked on at once, so that their numbers stay in the processor's cache
FILL = 128  # each channel of the pixels that come in from outside


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
        """Apply the drawn operations."""
        if not params["drawn"]:
            return inpt
        pixels = inpt.permute(1, 2, 0).numpy()
        for function, strength in params["drawn"]:
            pixels = function(pixels, strength)
        return torch.from_numpy(pixels).permute(2, 0, 1)


# The operations, from uint8 pixels [H, W, 3] to others. They give what Pillow gives, with which the
# original is written, but most of them in a fraction of its time.


def _solarize(pixels: np.ndarray, threshold: float) -> np.ndarray:
    """Invert the values from a threshold on."""
    return pixels ^ np.negative((pixels >= math.ceil(threshold)).view(np.uint8))


def _posterize(pixels: np.ndarray, bits: float) -> np.ndarray:
    """Keep the top ``bits`` bits of each value."""
    return pixels & np.uint8(256 - 2 ** (8 - round(bits)))


def _square(pixels: np.ndarray, side: float) -> np.ndarray:
    """Paint a small square somewhere."""
    half = round(side) // 2
    height, width, _ = pixels.shape
    left, top = (int(torch.randint(length, ())) for length in (width, height))
    pixels = pixels.copy()
    box = slice(max(0, top - half), top + half), slice(max(0, left - half), left + half)
    pixels[box] = (125, 122, 113)
    return pixels


def shear(pixels: np.ndarray, slope: float) -> np.ndarray:
    """Shear an image: row y then shows what lay ``slope * y`` pixels further right.

    This is Pillow's affine transform with bicubic interpolation, to within one grey level. As rows
    stay rows, interpolating along them is enough, which takes a tenth of the time.

    Example:
        >>> shear(np.full((4, 4, 3), 255, np.uint8), 0.5)[..., 0]
        array([[255, 255, 255, 255],
               [255, 255, 255, 128],
               [255, 255, 255, 128],
               [255, 255, 128, 128]], dtype=uint8)
    """
    height, width, channels = pixels.shape
    offsets = slope * (np.arange(height) + 0.5)
    whole = np.floor(offsets)
    # The cubic kernel with a = -1 at the four pixels around a point t behind the second of them.
    t = (offsets - whole).astype(np.float32)
    kernel = (-t * (1 - t) ** 2, 1 - t * t * (2 - t), t * (1 + t - t * t), -t * t * (1 - t))
    weights = np.stack(kernel, axis=1)
    firsts = (whole.astype(int) - 1).tolist()
    sheared = np.empty((height, width * channels), np.uint8)
    # Rows moved by whole pixels, with one pixel more on the left and two on the right.
    aligned = np.zeros((STRIP, width + 3, channels), np.float32)
    values = np.empty((STRIP, width * channels), np.float32)
    taps = sliding_window_view(aligned.reshape(STRIP, -1), width * channels, axis=1)[:, ::channels]
    for top in range(0, height, STRIP):
        end = min(top + STRIP, height)
        for first, group in itertools.groupby(range(top, end), key=firsts.__getitem__):
            alike = list(group)
            kept = pixels[alike[0] : alike[-1] + 1]
            moved = aligned[alike[0] - top : alike[-1] - top + 1]
            left, right = (min(max(place - first, 0), width + 3) for place in (0, width))
            moved[:, left:right] = kept[:, left + first : right + first]
            # The border is extended by the two pixels that the interpolation needs.
            moved[:, max(0, left - 2) : left] = kept[:, :1]
            moved[:, right : right + 2] = kept[:, -1:]
        strip = np.einsum(
            "rt,rtx->rx", weights[top:end], taps[: end - top], out=values[: end - top]
        )
        # Pillow cuts off fractions; a thousandth keeps whole numbers whole in single precision.
        strip += 0.001
        sheared[top:end] = np.clip(strip, 0, 255, out=strip)
    outside = (-0.5 if slope < 0 else width - 0.5) - offsets
    for row, border in zip(sheared, np.ceil(outside).astype(int).tolist(), strict=True):
        edge = channels * max(0, border)
        row[slice(edge) if slope < 0 else slice(edge, None)] = FILL
    return sheared.reshape(pixels.shape)


def _shear_down(pixels: np.ndarray, slope: float) -> np.ndarray:
    """Shear the columns of an image."""
    return _transposed(shear(_transposed(pixels), slope))


def _transposed(pixels: np.ndarray) -> np.ndarray:
    """Swap rows and columns, with Pillow, which is several times faster at it than NumPy."""
    return np.array(Image.fromarray(pixels).transpose(Image.Transpose.TRANSPOSE))


def _translate(pixels: np.ndarray, share: float) -> np.ndarray:
    """Move an image up by a share of its height."""
    height = len(pixels)
    rows = math.floor(share * height + 0.5)
    moved = np.full_like(pixels, FILL)
    moved[max(0, -rows) : max(0, height - rows)] = pixels[max(0, rows) : max(0, height + rows)]
    return moved


def _translate_left(pixels: np.ndarray, share: float) -> np.ndarray:
    """Move an image to the left by a share of its width."""
    return np.ascontiguousarray(_translate(pixels.swapaxes(0, 1), share).swapaxes(0, 1))


def _blend(base: np.ndarray | int, pixels: np.ndarray, factor: float) -> np.ndarray:
    """Extrapolate from ``base`` towards an image by ``factor``, in float32 as Pillow does."""
    values = np.subtract(pixels, base, dtype=np.float32)
    values *= factor
    values += base
    return np.clip(values, 0, 255, out=values).astype(np.uint8)


def _brightness(pixels: np.ndarray, change: float) -> np.ndarray:
    """Move an image away from black, or towards it."""
    return _blend(0, pixels, 1 + change)


def _contrast(pixels: np.ndarray, change: float) -> np.ndarray:
    """Move an image away from its mean grey, or towards it."""
    grey = np.asarray(Image.fromarray(pixels).convert("L"))
    return _blend(int(grey.mean() + 0.5), pixels, 1 + change)


def _sharpness(pixels: np.ndarray, change: float) -> np.ndarray:
    """Move an image away from a smooth version of it, or towards it.

    The smooth version is the mean of the 3 x 3 pixels around each, with weight 5 for the middle
    and 1 for the others; the border stays.
    """
    height, _, channels = pixels.shape
    flat = pixels.reshape(height, -1)
    sharp = flat.copy()
    for top in range(1, height - 1, STRIP):
        end = min(top + STRIP, height - 1)
        strip = flat[top - 1 : end + 1].astype(np.uint16)
        columns = strip[:-2] + strip[1:-1]
        columns += strip[2:]
        smooth = columns[:, : -2 * channels] + columns[:, channels:-channels]
        smooth += columns[:, 2 * channels :]
        middle = strip[1:-1, channels:-channels]
        smooth += 4 * middle
        smooth += 6  # to round, not to cut off
        smooth //= 13
        sharp[top:end, channels:-channels] = _blend(smooth, middle, 1 + change)
    return sharp.reshape(pixels.shape)


def _by_pillow(
    function: Callable[[Image.Image, float], Image.Image],
) -> Callable[[np.ndarray, float], np.ndarray]:
    """Return an operation that Pillow carries out."""
    return lambda pixels, strength: np.array(function(Image.fromarray(pixels), strength))


GREY = (FILL, FILL, FILL)
# Each operation with its strength at level 0 and at level 9, and whether its sign is random.
OPERATIONS: tuple[tuple[Callable[[np.ndarray, float], np.ndarray], float, float, bool], ...] = (
    (lambda pixels, _: ~pixels, 0, 0, False),
    (_by_pillow(lambda image, _: ImageOps.autocontrast(image)), 0, 0, False),
    (_by_pillow(lambda image, _: ImageOps.equalize(image)), 0, 0, False),
    (_solarize, 256, 0, False),
    (_posterize, 8, 4, False),
    (_square, 0, 20, False),
    (_by_pillow(lambda image, degrees: image.rotate(degrees, fillcolor=GREY)), 0, 30, False),
    (shear, 0, 0.3, True),
    (_shear_down, 0, 0.3, True),
    (_translate_left, 0, 150 / 331, True),
    (_translate, 0, 150 / 331, True),
    (_by_pillow(lambda image, change: ImageEnhance.Color(image).enhance(1 + change)), 0, 0.9, True),
    (_contrast, 0, 0.9, True),
    (_sharpness, 0, 0.9, True),
    (_brightness, 0, 0.9, True),
)
