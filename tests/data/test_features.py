import importlib.util

import numpy as np
import pytest
import timm
import torch
from hydra import compose, initialize_config_dir
from safetensors.torch import save_file
from scipy.sparse import csr_array

from tests.data.miniature import CONFIGS, make_csv
from tkpr.config import build
from tkpr.data import features
from tkpr.data.assemble import loader
from tkpr.data.dataset import Split
from tkpr.data.features import FeatureDataset, load_features, save_features
from tkpr.runs.compose import compose as compose_words

SCRIPT = CONFIGS.parent / "scripts" / "extract_features.py"


def load(path, difficult="negative", train_split="train", test_split=None):
    return load_features(path, difficult=difficult, train_split=train_split, test_split=test_split)


def arrays(**changes):
    standard = {
        "features": np.arange(12.0).reshape(4, 3),
        "labels": np.array([[1, 0], [0, 1], [1, 1], [0, 0]]),
        "ids": np.array([7, 8, 9, 10]),
        "split": np.array(["val", "train", "train", "val"]),
        "class_names": np.array(["cat", "dog"]),
    }
    return {key: value for key, value in (standard | changes).items() if value is not None}


def test_splits_labels_and_ids(tmp_path):
    np.savez(tmp_path / "f.npz", **arrays())
    data = load(tmp_path / "f.npz")
    assert data.class_names == ["cat", "dog"]
    assert data.train.inputs.tolist() == [[3, 4, 5], [6, 7, 8]]
    assert data.train.inputs.dtype == np.float32
    assert data.train.targets.tolist() == [[0, 1], [1, 1]]
    assert data.test.ids == ["7", "10"]
    turned = load(tmp_path / "f.npz", train_split="val")
    assert turned.test.ids == ["8", "9"]


@pytest.mark.parametrize(
    ("difficult", "train", "test"),
    [
        ("negative", [[0, 1], [1, 0]], [[1, 0], [0, 0]]),
        ("positive", [[1, 1], [1, 0]], [[1, 0], [0, 0]]),
        ("ignore_image", [[1, 0]], [[1, 0], [0, 0]]),
    ],
)
def test_difficult_labels(tmp_path, difficult, train, test):
    labels = np.array([[1, -1], [0, 1], [1, -1], [-1, -1]], dtype=np.int8)
    np.savez(tmp_path / "f.npz", **arrays(labels=labels))
    data = load(tmp_path / "f.npz", difficult)
    assert data.train.targets.tolist() == train
    assert data.test.targets.tolist() == test


def test_zero_and_one_are_plain_labels_whatever_the_rule(tmp_path):
    np.savez(tmp_path / "f.npz", **arrays())
    for difficult in ("negative", "positive", "ignore_image"):
        data = load(tmp_path / "f.npz", difficult)
        assert data.train.targets.tolist() == [[0, 1], [1, 1]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": None, "ids": None}, "has no array labels, ids; it needs features, labels"),
        ({"features": np.zeros((4, 3, 2))}, r"\[N, D\]; got \(4, 3, 2\)"),
        ({"features": np.full((4, 3), np.nan)}, "12 of them not finite"),
        ({"features": np.full((4, 3), "a")}, r"must be numbers \[N, D\]; got \(4, 3\) of type <U1"),
        ({"labels": np.ones(4)}, r"labels in .*f\.npz must be numbers \[N, C\]; got \(4,\)"),
        ({"ids": np.array("a")}, r"ids in .*f\.npz must be text \[N\]; got \(\)"),
        ({"ids": np.array([7, 8, 8, 10])}, r"f\.npz: an id occurs twice in the split 'train'"),
        (
            {"split": np.zeros(4)},
            r"split in .*f\.npz must be text \[N\]; got \(4,\) of",
        ),
        ({"class_names": np.eye(2)}, r"class_names in .*f\.npz must be text \[C\]"),
        ({"labels": np.full((4, 2), 3)}, r"must be 1, 0 or -1; got \[3\]"),
        ({"split": np.array(["train"] * 4)}, "names the splits train; say which"),
        ({"split": np.array(["train", "a", "b", "a"])}, "names the splits train, a, b; say which"),
        ({"split": np.array(["val", "test"] * 2)}, "names the splits train, test, val; say which"),
        ({"ids": np.array([7, 8, 9])}, "has 4 features, 4 labels, 3 ids and 4 splits"),
        ({"class_names": np.array(["cat"])}, "2 columns for 1 class names"),
        ({"ids": np.array([{"a": 1}] * 4)}, "cannot be read"),
    ],
)
def test_bad_files_are_refused(tmp_path, changes, message):
    np.savez(tmp_path / "f.npz", **arrays(**changes))
    with pytest.raises(ValueError, match=message):
        load(tmp_path / "f.npz")


