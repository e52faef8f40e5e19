"""Unknown labels, from the files to what a learner sees and what is measured."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.data.miniature import load, make_coco, make_csv
from tkpr.data import labels, transforms
from tkpr.data.assemble import assemble, loader
from tkpr.data.dataset import MultiLabelData, Split, checksum
from tkpr.data.features import label_codes, load_features, save_features
from tkpr.data.fingerprint import fingerprint
from tkpr.losses import PartialLabels

STATES = np.array([[1, 0, -1], [-1, 1, 0], [0, -1, 1], [1, 1, 0], [0, 1, -1], [1, 0, 0]])


def split_of(states, start=0):
    states = np.asarray(states)
    ids = [f"{start + row}" for row in range(len(states))]
    features = np.arange(len(states) * 2, dtype=np.float32).reshape(-1, 2) + start
    return Split(features, (states == 1).astype(np.uint8), ids, unknown=states == -1)


@pytest.fixture
def data():
    return MultiLabelData(["a", "b", "c"], split_of(STATES), split_of(STATES[::-1], start=9))


def test_a_split_keeps_its_marks_and_forgets_empty_ones():
    split = split_of(STATES)
    assert np.array_equal(split.subset(np.array([2, 0])).unknown, STATES[[2, 0]] == -1)
    assert split.subset(np.array([3, 5])).unknown is None
    assert split_of(np.abs(STATES)).unknown is None


@pytest.mark.parametrize(
    ("unknown", "match"),
    [
        (np.zeros((1, 2)), r"unknown must be bool \(1, 2\), as targets are; got float64"),
        (np.zeros((2, 1), dtype=bool), r"got bool \(2, 1\)"),
        (np.ones((1, 2), dtype=bool), "targets must be 0 where a label is unknown"),
    ],
)
def test_wrong_marks_are_refused(unknown, match):
    with pytest.raises(ValueError, match=match):
        Split(["a"], np.array([[1, 0]], dtype=np.uint8), ["a"], unknown=unknown)


def test_checksum_and_fingerprint_tell_unknown_from_absent(data):
    targets = data.train.targets
    assert checksum(targets, data.train.unknown) != checksum(targets)
    assert checksum(targets, np.zeros_like(targets, dtype=bool)) == checksum(targets)
    negative = MultiLabelData(["a", "b", "c"], labels.assume_negative(data.train), data.test)
    changed = {
        key for key, value in fingerprint(data).items() if fingerprint(negative)[key] != value
    }
    assert changed == {"train_labels"}


# files


def test_cells_of_a_csv_file(tmp_path):
    root = make_csv(tmp_path / "csv")
    rows = ["photos/00.jpg,1,,train", "photos/01.jpg,0,1,train", "photos/02.jpg,?, ? ,test"]
    (root / "labels.csv").write_text("image,cat,dog,split\n" + "\n".join(rows) + "\n")
    found = load("csv", root)
    assert found.train.targets.tolist() == [[1, 0], [0, 1]]
    assert found.train.unknown.tolist() == [[False, True], [False, False]]
    assert found.test.unknown.tolist() == [[True, True]]
    (root / "labels.csv").write_text("image,cat,dog\nphotos/00.jpg,1,0\nphotos/01.jpg,-,0\n")
    with pytest.raises(ValueError, match=r"labels.csv, line 3: the column 'cat' .*; got '-'"):
        load("csv", root)


def test_coco_lists_what_is_absent(tmp_path):
    root = make_coco(tmp_path / "coco")
    with pytest.raises(ValueError, match=r"train2014.json: no image has neg_category_ids"):
        load("coco", root, negatives="listed")
    with pytest.raises(ValueError, match="unannotated or listed; got 'none'"):
        load("coco", root, negatives="none")
    plain = load("coco", root)
    assert plain.train.unknown is None
    for name in ("train", "val"):
        path = root / "annotations" / f"instances_{name}2014.json"
        content = json.loads(path.read_text())
        present = {(one["image_id"], one["category_id"]) for one in content["annotations"]}
        for image in content["images"]:
            absent = [number for number in (1, 17) if (image["id"], number) not in present]
            image["neg_category_ids"] = absent
        path.write_text(json.dumps(content))
    cached = {"cache_dir": tmp_path / "cache", "order": "id_string"}
    for _ in range(2):  # read, then from the cache
        found = load("coco", root, negatives="listed", **cached)
        assert np.array_equal(found.train.targets, plain.train.targets)
        numbers = np.array([1, 3, 18, 17, 44])
        expected = (plain.train.targets == 0) & ~np.isin(numbers, (1, 17))
        assert np.array_equal(found.train.unknown, expected)
    assert load("coco", root, **cached).train.unknown is None
    image = next(one for one in content["images"] if (one["id"], 3) in present)
    for number, why in ((3, "has an annotation"), (99, "is unknown")):
        image["neg_category_ids"] = [number]
        path.write_text(json.dumps(content))
        with pytest.raises(ValueError, match=rf"lists category {number} in .*, but it {why}"):
            load("coco", root, negatives="listed")


OPEN = "ImageID,Source,LabelName,Confidence\n"
FILES = "{split}-annotations-human-imagelabels.csv"


def open_images(root, train, test="x,v,/m/cat,1\n", classes=None):
    for name, text in (("train", train), ("validation", test)):
        (root / FILES.format(split=name)).write_text(OPEN + text if "," in text else text)
    if classes:
        (root / "classes.csv").write_text(classes)
    chosen = {"class_file": "classes.csv"} if classes else {}
    return load("openimages", root, check_files=False, **chosen)


def test_open_images(tmp_path):
    train = "a,v,/m/dog,0\nb,v,/m/cat,1.0\na,crowd,/m/cat,1\nb,w,/m/cat,1\n"
    found = open_images(tmp_path, train, classes='/m/dog,Dog\n/m/cat,"Cat, tame"\n')
    assert found.class_names == ["Dog", "Cat, tame"]
    assert found.train.ids == ["a", "b"]
    assert found.train.inputs[0] == Path(tmp_path) / "train" / "a.jpg"
    assert found.train.targets.tolist() == [[0, 1], [0, 1]]
    assert found.train.unknown.tolist() == [[False, False], [True, False]]
    assert found.test.unknown.tolist() == [[True, False]]
    assert open_images(tmp_path, train).class_names == ["/m/cat", "/m/dog"]


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", r"train-.*csv is empty"),
        ("a,v,/m/cat,0.7\n", r"line 2: the confidence must be 1 \(present\) or 0 .*; got '0.7'"),
        (
            "a,v,/m/cat,1\n\na,w,/m/cat,0\n",
            r"line 4: /m/cat of a has the .* 0, in line 2 the other",
        ),
        ("a,v,/m/cat,1\na,v,/m/c\n", r"line 3: 3 values for 4 columns"),
        ("a,v,,1\n", r"line 2: the image or the label is empty"),
        ("../a,v,/m/cat,1\n", r"'../a.jpg' leads out of"),
    ],
)
def test_bad_open_images(tmp_path, text, match):
    with pytest.raises(ValueError, match=match):
        open_images(tmp_path, text)


def test_bad_classes_and_headers_of_open_images(tmp_path):
    good = "a,v,/m/cat,1\n"
    for classes, match in (
        ("/m/dog,Dog\n", r"train-.*, line 2: the class file does not name /m/cat"),
        ("/m/cat\n", r"classes.csv, line 1: expected a label and a name; got '/m/cat'"),
        ("/m/cat,Cat\n/m/dog,Cat\n", r"classes.csv, line 2: .* names a label or class twice"),
    ):
        with pytest.raises(ValueError, match=match):
            open_images(tmp_path, good, classes=classes)
    (tmp_path / FILES.format(split="train")).write_text("ImageID,LabelName\na,/m/cat\n")
    with pytest.raises(ValueError, match=r"line 1: there is no column 'Confidence'; the columns"):
        load("openimages", tmp_path, check_files=False)
    (tmp_path / FILES.format(split="train")).write_text(OPEN)
    with pytest.raises(ValueError, match=r"train-.*csv has a header but no labels"):
        load("openimages", tmp_path, check_files=False)


def test_features_hold_the_third_state(tmp_path, data):
    file = tmp_path / "features.npz"
    save_features(
        file,
        np.concatenate([data.train.inputs, data.test.inputs]),
        labels=np.concatenate([label_codes(data.train), label_codes(data.test)]),
        ids=[*data.train.ids, *data.test.ids],
        split=["train"] * 6 + ["test"] * 6,
        class_names=data.class_names,
    )
    found = load_features(file, difficult="unknown", train_split="train", test_split=None)
    for one, other in ((found.train, data.train), (found.test, data.test)):
        assert np.array_equal(one.targets, other.targets)
        assert np.array_equal(one.unknown, other.unknown)
    found = load_features(file, difficult="negative", train_split="train", test_split=None)
    assert found.train.unknown is None


# what the learner sees


def test_full_labels_must_be_known(data):
    with pytest.raises(ValueError, match="4 training labels are unknown: choose labels=ignore"):
        labels.full(data.train)


def test_draws_take_unknown_labels_as_unobserved(data):
    for draw in (
        partial(labels.single_positive, seed=0, list_file=None, index_order="columns"),
        partial(labels.partial, share=0.5, seed=0),
    ):
        seen = draw(data.train)
        assert seen.unknown is None
        assert (seen.targets <= data.train.targets).all()


def test_annotated_knows_a_share_of_all_labels():
    states = np.random.default_rng(0).integers(-1, 2, size=(400, 50))
    split = split_of(states)
    seen = labels.annotated(split, share=0.3, seed=1, others="unknown")
    assert seen.unknown[states == -1].all()
    for state in (0, 1):
        assert (~seen.unknown[states == state]).mean() == pytest.approx(0.3, abs=0.02)
    assert np.array_equal(seen.targets == 1, (states == 1) & ~seen.unknown)
    assert np.array_equal(
        labels.annotated(split, share=1, seed=1, others="unknown").unknown, split.unknown
    )
    assert np.array_equal(
        labels.annotated(split, share=0.3, seed=1, others="unknown").unknown, seen.unknown
    )
    negative = labels.annotated(split, share=0.3, seed=1, others="negative")
    assert negative.unknown is None
    assert np.array_equal(negative.targets, seen.targets)
    with pytest.raises(ValueError, match="others must be unknown or negative; got 'gone'"):
        labels.annotated(split, share=0.3, seed=1, others="gone")
    with pytest.raises(ValueError, match="above 0 and at most 1; got 0"):
        labels.annotated(split, share=0, seed=1, others="unknown")


def test_batches_hold_the_third_state(data, tmp_path):
    ready = assemble(data, labels=labels.ignore, pipeline=transforms.none(), run_dir=tmp_path)
    _, targets, index = next(iter(loader(ready.train, batch_size=6)))
    assert isinstance(targets, PartialLabels)
    assert np.array_equal(targets.relevant, STATES[index] == 1)
    assert np.array_equal(targets.irrelevant, STATES[index] == 0)
    assert ready.counts["train_unknown"] == ready.counts["test_unknown"] == 4
    with np.load(tmp_path / "observed_labels.npz") as stored:
        assert np.array_equal(stored["unknown"], STATES == -1)
    with pytest.raises(ValueError, match="holds other labels"):
        assemble(data, labels=labels.assume_negative, pipeline=transforms.none(), run_dir=tmp_path)


def test_old_batches_stay_as_they_were(data, tmp_path):
    plain = assemble(
        data,
        labels=labels.assume_negative,
        pipeline=transforms.none(),
        run_dir=tmp_path,
        test_unknown="negative",
    )
    _, targets, _ = next(iter(loader(plain.train, batch_size=6)))
    assert torch.equal(targets, torch.from_numpy(STATES == 1).float())
    assert plain.test.known is None
    assert not [key for key in plain.counts if "unknown" in key]
    with np.load(tmp_path / "observed_labels.npz") as stored:
        assert "unknown" not in stored


def test_the_held_out_part_has_the_labels_of_the_data_set(data):
    """Also those that the learner may not see, were they in its part."""
    hidden = partial(labels.annotated, share=0.1, seed=0, others="unknown")
    ready = assemble(data, labels=hidden, pipeline=transforms.none(), holdout=0.5)
    rows = [int(name) for name in ready.test.ids]
    assert np.array_equal(ready.test.targets.numpy(), STATES[rows] == 1)
    assert np.array_equal(ready.test.known.numpy(), STATES[rows] != -1)
