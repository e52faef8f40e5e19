"""MS-COCO: multi-label targets from the instances annotation files."""

import contextlib
import hashlib
import io
import json
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from pycocotools.coco import COCO

from tkpr import atomic
from tkpr.data.dataset import MultiLabelData, Split
from tkpr.data.download import Archive
from tkpr.data.files import (
    absolute,
    dataset_root,
    inside,
    labelled_only,
    read_arrays,
    require_files,
)
from tkpr.data.labels import assume_negative
from tkpr.data.reference_counts import ReferenceCounts, SplitCounts

STORED_MODELS_MAY_BUILD = ("load_coco",)

SERVER = "http://images.cocodataset.org"
ORDERS = ("id_string", "annotation", "file")
HOW_TO_GET = "get it with: python scripts/prepare_data.py dataset=coco download=true"


def load_coco(
    root: str | Path,
    *,
    year: int,
    drop_unlabelled: bool,
    negatives: str,
    order: str,
    cache_dir: str | Path | None,
    check_files: bool,
) -> MultiLabelData:
    """Read COCO: training images ``train{year}``, test images ``val{year}``.

    A class is present when at least one annotation of the image names it, crowd annotations
    included. The classes are in the order of the category list of the annotation file.

    Args:
        root: the folder with ``annotations/``, ``train{year}/`` and ``val{year}/``.
        year: 2014 (82,081 / 40,137 images with labels) or 2017.
        drop_unlabelled: whether to drop images without annotations, as ASL, SPML and later work.
        negatives: ``unannotated``: a class without an annotation is absent; ``listed``: only the
            classes in an image's ``neg_category_ids`` are, as in LVIS, and the others are unknown.
        order: the order of the samples, on which seeded draws depend: ``id_string`` (image ids
            sorted as strings, as in SPML, which reproduces its single-positive draw),
            ``annotation`` (first appearance in the annotation list, as in ASL; images without
            annotations last) or ``file`` (the image list of the annotation file).
        cache_dir: a folder to cache the label matrix in, so that later starts skip the large
            annotation files; a changed annotation file is detected. None: no cache.
        check_files: whether every image file must exist.

    >>> load_coco("data/coco", year=2014, drop_unlabelled=True, negatives="unannotated",
    ...           order="id_string", cache_dir=".cache", check_files=True)  # doctest: +SKIP
    MultiLabelData(class_names=['person', 'bicycle', 'car', ...
    """
    if order not in ORDERS:
        raise ValueError(f"order must be one of {', '.join(ORDERS)}; got {order!r}")
    if negatives not in ("unannotated", "listed"):
        raise ValueError(f"negatives must be unannotated or listed; got {negatives!r}")
    folder = dataset_root(root, how_to_get=HOW_TO_GET)
    cache = None if cache_dir is None else absolute(cache_dir)
    splits, class_names = [], []
    for name in (f"train{year}", f"val{year}"):
        index = _cached_index(folder / "annotations" / f"instances_{name}.json", cache)
        class_names.append(index.class_names.tolist())
        split = index.split(folder / name, order)
        if negatives == "unannotated":
            split = assume_negative(split)
        elif not index.absent.any():
            raise ValueError(
                f"{folder / 'annotations' / f'instances_{name}.json'}: no image has "
                "neg_category_ids, which dataset.negatives=listed reads"
            )
        if drop_unlabelled:
            split = labelled_only(split, name=f"COCO {name}")
        if check_files:
            require_files(split.inputs)
        splits.append(split)
    if class_names[0] != class_names[1]:
        raise ValueError(f"{folder}: the training and test annotations list different categories")
    return MultiLabelData(class_names[0], *splits)


