"""Features of a frozen network (or of a table) instead of images: many losses in few minutes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor
from torch.utils.data import Dataset

from tkpr import atomic
from tkpr.data.dataset import MOST_DENSE_CLASSES, MultiLabelData, Split
from tkpr.data.files import absolute, read_arrays
from tkpr.data.labels import check_difficult
from tkpr.data.sparse import label_lists
from tkpr.data.targets import known_where, take
from tkpr.losses.label_lists import LabelLists
from tkpr.losses.partial_labels import PartialLabels

STORED_MODELS_MAY_BUILD = ("load_features",)

KEYS = {  # the arrays, their shapes and NumPy's codes for the types they may have
    "features": ("ND", "fiub"),
    "ids": ("N", "Uiu"),
    "split": ("N", "U"),
    "class_names": ("C", "U"),
}
MATRIX = {"labels": ("NC", "fiub")}
# of sample i the labels label_indices[label_indptr[i] : label_indptr[i + 1]]
LISTS = {"label_indptr": (["N + 1"], "iu"), "label_indices": (["R"], "iu")}


def save_features(
    file: str | Path,
    features: np.ndarray,
    *,
    labels: np.ndarray | csr_array,
    ids: Sequence[str],
    split: Sequence[str],
    class_names: Sequence[str],
) -> None:
    """Write features and labels of a whole data set to an ``.npz`` file.

    Args:
        file: the file to write; it appears only when it is complete.
        features: one row per sample, ``[N, D]``.
        labels: 1 for labels present, 0 for the others, ``[N, C]``; a sparse matrix is written as
            lists of labels.
        ids: a name per sample.
        split: ``train`` or the name of the test split, per sample.
        class_names: the names of the columns of ``labels``.
    """
    path = absolute(file)
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(labels, csr_array):
        labels = labels.sorted_indices()
        stored = {"label_indptr": labels.indptr, "label_indices": labels.indices}
    else:
        stored = {"labels": labels}
    arrays: dict[str, Any] = {
        "features": features,
        **stored,
        "ids": np.array(ids, dtype=str),
        "split": np.array(split, dtype=str),
        "class_names": np.array(class_names, dtype=str),
    }
    atomic.write(path, lambda opened: np.savez(opened, **arrays))


def label_codes(split: Split) -> np.ndarray:
    """Return the labels as a file holds them: 1 and 0, or where some are unknown 1, 0 and -1.

    With three states 0 is unknown and -1 absent, the codes of Pascal VOC, to be read with
    ``difficult="unknown"``.

    >>> targets, unknown = np.array([[1, 0, 0]], dtype=np.uint8), np.array([[False, True, False]])
    >>> label_codes(Split(["a"], targets, ["a"], unknown=unknown))
    array([[ 1,  0, -1]], dtype=int8)
    """
    if split.unknown is None:
        return np.asarray(split.targets)
    return np.where(split.unknown, 0, np.where(split.targets == 1, 1, -1)).astype(np.int8)


def load_features(
    file: str | Path, *, difficult: str, train_split: str, test_split: str | None
) -> MultiLabelData:
    """Read an ``.npz`` file of features, as :func:`save_features` writes it.

    Args:
        file: the file, with the arrays ``features`` ``[N, D]``, ``labels`` ``[N, C]``, ``ids``,
            ``split`` and ``class_names``. In place of ``labels``, and for more than
            ``MOST_DENSE_CLASSES`` classes always, there are lists of labels: ``label_indptr``
            ``[N + 1]`` and ``label_indices``, as of a sparse matrix.
        difficult: labels may also be 1 (present), 0 (only difficult objects) and -1 (absent), as
            in Pascal VOC; then ``negative``, ``positive`` or ``unknown`` is what 0 becomes, and
            ``ignore_image`` leaves out samples with a 0.
        train_split: what ``split`` says of training samples.
        test_split: what ``split`` says of test samples; None: the only other name.

    Example:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp()) / "features.npz"
        >>> save_features(file, np.ones((3, 4)), labels=np.eye(3, 2), ids=["a", "b", "c"],
        ...               split=["train", "val", "train"], class_names=["cat", "dog"])
        >>> data = load_features(file, difficult="negative", train_split="train", test_split=None)
        >>> data.train.ids, data.test.inputs
        (['a', 'c'], array([[1., 1., 1., 1.]], dtype=float32))
    """
    check_difficult(difficult)
    path = absolute(file)
    if not path.is_file():
        raise FileNotFoundError(
            f"there is no file {path}; make it with scripts/extract_features.py "
            "or name another with dataset.file=..."
        )
    try:
        found = read_arrays(path, [*KEYS, *MATRIX, *LISTS])
    except Exception as error:  # no archive, a truncated one, or pickled objects inside
        raise ValueError(f"{path} cannot be read as arrays: {error}") from error
    form = LISTS if LISTS.keys() & found.keys() else MATRIX
    wanted = {"features": KEYS["features"], **form, **KEYS}
    if missing := [key for key in wanted if key not in found]:
        raise ValueError(f"{path} has no array {', '.join(missing)}; it needs {', '.join(wanted)}")
    for key, (shape, kinds) in wanted.items():
        if found[key].ndim != len(shape) or found[key].dtype.kind not in kinds:
            raise ValueError(
                f"{key} in {path} must be {'text' if kinds[0] == 'U' else 'numbers'} "
                f"[{', '.join(shape)}]; got {found[key].shape} of type {found[key].dtype}"
            )
    features, ids, names, class_names = (found[key] for key in KEYS)
    num_labels = len(found["labels"]) if "labels" in wanted else len(found["label_indptr"]) - 1
    if not len(features) == num_labels == len(ids) == len(names):
        raise ValueError(
            f"{path} has {len(features)} features, {num_labels} labels, {len(ids)} ids and "
            f"{len(names)} splits; they must be equally many"
        )
    if len(set(class_names.tolist())) < len(class_names) or "" in class_names:
        raise ValueError(f"every class in {path} needs a name of its own")
    if not np.isfinite(features).all():
        raise ValueError(
            f"features in {path} must be finite numbers; "
            f"{np.count_nonzero(~np.isfinite(features))} of them not finite"
        )
    ignored = np.zeros(num_labels, dtype=bool)
    targets: np.ndarray | csr_array
    unknown: np.ndarray | None = None
    if "labels" in wanted:
        targets, unknown, ignored = _of_matrix(path, found["labels"], len(class_names), difficult)
    else:
        targets = _of_lists(path, found["label_indptr"], found["label_indices"], len(class_names))
    if test_split is None:
        others = sorted(set(names.tolist()) - {train_split})
        if len(others) != 1:
            raise ValueError(
                f"{path} names the splits {', '.join([train_split, *others])}; "
                "say which one is for test with dataset.test_split=..."
            )
        test_split = others[0]

    def part(name: str) -> Split:
        rows = np.flatnonzero((names == name) & ~ignored)
        if not len(rows):
            raise ValueError(f"{path} has no samples of the split {name!r}")
        if len(np.unique(ids[rows])) < len(rows):
            raise ValueError(f"{path}: an id occurs twice in the split {name!r}")
        return Split(
            features[rows].astype(np.float32),
            targets[rows],
            ids[rows].astype(str).tolist(),
            unknown=None if unknown is None else unknown[rows],
        )

    return MultiLabelData(class_names.tolist(), part(train_split), part(test_split))


def _of_matrix(
    path: Path, labels: np.ndarray, num_classes: int, difficult: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return where labels are present, where unknown, ``[N, C]``, and what samples to leave out."""
    if labels.shape[1] != num_classes:
        raise ValueError(
            f"labels in {path} have {labels.shape[1]} columns for {num_classes} class names"
        )
    if num_classes > MOST_DENSE_CLASSES:
        raise ValueError(
            f"{path} has a label matrix of {num_classes} classes; above {MOST_DENSE_CLASSES} it "
            "must have lists of labels: give save_features a scipy.sparse.csr_array"
        )
    values = np.unique(labels)
    if not np.isin(values, (-1, 0, 1)).all():
        raise ValueError(f"labels in {path} must be 1, 0 or -1; got {values[:5].tolist()}")
    present = labels == 1
    if signed := -1 in values:
        present |= (labels == 0) & (difficult == "positive")
    unknown = signed & (difficult == "unknown") & (labels == 0)
    ignored = signed & (difficult == "ignore_image") & (labels == 0).any(axis=1)
    return present.astype(np.uint8), unknown, ignored


