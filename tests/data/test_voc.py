import shutil

import numpy as np
import pytest

from tests.data.miniature import TEST, TRAIN, load, make_voc
from tkpr.data.voc import CLASSES


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    return make_voc(tmp_path_factory.mktemp("voc"), 2012)


@pytest.fixture
def root(original, tmp_path):
    return shutil.copytree(original, tmp_path / "voc")


def year_folder(root):
    return root / "VOCdevkit" / "VOC2012"


def by_hand(root, split, codes):
    """Return the classes of each image that have one of ``codes``, straight from ImageSets."""
    found = {}
    for name in CLASSES:
        path = year_folder(root) / "ImageSets" / "Main" / f"{name}_{split}.txt"
        for line in path.read_text().splitlines():
            image_id, code = line.split()
            found.setdefault(image_id, set())
            if int(code) in codes:
                found[image_id].add(name)
    return found


@pytest.mark.parametrize("labels_from", ["imagesets", "xml"])
@pytest.mark.parametrize(("difficult", "codes"), [("negative", {1}), ("positive", {0, 1})])
def test_labels(original, labels_from, difficult, codes):
    data = load("voc2012", original, labels_from=labels_from, difficult=difficult)
    assert data.class_names == CLASSES
    assert (len(data.train), len(data.test)) == (TRAIN, TEST)
    for split, name in ((data.train, "train"), (data.test, "val")):
        assert split.ids == sorted(split.ids)
        expected = by_hand(original, name, codes)
        for path, row, image_id in zip(split.inputs, split.targets, split.ids, strict=True):
            assert path == year_folder(original) / "JPEGImages" / f"{image_id}.jpg"
            assert path.is_file()
            assert {CLASSES[at] for at in np.flatnonzero(row)} == expected[image_id]


@pytest.mark.parametrize("labels_from", ["imagesets", "xml"])
def test_ignore_image_drops_images_with_a_difficult_only_class(original, labels_from):
    data = load("voc2012", original, labels_from=labels_from, difficult="ignore_image")
    assert (len(data.train), len(data.test)) == (TRAIN - 1, TEST - 1)
    unclear = {image for image, names in by_hand(original, "train", {0}).items() if names}
    assert len(unclear) == 1
    assert unclear.isdisjoint(data.train.ids)


def test_grouped_classes_are_the_same_columns_in_another_order(original):
    plain, grouped = load("voc2012", original), load("voc2012", original, class_order="grouped")
    assert grouped.class_names[0] == "person"
    assert sorted(grouped.class_names) == plain.class_names
    for column, name in enumerate(grouped.class_names):
        expected = plain.train.targets[:, plain.class_names.index(name)]
        np.testing.assert_array_equal(grouped.train.targets[:, column], expected)


def test_root_may_be_the_devkit_its_parent_or_the_year_inside(original):
    images = load("voc2012", original).train.inputs
    for inner in (original / "VOCdevkit", original / "VOCdevkit" / "VOC2012"):
        assert load("voc2012", inner).train.inputs == images
    with pytest.raises(FileNotFoundError, match="there is neither"):
        load("voc2007", original / "VOCdevkit" / "VOC2012")


def test_voc2007_is_trainval_and_test(tmp_path):
    data = load("voc2007", make_voc(tmp_path, 2007))
    assert data.train.ids[0].startswith("trainval")
    assert data.test.ids[0].startswith("test")


def test_options_are_checked(original):
    for option, match in (
        ({"year": 2010}, "2007 or 2012"),
        ({"labels_from": "json"}, "imagesets or xml; got 'json'"),
        ({"difficult": "drop"}, "one of negative, positive, unknown, ignore_image; got 'drop'"),
        ({"class_order": "random"}, "alphabetical or grouped; got 'random'"),
    ):
        with pytest.raises(ValueError, match=match):
            load("voc2012", original, **option)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", r"cat_train.txt is empty"),
        ("train_000001 2\n", r"cat_train.txt, line 1: the label must be 1, 0 or -1"),
        ("train_000001\n", r"cat_train.txt, line 1: the label must be 1, 0 or -1"),
        ("train_000001 1\n\ntrain_000001 1\n", r"cat_train.txt, line 3: train_000001 occurs twice"),
        ("val_000001 1\n", r"cat_train.txt, line 1: val_000001 is not in train.txt"),
        ("train_000001 1\n", r"cat_train.txt: no label for 11 images of train.txt"),
    ],
)
def test_bad_class_list(root, text, match):
    (year_folder(root) / "ImageSets" / "Main" / "cat_train.txt").write_text(text)
    with pytest.raises(ValueError, match=match):
        load("voc2012", root)


