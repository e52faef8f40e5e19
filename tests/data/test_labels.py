import gzip

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tests.losses.golden import golden
from tkpr.data.dataset import Split
from tkpr.data.labels import freeze_labels, full, partial, single_positive
from tkpr.data.nuswide import CONCEPTS, LIST_ORDER


def split_of(targets, ids=None):
    targets = np.asarray(targets, dtype=np.uint8)
    ids = [f"{row}.jpg" for row in range(len(targets))] if ids is None else ids
    return Split(ids, targets, ids)


def drawn(split, seed=1200):
    return single_positive(split, seed=seed, list_file=None, index_order="columns").targets


def listed(split, path, index_order="columns"):
    return single_positive(split, seed=0, list_file=path, index_order=index_order).targets


matrices = arrays(
    np.uint8, st.tuples(st.integers(1, 30), st.integers(1, 8)), elements=st.integers(0, 1)
)


def test_full_is_everything():
    split = split_of(np.eye(3))
    assert np.array_equal(full(split).targets, split.targets)


def test_draw_equals_that_of_the_single_positive_papers():
    stored = golden("spml_data")
    case = next(case for case in stored["cases"] if case["name"] == "observe")
    observed = drawn(split_of(case["full"]), seed=stored["params"]["seed"])
    assert observed.tolist() == case["observed"]


def test_published_draw_of_voc_2012_can_be_used(real_data, tmp_path):
    """These arrays are another draw than the script's; a list takes them over."""
    with np.load(real_data / "voc2012-spml" / "formatted_pascal.npz") as stored:
        split = split_of(stored["formatted_train_labels"], stored["formatted_train_images"])
        observed = stored["formatted_train_labels_obs"]
    lines = [f"{name},{label}" for name, label in zip(split.ids, observed.argmax(1), strict=True)]
    (tmp_path / "list.txt").write_text("\n".join(lines))
    assert np.array_equal(listed(split, tmp_path / "list.txt"), observed)
    assert drawn(split).sum() == observed.sum() == 5717


@given(matrices, st.integers(0, 5))
def test_one_of_the_labels_remains(targets, seed):
    observed = drawn(split_of(targets), seed)
    assert observed.dtype == np.uint8
    assert (observed <= targets).all()
    assert np.array_equal(observed.sum(axis=1), targets.any(axis=1))


@given(matrices, st.floats(0.01, 1), st.integers(0, 5))
def test_a_share_of_the_labels_remains(targets, share, seed):
    observed = partial(split_of(targets), share=share, seed=seed).targets
    assert (observed <= targets).all()
    assert np.array_equal(observed.any(axis=1), targets.any(axis=1))
    least = int(targets.any(axis=1).sum())
    assert observed.sum() == max(least, round(share * int(targets.sum())))


def test_partial_labels_are_drawn_evenly():
    """Each of the 4 labels of a row is as likely to remain as the others."""
    observed = partial(split_of(np.ones((4000, 4))), share=0.5, seed=0).targets
    assert np.allclose(observed.mean(axis=0), 0.5, atol=0.03)
    assert set(observed.sum(axis=1)) == {1, 2, 3, 4}


@pytest.mark.parametrize("share", [0, -1, 1.01])
def test_a_share_outside_0_and_1_is_refused(share):
    with pytest.raises(ValueError, match="share of labels"):
        partial(split_of(np.eye(3)), share=share, seed=0)


def test_list_file_in_any_order_packed_or_not(tmp_path):
    split = split_of([[1, 1, 0], [0, 1, 1]], ["a/1.jpg", "a/2.jpg"])
    text = "2.jpg, 2\n\n1.jpg,1\n"
    (tmp_path / "list.txt").write_text(text)
    (tmp_path / "list.txt.gz").write_bytes(gzip.compress(text.encode()))
    for name in ("list.txt", "list.txt.gz"):
        assert listed(split, tmp_path / name).tolist() == [[0, 1, 0], [0, 0, 1]]


def test_list_file_in_the_published_order_of_nuswide(tmp_path):
    split = split_of(np.ones((1, 81)), ["x"])
    (tmp_path / "list.txt").write_text("x.jpg,3\n")
    observed = listed(split, tmp_path / "list.txt", "nuswide_published")
    assert [CONCEPTS[column] for column in np.flatnonzero(observed)] == [LIST_ORDER[3]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0.jpg,0\n1.jpg\n", r"line 2: expected 'image,index' with an index from 0 to 1"),
        ("0.jpg,7\n", r"line 1: expected .* from 0 to 1; got '0.jpg,7'"),
        ("0.jpg,0 1\n", "line 1: expected"),
        ("9.jpg,0\n", "line 1: there is no training sample 9.jpg"),
        ("0.jpg,1\n", "line 1: 0.jpg does not have the label 1"),
        ("0.jpg,0\n", "no label for 1 samples, the first is 1.jpg"),
        ("", "is empty"),
    ],
)
def test_bad_lists_are_refused(tmp_path, text, message):
    (tmp_path / "list.txt").write_text(text)
    with pytest.raises(ValueError, match=message):
        listed(split_of(np.eye(2)), tmp_path / "list.txt")


def test_unknown_index_order_is_refused(tmp_path):
    with pytest.raises(ValueError, match="columns or nuswide_published"):
        listed(split_of(np.eye(2)), tmp_path / "list.txt", "other")


def test_published_single_labels_of_nuswide(real_data):
    path = real_data / "nuswide-labels" / "nus_train_singlelabel.txt.gz"
    with np.load(real_data / "nuswide-labels" / "nuswide_labels.npz") as stored:
        assert stored["class_names"].tolist() == CONCEPTS
        split = split_of(stored["train_Y"], stored["train_files"].tolist())
        single = stored["train_single"]
    observed = listed(split, path, "nuswide_published")
    assert np.array_equal(observed.argmax(axis=1), single)
    assert (observed.sum(axis=1) == 1).all()


def test_published_single_labels_of_coco(real_data):
    folder = real_data / "coco2014-labels"
    rows = {}
    with gzip.open(folder / "coco_train_full.txt.gz", "rt") as lines:
        for line in lines:
            name, _, indices = line.partition(",")
            rows[name] = [int(index) for index in indices.split()]
    targets = np.zeros((len(rows), 80), dtype=np.uint8)
    for row, columns in enumerate(rows.values()):
        targets[row, columns] = 1
    observed = listed(split_of(targets, list(rows)), folder / "coco_train_singlelabel.txt.gz")
    assert observed.sum() == 82081


def test_labels_are_frozen(tmp_path):
    path, split = tmp_path / "run" / "observed_labels.npz", split_of(np.ones((50, 9)))
    freeze_labels(path, drawn(split), split.ids)
    written = path.stat().st_mtime_ns
    freeze_labels(path, drawn(split), split.ids)
    assert path.stat().st_mtime_ns == written
    assert [file.name for file in path.parent.iterdir()] == ["observed_labels.npz"]
    with np.load(path, allow_pickle=False) as stored:
        assert np.array_equal(stored["observed"], drawn(split))
        assert stored["ids"].tolist() == list(split.ids)
    with pytest.raises(ValueError, match=r"holds other labels .* use that run's settings"):
        freeze_labels(path, drawn(split, seed=7), split.ids)
    with pytest.raises(ValueError, match="holds other labels"):
        freeze_labels(path, drawn(split), split.ids[::-1])