def _of_lists(
    path: Path, indptr: np.ndarray, indices: np.ndarray, num_classes: int
) -> np.ndarray | csr_array:
    """Return the matrix of lists of labels, dense up to ``MOST_DENSE_CLASSES`` classes."""
    try:
        lists = LabelLists.from_csr(
            *(torch.from_numpy(part.astype(np.int64)) for part in (indptr, indices))
        )
        lists.entries((lists.num_rows, num_classes))
    except ValueError as error:
        raise ValueError(f"lists of labels in {path}: {error}") from error
    ones = np.ones(len(indices), dtype=np.uint8)
    targets = csr_array((ones, indices, indptr), shape=(lists.num_rows, num_classes))
    return targets if num_classes > MOST_DENSE_CLASSES else targets.toarray()


class FeatureDataset(Dataset[Any]):
    """Rows of features and labels of a split.

    A batch is (features float32 ``[B, D]``, targets float32 ``[B, C]`` or, of a sparse matrix,
    lists of labels, index ``[B]``).

    Args:
        split: ``inputs`` is an array ``[N, D]``; ``targets`` are what the learner sees.

    Example:
        >>> split = Split(np.eye(3), np.eye(3, 2, dtype=np.uint8), ["a", "b", "c"])
        >>> FeatureDataset(split).__getitems__([2, 0])
        (tensor([[0., 0., 1.], [1., 0., 0.]]), tensor([[0., 0.], [1., 0.]]), tensor([2, 0]))
    """

    def __init__(self, split: Split) -> None:
        self.inputs = torch.from_numpy(np.asarray(split.inputs, dtype=np.float32))
        self.targets: Tensor | csr_array = split.targets
        if isinstance(split.targets, np.ndarray):
            self.targets = torch.from_numpy(split.targets).float()
        self.known = known_where(split.unknown)
        self.ids = split.ids
        self.unreadable = torch.zeros(len(split), dtype=torch.bool)  # never, but images can be

    def __len__(self) -> int:
        return len(self.ids)

    def set_epoch(self, epoch: int) -> None:
        """Do nothing: features are the same in each epoch."""

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, int]:
        return self.inputs[index], self.targets[index], index

    def __getitems__(
        self, indices: Sequence[int]
    ) -> tuple[Tensor, Tensor | LabelLists | PartialLabels, Tensor]:
        """Return a whole batch: features, targets, indices."""
        rows = torch.as_tensor(indices)
        if isinstance(self.targets, csr_array):
            return self.inputs[rows], label_lists(self.targets, rows.numpy()), rows
        return self.inputs[rows], take(self.targets, self.known, rows), rows
