import multiprocessing
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from hydra import compose, initialize_config_dir
from PIL import Image
from torch.utils.data import RandomSampler

from tests.data.miniature import CONFIGS
from tkpr.config import build
from tkpr.data import labels, transforms
from tkpr.data.assemble import assemble, loader
from tkpr.data.dataset import MultiLabelData, Split, checksum
from tkpr.data.labels import single_positive
from tkpr.data.mosaic import load_mosaic
from tkpr.data.splits import holdout
from tkpr.runs.settle import settle

ONE = partial(single_positive, seed=1200, list_file=None, index_order="columns")
IMAGENET = {
    "mean": [0.485, 0.456, 0.406],
    "std": [0.229, 0.224, 0.225],
    "interpolation": "bilinear",
}
LIGHT = transforms.shift(size=32, pixels=2, mean=0, std=1, interpolation="bilinear")


@pytest.fixture(scope="module")
def data():
    return load_mosaic(train_size=40, test_size=10, image_size=32, seed=0)


@pytest.fixture
def on_disk(tmp_path):
    """A data set of image files."""
    rng = np.random.default_rng(0)

    def split(name, size):
        paths = [tmp_path / f"{name}{number}.png" for number in range(size)]
        for path in paths:
            Image.fromarray(rng.integers(256, size=(9, 7, 3), dtype=np.uint8)).save(path)
        targets = rng.integers(2, size=(size, 4)).astype(np.uint8)
        return Split(paths, targets, [path.stem for path in paths])

    return MultiLabelData(list("abcd"), split("train", 10), split("test", 4))


def everything(dataset, **options):
    batches = list(loader(dataset, batch_size=7, **options))
    return [torch.cat(parts) for parts in zip(*batches, strict=True)]


def test_official_splits(data):
    ready = assemble(data, labels=labels.full, pipeline=LIGHT)
    images, targets, index = everything(ready.test)
    assert np.array_equal(images[:, 0], data.test.inputs)  # not augmented
    assert np.array_equal(targets, data.test.targets)
    assert index.tolist() == list(range(10))
    assert np.array_equal(everything(ready.train)[1], data.train.targets)
    assert ready.class_names == data.class_names
    assert ready.finish(images).max() <= 1
    assert list(ready.train.ids) == list(data.train.ids)


def test_training_sees_single_labels_and_testing_all(data):
    ready = assemble(data, labels=ONE, pipeline=LIGHT)
    assert np.array_equal(ready.train_targets, ONE(data.train).targets)
    assert np.array_equal(everything(ready.train)[1], ready.train_targets)
    assert np.array_equal(ready.clean_targets, data.train.targets)
    assert np.array_equal(everything(ready.test)[1], data.test.targets)


def test_labels_are_drawn_before_a_part_is_held_out(data):
    ready = assemble(data, labels=ONE, pipeline=LIGHT, holdout=0.25)
    rows, held = holdout(40, 0.25, seed=1200)
    assert np.array_equal(ready.train_targets, ONE(data.train).targets[rows])
    assert np.array_equal(ready.clean_targets, data.train.targets[rows])
    images, targets, _ = everything(ready.test)
    assert np.array_equal(targets, data.train.targets[held])  # the clean ones
    assert np.array_equal(images[:, 0], data.train.inputs[held])
    assert (len(ready.train), len(ready.test)) == (30, 10)


def test_counts(data):
    ready = assemble(data, labels=ONE, pipeline=LIGHT, holdout=0.25)
    assert ready.counts == {
        "classes": 10,
        "train_images": 30,
        "train_labels": 30,
        "train_labels_all": int(ready.clean_targets.sum()),
        "train_without_label": 0,
        "train_checksum": checksum(ready.train_targets),
        "test_images": 10,
        "test_labels": int(ready.test.targets.sum()),
        "test_without_label": 0,
        "test_checksum": checksum(ready.test.targets.numpy()),
    }


