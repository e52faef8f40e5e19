"""The built-in data set: images composed of handwritten digits, labelled by the digits shown."""

import math

import numpy as np
from sklearn.datasets import load_digits

from tkpr.data.dataset import MultiLabelData, Split

STORED_MODELS_MAY_BUILD = ("load_mosaic",)

CLASS_NAMES = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
# shares of images with 1 to 6 labels; the mean is 2.61
LABEL_COUNTS = np.array([0.25, 0.30, 0.20, 0.13, 0.08, 0.04])
# relative frequency of each digit: zero is in 43 % of the images, nine in 13 %
CLASS_WEIGHTS = 0.85 ** np.arange(10)
# the scans are ordered by writer, so that the last ones are by unseen writers
TEST_SCANS = 500
GRID = 3  # cells per side
REPEATS = 3  # labels that may be shown twice: 6 + 3 digits fill the 9 cells
FRAGMENTS = 3
NOISE = 0.05


def load_mosaic(*, train_size: int, test_size: int, image_size: int, seed: int) -> MultiLabelData:
    """Compose the data set from scikit-learn's 1,797 bundled scans (8 x 8 pixels, 17 grey levels).

    An image shows one to six different digits, some of them twice, in random cells of a 3 x 3
    grid, with random shift, scale and brightness, among fragments of other scans, on an uneven,
    noisy background. The numbers of labels and the class frequencies are both skewed. Training
    and test images use disjoint scans. An image depends only on ``seed``, its split and its index.

    Args:
        train_size: number of training images.
        test_size: number of test images.
        image_size: side length in pixels.
        seed: seed of the data set.

    Returns:
        Grey images, one uint8 array ``[N, H, W]`` per split, with their labels.

    Example:
        >>> data = load_mosaic(train_size=5, test_size=3, image_size=64, seed=0)
        >>> data.train.inputs.shape, data.train.targets.shape, data.train.ids[0]
        ((5, 64, 64), (5, 10), 'train-00000')
    """
    if min(train_size, test_size) < 1 or seed < 0:
        raise ValueError(
            "train_size and test_size must be at least 1 and seed at least 0; got "
            f"{train_size}, {test_size} and {seed}"
        )
    if image_size < 24:
        raise ValueError(f"image_size must be at least 24 pixels; got {image_size}")
    digits = load_digits()
    # sorted by class within each part: a class is a range of rows
    train = np.argsort(digits.target[:-TEST_SCANS], kind="stable")
    test = len(train) + np.argsort(digits.target[-TEST_SCANS:], kind="stable")

    def compose(split: str, size: int, rows: np.ndarray) -> Split:
        images = np.empty((size, image_size, image_size), np.uint8)
        targets = np.empty((size, len(CLASS_NAMES)), np.uint8)
        scans = (digits.images[rows] / digits.images.max()).astype(np.float32)
        starts = np.searchsorted(digits.target[rows], np.arange(len(CLASS_NAMES) + 1))
        for first in range(0, size, 64):
            index = range(first, min(first + 64, size))
            rngs = [np.random.default_rng([seed, split == "test", i]) for i in index]
            images[index], targets[index] = _compose(rngs, scans, starts, image_size)
        return Split(images, targets, [f"{split}-{i:05d}" for i in range(size)])

    return MultiLabelData(
        class_names=list(CLASS_NAMES),
        train=compose("train", train_size, train),
        test=compose("test", test_size, test),
    )


