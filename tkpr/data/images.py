"""Images from disk or memory: decode, resize, cache, augment."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor
from torch.utils.data import Dataset
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2 import functional as F

from tkpr.data.cache import ImageCache
from tkpr.data.dataset import Split
from tkpr.data.targets import known_where, take
from tkpr.losses.partial_labels import PartialLabels

Batch = tuple[Tensor, Tensor | PartialLabels, Tensor]


def read_image(path: str | Path, *, size: int | None = None) -> Image.Image:
    """Read an image file as upright 8-bit RGB.

    The EXIF rotation is applied, 16 bits become 8, and transparent parts become white.

    Args:
        path: a file in any format that Pillow supports.
        size: the side of the square that the image will be resized to. A JPEG of at least four
            times that size is decoded at 1/2, 1/4 or 1/8 of its resolution, but never below twice
            ``size``: faster, and hardly visible.

    Example:
        >>> read_image("no/such.jpg")
        Traceback (most recent call last):
        FileNotFoundError: there is no image file no/such.jpg; scripts/prepare_data.py lists all
        missing files
    """
    try:
        with Image.open(path) as image:
            if size is not None:
                image.draft(None, (2 * size, 2 * size))
            ImageOps.exif_transpose(image, in_place=True)
            return to_rgb(image)
    except FileNotFoundError:
        raise FileNotFoundError(
            f"there is no image file {path}; scripts/prepare_data.py lists all missing files"
        ) from None
    except Exception as error:  # Pillow's decoders can raise almost anything
        raise ValueError(
            f"the image file {path} cannot be read ({error}); replace it or remove it from the "
            "data set; scripts/prepare_data.py check_images=true lists all such files"
        ) from error


def to_rgb(image: Image.Image) -> Image.Image:
    """Convert an image of any mode to 8-bit RGB; transparent parts become white.

    Example:
        >>> to_rgb(Image.new("I;16", (1, 1), 256 * 200)).getpixel((0, 0))
        (200, 200, 200)
    """
    if image.mode in ("I", "F"):
        raise ValueError(f"pixels of mode {image.mode} have no fixed range; convert them to 8 bits")
    if image.mode.startswith("I;16"):
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert("RGB")


def squash(image: Any, size: int, *, interpolation: str = "bilinear") -> Tensor:
    """Resize an image to a square, ignoring its aspect ratio.

    The result equals that of Pillow's filter to within one grey level, in a fraction of the time.
    Its memory layout is channels last.

    Args:
        image: a PIL image, or uint8 pixels ``[H, W]`` (grey) or ``[H, W, 3]``.
        size: the side of the square.
        interpolation: ``bilinear`` or ``bicubic``.

    Returns:
        uint8 pixels ``[3, size, size]``.

    Example:
        >>> squash(Image.new("RGB", (500, 375)), 64).shape
        torch.Size([3, 64, 64])
    """
    pixels = torch.from_numpy(np.array(to_rgb(image) if isinstance(image, Image.Image) else image))
    if pixels.ndim == 2:
        pixels = pixels[..., None].expand(-1, -1, 3)
    pixels = pixels.permute(2, 0, 1)
    if pixels.shape[1:] == (size, size):
        return pixels
    mode = InterpolationMode(interpolation)
    return F.resize(pixels, [size, size], interpolation=mode, antialias=True)


class ImageDataset(Dataset[Any]):
    """Images and labels of a split, as uint8 pixels.

    An item is (image uint8 ``[3, size, size]``, targets float32 ``[C]``, index). The augmentation
    of an image depends only on ``seed``, the epoch and its index, not on the order of the images
    or the number of workers.

    Args:
        split: ``inputs`` are paths, PIL images or uint8 pixels; ``targets`` are the observed
            labels.
        size: the side of the square that every image is resized to.
        augment: maps a uint8 image to another, using torch's global generator.
        seed: seed of the augmentation.
        cache: a cache of resized images, one per sample.
        on_error: for an image that cannot be read, "raise" an error that names it, or "skip" it:
            it is left out of its batch, which may become empty, and marked in ``unreadable``.
        interpolation: ``bilinear`` or ``bicubic``.

    Example:
        >>> from tkpr.data.mosaic import load_mosaic
        >>> data = load_mosaic(train_size=8, test_size=1, image_size=64, seed=0)
        >>> images, targets, index = ImageDataset(data.train, size=32).__getitems__([5, 2])
        >>> images.shape, images.dtype, targets.shape, index
        (torch.Size([2, 3, 32, 32]), torch.uint8, torch.Size([2, 10]), tensor([5, 2]))
    """

    def __init__(
        self,
        split: Split,
        *,
        size: int,
        augment: Callable[[Tensor], Tensor] | None = None,
        seed: int = 0,
        cache: ImageCache | None = None,
        on_error: str = "raise",
        interpolation: str = "bilinear",
    ) -> None:
        if on_error not in ("raise", "skip"):
            raise ValueError(f"dataset.on_error must be raise or skip; got {on_error!r}")
        self.inputs, self.ids = split.inputs, split.ids
        self.targets, self.known = torch.from_numpy(split.targets), known_where(split.unknown)
        self.size, self.augment, self.seed, self.cache = size, augment, seed, cache
        self.on_error, self.interpolation = on_error, interpolation
        # shared memory: workers report unreadable images, and see the epoch change
        self.unreadable = torch.zeros(len(split), dtype=torch.bool).share_memory_()
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()

    def __len__(self) -> int:
        return len(self.targets)

    def set_epoch(self, epoch: int) -> None:
        """Select the augmentations of an epoch; call it before the first batch is requested."""
        self._epoch.fill_(epoch)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, int]:
        return self._image(index), self.targets[index].float(), index

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        """Return a whole batch: images ``[B, 3, size, size]``, targets ``[B, C]``, indices."""
        if self.on_error == "skip":
            return self._readable(indices)
        return self._batch(indices, [self._image(index) for index in indices])

    def _readable(self, indices: Sequence[int]) -> Batch:
        """Return a batch of the images that can be read, possibly without rows."""
        found = {}
        for index in indices:
            try:
                image = self._squashed(index)
            except (ValueError, FileNotFoundError):
                self.unreadable[index] = True
            else:
                found[index] = self._augmented(image, index)
        if not found:
            none = torch.empty(0, 3, self.size, self.size, dtype=torch.uint8)
            rows = torch.empty(0, dtype=torch.int64)
            return none, take(self.targets, self.known, rows), rows
        return self._batch(list(found), list(found.values()))

    def _batch(self, indices: Sequence[int], images: Sequence[Tensor]) -> Batch:
        """Stack images, with their labels and indices."""
        # channels last, as the pixels are in memory; the trainer converts where needed
        pixels = torch.stack([image.permute(1, 2, 0) for image in images])
        rows = torch.as_tensor(indices)
        return pixels.permute(0, 3, 1, 2), take(self.targets, self.known, rows), rows

    def _image(self, index: int) -> Tensor:
        """Return an image, augmented if the data set augments."""
        return self._augmented(self._squashed(index), index)

    def _augmented(self, image: Tensor, index: int) -> Tensor:
        """Augment an image with the seed of this epoch and index."""
        if self.augment is None:
            return image
        with _seeded(self.seed, int(self._epoch), index):
            return self.augment(image)

    def _squashed(self, index: int) -> Tensor:
        """Return a resized image, from the cache if possible."""
        if self.cache is not None and (kept := self.cache.get(index)) is not None:
            return kept
        image: Any = self.inputs[index]
        if isinstance(image, str | Path):
            image = read_image(image, size=self.size)
        pixels = squash(image, self.size, interpolation=self.interpolation)
        if self.cache is not None:
            self.cache.put(index, pixels)
        return pixels


@contextmanager
def _seeded(*numbers: int) -> Iterator[None]:
    """Seed torch's CPU generator within a block, and restore it afterwards."""
    generator = torch.default_generator
    state = generator.get_state()
    generator.manual_seed(int(np.random.SeedSequence(numbers).generate_state(1)[0]))
    try:
        yield
    finally:
        generator.set_state(state)
