"""A user's own images: one CSV file with paths and labels, no programming."""

import ast
import csv
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from tkpr.data.dataset import MultiLabelData, Split
from tkpr.data.files import dataset_root, find_file, inside, read_lines, require_files
from tkpr.data.splits import holdout


def load_csv(
    root: str | Path,
    *,
    file: str,
    image_folder: str,
    image_column: str,
    label_column: str | None,
    split_column: str | None,
    test_name: str,
    separator: str,
    class_names: Sequence[str] | None,
    test_fraction: float,
    seed: int,
    allow_outside: bool,
    check_files: bool,
) -> MultiLabelData:
    r"""Read images and labels from a CSV file with a header; samples in the order of the file.

    Args:
        root: the folder that holds the CSV file.
        file: the name of the CSV file (also packed, ``.csv.gz``).
        image_folder: the folder under ``root`` that image paths are relative to; ``.`` is
            ``root`` itself.
        image_column: the column with the path of the image, ``/`` as separator.
        label_column: the column with the names of the labels. None: the column ``labels`` if
            there is one; else every other column is a class, with 0 or 1 in each row.
        split_column: the column that says ``train`` or ``test``. None: the column ``split`` if
            there is one, else a seeded random split.
        test_name: what the split column says of test images.
        separator: what separates the names in the label column; a list such as
            ``['sky', 'clouds']`` is understood as well.
        class_names: the classes, in the order wanted; a label outside them is an error. None:
            the names found, sorted (label column), or the order of the columns.
        test_fraction: the share of test images where there is no split column.
        seed: of the split where there is no split column.
        allow_outside: accept absolute paths and ``..``.
        check_files: whether every image file must be there.

    >>> import tempfile
    >>> root = Path(tempfile.mkdtemp())
    >>> text = "image,labels,split\na.jpg,cat;dog,train\nb.jpg,dog,test\n"
    >>> _ = (root / "labels.csv").write_text(text)
    >>> data = load_csv(root, file="labels.csv", image_folder=".", image_column="image",
    ...     label_column=None, split_column=None, test_name="test", separator=";",
    ...     class_names=None, test_fraction=0.2, seed=0, allow_outside=False, check_files=False)
    >>> data.class_names, data.train.targets.tolist(), data.test.ids
    (['cat', 'dog'], [[1, 1]], ['b.jpg'])
    """
    folder = dataset_root(root, how_to_get="make it: data/README.md describes the CSV file")
    path = find_file(folder, file, how_to_get="data/README.md describes the CSV file")
    table = _Table(path)
    image_at = table.column(image_column)
    label_at = table.chosen(label_column, default="labels")
    split_at = table.chosen(split_column, default="split")
    if label_at is None:
        names, labels = _labels_from_columns(table, {image_at, split_at}, class_names)
    else:
        names, labels = _labels_from_names(table, label_at, separator, class_names)

    images = folder / image_folder
    lines: dict[str, int] = {}
    paths = []
    for line, row in table.rows:
        image = row[image_at].strip()
        if not image:
            raise ValueError(f"{path}, line {line}: the column {image_column!r} is empty")
        if image in lines:
            raise ValueError(f"{path}, line {line}: {image} is already in line {lines[image]}")
        lines[image] = line
        where = f"{path}, line {line}"
        paths.append(inside(images, image, where=where, allow_outside=allow_outside))
    if check_files:
        require_files(paths)
    everything = Split(paths, _matrix(labels, names), list(lines))
    if split_at is None:
        rows = holdout(len(paths), test_fraction, seed=seed)
    else:
        rows = _named_splits(table, split_at, test_name)
    return MultiLabelData(names, everything.subset(rows[0]), everything.subset(rows[1]))