@pytest.mark.parametrize("make", [labels.full, ONE, partial(labels.partial, share=0.6, seed=3)])
def test_everything_is_the_same_on_every_run_and_for_any_number_of_workers(data, make):
    def run(num_workers):
        ready = assemble(data, labels=make, pipeline=LIGHT, holdout=0.25, seed=3)
        order = RandomSampler(ready.train, generator=torch.Generator().manual_seed(1))
        ready.train.set_epoch(2)
        train = everything(ready.train, sampler=order, num_workers=num_workers)
        return [*train, *everything(ready.test, num_workers=num_workers)]

    first = run(0)
    for num_workers in (0, 1, 2):
        for one, other in zip(first, run(num_workers), strict=True):
            assert torch.equal(one, other)


def test_observed_labels_are_written_once_and_compared(data, tmp_path):
    assemble(data, labels=ONE, pipeline=LIGHT, run_dir=tmp_path)
    # another share held out, or a resumed run: the same draw
    assemble(data, labels=ONE, pipeline=LIGHT, run_dir=tmp_path, holdout=0.2)
    with np.load(tmp_path / "observed_labels.npz") as stored:
        assert np.array_equal(stored["observed"], ONE(data.train).targets)
        assert str(stored["checksum"]) == checksum(ONE(data.train).targets)
    with pytest.raises(ValueError, match="holds other labels"):
        assemble(data, labels=partial(ONE, seed=1), pipeline=LIGHT, run_dir=tmp_path)


def test_files_are_decoded_once_for_all_parts(on_disk, tmp_path, monkeypatch):
    from tkpr.data import images

    decoded = []
    original = images.read_image
    monkeypatch.setattr(
        images, "read_image", lambda path, **o: decoded.append(path) or original(path, **o)
    )
    recipe = transforms.spml(size=8, **IMAGENET)
    for share in (0, 0.3, 0):
        ready = assemble(
            on_disk,
            labels=labels.full,
            pipeline=recipe,
            holdout=share,
            cache_dir=tmp_path / "cache",
        )
        train, test = everything(ready.train), everything(ready.test)
        assert len(train[2]) + len(test[2]) == (10 if share else 14)
    assert sorted(decoded) == sorted([*on_disk.train.inputs, *on_disk.test.inputs])


def test_features_and_images_need_their_own_transforms(data):
    rows = Split(np.eye(4, 3, dtype=np.float32), np.ones((4, 2), dtype=np.uint8), list("abcd"))
    features = MultiLabelData(["x", "y"], rows, rows)
    ready = assemble(features, labels=labels.full, pipeline=transforms.none(), holdout=0.25)
    inputs, _, _ = everything(ready.train)
    assert torch.equal(ready.finish(inputs), inputs)
    assert inputs.shape == (3, 3)
    with pytest.raises(ValueError, match=r"holds features: use transform=none"):
        assemble(features, labels=labels.full, pipeline=LIGHT)
    with pytest.raises(ValueError, match=r"holds images: use transform=asl"):
        assemble(data, labels=labels.full, pipeline=transforms.none())


@pytest.mark.parametrize(
    ("train", "test", "match"),
    [
        (np.ones((2, 1)), np.ones((2, 1)), r"has one class, '0': ranking needs two"),
        (np.ones((2, 2)), np.ones((0, 2)), r"the test set is empty"),
        (np.ones((0, 2)), np.ones((2, 2)), r"the training set is empty"),
        (np.zeros((2, 2)), np.ones((2, 2)), r"not one of the 2 training samples has a label"),
        (np.ones((2, 2)), np.zeros((3, 2)), r"not one of the 3 test samples has a label"),
    ],
)
def test_data_on_which_nothing_can_be_learnt_or_measured(train, test, match):
    splits = [
        Split(np.zeros((len(rows), 3)), rows.astype(np.uint8), list("abc")[: len(rows)])
        for rows in (train, test)
    ]
    data = MultiLabelData(list("01")[: train.shape[1]], *splits)
    with pytest.raises(ValueError, match=match):
        assemble(data, labels=labels.full, pipeline=transforms.none())


