"""Your own images: one CSV file with paths and labels."""

import ast
import csv
import posixpath
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from tkpr.data.dataset import MultiLabelData, Split
from tkpr.data.files import dataset_root, find_file, inside, read_lines, require_files
from tkpr.data.splits import holdout

STORED_MODELS_MAY_BUILD = ("load_csv",)

UNKNOWN = ("", "?")  # cells that say neither present nor absent


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
    r"""Read images and labels from a CSV file with a header; samples keep the order of the file.

    Args:
        root: the folder of the CSV file.
        file: the name of the CSV file, UTF-8 with commas; may be gzipped (``.csv.gz``).
        image_folder: the folder under ``root`` that image paths are relative to; ``.`` is
            ``root`` itself.
        image_column: the column of image paths, with ``/`` as separator.
        label_column: the column of label names. None: the column ``labels`` if there is one, else
            every other column is a class and holds 1 (present), 0 (absent), or nothing or ``?``
            (unknown).
        split_column: the column that holds ``train`` or ``test``. None: the column ``split`` if
            there is one, else a random split.
        test_name: the value of the split column for test images.
        separator: the separator of names in the label column; a list such as
            ``['sky', 'clouds']`` is understood as well.
        class_names: the classes in the desired order; any other label is an error. None: all
            names found, sorted (label column), or the columns in their order.
        test_fraction: the share of test images if there is no split column.
        seed: of the split if there is no split column.
        allow_outside: whether to accept absolute paths and ``..``.
        check_files: whether every image file must exist.

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
    _check_options(separator, class_names, test_name)
    table = _Table(path)
    image_at = table.column(image_column)
    label_at = table.chosen(label_column, default="labels")
    split_at = table.chosen(split_column, default="split")
    if len({image_at, label_at, split_at} - {None}) < 3 - [label_at, split_at].count(None):
        raise ValueError(f"{path}: images, labels and splits must be three different columns")
    unknown: np.ndarray | None = None
    if label_at is None:
        names, cells = _cells(table, {image_at, split_at}, class_names)
        targets, unknown = (cells == "1").astype(np.uint8), np.isin(cells, UNKNOWN)
    else:
        names, labels = _labels_from_names(table, label_at, separator, class_names)
        targets = _matrix(labels, names)

    images = folder / image_folder
    lines: dict[str, int] = {}
    paths = []
    for line, row in table.rows:
        image = row[image_at].strip()
        if not image:
            raise ValueError(f"{path}, line {line}: the column {image_column!r} is empty")
        where = f"{path}, line {line}"
        paths.append(inside(images, image, where=where, allow_outside=allow_outside))
        image = posixpath.normpath(image)  # ./a.jpg and a.jpg are one image
        if image in lines:
            raise ValueError(f"{where}: {image} is already in line {lines[image]}")
        lines[image] = line
    if check_files:
        require_files(paths)
    everything = Split(paths, targets, list(lines), unknown=unknown)
    if split_at is None:
        rows = holdout(len(paths), test_fraction, seed=seed)
    else:
        rows = _named_splits(table, split_at, test_name)
    return MultiLabelData(names, everything.subset(rows[0]), everything.subset(rows[1]))


def _check_options(separator: str, class_names: Sequence[str] | None, test_name: str) -> None:
    """Refuse arguments that would be misread silently."""
    if not isinstance(separator, str) or not separator:
        raise ValueError(f"dataset.separator must be a text such as ';'; got {separator!r}")
    if test_name == "train":
        raise ValueError("dataset.test_name must not be train, the name of the training split")
    if class_names is None:
        return
    if isinstance(class_names, str) or not all(isinstance(name, str) for name in class_names):
        raise ValueError(
            f"dataset.class_names must be a list of texts; got {class_names!r:.60} (numbers and "
            "words such as yes need quotes)"
        )


class _Table:
    """The header and the rows of a CSV file, each row with its line number."""

    def __init__(self, path: Path) -> None:
        self.path = path
        lines = list(read_lines(path))
        reader = csv.reader((text for _, text in lines), strict=True)
        try:
            rows: list[tuple[int, list[str]]] = []
            for row in reader:
                if reader.line_num > len(rows) + 1:  # line breaks in a value would be lost
                    raise csv.Error("a quoted value spans several lines")
                rows.append((lines[reader.line_num - 1][0], row))
        except csv.Error as error:
            line = lines[min(reader.line_num, len(lines)) - 1][0]
            raise ValueError(f"{path}, line {line}: broken CSV: {error}") from error
        for line, row in rows:
            if any("\0" in value for value in row):
                raise ValueError(f"{path}, line {line}: a value contains a zero byte")
        self.header_line, first = rows[0]
        self.header = [name.strip() for name in first]
        self.rows = rows[1:]
        if len(set(self.header)) < len(self.header) or "" in self.header:
            raise ValueError(
                f"{path}, line {self.header_line}: every column needs a name of its own in the "
                f"header; got {', '.join(map(repr, self.header))}"
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
                + (" (columns are separated by commas)" if len(self.header) == 1 else "")
            )
        return self.header.index(name)

    def chosen(self, name: str | None, *, default: str) -> int | None:
        """Return the position of the column ``name``, or of ``default``; None without either."""
        if name is not None:
            return self.column(name)
        return self.header.index(default) if default in self.header else None


def _cells(
    table: _Table, other: set[int | None], class_names: Sequence[str] | None
) -> tuple[list[str], np.ndarray]:
    """Return the class names and the cells ``[N, C]`` of one column per class, each checked."""
    if class_names is None:
        names = [name for at, name in enumerate(table.header) if at not in other]
    else:
        names = list(class_names)
    columns = [(table.column(name), name) for name in names]
    if not columns:
        raise ValueError(
            f"{table.path}, line {table.header_line}: there is neither a label column nor a column "
            "per class"
        )
    for line, row in table.rows:
        for at, name in columns:
            if row[at].strip() not in ("0", "1", *UNKNOWN):
                raise ValueError(
                    f"{table.path}, line {line}: the column {name!r} must hold 0 or 1, or ? where "
                    f"it is unknown; got {row[at]!r} (if it is not a class, list the classes in "
                    "dataset.class_names)"
                )
    return names, np.array([[row[at].strip() for at, _ in columns] for _, row in table.rows])


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
    names = sorted({name for row in labels for name in row})
    if not names:
        raise ValueError(f"{table.path}: not one row has a label")
    _refuse_slips(table.path, names)
    return names, labels


def _refuse_slips(path: Path, names: Sequence[str]) -> None:
    """Refuse class names that are most likely one name misspelt, or several names in one."""
    hint = "correct the file, or list all classes in dataset.class_names if they are right"
    spellings: dict[str, str] = {}
    for name in names:
        plain = unicodedata.normalize("NFKC", name).casefold()
        plain = "".join(letter for letter in plain if unicodedata.category(letter) != "Cf")
        if plain in spellings:
            raise ValueError(
                f"{path}: the labels {spellings[plain]!a} and {name!a} differ only in "
                f"case or invisible characters; {hint}"
            )
        spellings[plain] = name
    for name in names:
        for separator in ",;|":
            parts = [part.strip() for part in name.split(separator)]
            if len(parts) > 1 and any(part in spellings.values() for part in parts):
                raise ValueError(
                    f"{path}: the label {name!r:.60} seems to be several labels; set "
                    f"dataset.separator={separator!r}, or {hint}"
                )


def _names(cell: str, separator: str, *, where: str) -> list[str]:
    """Return the names in a cell: ``a;b`` or ``['a', 'b']``; none if it is empty."""
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
    return [name.strip() for name in found if name.strip()]


def _matrix(labels: Iterable[list[str]], names: Sequence[str]) -> np.ndarray:
    """Return the label matrix, uint8 ``[N, C]``."""
    column_of = {name: column for column, name in enumerate(names)}
    rows = [[column_of[name] for name in row] for row in labels]
    targets = np.zeros((len(rows), len(names)), dtype=np.uint8)
    for row, columns in zip(targets, rows, strict=True):
        row[columns] = 1
    return targets


def _named_splits(table: _Table, split_at: int, test_name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of the training and of the test split."""
    values = [row[split_at].strip() for _, row in table.rows]
    for (line, _), name in zip(table.rows, values, strict=True):
        if name not in ("train", test_name):
            raise ValueError(
                f"{table.path}, line {line}: the split must be train or {test_name}; got {name!r} "
                "(dataset.test_name names the test split)"
            )
    for name in ("train", test_name):
        if name not in values:
            raise ValueError(f"{table.path}: no row has the split {name}")
    names = np.array(values)
    return np.flatnonzero(names == "train"), np.flatnonzero(names == test_name)
