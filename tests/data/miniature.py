"""Miniature data sets in each genuine format: 12 training and 6 test samples, images of 64 x 48."""

import csv
import json
from pathlib import Path

import numpy as np
from hydra.utils import get_object
from omegaconf import OmegaConf
from PIL import Image, ImageDraw

from tkpr.data.dataset import MultiLabelData
from tkpr.data.nuswide_concepts import CONCEPTS, LIST_ORDER
from tkpr.data.voc import CLASSES, SPLITS

TRAIN, TEST = 12, 6
CONFIGS = Path(__file__).parents[2] / "configs"


def load(name: str, root: Path, /, **options) -> MultiLabelData:
    """Read ``root`` with the loader and the defaults of ``configs/dataset/<name>.yaml``."""
    settings = OmegaConf.to_container(OmegaConf.load(CONFIGS / "dataset" / f"{name}.yaml").dataset)
    for resolved in ("root", "cache_dir", "on_error"):  # of the environment, or not for loaders
        settings.pop(resolved, None)
    if name == "coco":
        settings["cache_dir"] = None
    return get_object(settings.pop("_target_"))(root, **settings | options)


def labels(count: int, classes: int, seed: int) -> np.ndarray:
    """Draw a 0/1 matrix with one to three labels in each row."""
    generator = np.random.RandomState(seed)
    targets = np.zeros((count, classes), dtype=np.uint8)
    for row in targets:
        row[
            generator.choice(classes, size=generator.randint(1, min(4, classes)), replace=False)
        ] = 1
    return targets