LISTS = {
    "labels": None,
    "label_indptr": np.array([0, 1, 2, 4, 4]),
    "label_indices": np.array([0, 1, 0, 1]),
}


def test_lists_of_labels(tmp_path, monkeypatch):
    """The same labels as lists: a matrix up to the limit, sparse above it."""
    np.savez(tmp_path / "f.npz", **arrays(**LISTS))
    data = load(tmp_path / "f.npz")
    assert data.train.targets.tolist() == [[0, 1], [1, 1]]
    assert data.test.targets.tolist() == [[1, 0], [0, 0]]
    monkeypatch.setattr(features, "MOST_DENSE_CLASSES", 1)
    listed = load(tmp_path / "f.npz")
    assert isinstance(listed.train.targets, csr_array)
    assert listed.train.targets.dtype == np.uint8
    assert listed.train.targets.toarray().tolist() == [[0, 1], [1, 1]]
    inputs, lists, index = FeatureDataset(listed.train).__getitems__([1, 0])
    assert inputs.tolist() == [[6, 7, 8], [3, 4, 5]]
    assert lists.dense(2).tolist() == [[True, True], [False, True]]
    assert index.tolist() == [1, 0]
    written = arrays(ids=["a", "b", "c", "d"])
    written["labels"] = csr_array(written["labels"].astype(np.uint8))
    save_features(tmp_path / "g.npz", written.pop("features"), **written)
    again = load(tmp_path / "g.npz")
    assert (again.train.targets != listed.train.targets).nnz == 0
    np.savez(tmp_path / "h.npz", **arrays())
    with pytest.raises(ValueError, match="label matrix of 2 classes; above 1 it must have lists"):
        load(tmp_path / "h.npz")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"label_indptr": None}, "has no array label_indptr; it needs features, label_indptr"),
        ({"label_indptr": np.array([0, 1, 2, 4])}, "4 features, 3 labels, 4 ids and 4 splits"),
        ({"label_indptr": np.array([0, 2, 1, 4, 4])}, r"lists of labels in .*: crow_indices must"),
        ({"label_indices": np.array([0, 1, 0, 2])}, "must be below the number of classes, 2; got"),
        ({"label_indices": np.array([0, -1, 0, 1])}, "labels must be 0 or more, .* got -1"),
        ({"label_indices": np.array([0, 1, 1, 1])}, "row 2 names 1 twice"),
        ({"label_indices": np.array([0.0, 1, 0, 1])}, r"must be numbers \[R\]; got \(4,\) of type"),
    ],
)
def test_bad_lists_are_refused(tmp_path, changes, message):
    np.savez(tmp_path / "f.npz", **arrays(**LISTS | changes))
    with pytest.raises(ValueError, match=message) as caught:
        load(tmp_path / "f.npz")
    assert "\n" not in str(caught.value)


def test_other_bad_arguments_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no file .*none.npz; make it with"):
        load(tmp_path / "none.npz")
    (tmp_path / "text.npz").write_text("no archive")
    with pytest.raises(ValueError, match=r"text.npz cannot be read"):
        load(tmp_path / "text.npz")
    np.savez(tmp_path / "f.npz", **arrays())
    with pytest.raises(ValueError, match="no samples of the split 'dev'"):
        load(tmp_path / "f.npz", test_split="dev")
    with pytest.raises(ValueError, match=r"one of negative, .*ignore_image; got 'maybe'"):
        load(tmp_path / "f.npz", difficult="maybe")


def test_what_is_saved_is_loaded(tmp_path):
    written = arrays(ids=["a", "b", "c", "d"])
    features = written.pop("features")
    save_features(tmp_path / "deep" / "f.npz", features, **written)
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["f.npz"]
    data = load(tmp_path / "deep" / "f.npz")
    assert np.array_equal(
        np.concatenate([data.test.inputs, data.train.inputs]), features[[0, 3, 1, 2]]
    )
    assert data.train.ids == ["b", "c"]


