import gzip
import shutil

import numpy as np
import pytest

from tests.data.miniature import TEST, TRAIN, labels, load, make_nuswide
from tkpr.data.nuswide import CONCEPTS, ERRATUM, LIST_ORDER


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    folder = tmp_path_factory.mktemp("nuswide")
    return {name: make_nuswide(folder / name, name) for name in ("lists", "original", "csv")}


@pytest.fixture
def root(originals, tmp_path):
    return shutil.copytree(originals["lists"], tmp_path / "lists")


def test_concepts_are_81_names_in_two_orders():
    assert len(set(CONCEPTS)) == 81
    assert sorted(CONCEPTS) == CONCEPTS == sorted(LIST_ORDER)


@pytest.mark.parametrize("version", ["lists", "original", "csv"])
def test_every_version_gives_the_same_labels(originals, version):
    data = load("nuswide", originals[version], version=version)
    assert data.class_names == CONCEPTS
    np.testing.assert_array_equal(data.train.targets, labels(TRAIN, 81, seed=TRAIN))
    np.testing.assert_array_equal(data.test.targets, labels(TEST, 81, seed=TEST))
    assert all(path.is_file() for path in [*data.train.inputs, *data.test.inputs])
    assert len(set(data.train.ids) | set(data.test.ids)) == TRAIN + TEST


def test_original_keeps_unlabelled_images_when_asked(originals):
    data = load("nuswide", originals["original"], version="original", drop_unlabelled=False)
    assert (len(data.train), len(data.test)) == (TRAIN + 1, TEST + 1)
    assert data.train.targets[-1].sum() == 0


def test_packed_lists_and_alphabetical_indices(root):
    path = root / "nus_val.txt"
    with gzip.open(f"{path}.gz", "wt") as packed:
        packed.write("0001_Test.jpg,0 80\n")
    path.unlink()
    published = load("nuswide", root).test.targets[0]
    assert {CONCEPTS[at] for at in np.flatnonzero(published)} == {"beach", "running"}
    official = load("nuswide", root, index_order="alphabetical").test.targets[0]
    assert {CONCEPTS[at] for at in np.flatnonzero(official)} == {"airport", "zebra"}


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "nus_val.txt is empty"),
        ("a.jpg,3\nb.jpg 4\n", r"nus_val.txt, line 2: expected 'name,index index ...'"),
        ("a.jpg,3\n\nb.jpg,81\n", r"nus_val.txt, line 3: unknown concept '81'; expected 0 to 80"),
        ("a.jpg,sky\n", r"nus_val.txt, line 1: unknown concept 'sky'"),
        ("a.jpg,3\na.jpg,4\n", r"nus_val.txt, line 2: a.jpg is already in line 1"),
        ("../a.jpg,3\n", r"nus_val.txt, line 1: '../a.jpg' leads out of"),
        ("0001_Train.jpg,3\n", r"1 images are in both the training and the test list"),
    ],
)
def test_bad_list(root, text, match):
    (root / "nus_val.txt").write_text(text)
    with pytest.raises(ValueError, match=match):
        load("nuswide", root)


def test_a_missing_image_is_an_error_with_name_and_count(root):
    for name in ("0003_Train.jpg", "0001_Test.jpg"):
        (root / "images" / name).unlink()
    with pytest.raises(FileNotFoundError, match=r"2 of 18 .* the first is .*0003_Train.jpg"):
        load("nuswide", root)
    assert len(load("nuswide", root, check_files=False).train) == TRAIN


def test_missing_folder_and_lists(root, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere; data/README.md says where"):
        load("nuswide", tmp_path / "nowhere")
    (root / "nus_train_full.txt").unlink()
    with pytest.raises(FileNotFoundError, match=r"no file .*nus_train_full.txt\[.gz\]"):
        load("nuswide", root)


def test_outside_is_an_option(root, tmp_path):
    shutil.copy(root / "images" / "0001_Test.jpg", tmp_path / "a.jpg")
    (root / "nus_val.txt").write_text("../../a.jpg,3\n")
    data = load("nuswide", root, allow_outside=True)
    assert data.test.inputs[0].samefile(tmp_path / "a.jpg")


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("1\n0\n", r"Labels_lake_Test.txt has 2 labels for the 7 images of .*TestImagelist.txt"),
        ("0\n1\n-1\n0\n0\n0\n0\n", r"Labels_lake_Test.txt, line 3: must be 0 or 1; got '-1'"),
    ],
)
def test_bad_original_labels(originals, tmp_path, text, match):
    root = shutil.copytree(originals["original"], tmp_path / "original")
    (root / "Groundtruth" / "TrainTestLabels" / "Labels_lake_Test.txt").write_text(text)
    with pytest.raises(ValueError, match=match):
        load("nuswide", root, version="original")


def test_the_known_slip_of_the_official_files_is_read_as_absent(originals, tmp_path, monkeypatch):
    root = shutil.copytree(originals["original"], tmp_path / "original")
    name, _, text = ERRATUM
    path = root / "Groundtruth" / "TrainTestLabels" / name
    lines = path.read_text().splitlines()
    lines[4] = text
    path.write_text("\n".join(lines))
    with pytest.raises(ValueError, match=f"line 5: must be 0 or 1; got '{text}'"):
        load("nuswide", root, version="original")  # only in that one line of the real file
    monkeypatch.setattr("tkpr.data.nuswide.ERRATUM", (name, 5, text))
    data = load("nuswide", root, version="original", drop_unlabelled=False)
    assert data.train.targets[4, CONCEPTS.index("lake")] == 0


def test_csv_with_an_unknown_concept(originals, tmp_path):
    root = shutil.copytree(originals["csv"], tmp_path / "csv")
    path = root / "nus_wid_data.csv"
    path.write_text(path.read_text() + "images/x.jpg,\"['sky', 'unicorn']\",val\n")
    with pytest.raises(ValueError, match=r"nus_wid_data.csv, line 20: unknown class 'unicorn'"):
        load("nuswide", root, version="csv")


def test_options_are_checked(root):
    for option in ("version", "index_order"):
        with pytest.raises(ValueError, match=f"{option} must be"):
            load("nuswide", root, **{option: "other"})


def test_real_lists(real_data):
    data = load("nuswide", real_data / "nuswide-labels", check_files=False)
    assert (len(data.train), len(data.test)) == (119103, 50720)
    assert round(data.train.targets.sum(axis=1).mean(), 4) == 2.4048
    assert round(data.test.targets.sum(axis=1).mean(), 4) == 2.4114
    stored = np.load(real_data / "nuswide-labels" / "nuswide_labels.npz")
    assert data.class_names == stored["class_names"].tolist()
    for split, name in ((data.train, "train"), (data.test, "test")):
        assert split.ids == stored[f"{name}_files"].tolist()
        np.testing.assert_array_equal(split.targets, stored[f"{name}_Y"])