def draw(path: Path, present: np.ndarray) -> None:
    """Save a JPEG with one coloured bar for each class that is present."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.new("RGB", (64, 48), (128, 128, 128))
    pen = ImageDraw.Draw(image)
    for column in np.flatnonzero(present):
        left = int(column * 64 / len(present))
        colour = tuple(int(v) for v in np.random.RandomState(column).randint(0, 256, size=3))
        pen.rectangle((left, 0, left + max(2, 64 // len(present)), 47), fill=colour)
    image.save(path, quality=90)


CATEGORIES = {"person": 1, "car": 3, "dog": 18, "cat": 17, "bottle": 44}


def make_coco(folder: Path, year: int = 2014, names: dict[str, int] = CATEGORIES) -> Path:
    """Write a COCO folder: 5 categories, and in each split one image more, without annotation."""
    categories, classes = [(number, name) for name, number in names.items()], len(names)
    for split, count in (("train", TRAIN), ("val", TEST)):
        nothing = np.zeros((1, classes), dtype=np.uint8)
        targets = np.vstack([labels(count, classes, seed=count), nothing])
        # numbers of different length, so that their order as strings is another one
        numbers = [7 * row + 5 for row in range(count + 1)]
        prefix = f"COCO_{split}2014_" if year == 2014 else ""
        images = [f"{prefix}{number:012d}.jpg" for number in numbers]
        for name, row in zip(images, targets, strict=True):
            draw(folder / f"{split}{year}" / name, row)
        annotations = [
            {
                "id": 1000 + 10 * row + column,
                "image_id": numbers[row],
                "category_id": categories[column][0],
                "bbox": [1, 1, 20, 20],
                "area": 400,
                "iscrowd": column % 2,
            }
            for row in reversed(range(count))
            for column in np.flatnonzero(targets[row])
        ]
        annotations.append(annotations[0] | {"id": 1})  # a second object of the same class
        content = {
            "images": [
                {"id": number, "file_name": name, "width": 64, "height": 48}
                for number, name in zip(numbers, images, strict=True)
            ],
            "annotations": annotations,
            "categories": [{"id": number, "name": name} for number, name in categories],
        }
        path = folder / "annotations" / f"instances_{split}{year}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content, indent=1, default=int))
    return folder


def make_voc(folder: Path, year: int = 2012) -> Path:
    """Write ``VOCdevkit/VOC<year>``; in each split the second image has a difficult-only class."""
    root = folder / "VOCdevkit" / f"VOC{year}"
    main = root / "ImageSets" / "Main"
    main.mkdir(parents=True)
    (root / "Annotations").mkdir()
    for split, count in zip(SPLITS[year], (TRAIN, TEST), strict=True):
        codes = 2 * labels(count, 20, seed=count).astype(np.int8) - 1
        codes[1] = -1
        codes[1, [3, 14]] = [1, 0]  # a boat, and a person that is hard to see
        ids = [f"{split}_{number:06d}" for number in range(count, 0, -1)]
        for image_id, row in zip(ids, codes, strict=True):
            draw(root / "JPEGImages" / f"{image_id}.jpg", row == 1)
            (root / "Annotations" / f"{image_id}.xml").write_text(_voc_xml(image_id, row))
        (main / f"{split}.txt").write_text("".join(f"{image_id}\n" for image_id in ids))
        for column, name in enumerate(CLASSES):
            lines = [f"{i} {code:2d}\n" for i, code in zip(ids, codes[:, column], strict=True)]
            (main / f"{name}_{split}.txt").write_text("".join(lines))
    return folder


def _voc_xml(image_id: str, codes: np.ndarray) -> str:
    """Return an annotation: two objects of each present class, the first of them difficult."""
    objects = ""
    for column in np.flatnonzero(codes >= 0):
        for difficult in (1, 0) if codes[column] == 1 else (1,):
            objects += (
                f"\t<object>\n\t\t<name>{CLASSES[column]}</name>\n"
                f"\t\t<difficult>{difficult}</difficult>\n"
                "\t\t<part>\n\t\t\t<name>head</name>\n\t\t</part>\n\t</object>\n"
            )
    return f"<annotation>\n\t<filename>{image_id}.jpg</filename>\n{objects}</annotation>\n"


def make_nuswide(folder: Path, version: str = "lists") -> Path:
    """Write NUS-WIDE as ``lists``, ``original`` or ``csv``; the original has unlabelled images."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for split, count in (("Train", TRAIN), ("Test", TEST)):
        targets = labels(count, 81, seed=count)
        if version == "lists":
            name = "nus_train_full.txt" if split == "Train" else "nus_val.txt"
            images = [f"{number:04d}_{split}.jpg" for number in range(count)]
            lines = []
            for image, row in zip(images, targets, strict=True):
                draw(folder / "images" / image, row)
                indices = sorted(LIST_ORDER.index(CONCEPTS[at]) for at in np.flatnonzero(row))
                lines.append(f"{image},{' '.join(map(str, indices))}\n")
            (folder / name).write_text("".join(lines))
        elif version == "original":
            targets = np.vstack([targets, np.zeros((1, 81), dtype=np.uint8)])
            images = [f"actor\\{number:04d}_{split}.jpg" for number in range(count + 1)]
            for image, row in zip(images, targets, strict=True):
                draw(folder / "Flickr" / image.replace("\\", "/"), row)
            truth = folder / "Groundtruth" / "TrainTestLabels"
            truth.mkdir(parents=True, exist_ok=True)
            (folder / "ImageList").mkdir(exist_ok=True)
            text = "".join(f"{image}\r\n" for image in images)
            (folder / "ImageList" / f"{split}Imagelist.txt").write_bytes(text.encode())
            for column, concept in enumerate(CONCEPTS):
                text = "".join(f"{value}\n" for value in targets[:, column])
                (truth / f"Labels_{concept}_{split}.txt").write_text(text)
        else:
            for number, row in enumerate(targets):
                image = f"images/{number:04d}_{split}.jpg"
                draw(folder / image, row)
                names = [CONCEPTS[at] for at in np.flatnonzero(row)]
                rows.append([image, str(names), "train" if split == "Train" else "val"])
    if version == "csv":
        _write_csv(folder / "nus_wid_data.csv", [["filepath", "label", "split_name"], *rows])
    return folder