def test_bad_image_list(root):
    path = year_folder(root) / "ImageSets" / "Main" / "train.txt"
    path.write_text(path.read_text() + "train_000012\n")
    with pytest.raises(ValueError, match=r"train.txt, line 13: train_000012 is already in line 1"):
        load("voc2012", root)
    path.write_text("../../../etc/passwd\n")
    with pytest.raises(ValueError, match=r"train.txt, line 1: .* leads out of"):
        load("voc2012", root)
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"there is no file .*train.txt"):
        load("voc2012", root)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("<annotation>\n<object>\n</annotation>", r"train_000001.xml, line 3: broken XML"),
        (
            "<annotation>\n<object>\n<name>unicorn</name>\n</object></annotation>",
            r"train_000001.xml, line 3: 'unicorn' is not one of the 20 classes",
        ),
        (
            "<annotation><object><name>cat</name>\n<difficult>yes</difficult></object></annotation>",
            r"train_000001.xml, line 2: difficult must be 0 or 1; got 'yes'",
        ),
        (
            '<!DOCTYPE x [<!ENTITY a "b">]><annotation>&a;</annotation>',
            r"train_000001.xml: unsafe XML",
        ),
    ],
)
def test_bad_xml(root, text, match):
    (year_folder(root) / "Annotations" / "train_000001.xml").write_text(text)
    with pytest.raises(ValueError, match=match):
        load("voc2012", root, labels_from="xml")


def test_missing_files(root, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"dataset=voc2012 download=true"):
        load("voc2012", tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"neither .*VOC2007 nor .*VOCdevkit.VOC2007"):
        load("voc2007", root)
    (year_folder(root) / "JPEGImages" / "val_000003.jpg").unlink()
    with pytest.raises(FileNotFoundError, match=r"1 of 6 image files are missing.*val_000003.jpg"):
        load("voc2012", root)
    (year_folder(root) / "Annotations" / "train_000002.xml").unlink()
    with pytest.raises(FileNotFoundError, match=r"no file .*train_000002.xml"):
        load("voc2012", root, labels_from="xml")


# images, mean, max of both splits, counted independently of this code
REAL = {
    ("voc2007", "negative"): ((5011, 1.4580, 6), (4952, 1.4162, 5)),
    ("voc2007", "positive"): ((5011, 1.5791, 7), (4952, 1.5412, 6)),
    ("voc2012", "negative"): ((5717, 1.4572, 5), (5823, 1.4341, 5)),
    ("voc2012", "positive"): ((5717, 1.5503, 6), (5823, 1.5209, 6)),
}


@pytest.mark.parametrize(("name", "difficult"), REAL)
def test_real_statistics(real_voc, name, difficult):
    data = load(name, real_voc, difficult=difficult, check_files=False)
    for split, expected in zip((data.train, data.test), REAL[name, difficult], strict=True):
        counts = split.targets.sum(axis=1)
        assert (len(split), round(counts.mean(), 4), counts.max()) == expected


@pytest.mark.slow
@pytest.mark.parametrize("name", ["voc2007", "voc2012"])
@pytest.mark.parametrize("difficult", ["negative", "positive", "ignore_image"])
def test_real_xml_and_lists_agree(real_voc_xml, name, difficult):
    lists, xml = (
        load(name, real_voc_xml, labels_from=source, difficult=difficult, check_files=False)
        for source in ("imagesets", "xml")
    )
    assert lists.train.ids == xml.train.ids
    np.testing.assert_array_equal(lists.train.targets, xml.train.targets)
    np.testing.assert_array_equal(lists.test.targets, xml.test.targets)


def test_real_labels_are_those_of_the_predecessors(real_data, real_voc):
    stored = np.load(real_data / "voc2012-spml" / "formatted_pascal.npz")
    data = load("voc2012", real_voc, class_order="grouped", check_files=False)
    for split, name in ((data.train, "train"), (data.test, "val")):
        assert [path.name for path in split.inputs] == stored[f"formatted_{name}_images"].tolist()
        np.testing.assert_array_equal(split.targets, stored[f"formatted_{name}_labels"])
