"""Time the preparation of photographs beside the plain pipeline of the ASL recipe.

python scripts/bench_data.py
python scripts/bench_data.py --images data/VOCdevkit/VOC2007/JPEGImages
python scripts/bench_data.py --quick

What is compared: the images per second of one core, from JPEG files to a batch. The plain pipeline
is what the recipe's authors write, Pillow and ``torchvision.transforms``: open, convert to RGB,
``Resize``, in training cutout and RandAugment by Pillow, ``ToTensor``, stack. Ours is the data set
that the trainer uses, reading the files or a cache that has been filled. Its batches are bytes,
which the device turns into numbers; the rows "to float" add what that takes on this core. The
tables below give the time of each step and of each operation of RandAugment, and by how many grey
levels the pixels differ.

Why it is fair: both do the same to the same files, with one thread, in one process. They take
turns, so that a busy moment of the machine meets both; a ratio is taken within a round, and its
median over the rounds is reported. Both draw their augmentations with the same chances. The files
and the cache were read before, so no one waits for a disk. RandAugment's operations are written
with the one call of Pillow that does each, which is less work than the original package does.
"""

import argparse
import functools
import itertools
import json
import math
import random
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageEnhance, ImageOps
from torchvision import transforms as plain_transforms

from tkpr import atomic
from tkpr.data.cache import ImageCache
from tkpr.data.dataset import Split
from tkpr.data.images import ImageDataset, read_image, squash
from tkpr.data.transforms import OPERATIONS, ImagePipeline, asl
from tkpr.reporting.benchmark import machine, ratio, side_by_side
from tkpr.runs.script import Parser, output_file, script

GREY = (128, 128, 128)
NAMES = (
    *("invert", "autocontrast", "equalize", "solarize", "posterize", "square", "rotate"),
    *("shear right", "shear down", "move left", "move up"),
    *("colour", "contrast", "sharpness", "brightness"),
)


# The plain pipeline


def affine(image: Image.Image, *matrix: float, cubic: bool = False) -> Image.Image:
    """Move the pixels of an image."""
    resample = Image.Resampling.BICUBIC if cubic else Image.Resampling.NEAREST
    return image.transform(
        image.size, Image.Transform.AFFINE, matrix, resample=resample, fillcolor=GREY
    )


def small_square(image: Image.Image, side: float) -> Image.Image:
    """Paint a small square somewhere."""
    half = round(side) // 2
    left, top = (random.randrange(length) for length in image.size)
    image = image.copy()
    image.paste((125, 122, 113), (left - half, top - half, left + half, top + half))
    return image


# In the order of OPERATIONS, which also says how strong they are.
PLAIN_OPERATIONS: tuple[Callable[[Image.Image, float], Image.Image], ...] = (
    lambda image, _: ImageOps.invert(image),
    lambda image, _: ImageOps.autocontrast(image),
    lambda image, _: ImageOps.equalize(image),
    lambda image, threshold: ImageOps.solarize(image, math.ceil(threshold)),
    lambda image, bits: ImageOps.posterize(image, round(bits)),
    small_square,
    lambda image, degrees: image.rotate(degrees, fillcolor=GREY),
    lambda image, slope: affine(image, 1, slope, 0, 0, 1, 0, cubic=True),
    lambda image, slope: affine(image, 1, 0, 0, slope, 1, 0, cubic=True),
    lambda image, share: affine(image, 1, 0, share * image.width, 0, 1, 0),
    lambda image, share: affine(image, 1, 0, 0, 0, 1, share * image.height),
    lambda image, change: ImageEnhance.Color(image).enhance(1 + change),
    lambda image, change: ImageEnhance.Contrast(image).enhance(1 + change),
    lambda image, change: ImageEnhance.Sharpness(image).enhance(1 + change),
    lambda image, change: ImageEnhance.Brightness(image).enhance(1 + change),
)