class _Table:
    """The header and the rows of a CSV file, each row with its line number."""

    def __init__(self, path: Path) -> None:
        self.path = path
        lines = list(read_lines(path))
        reader = csv.reader((text for _, text in lines), strict=True)
        try:
            rows: list[tuple[int, list[str]]] = []
            for row in reader:
                if reader.line_num > len(rows) + 1:  # the line ends inside would be lost
                    raise csv.Error("a quoted value runs over several lines")
                rows.append((lines[reader.line_num - 1][0], row))
        except csv.Error as error:
            line = lines[min(reader.line_num, len(lines)) - 1][0]
            raise ValueError(f"{path}, line {line}: broken CSV: {error}") from error
        self.header_line, first = rows[0]
        self.header = [name.strip() for name in first]
        self.rows = rows[1:]
        if len(set(self.header)) < len(self.header) or "" in self.header:
            raise ValueError(
                f"{path}, line {self.header_line}: the header needs a different name for each "
                f"column; got {', '.join(map(repr, self.header))}"
            )
        if not self.rows:
            raise ValueError(f"{path} has a header but no rows")
        for line, row in self.rows:
            if len(row) != len(self.header):
                raise ValueError(
                    f"{path}, line {line}: {len(row)} values for {len(self.header)} columns"
                )

    def column(self, name: str) -> int:
        """Return the position of the column called ``name``."""
        if name not in self.header:
            raise ValueError(
                f"{self.path}, line {self.header_line}: there is no column {name!r}; "
                f"the columns are {', '.join(map(repr, self.header))}"
            )
        return self.header.index(name)

    def chosen(self, name: str | None, *, default: str) -> int | None:
        """Return the position of the column ``name``, or of the ``default`` if there is one."""
        if name is not None:
            return self.column(name)
        return self.header.index(default) if default in self.header else None


def _labels_from_columns(
    table: _Table, other: set[int | None], class_names: Sequence[str] | None
) -> tuple[list[str], list[list[str]]]:
    """Return the class names and the labels of each row from one 0/1 column per class."""
    if class_names is None:
        names = [name for at, name in enumerate(table.header) if at not in other]
    else:
        names = list(class_names)
    columns = [(table.column(name), name) for name in names]
    if not columns:
        raise ValueError(
            f"{table.path}, line {table.header_line}: there is neither a column of labels nor one "
            "per class"
        )
    labels = []
    for line, row in table.rows:
        for at, name in columns:
            if row[at].strip() not in ("0", "1"):
                raise ValueError(
                    f"{table.path}, line {line}: the column {name!r} must hold 0 or 1; got "
                    f"{row[at]!r} (columns that are no class: name them in dataset.label_column "
                    "or dataset.split_column, or list the classes in dataset.class_names)"
                )
        labels.append([name for at, name in columns if row[at].strip() == "1"])
    return names, labels


def _labels_from_names(
    table: _Table, label_at: int, separator: str, class_names: Sequence[str] | None
) -> tuple[list[str], list[list[str]]]:
    """Return the class names and the labels of each row from one column of names."""
    labels = []
    for line, row in table.rows:
        found = _names(row[label_at], separator, where=f"{table.path}, line {line}")
        if class_names is not None:
            for name in found:
                if name not in class_names:
                    raise ValueError(f"{table.path}, line {line}: unknown class {name!r}")
        labels.append(found)
    if class_names is not None:
        return list(class_names), labels
    return sorted({name for row in labels for name in row}), labels


def _names(cell: str, separator: str, *, where: str) -> list[str]:
    """Return the names in a cell: ``a;b`` or ``['a', 'b']``; an empty cell has none."""
    cell = cell.strip()
    if not cell.startswith("["):
        return [name.strip() for name in cell.split(separator) if name.strip()]
    try:
        found = ast.literal_eval(cell)
    except (
        ValueError,
        SyntaxError,
        RecursionError,
        MemoryError,
    ) as error:
        raise ValueError(f"{where}: {cell[:60]!r} is not a list of names") from error
    if not (isinstance(found, list) and all(isinstance(name, str) for name in found)):
        raise ValueError(f"{where}: {cell[:60]!r} is not a list of names")
    return found


def _matrix(labels: Iterable[list[str]], names: Sequence[str]) -> np.ndarray:
    """Return the 0/1 matrix of the labels."""
    column_of = {name: column for column, name in enumerate(names)}
    rows = [[column_of[name] for name in row] for row in labels]
    targets = np.zeros((len(rows), len(names)), dtype=np.uint8)
    for row, columns in zip(targets, rows, strict=True):
        row[columns] = 1
    return targets


def _named_splits(table: _Table, split_at: int, test_name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows that the split column gives to training and to test."""
    said = [row[split_at].strip() for _, row in table.rows]
    for (line, _), name in zip(table.rows, said, strict=True):
        if name not in ("train", test_name):
            raise ValueError(
                f"{table.path}, line {line}: the split must be train or {test_name}; got {name!r} "
                "(dataset.test_name names the test split)"
            )
    for name in ("train", test_name):
        if name not in said:
            raise ValueError(f"{table.path}: no row has the split {name}")
    names = np.array(said)
    return np.flatnonzero(names == "train"), np.flatnonzero(names == test_name)
