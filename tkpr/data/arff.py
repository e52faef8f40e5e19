"""Tabular multi-label sets in Mulan's form: an ARFF file with all columns, an XML with the labels.

This module has its own parser because no maintained one reads all twelve Mulan sets:

- scipy.io.arff supports no sparse rows (Corel5k).
- liac-arff 2.5 keeps the escapes in quoted attribute names, so that four labels of birds
  (``Swainson's Thrush``) do not match its XML file. It also takes the last of several values
  for a column of a sparse row, truncates ``integer`` values without a warning, and took 4 to 12
  times as long on delicious. On the other eleven sets its values equal those read here.
- scikit-learn offers its copy of liac-arff for OpenML only.
"""

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tkpr.data.dataset import MultiLabelData, Split
from tkpr.data.files import dataset_root, find_file, is_number, line_of, read_lines, read_xml
from tkpr.data.reference_counts import ReferenceCounts, SplitCounts
from tkpr.data.splits import holdout

STORED_MODELS_MAY_BUILD = ("load_arff",)

NUMERIC = ("numeric", "real", "integer")

_QUOTED = r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\""""
_ATTRIBUTE = re.compile(rf"@attribute\s+({_QUOTED}|[^\s'\"]\S*)\s+(\S.*)", re.IGNORECASE)
_VALUE = re.compile(rf"\s*({_QUOTED}|[^\s,'\"][^,]*|)\s*,")


def load_arff(
    root: str | Path,
    *,
    name: str,
    nominal: str,
    exclude: Collection[str],
    test_fraction: float,
    seed: int,
) -> MultiLabelData:
    """Read ``<name>.xml`` with ``<name>-train.arff`` and ``<name>-test.arff``, or ``<name>.arff``.

    The files may be gzipped (``.gz``) and end in ``-sparse.arff``. Rows are dense or sparse; a
    value omitted from a sparse row is 0, or the first value of a nominal attribute. Features are
    float32; labels have the order of the XML file. Missing values, and attributes that are neither
    numeric nor nominal, are errors.

    Args:
        root: the folder with the files.
        name: the name of the data set, for instance ``emotions``.
        nominal: the encoding of nominal features with more than two values: ``onehot``: a 0/1
            column per value; ``index``: one column with the position of the value. Two values are
            a single 0/1 column either way.
        exclude: names of attributes to drop, such as identifiers.
        test_fraction: the share of test rows if there is no pair of train and test files.
        seed: of that split.

    >>> load_arff("data/arff", name="emotions", nominal="onehot", exclude=[], test_fraction=0.3,
    ...           seed=0)  # doctest: +SKIP
    MultiLabelData(class_names=['amazed-suprised', 'happy-pleased', ...
    """
    if nominal not in ("onehot", "index"):
        raise ValueError(f"nominal must be onehot or index; got {nominal!r}")
    how_to_get = "data/README.md says where the ARFF files come from"
    folder = dataset_root(root, how_to_get=how_to_get)
    xml = find_file(folder, f"{name}.xml", how_to_get=how_to_get)
    labels = _label_names(xml)
    try:
        paths = [
            find_file(folder, f"{name}-{part}.arff", f"{name}-{part}-sparse.arff")
            for part in ("train", "test")
        ]
    except FileNotFoundError:
        paths = [find_file(folder, f"{name}.arff", f"{name}-sparse.arff", how_to_get=how_to_get)]
    tables = [_read_table(path, exclude) for path in paths]
    if tables[0].attributes != tables[-1].attributes:
        raise ValueError(f"{paths[0]} and {paths[-1]} declare different attributes")
    for label in labels:
        if label not in tables[0].attributes:
            raise ValueError(
                f"{xml}, line {line_of(xml, label)}: the label {label!r} is not an attribute of "
                f"{paths[0]}"
            )
    splits = [table.split(labels, nominal=nominal) for table in tables]
    if len(splits) == 2:
        return MultiLabelData(labels, splits[0], splits[1])
    rows = holdout(len(splits[0]), test_fraction, seed=seed)
    return MultiLabelData(labels, splits[0].subset(rows[0]), splits[0].subset(rows[1]))


def _label_names(path: Path) -> list[str]:
    """Return the labels in a Mulan XML file; nested labels follow their parent."""
    names = []
    for element in read_xml(path).iter():
        if element.tag.rpartition("}")[2] == "label":
            name = element.get("name")
            if name is None or not name.strip() or name in names:
                line = line_of(path, f'"{name}"')
                raise ValueError(f"{path}, line {line}: each label needs a name of its own")
            names.append(name)
    if not names:
        raise ValueError(f"{path} lists no labels")
    return names


@dataclass(frozen=True)
class _Table:
    """The columns of an ARFF file, without excluded ones.

    Attributes:
        path: the file.
        attributes: the nominal values of each column by name; None if it is numeric.
        lines: the line number of each row.
        codes: float32 ``[N, A]``: numbers, or positions of nominal values.
    """

    path: Path
    attributes: dict[str, list[str] | None]
    lines: list[int]
    codes: np.ndarray

    def split(self, labels: list[str], *, nominal: str) -> Split:
        """Return the features and the label matrix."""
        features, targets = [], {}
        for codes, (name, values) in zip(self.codes.T, self.attributes.items(), strict=True):
            if name in labels:
                targets[name] = self._target(name, values, codes)
            elif values is not None and len(values) > 2 and nominal == "onehot":
                features.append(codes[:, None] == np.arange(len(values)))
            else:
                features.append(codes[:, None])
        stem = self.path.name.removesuffix(".gz").removesuffix(".arff")
        return Split(
            np.hstack(features).astype(np.float32),
            np.stack([targets[name] for name in labels], axis=1),
            [f"{stem}:{row}" for row in range(len(self.lines))],
        )

    def _target(self, name: str, values: list[str] | None, codes: np.ndarray) -> np.ndarray:
        """Return the column of a label, which must hold 0 and 1."""
        if values is not None:
            if not set(values) <= {"0", "1"}:
                raise ValueError(
                    f"{self.path}: the label {name!r} has the values {values}, not 0, 1"
                )
            codes = np.array(values, dtype=np.uint8)[codes.astype(int)]
        wrong = np.flatnonzero((codes != 0) & (codes != 1))
        if len(wrong):
            raise ValueError(
                f"{self.path}, line {self.lines[wrong[0]]}: the label {name!r} must be 0 or 1; "
                f"got {codes[wrong[0]]:g}"
            )
        return codes.astype(np.uint8)


def _read_table(path: Path, exclude: Collection[str]) -> _Table:
    """Read an ARFF file without the attributes in ``exclude``."""
    attributes: dict[str, list[str] | None] = {}
    converters: list[Callable[[str], float]] = []
    lines: list[int] = []
    rows: list[np.ndarray] = []
    in_data = False
    for number, text in read_lines(path):
        where = f"{path}, line {number}"
        if text.startswith("%"):
            continue
        keyword = text.split(maxsplit=1)[0].lower()
        if in_data:
            lines.append(number)
            rows.append(_read_row(text, list(attributes), converters, where))
        elif keyword == "@attribute":
            name, values = _read_attribute(text, exclude, where)
            if name in attributes:
                raise ValueError(f"{where}: there is already an attribute {name!r}")
            attributes[name] = values
            converters.append(_converter(values, ignored=name in exclude))
        elif keyword == "@data":
            in_data = True
        elif keyword != "@relation":
            raise ValueError(f"{where}: expected @attribute or @data; got {text[:60]!r}")
    if not (attributes and rows):
        raise ValueError(f"{path} has {len(attributes)} attributes and {len(rows)} rows of data")
    if unknown := [name for name in exclude if name not in attributes]:
        raise ValueError(f"{path} has no attribute {unknown[0]!r}, named in dataset.exclude")
    used = [column for column, name in enumerate(attributes) if name not in exclude]
    kept = {name: values for name, values in attributes.items() if name not in exclude}
    return _Table(path, kept, lines, np.stack(rows)[:, used])


def _read_attribute(
    text: str, exclude: Collection[str], where: str
) -> tuple[str, list[str] | None]:
    """Return an attribute's name and its nominal values, None if it is numeric."""
    match = _ATTRIBUTE.match(text)
    if match is None:
        raise ValueError(f"{where}: expected '@attribute name type'; got {text[:60]!r}")
    name, kind = _unquote(match[1]), match[2].strip()
    if kind.startswith("{") and kind.endswith("}"):
        values = _values(kind[1:-1], where)
        if len(set(values)) < len(values):
            raise ValueError(f"{where}: a value of {name!r} is declared twice")
        return name, values
    if kind.lower() not in NUMERIC and name not in exclude:
        raise ValueError(
            f"{where}: {name!r} has the unknown type {kind!r}; use numeric, real, integer "
            "or {...}, or drop the attribute with dataset.exclude"
        )
    return name, None


def _converter(values: list[str] | None, *, ignored: bool) -> Callable[[str], float]:
    """Return a function from text to number that raises KeyError or ValueError."""
    if ignored:
        return lambda _: 0.0
    if values is None:
        return float
    return {value: float(code) for code, value in enumerate(values)}.__getitem__


def _read_row(
    text: str, names: list[str], converters: list[Callable[[str], float]], where: str
) -> np.ndarray:
    """Return the numbers of a dense or sparse row; omitted values are 0."""
    if text.startswith("{") and text.endswith("}"):
        columns, values = _sparse_entries(text[1:-1], len(names), where)
    else:
        columns, values = list(range(len(names))), _values(text, where)
        if len(values) != len(names):
            raise ValueError(f"{where}: {len(values)} values for {len(names)} attributes")
    numbers = []
    for column, value in zip(columns, values, strict=True):
        try:
            numbers.append(converters[column](value))
        except (KeyError, ValueError):
            what = "a missing value" if value == "?" else repr(value)
            raise ValueError(f"{where}: {names[column]!r} cannot be {what}") from None
    row = np.zeros(len(names), dtype=np.float32)
    row[columns] = numbers
    if not np.isfinite(row).all():
        name = names[int(np.isfinite(row).argmin())]
        raise ValueError(f"{where}: {name!r} is not a finite number")
    return row


def _sparse_entries(text: str, count: int, where: str) -> tuple[list[int], list[str]]:
    """Return the columns, below ``count``, and the values of a sparse row."""
    columns, values = [], []
    for entry in _values(text, where) if text.strip() else []:
        column, _, value = entry.partition(" ")
        if not is_number(column) or int(column) >= count:
            raise ValueError(
                f"{where}: expected 'column value' with a column below {count}; got {entry!r}"
            )
        columns.append(int(column))
        values.append(_unquote(value.strip()))
    if len(set(columns)) < len(columns):
        raise ValueError(f"{where}: a column occurs twice")
    return columns, values


def _values(text: str, where: str) -> list[str]:
    """Return the values of a comma-separated list; values may be quoted."""
    if "'" not in text and '"' not in text:
        return [value.strip() for value in text.split(",")]
    values, at, text = [], 0, text + ","
    while at < len(text):
        match = _VALUE.match(text, at)
        if match is None:
            raise ValueError(f"{where}: unclosed quote in {text[at : at + 60]!r}")
        values.append(_unquote(match[1].strip()))
        at = match.end()
    return values


def _unquote(text: str) -> str:
    """Return a name or value without its quotes and escapes."""
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        return re.sub(r"\\(.)", r"\1", text[1:-1])
    return text


REFERENCE_COUNTS = [
    ReferenceCounts(
        {"name": "emotions"},
        SplitCounts("205ea7e99c41cf2e", "0 131 202 58"),
        SplitCounts("ced5836163fe6439", "0 47 113 42"),
    ),
    ReferenceCounts(
        {"name": "scene"},
        SplitCounts("b78e6424cab20561", "0 1137 73 1"),
        SplitCounts("16cda0077876b091", "0 1093 103"),
    ),
    ReferenceCounts(
        {"name": "yeast"},
        SplitCounts("af09458394d91aaf", "0 24 254 68 684 114 248 64 36 5 2 1"),
        SplitCounts("f9c837b592817876", "0 8 158 44 418 59 167 38 19 4 2"),
    ),
    ReferenceCounts(
        {"name": "birds"},
        SplitCounts("5a88bf7bae15f1a2", "143 82 50 33 11 2 1"),
        SplitCounts("21da74b10d43d81c", "151 80 51 34 6 1"),
    ),
    ReferenceCounts(
        {"name": "Corel5k"},
        SplitCounts("f7d071633658daf2", "0 25 340 1414 2705 16"),
        SplitCounts("f11140c591be719e", "0 7 36 145 311 1"),
    ),
    ReferenceCounts(
        {"name": "bibtex"},
        SplitCounts(
            "c71e048f78e53f24",
            "0 1849 1230 885 427 256 120 58 27 7 5 5 7 2 0 0 1 0 0 0 0 0 0 0 0 0 0 0 1",
        ),
        SplitCounts("07ffed26401560b8", "0 962 610 424 242 143 59 28 19 11 2 7 4 1 0 0 1 2"),
    ),
    ReferenceCounts(
        {"name": "delicious"},
        SplitCounts(
            "007a4911d41d8a14",
            "10 15 23 52 72 120 127 123 172 183 221 216 239 260 338 371 532 647 749 928 1169 1273 "
            "1428 1463 1322 867",
        ),
        SplitCounts(
            "fa9b646e3fc34743",
            "4 6 7 14 27 27 33 36 31 48 57 55 56 86 91 90 143 152 193 186 277 316 362 341 333 214",
        ),
    ),
]