@dataclass(frozen=True)
class _Index:
    """The labels of an annotation file; images in the order of its image list."""

    class_names: np.ndarray
    image_ids: np.ndarray
    file_names: np.ndarray
    first_annotation: np.ndarray  # position in the annotation list; its length for images without
    targets: np.ndarray
    absent: np.ndarray  # what an image lists as absent, bool [N, C]

    def split(self, folder: Path, order: str) -> Split:
        """Return the images, which are in ``folder``, in the given order."""
        rows = np.arange(len(self.image_ids))
        if order == "id_string":
            rows = np.argsort(self.image_ids.astype(str))  # old caches hold integers
        elif order == "annotation":
            rows = np.argsort(self.first_annotation, kind="stable")
        names = self.file_names[rows].tolist()
        paths = [inside(folder, name, where=f"image list of {folder.name}") for name in names]
        targets = self.targets[rows]
        unknown = (targets == 0) & ~self.absent[rows]
        return Split(paths, targets, [path.stem for path in paths], unknown=unknown)


def _cached_index(path: Path, cache: Path | None) -> _Index:
    """Read the index from the cache, unless the annotation file has changed."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}; {HOW_TO_GET}")
    if cache is None:
        return _read_index(path)
    state = path.stat()
    stamp = f"{path}|{state.st_size}|{state.st_mtime_ns}|{len(fields(_Index))}"
    stored = cache / f"{path.stem}-{hashlib.sha256(stamp.encode()).hexdigest()[:16]}.npz"
    if stored.is_file():
        try:
            return _Index(**read_arrays(stored, [field.name for field in fields(_Index)]))
        except Exception as error:  # a damaged archive can raise almost anything
            raise ValueError(f"{stored} cannot be read ({error}): delete it") from error
    index = _read_index(path)
    cache.mkdir(parents=True, exist_ok=True)
    atomic.write(stored, lambda file: np.savez_compressed(file, **vars(index)))
    return index


def _read_index(path: Path) -> _Index:
    """Read an annotation file; every annotation must refer to a known image and category."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # pycocotools prints its progress
            content = COCO(path).dataset
        images, annotations = content["images"], content["annotations"]
        image_ids = [image["id"] for image in images]
        file_names = [image["file_name"] for image in images]
        categories = [(category["id"], category["name"]) for category in content["categories"]]
        labels = [(label["image_id"], label["category_id"]) for label in annotations]
        listed = [
            (row, category_id)
            for row, image in enumerate(images)
            for category_id in image.get("neg_category_ids", ())
        ]
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}, line {error.lineno}: broken JSON: {error.msg}") from error
    except ValueError as error:  # wrong encoding, or an integer of thousands of digits
        raise ValueError(f"{path} cannot be read: {error}") from error
    except (AssertionError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path} is not a COCO instances file: {error!r}") from error
    if not (images and annotations and categories):
        raise ValueError(
            f"{path} is empty: {len(images)} images, {len(annotations)} annotations, "
            f"{len(categories)} categories"
        )
    numbers, class_names = [number for number, _ in categories], [name for _, name in categories]
    for what, values in (("file_name", file_names), ("category name", class_names)):
        _require(path, what, values, _is_text, "a non-empty text")
    for what, values in (
        ("image id", image_ids),
        ("category id", numbers),
        ("image_id of an annotation", [image_id for image_id, _ in labels]),
        ("category_id of an annotation", [category_id for _, category_id in labels]),
        ("neg_category_ids of an image", [category_id for _, category_id in listed]),
    ):
        _require(path, what, values, _is_id, "an integer or a text")
    row_of = {image_id: row for row, image_id in enumerate(image_ids)}
    column_of = {number: column for column, number in enumerate(numbers)}
    for what, values in (
        ("image id", image_ids),
        ("file name", [Path(name).stem for name in file_names]),  # becomes the sample's id
        ("category id", numbers),
        ("category name", class_names),
    ):
        _refuse_duplicates(path, what, values)
    targets = np.zeros((len(images), len(categories)), dtype=np.uint8)
    first = np.full(len(images), len(annotations), dtype=np.int64)
    for position, (image_id, category_id) in enumerate(labels):
        if image_id not in row_of or category_id not in column_of:
            kind = "image" if image_id not in row_of else "category"
            raise ValueError(
                f"{path}: annotation {position + 1} of the list (image {image_id}, category "
                f"{category_id}) refers to an unknown {kind}"
            )
        row = row_of[image_id]
        targets[row, column_of[category_id]] = 1
        first[row] = min(first[row], position)
    absent = np.zeros(targets.shape, dtype=bool)
    for row, category_id in listed:
        column = column_of.get(category_id)
        if column is None or targets[row, column]:
            why = "is unknown" if column is None else "has an annotation"
            raise ValueError(
                f"{path}: image {image_ids[row]} lists category {category_id} in neg_category_ids, "
                f"but it {why}"
            )
        absent[row, column] = True
    # as text: integers beyond 64 bits would become an object array
    ids = np.array([str(image_id) for image_id in image_ids])
    return _Index(np.array(class_names), ids, np.array(file_names), first, targets, absent)


