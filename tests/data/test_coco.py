import gzip
import json
import shutil

import numpy as np
import pytest

from tests.data.miniature import TEST, TRAIN, load, make_coco
from tkpr.data.dataset import checksum


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    return make_coco(tmp_path_factory.mktemp("coco"))


@pytest.fixture
def root(original, tmp_path):
    return shutil.copytree(original, tmp_path / "coco")


def edit(root, change, split="train"):
    path = root / "annotations" / f"instances_{split}2014.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    return path


def by_hand(root, split="train"):
    """Return {file stem: set of class names}, straight from the json."""
    content = json.loads((root / "annotations" / f"instances_{split}2014.json").read_text())
    names = {category["id"]: category["name"] for category in content["categories"]}
    stems = {image["id"]: image["file_name"].split(".")[0] for image in content["images"]}
    labels = {stem: set() for stem in stems.values()}
    for annotation in content["annotations"]:
        labels[stems[annotation["image_id"]]].add(names[annotation["category_id"]])
    return labels


def test_labels_and_paths(original):
    data = load("coco", original)
    assert data.class_names == ["person", "car", "dog", "cat", "bottle"]  # not sorted by id
    assert (len(data.train), len(data.test)) == (TRAIN, TEST)
    for split, name in ((data.train, "train"), (data.test, "val")):
        expected = by_hand(original, name)
        for path, row, stem in zip(split.inputs, split.targets, split.ids, strict=True):
            assert path == original / f"{name}2014" / f"{stem}.jpg"
            assert path.is_file()
            assert {data.class_names[at] for at in np.flatnonzero(row)} == expected[stem]


def test_images_without_annotation_are_an_option(original):
    kept = load("coco", original, drop_unlabelled=False)
    assert (len(kept.train), len(kept.test)) == (TRAIN + 1, TEST + 1)
    assert (kept.train.targets.sum(axis=1) == 0).sum() == 1


def test_orders(original):
    content = json.loads((original / "annotations" / "instances_train2014.json").read_text())
    numbers = [image["id"] for image in content["images"]]
    found = {}
    for order in ("id_string", "annotation", "file"):
        data = load("coco", original, order=order, drop_unlabelled=False)
        found[order] = [int(stem.rpartition("_")[2]) for stem in data.train.ids]
    assert found["file"] == numbers
    assert found["id_string"] == sorted(numbers, key=str)
    assert found["id_string"] != numbers
    seen = list(dict.fromkeys(label["image_id"] for label in content["annotations"]))
    assert found["annotation"] == [*seen, numbers[-1]]  # the one without annotation is last
    with pytest.raises(ValueError, match="order must be one of id_string, annotation, file"):
        load("coco", original, order="id")


def test_year_2017(tmp_path):
    data = load("coco", make_coco(tmp_path, year=2017), year=2017)
    assert len(data.train) == TRAIN
    assert data.train.inputs[0].parent.name == "train2017"


