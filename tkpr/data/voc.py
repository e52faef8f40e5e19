"""Pascal VOC 2007 and 2012: multi-label targets from a standard ``VOCdevkit``."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tkpr.data.dataset import MultiLabelData, Split
from tkpr.data.download import Archive
from tkpr.data.files import dataset_root, inside, line_of, read_lines, read_xml, require_files
from tkpr.data.labels import check_difficult
from tkpr.data.reference_counts import ReferenceCounts, SplitCounts

STORED_MODELS_MAY_BUILD = ("load_voc",)

CLASSES = (  # noqa: SIM905 (a list would be one name per line)
    "aeroplane bicycle bird boat bottle bus car cat chair cow diningtable dog horse motorbike "
    "person pottedplant sheep sofa train tvmonitor"
).split()
GROUPED = (  # noqa: SIM905 (a list would be one name per line)
    "person bird cat cow dog horse sheep aeroplane bicycle boat bus car motorbike train bottle "
    "chair diningtable pottedplant sofa tvmonitor"
).split()
SERVER = "http://host.robots.ox.ac.uk/pascal/VOC"
SPLITS = {2007: ("trainval", "test"), 2012: ("train", "val")}

PRESENT, DIFFICULT, ABSENT = 1, 0, -1  # codes in the ImageSets/Main files


def load_voc(
    root: str | Path,
    *,
    year: int,
    labels_from: str,
    difficult: str,
    class_order: str,
    check_files: bool,
) -> MultiLabelData:
    """Read VOC 2007 (trainval / test) or VOC 2012 (train / val); samples sorted by file name.

    Args:
        root: ``VOCdevkit``, its parent folder, or ``VOC<year>`` inside it.
        year: 2007 (5,011 / 4,952 images) or 2012 (5,717 / 5,823 images).
        labels_from: ``imagesets``: ``ImageSets/Main/<class>_<split>.txt``, with 1 for present,
            0 for a class with difficult objects only, and -1 for absent. ``xml``: the objects in
            ``Annotations/*.xml``. Both give the same labels.
        difficult: how to treat a class with difficult objects only: ``negative``: as absent, as in
            SPML and later work; ``positive``: as present; ``unknown``: as neither;
            ``ignore_image``: drop images with such a class.
        class_order: ``alphabetical``, or ``grouped`` (person, animals, vehicles, indoor), the
            column order of SPML, on which its single-positive draw depends.
        check_files: whether every image file must exist.

    >>> load_voc("data/voc2012", year=2012, labels_from="imagesets", difficult="negative",
    ...          class_order="alphabetical", check_files=True)  # doctest: +SKIP
    MultiLabelData(class_names=['aeroplane', 'bicycle', 'bird', ...
    """
    if year not in SPLITS:
        raise ValueError(f"year must be 2007 or 2012; got {year}")
    if labels_from not in ("imagesets", "xml"):
        raise ValueError(f"labels_from must be imagesets or xml; got {labels_from!r}")
    check_difficult(difficult)
    if class_order not in ("alphabetical", "grouped"):
        raise ValueError(f"class_order must be alphabetical or grouped; got {class_order!r}")
    class_names = CLASSES if class_order == "alphabetical" else GROUPED
    columns = [CLASSES.index(name) for name in class_names]
    folder = _year_folder(root, year)
    splits = []
    for name in SPLITS[year]:
        ids = sorted(_read_ids(_main(folder) / f"{name}.txt"))
        if labels_from == "imagesets":
            codes = _codes_from_imagesets(folder, name, ids)
        else:
            codes = _codes_from_xml(folder, ids)
        if difficult == "ignore_image":
            kept = np.flatnonzero((codes != DIFFICULT).all(axis=1))
            codes, ids = codes[kept], [ids[row] for row in kept]
        present = codes >= DIFFICULT if difficult == "positive" else codes == PRESENT
        paths = [folder / "JPEGImages" / f"{image_id}.jpg" for image_id in ids]
        if check_files:
            require_files(paths)
        unknown = (codes == DIFFICULT) & (difficult == "unknown")
        targets = present[:, columns].astype(np.uint8)
        splits.append(Split(paths, targets, ids, unknown=unknown[:, columns]))
    return MultiLabelData(list(class_names), *splits)


def _year_folder(root: str | Path, year: int) -> Path:
    """Return the folder ``VOC<year>`` of the devkit."""
    how_to_get = f"get it with: python scripts/prepare_data.py dataset=voc{year} download=true"
    folder = dataset_root(root, how_to_get=how_to_get)
    if folder.resolve().name == f"VOC{year}" and _main(folder).is_dir():
        return folder
    candidates = (folder / f"VOC{year}", folder / "VOCdevkit" / f"VOC{year}")
    for candidate in candidates:
        if candidate.is_dir():
            return candidate
    raise FileNotFoundError(f"there is neither {candidates[0]} nor {candidates[1]}; {how_to_get}")


def _main(folder: Path) -> Path:
    """Return the folder of the classification lists."""
    return folder / "ImageSets" / "Main"


def _read_ids(path: Path) -> dict[str, int]:
    """Return the image ids in a list, with their line numbers."""
    lines: dict[str, int] = {}
    for number, image_id in read_lines(path):
        where = f"{path}, line {number}"
        if image_id in lines:
            raise ValueError(f"{where}: {image_id} is already in line {lines[image_id]}")
        inside(path.parent, image_id, where=where)
        lines[image_id] = number
    return lines


def _codes_from_imagesets(folder: Path, split: str, ids: Sequence[str]) -> np.ndarray:
    """Return the codes int8 ``[N, 20]`` in ``<class>_<split>.txt``."""
    codes = np.empty((len(ids), len(CLASSES)), dtype=np.int8)
    row_of = {image_id: row for row, image_id in enumerate(ids)}
    for column, class_name in enumerate(CLASSES):
        path = _main(folder) / f"{class_name}_{split}.txt"
        seen = np.zeros(len(ids), dtype=bool)
        for number, line in read_lines(path):
            where = f"{path}, line {number}"
            image_id, *code = line.split()
            if image_id not in row_of:
                raise ValueError(f"{where}: {image_id} is not in {split}.txt")
            if code not in (["1"], ["0"], ["-1"]):
                raise ValueError(f"{where}: the label must be 1, 0 or -1; got {line!r}")
            row = row_of[image_id]
            if seen[row]:
                raise ValueError(f"{where}: {image_id} occurs twice")
            seen[row] = True
            codes[row, column] = int(code[0])
        if not seen.all():
            raise ValueError(
                f"{path}: no label for {len(ids) - seen.sum()} images of {split}.txt, "
                f"the first is {ids[int(seen.argmin())]}"
            )
    return codes


def _codes_from_xml(folder: Path, ids: Sequence[str]) -> np.ndarray:
    """Return the codes int8 ``[N, 20]`` derived from the objects of each image."""
    codes = np.full((len(ids), len(CLASSES)), ABSENT, dtype=np.int8)
    column_of = {name: column for column, name in enumerate(CLASSES)}
    for row, image_id in enumerate(ids):
        path = folder / "Annotations" / f"{image_id}.xml"
        if not path.is_file():
            raise FileNotFoundError(f"there is no file {path}, but {image_id} is in the image list")
        for found in read_xml(path).findall("object"):
            name = found.findtext("name", default="").strip()
            marked = found.findtext("difficult", default="0").strip()
            if name not in column_of:
                line = line_of(path, f"<name>{name}</name>")
                raise ValueError(f"{path}, line {line}: {name!r} is not one of the 20 classes")
            if marked not in ("0", "1"):
                line = line_of(path, f"<difficult>{marked}</difficult>")
                raise ValueError(f"{path}, line {line}: difficult must be 0 or 1; got {marked!r}")
            code = DIFFICULT if marked == "1" else PRESENT
            codes[row, column_of[name]] = max(codes[row, column_of[name]], code)
    return codes


REFERENCE_COUNTS = [
    ReferenceCounts(
        {"year": 2007, "difficult": "negative"},
        SplitCounts("7f88081287831f2f", "0 3103 1568 301 33 4 2"),
        SplitCounts("5378406488f0dbbc", "0 3192 1497 227 34 2"),
        order={"class_order": "alphabetical"},
    ),
    ReferenceCounts(
        {"year": 2007, "difficult": "positive"},
        SplitCounts("d992cdac4182240d", "0 2808 1644 443 98 13 4 1"),
        SplitCounts("bd1f8548a3629af7", "0 2841 1636 391 75 8 1"),
        order={"class_order": "alphabetical"},
    ),
    ReferenceCounts(
        {"year": 2007, "difficult": "ignore_image"},
        SplitCounts("1c82957bcd99bf07", "0 2808 1372 254 27 3 2"),
        SplitCounts("88d4734f3187a1d7", "0 2841 1328 200 30 2"),
        order={"class_order": "alphabetical"},
    ),
    ReferenceCounts(
        {"year": 2012, "difficult": "negative"},
        SplitCounts("1b18d2fed8a0e6ad", "0 3730 1475 414 81 17"),
        SplitCounts("f6bb0f176211694b", "0 3837 1532 378 64 12"),
        order={"class_order": "alphabetical"},
    ),
    ReferenceCounts(
        {"year": 2012, "difficult": "positive"},
        SplitCounts("d75f99f91762c754", "0 3437 1600 530 117 30 3"),
        SplitCounts("9884e81a93f1a36d", "0 3539 1677 484 105 17 1"),
        order={"class_order": "alphabetical"},
    ),
    ReferenceCounts(
        {"year": 2012, "difficult": "ignore_image"},
        SplitCounts("86f6a7ad02c10035", "0 3437 1337 371 68 16"),
        SplitCounts("fa9a6782c08b3941", "0 3539 1417 340 59 12"),
        order={"class_order": "alphabetical"},
    ),
]

# Sizes and sums as published by the servers.
ARCHIVES = [
    Archive(
        f"{SERVER}/voc2007/VOCtrainval_06-Nov-2007.tar",
        460_032_000,
        "c52e279531787c972589f7e41ab4ae64",
        "VOCdevkit/VOC2007/ImageSets/Main/trainval.txt",
        options={"year": 2007},
    ),
    Archive(
        f"{SERVER}/voc2007/VOCtest_06-Nov-2007.tar",
        451_020_800,
        "b6e924de25625d8de591ea690078ad9f",
        "VOCdevkit/VOC2007/ImageSets/Main/test.txt",
        options={"year": 2007},
    ),
    Archive(
        f"{SERVER}/voc2012/VOCtrainval_11-May-2012.tar",
        1_999_639_040,
        "6cd6e144f989b92b3379bac3b3de84fd",
        "VOCdevkit/VOC2012/ImageSets/Main/trainval.txt",
        options={"year": 2012},
    ),
]