@pytest.mark.parametrize("names", [[], ["a", "a"], ["a", " "], ["a", "b\0"], ["a", 1]])
def test_class_names_must_be_different_texts(names):
    split = Split(np.zeros((1, 3)), np.ones((1, len(names)), dtype=np.uint8), ["a"])
    with pytest.raises(ValueError, match=r"no classes|two classes have|must be a non-empty text"):
        MultiLabelData(names, split, split)


@pytest.mark.parametrize(
    "name", ["full", "single_positive", "partial", "assume_negative", "ignore"]
)
def test_label_configs_can_be_built(name, data):
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        cfg = compose("train", [f"labels={name}"])
    observed = build(cfg.labels)(data.train).targets
    assert observed.dtype == np.uint8
    assert (observed <= data.train.targets).all()
    assert observed.any(axis=1).all()


def test_default_config_builds_the_mosaic():
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        cfg = compose("train", ["dataset.train_size=8", "dataset.test_size=4"])
    settle(cfg)
    ready = assemble(build(cfg.dataset), labels=build(cfg.labels), pipeline=build(cfg.transform))
    images, targets, _ = everything(ready.train)
    assert images.shape == (8, 3, cfg.transform.size, cfg.transform.size)
    assert targets.shape == (8, 10)


def test_workers_are_no_forks_of_this_process(data):
    """A fork of a process with threads may hang: here every fork does."""
    forks_hang = [True]
    os.register_at_fork(after_in_child=lambda: forks_hang and time.sleep(1e6))
    ready = assemble(data, labels=labels.full, pipeline=LIGHT)
    try:
        batches = loader(ready.train, batch_size=4, num_workers=1)
        batches.timeout = 60
        assert len(list(batches)) == 10
    finally:
        forks_hang.clear()


@pytest.mark.skipif(not hasattr(signal, "sigwaitinfo"), reason="this system does not tell senders")
def test_a_worker_ends_with_its_main_process_only(data):
    """Clusters send SIGTERM to everyone; a main process that saves needs its workers."""
    ready = assemble(data, labels=labels.full, pipeline=LIGHT)
    batches = iter(loader(ready.train, batch_size=4, num_workers=1))
    next(batches)
    (worker,) = multiprocessing.active_children()
    server = Path(f"/proc/{worker.pid}/stat").read_text().rpartition(")")[2].split()[1]
    assert server != str(os.getpid())
    subprocess.run(["kill", "-TERM", str(worker.pid), server], check=True)
    worker.join(timeout=6)  # a worker looks every 5 seconds whether its server is there
    assert worker.is_alive()
    assert len(list(batches)) == 9
    worker.terminate()
    worker.join(timeout=10)
    assert worker.exitcode == 0


ORPHANED = """
import time
from tests.data.test_assemble import LIGHT
from tkpr.data import labels
from tkpr.data.assemble import assemble, loader
from tkpr.data.mosaic import load_mosaic

if __name__ == "__main__":
    data = load_mosaic(train_size=8, test_size=2, image_size=32, seed=0)
    ready = assemble(data, labels=labels.full, pipeline=LIGHT)
    batches = iter(loader(ready.train, batch_size=4, num_workers=2))
    next(batches)
    print("ready", flush=True)
    time.sleep(600)
"""


@pytest.mark.slow
def test_nothing_is_left_of_a_process_that_was_killed(tmp_path):
    """Its workers and their server hold its standard output, which ends with the last of them."""
    (tmp_path / "main.py").write_text(ORPHANED)
    root = Path(__file__).parents[2]
    process = subprocess.Popen(
        [sys.executable, tmp_path / "main.py"],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(root)},
    )
    assert process.stdout.readline() == b"ready\n"
    process.kill()
    assert process.communicate(timeout=60) == (b"", None)
