"""NUS-WIDE, 81 concepts, in the three forms in circulation."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tkpr.data.csv import load_csv
from tkpr.data.dataset import MultiLabelData, Split
from tkpr.data.files import (
    dataset_root,
    find_file,
    inside,
    labelled_only,
    log,
    read_lines,
    require_files,
)
from tkpr.data.nuswide_concepts import CONCEPTS, LIST_ORDER
from tkpr.data.reference_counts import ReferenceCounts, SplitCounts

STORED_MODELS_MAY_BUILD = ("load_nuswide",)

IMAGE_FOLDERS = {"lists": "images", "original": "Flickr", "csv": "."}
HOW_TO_GET = "data/README.md says where NUS-WIDE comes from"

# the only value in the official files that is neither 0 nor 1; comparing with 1 gives 0
ERRATUM = ("Labels_lake_Train.txt", 78372, "-1130179")


def load_nuswide(
    root: str | Path,
    *,
    version: str,
    train_list: str,
    test_list: str,
    index_order: str,
    csv_file: str,
    image_folder: str | None,
    drop_unlabelled: bool,
    allow_outside: bool,
    check_files: bool,
) -> MultiLabelData:
    """Read NUS-WIDE; samples in the order of the files, columns in the order of ``CONCEPTS``.

    Args:
        root: the folder of the data set.
        version: ``lists``: two text files, a line per image: ``name,index index ...``
            (119,103 / 50,720 images). ``original``: the official
            ``Groundtruth/TrainTestLabels/Labels_<concept>_{Train,Test}.txt`` beside
            ``ImageList/{Train,Test}Imagelist.txt`` (161,789 / 107,859 images, many without
            label). ``csv``: the columns ``filepath``, ``label`` (names) and ``split_name``
            (train or val), as published with ASL.
        train_list: the training list of the version ``lists``; may be gzipped (``.gz``).
        test_list: the test list.
        index_order: the meaning of an index in the lists: ``published``: the order of the lists
            of the 119,103 version; ``alphabetical``: the order of ``Concepts81.txt``.
        csv_file: the file of the version ``csv``.
        image_folder: the folder under ``root`` that image names are relative to. None:
            ``images`` for lists, ``Flickr`` for the original, ``root`` itself for the csv.
        drop_unlabelled: whether to drop images without concepts.
        allow_outside: whether to accept absolute paths and ``..``.
        check_files: whether every image file must exist.

    >>> load_nuswide("data/nuswide", version="lists", train_list="nus_train_full.txt",
    ...     test_list="nus_val.txt", index_order="published", csv_file="nus_wid_data.csv",
    ...     image_folder=None, drop_unlabelled=True, allow_outside=False,
    ...     check_files=True)  # doctest: +SKIP
    MultiLabelData(class_names=['airport', 'animal', 'beach', ...
    """
    if version not in IMAGE_FOLDERS:
        raise ValueError(f"version must be lists, original or csv; got {version!r}")
    if index_order not in ("published", "alphabetical"):
        raise ValueError(f"index_order must be published or alphabetical; got {index_order!r}")
    folder = dataset_root(root, how_to_get=HOW_TO_GET)
    image_folder = IMAGE_FOLDERS[version] if image_folder is None else image_folder
    if version == "csv":
        data = load_csv(
            folder,
            file=csv_file,
            image_folder=image_folder,
            image_column="filepath",
            label_column="label",
            split_column="split_name",
            test_name="val",
            separator=",",
            class_names=CONCEPTS,
            test_fraction=0,  # unused, like the seed: the file has a split column
            seed=0,
            allow_outside=allow_outside,
            check_files=False,
        )
        splits = [data.train, data.test]
    else:
        if version == "lists":
            order = LIST_ORDER if index_order == "published" else CONCEPTS
            lists = [_read_list(find_file(folder, name), order) for name in (train_list, test_list)]
        else:
            lists = [_read_original(folder, name) for name in ("Train", "Test")]
        splits = []
        images = folder / image_folder
        for path, lines, targets in lists:
            paths = [
                inside(images, name, where=f"{path}, line {line}", allow_outside=allow_outside)
                for name, line in lines.items()
            ]
            splits.append(Split(paths, targets, list(lines)))
        if shared := set(splits[0].ids).intersection(splits[1].ids):
            raise ValueError(
                f"{folder}: {len(shared)} images are in both the training and the test list, "
                f"the first is {min(shared)}"
            )
    if drop_unlabelled:
        names = ("NUS-WIDE train", "NUS-WIDE test")
        splits = [labelled_only(s, name=name) for s, name in zip(splits, names, strict=True)]
    if check_files:
        require_files([path for split in splits for path in split.inputs])
    return MultiLabelData(list(CONCEPTS), *splits)


_Lines = dict[str, int]  # image name -> line number


def _read_list(path: Path, order: Sequence[str]) -> tuple[Path, _Lines, np.ndarray]:
    """Read lines ``name,index index ...``; index i stands for the concept ``order[i]``."""
    lines: _Lines = {}
    rows = []
    column_of = {str(index): CONCEPTS.index(name) for index, name in enumerate(order)}
    column_of["2."] = column_of["2"]  # occurs once in the published training list
    for number, text in read_lines(path):
        where = f"{path}, line {number}"
        image, comma, indices = text.partition(",")
        if not comma or not image:
            raise ValueError(f"{where}: expected 'name,index index ...'; got {text!r}")
        _add(lines, image, number, where)
        try:
            rows.append([column_of[index] for index in indices.split()])
        except KeyError as error:
            raise ValueError(f"{where}: unknown concept {error}; expected 0 to 80") from None
    targets = np.zeros((len(rows), len(CONCEPTS)), dtype=np.uint8)
    for row, columns in zip(targets, rows, strict=True):
        row[columns] = 1
    return path, lines, targets


def _read_original(folder: Path, split: str) -> tuple[Path, _Lines, np.ndarray]:
    """Read an official image list and the 81 files with a 0 or 1 per image."""
    image_list = find_file(folder, f"ImageList/{split}Imagelist.txt", f"{split}Imagelist.txt")
    lines: _Lines = {}
    for number, text in read_lines(image_list):
        # the official lists use Windows separators
        _add(lines, text.replace("\\", "/"), number, f"{image_list}, line {number}")
    targets = np.zeros((len(lines), len(CONCEPTS)), dtype=np.uint8)
    for column, concept in enumerate(CONCEPTS):
        name = f"TrainTestLabels/Labels_{concept}_{split}.txt"
        path = find_file(folder, f"Groundtruth/{name}", name)
        labels = list(read_lines(path))
        if len(labels) != len(lines):
            raise ValueError(
                f"{path} has {len(labels)} labels for the {len(lines)} images of {image_list}"
            )
        for number, text in labels:
            if text not in ("0", "1"):
                if (path.name, number, text) != ERRATUM:
                    raise ValueError(f"{path}, line {number}: must be 0 or 1; got {text!r}")
                log.warning("%s, line %d: the known typo %s is read as 0", path, number, text)
        targets[:, column] = [text == "1" for _, text in labels]
    return image_list, lines, targets


def _add(lines: _Lines, image: str, number: int, where: str) -> None:
    """Record the line of an image, which may occur only once."""
    if image in lines:
        raise ValueError(f"{where}: {image} is already in line {lines[image]}")
    lines[image] = number


REFERENCE_COUNTS = [
    ReferenceCounts(
        {
            "version": "lists",
            "train_list": "nus_train_full.txt",
            "test_list": "nus_val.txt",
            "index_order": "published",
        },
        SplitCounts("ab7618b32fa8aa5a", "0 45133 29998 18740 11716 6912 3801 1870 700 184 45 3 1"),
        SplitCounts("57d7bc574553d6cf", "0 19122 12761 8053 4957 2998 1654 774 292 88 18 3"),
    ),
]
