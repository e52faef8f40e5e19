"""Open Images and files like its own: labels that people have verified, present or absent.

A file of labels has a header and a line per verified label,

    ImageID,Source,LabelName,Confidence
    000026e7ee790996,verification,/m/04hgtk,0

with a confidence of 1 for present and 0 for absent. Labels without a line are unknown.
"""

import csv
from pathlib import Path

import numpy as np

from tkpr.data.dataset import MultiLabelData, Split
from tkpr.data.files import dataset_root, find_file, inside, read_lines, require_files

STORED_MODELS_MAY_BUILD = ("load_openimages",)

HOW_TO_GET = "data/README.md says where the files come from"
COLUMNS = ("ImageID", "LabelName", "Confidence")
CONFIDENCES = {"1": True, "1.0": True, "0": False, "0.0": False}

Verified = dict[str, dict[str, tuple[bool, int]]]  # image -> label -> present, line


def load_openimages(
    root: str | Path,
    *,
    train: str,
    test: str,
    label_file: str,
    class_file: str | None,
    check_files: bool,
) -> MultiLabelData:
    r"""Read two splits; images are ``<split>/<ImageID>.jpg``, in the order of their first line.

    Args:
        root: the folder of the files.
        train: the name of the training split.
        test: the name of the test split.
        label_file: the name of a file of labels, with ``{split}`` for the split; may be gzipped.
        class_file: a file of lines "label,name" with the classes in the desired order, as
            ``class-descriptions.csv``; labels that it does not name are an error. None: all labels
            found, sorted.
        check_files: whether every image file must exist.

    >>> import tempfile
    >>> root = Path(tempfile.mkdtemp())
    >>> head = "ImageID,Source,LabelName,Confidence\n"
    >>> _ = (root / "train.csv").write_text(head + "a,v,/m/cat,1\na,v,/m/dog,0\nb,v,/m/dog,1\n")
    >>> _ = (root / "test.csv").write_text(head + "c,v,/m/cat,1\n")
    >>> data = load_openimages(root, train="train", test="test", label_file="{split}.csv",
    ...                        class_file=None, check_files=False)
    >>> data.train.targets.tolist(), data.train.unknown.tolist()
    ([[1, 0], [0, 1]], [[False, False], [True, False]])
    """
    folder = dataset_root(root, how_to_get=HOW_TO_GET)
    paths = [
        find_file(folder, label_file.format(split=name), how_to_get=HOW_TO_GET)
        for name in (train, test)
    ]
    found = [_read_labels(path) for path in paths]
    if class_file is None:
        labels = sorted({label for part in found for row in part.values() for label in row})
        names = {label: label for label in labels}
    else:
        names = _read_classes(find_file(folder, class_file, how_to_get=HOW_TO_GET))
    splits = []
    for name, path, part in zip((train, test), paths, found, strict=True):
        images = [inside(folder / name, f"{image}.jpg", where=str(path)) for image in part]
        if check_files:
            require_files(images)
        splits.append(_split(path, images, part, list(names)))
    return MultiLabelData(list(names.values()), *splits)


def _read_labels(path: Path) -> Verified:
    """Return what is known of each image, by label, with line numbers."""
    found: Verified = {}
    places: list[int] = []
    for number, text in read_lines(path):
        where, row = f"{path}, line {number}", next(csv.reader([text]))
        if not places:
            if missing := [name for name in COLUMNS if name not in row]:
                raise ValueError(
                    f"{where}: there is no column {missing[0]!r}; the columns are {', '.join(row)}"
                )
            places, width = [row.index(name) for name in COLUMNS], len(row)
            continue
        if len(row) != width:
            raise ValueError(f"{where}: {len(row)} values for {width} columns")
        image, label, confidence = (row[at].strip() for at in places)
        if not image or not label:
            raise ValueError(f"{where}: the image or the label is empty")
        if confidence not in CONFIDENCES:
            raise ValueError(
                f"{where}: the confidence must be 1 (present) or 0 (absent); got {confidence!r}"
            )
        present, known = CONFIDENCES[confidence], found.setdefault(image, {})
        before, line = known.setdefault(label, (present, number))
        if before != present:  # two sources may verify a label, but not contradict each other
            raise ValueError(
                f"{where}: {label} of {image} has the confidence {confidence}, in line {line} the "
                "other one"
            )
    if not found:
        raise ValueError(f"{path} has a header but no labels")
    return found


def _read_classes(path: Path) -> dict[str, str]:
    """Return the names of the labels in a file of lines "label,name"."""
    names: dict[str, str] = {}
    for number, text in read_lines(path):
        row = [word.strip() for word in next(csv.reader([text]))]
        if len(row) != 2 or not all(row):
            raise ValueError(
                f"{path}, line {number}: expected a label and a name; got {text!r:.60}"
            )
        if row[0] in names or row[1] in names.values():
            raise ValueError(f"{path}, line {number}: {text!r:.60} names a label or class twice")
        names[row[0]] = row[1]
    return names


def _split(path: Path, images: list[Path], known: Verified, labels: list[str]) -> Split:
    """Return the labels as a matrix, unknown where an image has no line for a label."""
    column_of = {label: column for column, label in enumerate(labels)}
    targets = np.zeros((len(images), len(labels)), dtype=np.uint8)
    unknown = np.ones(targets.shape, dtype=bool)
    for row, found in enumerate(known.values()):
        for label, (present, line) in found.items():
            if label not in column_of:
                raise ValueError(f"{path}, line {line}: the class file does not name {label}")
            targets[row, column_of[label]] = present
            unknown[row, column_of[label]] = False
    return Split(images, targets, list(known), unknown=unknown)