def test_dataset_gives_items_and_batches():
    split = Split(np.eye(4, 3), np.eye(4, 2, dtype=np.uint8), list("abcd"))
    dataset = FeatureDataset(split)
    features, targets, index = dataset[1]
    assert (features.tolist(), targets.tolist(), index) == ([0, 1, 0], [0, 1], 1)
    batch = dataset.__getitems__([3, 1])
    assert torch.equal(batch[0], torch.tensor([[0.0, 0, 0], [0, 1, 0]]))
    assert batch[1].dtype == torch.float32
    assert batch[2].tolist() == [3, 1]


def test_a_damaged_header_is_noticed(tmp_path):
    """NumPy would read the first columns only, and never see that the checksum is wrong."""
    file = tmp_path / "f.npz"
    np.savez(file, **arrays(features=np.ones((4, 9000))))
    whole, header = file.read_bytes(), b"'shape': (4, 9000)"
    assert whole.count(header) == 1
    file.write_bytes(whole.replace(header, b"'shape': (4, 1000)"))
    with np.load(file) as read:
        assert read["features"].shape == (4, 1000)
    with pytest.raises(ValueError, match=r"f\.npz cannot be read as arrays"):
        load(file)


def test_real_features_of_voc_2012(real_data):
    path = real_data / "voc2012-features.npz"
    data = load(path)
    assert data.train.inputs.shape == (5717, 1280)
    assert data.test.targets.shape == (5823, 20)
    assert np.bincount(data.train.targets.sum(axis=1)).tolist() == [0, 3730, 1475, 414, 81, 17]
    assert round(load(path, "positive").train.targets.sum(axis=1).mean(), 4) == 1.5503


def test_real_features_of_coco(real_data):
    data = load(real_data / "coco10k-features.npz")
    assert (len(data.train), len(data.test), len(data.class_names)) == (6892, 3032, 80)
    assert data.train.ids[0] == "9"


def extraction():
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("extract_features", SCRIPT)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


def test_script_extracts_features_that_can_be_loaded(tmp_path, capsys):
    options = ["dataset=mosaic", "dataset.train_size=6", "dataset.test_size=4", "model=tiny"]
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        cfg = compose("extract_features", [*options, f"output={tmp_path}/out/f.npz"])
    torch.manual_seed(0)
    extraction().extract(cfg)
    assert "6 + 4 images" in capsys.readouterr().out
    data = load(tmp_path / "out" / "f.npz")
    assert data.train.inputs.shape == (6, 64)
    assert data.test.ids[0] == "test-00000"
    # the images as they are, by the network without its classifier
    mosaic = build(cfg.dataset)
    torch.manual_seed(0)
    model = build(cfg.model, num_classes=0).eval()
    images = torch.from_numpy(mosaic.test.inputs)[:, None].expand(-1, 3, -1, -1)
    wanted = model(images.float() / 255).detach().numpy()
    np.testing.assert_allclose(data.test.inputs, wanted, rtol=1e-4, atol=1e-5)


def test_rows_in_memory_are_loaded_by_this_process():
    split = Split(np.eye(3), np.eye(3, 2, dtype=np.uint8), ["a", "b", "c"])
    batches = loader(FeatureDataset(split), batch_size=2, num_workers=2)
    assert batches.num_workers == 0
    assert [index.tolist() for *_, index in batches] == [[0, 1], [2]]


def test_features_are_computed_in_full_precision():
    """The recipe of COCO trains in half precision, which is slow on a CPU."""
    words = ["dataset=coco", "model=resnet50_v1"]
    assert compose_words(CONFIGS, words).trainer.precision == "16-mixed"
    cfg = compose_words(CONFIGS, words, name="extract_features")
    assert cfg.trainer.precision == "32-true"


def test_script_extracts_features_of_photographs_not_maps(tmp_path):
    save_file(timm.create_model("test_resnet").state_dict(), tmp_path / "w.safetensors")
    cfg = compose_words(
        CONFIGS,
        [
            *("dataset=csv", f"dataset.root={make_csv(tmp_path / 'data')}", "transform.size=64"),
            *("model=timm", "model.model_name=test_resnet", f"output={tmp_path / 'f.npz'}"),
            f"model.checkpoint={tmp_path / 'w.safetensors'}",
        ],
        name="extract_features",
    )
    assert cfg.model.cut == "auto"
    extraction().extract(cfg)
    assert load(tmp_path / "f.npz").train.inputs.ndim == 2
