import hashlib

import numpy as np
import pytest
from PIL import Image

from tests.data.miniature import TEST, TRAIN, load, make_csv
from tkpr.data import arff, coco, nuswide, voc
from tkpr.data.dataset import MultiLabelData, Split, checksum
from tkpr.data.inspection import copied_files, statistics, summary, unreadable_files
from tkpr.data.reference_counts import ReferenceCounts, SplitCounts, reference_counts


@pytest.fixture
def root(tmp_path):
    return make_csv(tmp_path / "csv")


def reference_of(data, **changes):
    """Return the counts of ``data``, counted in another way than the code does."""

    def expected(split):
        per_sample = [sum(row) for row in split.targets.tolist()]
        counts = [per_sample.count(number) for number in range(max(per_sample) + 1)]
        return SplitCounts(checksum(split.targets), " ".join(map(str, counts)))

    parts = {"train": expected(data.train), "test": expected(data.test)} | changes
    return ReferenceCounts({}, **parts)


def test_statistics_against_a_count_by_hand(root):
    data = load("csv", root)
    found = statistics(data.train, data.class_names)
    rows = data.train.targets.tolist()
    assert found.images == TRAIN
    assert found.labels == sum(map(sum, rows))
    assert found.histogram == tuple(
        sum(sum(row) == number for row in rows) for number in range(max(map(sum, rows)) + 1)
    )
    per_class = {n: sum(row[at] for row in rows) for at, n in enumerate(data.class_names)}
    assert found.rarest[1] == min(per_class.values()) == per_class[found.rarest[0]]
    assert found.commonest[1] == max(per_class.values()) == per_class[found.commonest[0]]


def test_checksum_depends_on_shape_order_and_values():
    targets = np.array([[1, 0, 1], [0, 0, 1]], dtype=np.uint8)
    digest = hashlib.sha256(b"2,3:" + bytes([1, 0, 1, 0, 0, 1])).hexdigest()
    assert checksum(targets) == digest[:16]
    assert checksum(np.asfortranarray(targets)) == checksum(targets)
    others = [targets.reshape(3, 2), targets[::-1], targets[:, ::-1], 1 - targets]
    assert len({checksum(other) for other in [targets, *others]}) == 5


def test_table_without_reference_counts(root):
    table, differences = summary(load("csv", root))
    assert differences == []
    lines = table.splitlines()
    assert lines[0].split() == ["train", "expected", "test", "expected"]
    assert lines[1].split() == ["images", str(TRAIN), "-", str(TEST), "-"]
    assert lines[-1].split()[0] == "checksum"


def test_reference_counts_that_fit(root):
    data = load("csv", root)
    table, differences = summary(data, reference_of(data))
    assert differences == []
    assert table.splitlines()[1].split() == ["images", "12", "12", "6", "6"]


def test_reference_counts_that_do_not_fit(root):
    data = load("csv", root)
    reference = reference_of(data, test=SplitCounts("0" * 16, "0 3 1 1 1"))
    table, differences = summary(data, reference)
    assert len(differences) == 1
    assert differences[0].startswith("test: ")
    assert "0000000000000000" in table
    # another order of the samples is no mistake in the labels
    rows = np.arange(TRAIN)[::-1]
    other = MultiLabelData(data.class_names, data.train.subset(rows), data.test)
    assert summary(other, reference_of(data))[1] == [
        "train: 1 rows of the table differ from the reference, the first is checksum: "
        f"{checksum(other.train.targets)} instead of {checksum(data.train.targets)}"
    ]
    assert summary(other, reference_of(data), check_order=False)[1] == []


def test_empty_split(root):
    data = load("csv", root)
    empty = data.test.subset(np.array([], dtype=int))
    with pytest.raises(ValueError, match="a split has no samples"):
        statistics(empty, data.class_names)


def test_reference_counts_are_found_by_options():
    options = {"root": "x", "year": 2012, "labels_from": "xml", "difficult": "positive"}
    reference = reference_counts("tkpr.data.voc.load_voc", options)
    assert (reference.train.images, reference.train.labels) == (5717, round(1.5503 * 5717))
    assert reference_counts("tkpr.data.voc.load_voc", options | {"year": 2011}) is None
    for module in (arff, coco, nuswide, voc):
        keys = [tuple(sorted(counts.options.items())) for counts in module.REFERENCE_COUNTS]
        assert len(set(keys)) == len(keys)


def test_real_labels_have_the_reference_checksums(real_data, real_voc):
    folders = {
        "voc2007": (real_voc, {}),
        "voc2012": (real_voc, {}),
        "nuswide": (real_data / "nuswide-labels", {}),
        "arff": (real_data / "classic-mulan", {"name": "yeast"}),
    }
    for name, (folder, options) in folders.items():
        switch = {} if name == "arff" else {"check_files": False}
        data = load(name, folder, **options, **switch)
        target = {"voc2007": "voc", "voc2012": "voc"}.get(name, name)
        settings = {"name": "yeast"}
        if target == "voc":
            settings = {"year": int(name[3:]), "difficult": "negative"}
        elif target == "nuswide":
            settings = {
                "version": "lists",
                "train_list": "nus_train_full.txt",
                "test_list": "nus_val.txt",
                "index_order": "published",
            }
        reference = reference_counts(f"tkpr.data.{target}.load_{target}", settings)
        assert summary(data, reference)[1] == []


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_unreadable_files_are_named(root, workers):
    photos = sorted((root / "photos").iterdir())
    content = photos[3].read_bytes()
    photos[3].write_bytes(content[:-20])  # cut off
    photos[5].write_bytes(b"not an image")
    photos[7].write_bytes(b"")
    Image.new("CMYK", (8, 8)).save(photos[8])
    Image.new("L", (8, 8)).save(photos[9])
    bad = dict(unreadable_files(photos, workers=workers))
    assert list(bad) == [photos[3], photos[5], photos[7]]
    assert "truncated" in bad[photos[3]]
    assert "cannot identify image file" in bad[photos[5]]


def test_split_type_is_respected():
    features = Split(np.zeros((2, 3)), np.eye(2, dtype=np.uint8), ["a", "b"])
    table, _ = summary(MultiLabelData(["x", "y"], features, features))
    assert table.splitlines()[1].split() == ["images", "2", "-", "2", "-"]


def test_copies_are_found_by_content_not_by_size(tmp_path):
    contents = {"a": b"one", "b": b"two", "c": b"three", "d": b"two", "e": b"six", "f": b"four"}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    a, b, c, d, e, f = (tmp_path / name for name in "abcdef")
    assert copied_files([a, b, c], [d, e, f]) == [(d, b)]
    assert copied_files([a, c], [d, e, f]) == []