def _is_text(value: Any) -> bool:
    """Whether a value can be a name; NumPy drops trailing zero bytes."""
    return isinstance(value, str) and value.strip() != "" and "\0" not in value


def _is_id(value: Any) -> bool:
    """Whether a value can be an id; true and 1.0 cannot, because they equal 1."""
    return type(value) is int or _is_text(value)


def _require(
    path: Path, what: str, values: list[Any], check: Callable[[Any], bool], wanted: str
) -> None:
    """Raise an error that names the first value that fails the check."""
    for position, value in enumerate(values, start=1):
        if not check(value):
            raise ValueError(
                f"{path}: the {what} must be {wanted}; got {value!r:.60} at position {position}"
            )


def _refuse_duplicates(path: Path, what: str, values: list[Any]) -> None:
    """Raise an error that names the first value that occurs twice."""
    seen = set()
    for value in values:
        if value in seen:
            raise ValueError(f"{path}: the {what} {value!r} occurs twice")
        seen.add(value)


REFERENCE_COUNTS = [
    ReferenceCounts(
        {"year": 2014, "drop_unlabelled": True},
        SplitCounts(
            "79f34aba2808a9a1",
            "0 16813 25053 16837 9830 5910 3364 1988 1076 598 315 164 75 36 12 7 2 0 1",
        ),
        SplitCounts(
            "4f2b4d1679412335", "0 8398 12327 8312 4734 2717 1630 922 531 286 146 71 42 14 5 2"
        ),
        order={"order": "id_string"},
    ),
]

# Sizes and sums as published by the servers.
ARCHIVES = [
    Archive(
        f"{SERVER}/annotations/annotations_trainval2014.zip",
        252_872_794,
        "0a379cfc70b0e71301e0f377548639bd",
        "annotations/instances_train2014.json",
        options={"year": 2014},
    ),
    Archive(
        f"{SERVER}/zips/val2014.zip",
        6_645_013_297,
        "a3d79f5ed8d289b7a7554ce06a5782b3",
        "val2014",
        options={"year": 2014},
    ),
    Archive(
        f"{SERVER}/zips/train2014.zip",
        13_510_573_713,
        "0da8c0bd3d6becc4dcb32757491aca88",
        "train2014",
        options={"year": 2014},
    ),
    Archive(
        f"{SERVER}/annotations/annotations_trainval2017.zip",
        252_907_541,
        "f4bbac642086de4f52a3fdda2de5fa2c",
        "annotations/instances_train2017.json",
        options={"year": 2017},
    ),
    Archive(
        f"{SERVER}/zips/val2017.zip",
        815_585_330,
        "442b8da7639aecaf257c1dceb8ba8c80",
        "val2017",
        options={"year": 2017},
    ),
    Archive(
        f"{SERVER}/zips/train2017.zip",
        19_336_861_798,
        "cced6f7f71b7629ddf16f17bbcfab6b2",
        "train2017",
        options={"year": 2017},
    ),
]