def test_cache_gives_the_same_and_notices_a_change(root, tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    first = load("coco", root, cache_dir=cache)
    assert len(list(cache.glob("*.npz"))) == 2
    with monkeypatch.context() as patch:
        patch.setattr("tkpr.data.coco.COCO", None)  # a second start does not parse the json
        second = load("coco", root, cache_dir=cache)
    assert first.class_names == second.class_names
    for one, two in ((first.train, second.train), (first.test, second.test)):
        assert one.inputs == two.inputs
        assert one.ids == two.ids
        np.testing.assert_array_equal(one.targets, two.targets)

    edit(root, lambda content: content["annotations"].pop(1))
    third = load("coco", root, cache_dir=cache)
    fresh = load("coco", root)
    np.testing.assert_array_equal(third.train.targets, fresh.train.targets)
    assert checksum(third.train.targets) != checksum(first.train.targets)


def test_bad_annotations(root):
    path = edit(root, lambda content: content["annotations"][3].update(category_id=99))
    with pytest.raises(ValueError, match=rf"{path}: annotation 4 .* unknown category"):
        load("coco", root)
    edit(root, lambda content: content["annotations"][3].update(category_id=1, image_id=-1))
    with pytest.raises(ValueError, match=r"annotation 4 .* unknown image"):
        load("coco", root)


def test_duplicates_and_empty_files(root):
    path = edit(root, lambda content: content["images"].append(content["images"][0]))
    with pytest.raises(ValueError, match=rf"{path}: the image id 5 occurs twice"):
        load("coco", root)
    edit(root, lambda content: content.update(images=[], annotations=[]))
    with pytest.raises(ValueError, match=r"is empty: 0 images, 0 annotations, 5 categories"):
        load("coco", root)
    edit(root, lambda content: content.pop("categories"))
    with pytest.raises(ValueError, match=r"is not a COCO instances file: KeyError\('categories'\)"):
        load("coco", root)


def test_broken_json_names_file_and_line(root):
    path = root / "annotations" / "instances_val2014.json"
    path.write_text('{"images": [],\n"annotations": [}\n')
    with pytest.raises(ValueError, match=rf"{path}, line 2: broken JSON"):
        load("coco", root)


def test_splits_must_have_the_same_categories(root):
    edit(root, lambda content: content["categories"][0].update(name="human"), split="val")
    with pytest.raises(ValueError, match="different categories"):
        load("coco", root)


def test_file_name_may_not_leave_the_folder(root):
    edit(root, lambda content: content["images"][0].update(file_name="../secret.jpg"))
    with pytest.raises(ValueError, match=r"'\.\./secret.jpg' leads out of"):
        load("coco", root)


def test_that_message_names_no_option_that_does_not_exist(root):
    edit(root, lambda content: content["images"][0].update(file_name="../secret.jpg"))
    with pytest.raises(ValueError, match=r"use a relative path without \.\.$"):
        load("coco", root)


OTHER_TYPES = [None, True, 1.5, [], {}, [1], {"a": 1}, "", "a\0"]
FIELDS = [
    *(("images", "id"), ("images", "file_name"), ("categories", "id"), ("categories", "name")),
    *(("annotations", "image_id"), ("annotations", "category_id")),
]


@pytest.mark.parametrize(("part", "field"), FIELDS)
@pytest.mark.parametrize("value", [*OTHER_TYPES, 7], ids=repr)
def test_values_of_other_types_are_refused(root, part, field, value):
    edit(root, lambda content: content[part][1].update({field: value}))
    with pytest.raises(ValueError, match=r"instances_train2014\.json"):
        load("coco", root)


@pytest.mark.parametrize("part", ["images", "annotations", "categories"])
@pytest.mark.parametrize("value", [*OTHER_TYPES, 7, "abc", [[]], [None], ["id"]], ids=repr)
def test_lists_of_other_things_are_refused(root, part, value):
    edit(root, lambda content: content.update({part: value}))
    with pytest.raises(ValueError, match=r"instances_train2014\.json"):
        load("coco", root)


def test_names_instead_of_numbers_and_large_numbers(root, tmp_path):
    """As some sets in COCO's form have; the cache can be read again."""
    before = load("coco", root, order="file")

    def rename(content):
        for image in content["images"]:
            image["id"] = 10**30 + image["id"] if image["id"] % 2 else f"no. {image['id']}"
        for label in content["annotations"]:
            number = label["image_id"]
            label["image_id"] = 10**30 + number if number % 2 else f"no. {number}"

    edit(root, rename)
    for _ in range(2):
        after = load("coco", root, order="file", cache_dir=tmp_path / "cache")
        assert after.train.ids == before.train.ids
        np.testing.assert_array_equal(after.train.targets, before.train.targets)


def test_files_of_one_name_in_two_folders(root):
    edit(root, lambda content: content["images"][1].update(file_name="more/COCO_x.jpg"))
    edit(root, lambda content: content["images"][2].update(file_name="COCO_x.png"))
    with pytest.raises(ValueError, match=r"train2014\.json: the file name 'COCO_x' occurs twice"):
        load("coco", root)


def test_a_number_of_thousands_of_digits(root):
    path = root / "annotations" / "instances_val2014.json"
    path.write_text(path.read_text().replace('"area": 400', f'"area": {"9" * 5000}', 1))
    with pytest.raises(ValueError, match=f"{path} cannot be read: Exceeds the limit"):
        load("coco", root)


def test_missing_files(root, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere; get it with: .*dataset=coco download"):
        load("coco", tmp_path / "nowhere")
    images = sorted((root / "train2014").iterdir())
    for path in images[:2]:
        path.unlink()
    with pytest.raises(FileNotFoundError, match=r"2 of 12 image files are missing, the first is"):
        load("coco", root)
    assert len(load("coco", root, check_files=False).train) == TRAIN
    (root / "annotations" / "instances_train2014.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"instances_train2014.json; get it with"):
        load("coco", root)


def test_real_labels(real_data, tmp_path):
    folder = tmp_path / "annotations"
    folder.mkdir()
    for split in ("train", "val"):
        packed = real_data / "coco2014-labels" / f"instances_{split}2014.labels-only.json.gz"
        with gzip.open(packed) as source, open(folder / f"instances_{split}2014.json", "wb") as to:
            shutil.copyfileobj(source, to)
    data = load("coco", tmp_path, check_files=False)
    assert (len(data.train), len(data.test), len(data.class_names)) == (82081, 40137, 80)
    counts = data.train.targets.sum(axis=1)
    assert round(counts.mean(), 2) == 2.94
    assert counts.max() == 18
    assert data.train.targets.sum(axis=0).max() == 45174  # person

    # the same labels, stored as arrays in the order of the image numbers
    stored = np.load(real_data / "coco2014-labels" / "coco2014_labels.npz")
    assert data.class_names == stored["class_names"].tolist()
    for split, name in ((data.train, "train"), (data.test, "val")):
        numbers = np.array([int(stem.rpartition("_")[2]) for stem in split.ids])
        rows = np.argsort(numbers)
        np.testing.assert_array_equal(numbers[rows], stored[f"{name}_ids"])
        np.testing.assert_array_equal(split.targets[rows], stored[f"{name}_Y"])