def _compose(
    rngs: list[np.random.Generator], scans: np.ndarray, starts: np.ndarray, image_size: int
) -> tuple[np.ndarray, np.ndarray]:
    """Compose one image per generator; the scans of class c are ``starts[c]:starts[c + 1]``."""
    counts, classes, cells = len(LABEL_COUNTS), len(CLASS_WEIGHTS), GRID * GRID

    # random numbers come from a generator per image; everything else is vectorized
    draws = np.stack([rng.random(128, np.float32) for rng in rngs])
    noise = np.stack([rng.integers(256, size=(image_size,) * 2, dtype=np.uint8) for rng in rngs])
    taken = 0

    def uniform(*shape: int) -> np.ndarray:
        nonlocal taken
        taken += math.prod(shape)
        return draws[:, taken - math.prod(shape) : taken].reshape(-1, *shape)

    count = 1 + np.searchsorted(LABEL_COUNTS.cumsum()[:-1], uniform(1))
    # the n smallest of exponential variables with rates w: a weighted draw without replacement
    order = np.argsort(-np.log1p(-uniform(classes)) / CLASS_WEIGHTS)
    targets = np.zeros((len(rngs), classes), np.uint8)
    np.put_along_axis(targets, order, np.arange(classes) < count, axis=1)

    # each digit in a cell of its own: one per label, then repeats of the first labels
    slots = np.r_[:counts, :REPEATS]
    label = order[:, slots]
    shown = (slots < count) & ((np.arange(cells) < counts) | (uniform(cells) < 0.25))
    digit = starts[label] + (uniform(cells) * np.diff(starts)[label]).astype(int)
    cell = np.argsort(uniform(cells))
    brightness = np.where(shown, 0.5 + 0.45 * uniform(cells), 0)

    # fragments: quarters of arbitrary scans in arbitrary cells
    corner = (uniform(FRAGMENTS, 2, 1) * 5).astype(int)
    inside = (corner <= np.arange(8)) & (np.arange(8) < corner + 4)
    fragment = scans[(uniform(FRAGMENTS) * len(scans)).astype(int)]
    fragment *= inside[:, :, 0, :, None] & inside[:, :, 1, None, :]

    patch = np.concatenate([scans[digit], fragment], axis=1)
    cell = np.concatenate([cell, (uniform(FRAGMENTS) * cells).astype(int)], axis=1)
    patch *= np.concatenate([brightness, 0.4 * uniform(FRAGMENTS)], axis=1)[..., None, None]
    side = (0.8 + 0.35 * uniform(cell.shape[1])) / GRID
    where = np.stack(np.divmod(cell, GRID), axis=-1).astype(np.float32)
    centre = (where + 0.3 + 0.4 * uniform(cell.shape[1], 2)) / GRID
    centre = np.clip(centre, side[..., None] / 2, 1 - side[..., None] / 2)

    level, slope = 0.05 + 0.2 * uniform(1, 1), 0.2 * uniform(2, 1) - 0.1
    ramp = np.linspace(-1, 1, image_size, dtype=np.float32)
    images = level + slope[:, :1] * ramp + slope[:, 1:] * ramp[:, None]
    images += _place(patch, centre, side, image_size)
    images += NOISE * (noise / np.float32(127.5) - 1)
    return (images.clip(0, 1) * 255).astype(np.uint8), targets


def _place(
    patches: np.ndarray, centre: np.ndarray, side: np.ndarray, image_size: int
) -> np.ndarray:
    """Return images ``[N, H, W]``, each the sum of its patches ``[N, P, 8, 8]``.

    Bilinear enlargement is a matrix ``[H, 8]`` on either side: an image is the sum of
    rows @ patch @ columns^T. Centres ``[N, P, 2]`` and sides ``[N, P]`` are relative to the side of
    the image.
    """
    pixel = (np.arange(image_size, dtype=np.float32) + 0.5) / image_size
    position = ((pixel - centre[..., None]) / side[..., None, None] + 0.5) * 8 - 0.5
    weights = np.maximum(0, 1 - np.abs(position[..., None] - np.arange(8, dtype=np.float32)))
    left, right = weights[:, :, 0] @ patches, weights[:, :, 1]
    # [N, P, H, 8] -> [N, H, P * 8]: the product then sums over the patches as well
    left, right = (m.swapaxes(1, 2).reshape(len(m), image_size, -1) for m in (left, right))
    return left @ right.swapaxes(1, 2)