def plain_cutout(image: Image.Image) -> Image.Image:
    """Paint a rectangle of half the image's sides over it, in a random colour."""
    x, y = random.randrange(image.width), random.randrange(image.height)
    half_width, half_height = image.width // 4, image.height // 4
    box = (x - half_width, y - half_height, x + half_width, y + half_height)
    image = image.copy()
    ImageDraw.Draw(image).rectangle(box, fill=tuple(random.randrange(256) for _ in range(3)))
    return image


def plain_randaugment(image: Image.Image) -> Image.Image:
    """Draw two operations and levels, and apply each with probability 1/2."""
    for _ in range(2):
        number, level, sign = random.randrange(15), random.randint(1, 9), random.choice((-1, 1))
        if random.random() < 0.5:
            image = PLAIN_OPERATIONS[number](image, strength(number, level, sign))
    return image


def strength(number: int, level: int, sign: int) -> float:
    """Return the strength of an operation of RandAugment at a level."""
    _, first, last, signed = OPERATIONS[number]
    return (sign if signed else 1) * (first + (last - first) * level / 9)


def plain_pipeline(size: int, *, training: bool) -> Callable[[Path], torch.Tensor]:
    """Return the function from a file to the float image of the plain pipeline."""
    augment = [plain_cutout, plain_randaugment] if training else []
    steps = [plain_transforms.Resize((size, size)), *augment, plain_transforms.ToTensor()]
    compose = plain_transforms.Compose(steps)
    return lambda path: compose(Image.open(path).convert("RGB"))


# What is measured


def draw_photographs(folder: Path, number: int) -> list[Path]:
    """Make JPEG files of 500 x 375: smooth colours, a dozen shapes, the noise of a camera."""
    rng = np.random.default_rng(0)
    paths = []
    for place in range(number):
        colours = Image.fromarray(rng.integers(0, 256, (6, 8, 3), dtype=np.uint8))
        image = colours.resize((500, 375), Image.Resampling.BICUBIC)
        draw = ImageDraw.Draw(image)
        for _ in range(12):
            (x, y), (width, height) = rng.integers(0, (500, 375)), rng.integers(10, 80, 2)
            box = [int(x - width), int(y - height), int(x + width), int(y + height)]
            draw.ellipse(box, fill=tuple(rng.integers(0, 256, 3).tolist()))
        pixels = np.asarray(image) + rng.normal(0, 8, (375, 500, 1))
        paths.append(folder / f"{place}.jpg")
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(paths[-1], quality=90)
    return paths