def make_csv(
    folder: Path,
    *,
    per_class: bool = False,
    split: bool = True,
    classes: tuple[str, ...] = ("cat", "dog", "old car", "tree"),
) -> Path:
    """Write ``labels.csv`` and images: a column of names, or one 0/1 column per class."""
    targets = labels(TRAIN + TEST, len(classes), seed=0)
    header = ["image", *(classes if per_class else ["labels"]), *(["split"] if split else [])]
    rows = [header]
    for number, row in enumerate(targets):
        image = f"photos/{number:02d}.jpg"
        draw(folder / image, row)
        names = ";".join(classes[at] for at in np.flatnonzero(row))
        cells = [str(value) for value in row] if per_class else [names]
        rows.append([image, *cells, *(["train" if number < TRAIN else "test"] if split else [])])
    _write_csv(folder / "labels.csv", rows)
    return folder


def _write_csv(path: Path, rows: list[list[str]]) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)


def make_arff(folder: Path, *, sparse: bool = False, split: bool = True) -> Path:
    """Write ``mini.xml`` with ``mini-train.arff`` and ``mini-test.arff``, or with ``mini.arff``.

    Two numeric features, one nominal of three values, one of two; three labels.
    """
    folder.mkdir(parents=True, exist_ok=True)
    names = ["happy", "sad song", "calm"]
    (folder / "mini.xml").write_text(
        '<?xml version="1.0" encoding="utf-8"?>\n'
        '<labels xmlns="http://mulan.sourceforge.net/labels">\n'
        + "".join(f'<label name="{name}"></label>\n' for name in names)
        + "</labels>\n"
    )
    header = (
        "% a comment\n@relation 'mini: -C 3'\n\n@attribute height numeric\n"
        "@attribute 'the width' REAL\n@attribute colour {red, green,'light blue'}\n"
        "@ATTRIBUTE loud {no,yes}\n"
        + "".join(f"@attribute '{name}' {{0,1}}\n" for name in names)
        + "\n@data\n"
    )
    parts = {"-train": TRAIN, "-test": TEST} if split else {"": TRAIN + TEST}
    for part, count in parts.items():
        generator = np.random.RandomState(count)
        lines = []
        for row in labels(count, 3, seed=count):
            values = [
                f"{generator.randn():.4f}",
                "0",
                ["red", "green", "'light blue'"][generator.randint(3)],
                ["no", "yes"][generator.randint(2)],
                *map(str, row),
            ]
            if sparse:
                entries = [
                    f"{at} {value}"
                    for at, value in enumerate(values)
                    if value not in ("0", "red", "no")
                ]
                lines.append("{" + ",".join(entries) + "}\n")
            else:
                lines.append(",".join(values) + "\n")
        (folder / f"mini{part}.arff").write_text(header + "".join(lines))
    return folder


def make_xmc(folder: Path, *, name: str = "mini", split_files: bool = False) -> Path:
    """Write ``mini_train.txt`` and ``mini_test.txt``, or ``mini_data.txt`` with two splits.

    Nine features; five labels. The sample at row 1 has no labels.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for number, row in enumerate(labels(TRAIN + TEST, 5, seed=5)):
        generator = np.random.RandomState(number)
        features = np.flatnonzero(generator.rand(9) < 0.4)
        pairs = [f"{at}:{generator.rand():.4f}" for at in features] or ["0:1"]
        names = ",".join(map(str, np.flatnonzero(row))) if number != 1 else ""
        lines.append(f"{names} {' '.join(pairs)}\n")
    if not split_files:
        for part, rows in (("train", lines[:TRAIN]), ("test", lines[TRAIN:])):
            (folder / f"{name}_{part}.txt").write_text(f"{len(rows)} 9 5\n" + "".join(rows))
        return folder
    (folder / f"{name}_data.txt").write_text(f"{len(lines)} 9 5\n" + "".join(lines))
    order = [np.random.RandomState(seed).permutation(len(lines)) + 1 for seed in range(2)]
    for part, rows in (("tr", slice(TRAIN)), ("tst", slice(TRAIN, None))):
        columns = zip(*(numbers[rows] for numbers in order), strict=True)
        text = "".join(f"{first} {second}\n" for first, second in columns)
        (folder / f"{name}_{part}Split.txt").write_text(text)
    return folder
