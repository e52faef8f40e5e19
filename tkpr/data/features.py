"""Features of a frozen network (or of a table) instead of images: many losses in few minutes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from tkpr import atomic
from tkpr.data.dataset import MultiLabelData, Split
from tkpr.data.files import absolute, read_arrays

STORED_MODELS_MAY_BUILD = ("load_features",)

KEYS = {  # the arrays, their shapes and NumPy's codes for the types they may have
    "features": ("ND", "fiub"),
    "labels": ("NC", "fiub"),
    "ids": ("N", "Uiu"),
    "split": ("N", "U"),
    "class_names": ("C", "U"),
}


def save_features(
    file: str | Path,
    features: np.ndarray,
    *,
    labels: np.ndarray,
    ids: Sequence[str],
    split: Sequence[str],
    class_names: Sequence[str],
) -> None:
    """Write features and labels of a whole data set to an ``.npz`` file.

    Args:
        file: the file to write; it appears only when it is complete.
        features: one row per sample, ``[N, D]``.
        labels: 1 for labels present, 0 for the others, ``[N, C]``.
        ids: a name per sample.
        split: ``train`` or the name of the test split, per sample.
        class_names: the names of the columns of ``labels``.
    """
    path = absolute(file)
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, Any] = {
        "features": features,
        "labels": labels,
        "ids": np.array(ids, dtype=str),
        "split": np.array(split, dtype=str),
        "class_names": np.array(class_names, dtype=str),
    }
    atomic.write(path, lambda opened: np.savez(opened, **arrays))


def load_features(
    file: str | Path, *, difficult: str, train_split: str, test_split: str | None
) -> MultiLabelData:
    """Read an ``.npz`` file of features, as :func:`save_features` writes it.

    Args:
        file: the file, with the arrays ``features`` ``[N, D]``, ``labels`` ``[N, C]``, ``ids``,
            ``split`` and ``class_names``.
        difficult: labels may also be 1 (present), 0 (only difficult objects) and -1 (absent), as
            in Pascal VOC; then ``negative`` or ``positive`` is what 0 becomes, and
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
    if difficult not in ("negative", "positive", "ignore_image"):
        raise ValueError(f"difficult must be negative, positive or ignore_image; got {difficult!r}")
    path = absolute(file)
    if not path.is_file():
        raise FileNotFoundError(
            f"there is no file {path}; make it with scripts/extract_features.py "
            "or name another with dataset.file=..."
        )
    try:
        found = read_arrays(path, list(KEYS))
    except Exception as error:  # no archive, a truncated one, or pickled objects inside
        raise ValueError(f"{path} cannot be read as arrays: {error}") from error
    if missing := [key for key in KEYS if key not in found]:
        raise ValueError(f"{path} has no array {', '.join(missing)}; it needs {', '.join(KEYS)}")
    for key, (shape, kinds) in KEYS.items():
        if found[key].ndim != len(shape) or found[key].dtype.kind not in kinds:
            raise ValueError(
                f"{key} in {path} must be {'text' if kinds[0] == 'U' else 'numbers'} "
                f"[{', '.join(shape)}]; got {found[key].shape} of type {found[key].dtype}"
            )
    features, labels, ids, names, class_names = (found[key] for key in KEYS)
    if not len(features) == len(labels) == len(ids) == len(names):
        raise ValueError(
            f"{path} has {len(features)} features, {len(labels)} labels, {len(ids)} ids and "
            f"{len(names)} splits; they must be equally many"
        )
    if labels.shape[1] != len(class_names):
        raise ValueError(
            f"labels in {path} have {labels.shape[1]} columns for {len(class_names)} class names"
        )
    if len(set(class_names.tolist())) < len(class_names) or "" in class_names:
        raise ValueError(f"every class in {path} needs a name of its own")
    if not np.isfinite(features).all():
        raise ValueError(
            f"features in {path} must be finite numbers; "
            f"{np.count_nonzero(~np.isfinite(features))} of them not finite"
        )
    values = np.unique(labels)
    if not np.isin(values, (-1, 0, 1)).all():
        raise ValueError(f"labels in {path} must be 1, 0 or -1; got {values[:5].tolist()}")
    present = labels == 1
    if signed := -1 in values:
        present |= (labels == 0) & (difficult == "positive")
    ignored = signed & (difficult == "ignore_image") & (labels == 0).any(axis=1)
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
            present[rows].astype(np.uint8),
            ids[rows].astype(str).tolist(),
        )

    return MultiLabelData(class_names.tolist(), part(train_split), part(test_split))


class FeatureDataset(Dataset[Any]):
    """Rows of features and labels of a split.

    An item is (features float32 ``[D]``, targets float32 ``[C]``, index).

    Args:
        split: ``inputs`` is an array ``[N, D]``; ``targets`` are what the learner sees.

    Example:
        >>> split = Split(np.eye(3), np.eye(3, 2, dtype=np.uint8), ["a", "b", "c"])
        >>> FeatureDataset(split).__getitems__([2, 0])
        (tensor([[0., 0., 1.], [1., 0., 0.]]), tensor([[0., 0.], [1., 0.]]), tensor([2, 0]))
    """

    def __init__(self, split: Split) -> None:
        self.inputs = torch.from_numpy(np.asarray(split.inputs, dtype=np.float32))
        self.targets = torch.from_numpy(split.targets).float()
        self.ids = split.ids
        self.unreadable = torch.zeros(len(split), dtype=torch.bool)  # never, but images can be

    def __len__(self) -> int:
        return len(self.targets)

    def set_epoch(self, epoch: int) -> None:
        """Do nothing: features are the same in each epoch."""

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, int]:
        return self.inputs[index], self.targets[index], index

    def __getitems__(self, indices: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
        """Return a whole batch: features ``[B, D]``, targets ``[B, C]``, indices."""
        rows = torch.as_tensor(indices)
        return self.inputs[rows], self.targets[rows], rows