def find_photographs(folder: Path, number: int) -> list[Path]:
    """Return some JPEG files of a folder, spread over it."""
    found = sorted(path for path in folder.iterdir() if path.suffix.lower() in (".jpg", ".jpeg"))
    if not found:
        raise SystemExit(f"error: there are no .jpg files in {folder}")
    return found[:: max(1, len(found) // number)][:number]


def turns(make: Callable[[list[int]], Any], number: int, batch: int) -> Callable[[], Any]:
    """Return a call that makes the next batch, over and over the photographs."""
    order = itertools.cycle(range(number))
    return lambda: make([next(order) for _ in range(batch)])


def make_contestants(
    paths: list[Path], recipe: ImagePipeline, cache: ImageCache, batch: int, *, training: bool
) -> dict[str, Callable[[], Any]]:
    """Return what is timed: each call makes one batch."""
    assert recipe.size is not None
    split = Split(paths, np.zeros((len(paths), 1), np.uint8), [path.stem for path in paths])
    pipeline = plain_pipeline(recipe.size, training=training)

    def plain(rows: list[int]) -> torch.Tensor:
        return torch.stack([pipeline(paths[row]) for row in rows])

    makes: dict[str, Callable[[list[int]], Any]] = {"plain": plain}
    for name, kept in (("files", None), ("cache", cache)):
        dataset = ImageDataset(
            split, size=recipe.size, augment=recipe.augment if training else None, cache=kept
        )
        epochs = itertools.count()

        def ours(
            rows: list[int], dataset: ImageDataset = dataset, epochs: Any = epochs
        ) -> torch.Tensor:
            dataset.set_epoch(next(epochs))
            return dataset.__getitems__(rows)[0]

        def ours_to_float(
            rows: list[int], ours: Callable[..., torch.Tensor] = ours
        ) -> torch.Tensor:
            return recipe.finish(ours(rows))

        makes |= {name: ours, f"{name}, to float": ours_to_float}
    return {name: turns(make, len(paths), batch) for name, make in makes.items()}


def measure_pipelines(
    paths: list[Path], recipe: ImagePipeline, arguments: argparse.Namespace
) -> list[dict[str, Any]]:
    """Time the pipelines in evaluation and in training."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        cache = ImageCache(folder, paths, size=arguments.size)
        for index, path in enumerate(paths):
            cache.put(index, squash(read_image(path, size=arguments.size), arguments.size))
        for mode, training in (("evaluation", False), ("training", True)):
            contestants = make_contestants(paths, recipe, cache, arguments.batch, training=training)
            times = side_by_side(contestants, rounds=arguments.rounds, seconds=arguments.seconds)
            for name in times:
                rows.append(
                    {
                        "mode": mode,
                        "pipeline": name,
                        "images_per_second": arguments.batch / statistics.median(times[name]),
                        "times_faster": ratio(times["plain"], times[name]),
                    }
                )
    return rows


def measure_steps(
    paths: list[Path], recipe: ImagePipeline, arguments: argparse.Namespace
) -> list[dict[str, Any]]:
    """Time the steps of both pipelines on one photograph, by themselves."""
    size, path = arguments.size, paths[0]
    image = Image.open(path).convert("RGB")
    squashed = image.resize((size, size), Image.Resampling.BILINEAR)
    pixels = squash(image, size)
    to_tensor, resize = plain_transforms.ToTensor(), plain_transforms.Resize((size, size))
    assert recipe.augment is not None
    cutout, randaugment = recipe.augment.transforms  # type: ignore[attr-defined]
    batch = pixels[None].contiguous()
    with tempfile.TemporaryDirectory() as folder:
        cache = ImageCache(folder, [path], size=size)
        cache.put(0, pixels)
        pairs: dict[str, tuple[Callable[[], Any] | None, Callable[[], Any]]] = {
            "decode": (
                lambda: Image.open(path).convert("RGB"),
                lambda: read_image(path, size=size),
            ),
            "resize": (lambda: resize(image), lambda: squash(image, size)),
            "read from the cache": (None, lambda: cache.get(0)),
            "cutout": (lambda: plain_cutout(squashed), lambda: cutout(pixels)),
            "draw RandAugment": (None, lambda: randaugment.make_params([])),
            "to float": (lambda: to_tensor(squashed), lambda: recipe.finish(batch)),
        }
        return [
            {"step": name, **time_pair(*pair, arguments=arguments)} for name, pair in pairs.items()
        ]


def measure_operations(paths: list[Path], arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Time each operation of RandAugment, and compare the pixels at all levels."""
    image = squashed_by_pillow(paths[0], arguments.size)
    pixels = np.asarray(image)
    rows = []
    for number, (ours, *_, signed) in enumerate(OPERATIONS):
        plain, middle = PLAIN_OPERATIONS[number], strength(number, 5, 1)
        row: dict[str, Any] = {"operation": NAMES[number]} | time_pair(
            functools.partial(plain, image, middle),
            functools.partial(ours, pixels, middle),
            arguments=arguments,
        )
        if plain is not small_square:  # which lies elsewhere each time
            settings = itertools.product(paths[:2], range(1, 10), (1, -1) if signed else (1,))
            differences = []
            for path, level, sign in settings:
                picture, power = (
                    squashed_by_pillow(path, arguments.size),
                    strength(number, level, sign),
                )
                differences.append(
                    difference(ours(np.asarray(picture), power), plain(picture, power))
                )
            row |= summary(differences)
        rows.append(row)
    return rows


def compare_pixels(paths: list[Path], size: int) -> dict[str, float]:
    """Compare the pixels of the pipelines in evaluation, in grey levels."""
    pipeline = plain_pipeline(size, training=False)
    differences = []
    for path in paths:
        ours = squash(read_image(path, size=size), size)
        differences.append(difference(ours, (pipeline(path) * 255).round()))
    return summary(differences)


def squashed_by_pillow(path: Path, size: int) -> Image.Image:
    """Read a photograph and squash it to a square."""
    return Image.open(path).convert("RGB").resize((size, size), Image.Resampling.BILINEAR)


def difference(one: Any, other: Any) -> np.ndarray:
    """Return by how much pixels differ."""
    return np.abs(np.asarray(one, np.int16) - np.asarray(other, np.int16))


def summary(differences: list[np.ndarray]) -> dict[str, float]:
    """Return the largest and the mean difference."""
    return {
        "largest_difference": int(max(found.max() for found in differences)),
        "mean_difference": float(np.mean([found.mean() for found in differences])),
    }


def time_pair(
    plain: Callable[[], Any] | None, ours: Callable[[], Any], *, arguments: argparse.Namespace
) -> dict[str, float | None]:
    """Time one step of the plain pipeline beside ours, in milliseconds."""
    both = {"ours": ours} if plain is None else {"plain": plain, "ours": ours}
    times = side_by_side(both, rounds=arguments.rounds, seconds=arguments.seconds / 20)
    medians = {name: 1000 * statistics.median(values) for name, values in times.items()}
    return {"plain_ms": medians.get("plain"), "ours_ms": medians["ours"]}


# What is reported


def print_tables(measured: dict[str, Any]) -> None:
    """Print the ratios and the profile."""
    print(f"{'':<32}{'images/s':>10}{'times plain':>13}")
    for row in measured["pipelines"]:
        name = f"{row['mode']}, {row['pipeline']}"
        print(f"{name:<32}{row['images_per_second']:>10.0f}{row['times_faster']:>13.2f}")
    print(f"\n{'ms per image':<22}{'plain':>8}{'ours':>8}{'largest, mean difference':>28}")
    for row in (*measured["steps"], *measured["operations"]):
        plain = "-" if row["plain_ms"] is None else f"{row['plain_ms']:.2f}"
        name = row.get("step") or f"  {row['operation']}"
        levels = ""
        if "largest_difference" in row:
            levels = f"{row['largest_difference']}, {row['mean_difference']:.5f}"
        print(f"{name:<22}{plain:>8}{row['ours_ms']:>8.2f}{levels:>28}")
    pixels = measured["pixels"]
    print(
        f"\nevaluation: pixels differ by at most {pixels['largest_difference']} of 255 levels, "
        f"{pixels['mean_difference']:.4f} on average"
    )


def main() -> None:
    """Read the command line, measure, print the tables, write the JSON file."""
    parser = Parser(__doc__)
    parser.add_argument("--images", type=Path, help="a folder of JPEG files; made up by default")
    parser.add_argument("--number", type=int, default=64, help="of photographs")
    parser.add_argument("--size", type=int, default=448, help="the side of the square images")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=0.4, help="of a turn")
    parser.add_argument("--quick", action="store_true", help="tiny and inexact, to see it run")
    parser.add_argument("--output", type=output_file, default="runs/bench/data.json")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.number, arguments.size, arguments.batch = 4, 64, 2
        arguments.rounds, arguments.seconds = 1, 0.0

    torch.set_num_threads(1)
    random.seed(0)
    recipe = asl(size=arguments.size, cutout=0.5, mean=0, std=1, interpolation="bilinear")
    with tempfile.TemporaryDirectory() as folder:
        if arguments.images is None:
            paths = draw_photographs(Path(folder), arguments.number)
        else:
            paths = find_photographs(arguments.images, arguments.number)
        measured = {
            "machine": machine(),
            "photographs": len(paths),
            "pipelines": measure_pipelines(paths, recipe, arguments),
            "steps": measure_steps(paths, recipe, arguments),
            "operations": measure_operations(paths, arguments),
            "pixels": compare_pixels(paths[:8], arguments.size),
        }
    print_tables(measured)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    atomic.write(arguments.output, json.dumps(measured, indent=2))


if __name__ == "__main__":
    script(main)
