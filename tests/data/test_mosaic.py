import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score

from tkpr.data import mosaic
from tkpr.data.mosaic import load_mosaic


@pytest.fixture(scope="module")
def data():
    return load_mosaic(train_size=1000, test_size=500, image_size=64, seed=0)


def test_is_the_same_for_any_size_and_order(data):
    other = load_mosaic(train_size=70, test_size=200, image_size=64, seed=0)
    assert np.array_equal(other.train.inputs, data.train.inputs[:70])
    assert np.array_equal(other.test.inputs, data.test.inputs[:200])
    assert np.array_equal(other.train.targets, data.train.targets[:70])
    assert list(other.test.ids) == list(data.test.ids[:200])


def test_another_seed_gives_other_images_of_the_same_kind(data):
    other = load_mosaic(train_size=1000, test_size=1, image_size=64, seed=1)
    assert not (other.train.inputs == data.train.inputs).all(axis=(1, 2)).any()
    assert abs(other.train.targets.sum(1).mean() - data.train.targets.sum(1).mean()) < 0.2


def test_train_and_test_images_differ(data):
    train = {image.tobytes() for image in data.train.inputs}
    assert len(train) == len(data.train)
    assert not train & {image.tobytes() for image in data.test.inputs}


def test_one_to_six_labels_with_skewed_counts_and_frequencies(data):
    counts = np.bincount(data.train.targets.sum(axis=1), minlength=7)
    assert counts[0] == 0
    assert len(counts) == 7
    assert np.allclose(counts[1:] / len(data.train), mosaic.LABEL_COUNTS, atol=0.05)
    assert 2.4 < data.train.targets.sum(axis=1).mean() < 2.8
    frequencies = data.train.targets.mean(axis=0)
    assert frequencies[0] > 0.4
    assert frequencies[9] < 0.15
    assert np.corrcoef(frequencies, np.arange(10))[0, 1] < -0.9


def test_scans_of_training_and_test_are_disjoint(monkeypatch):
    """When the scans of one part are blank, the images of the other do not change."""
    digits = load_digits()
    full = load_mosaic(train_size=20, test_size=20, image_size=64, seed=0)
    blank = load_digits()
    blank.images[-mosaic.TEST_SCANS :] = 0
    monkeypatch.setattr(mosaic, "load_digits", lambda: blank)
    without_test = load_mosaic(train_size=20, test_size=20, image_size=64, seed=0)
    assert np.array_equal(without_test.train.inputs, full.train.inputs)
    assert not np.array_equal(without_test.test.inputs, full.test.inputs)
    blank.images[:] = digits.images
    blank.images[: -mosaic.TEST_SCANS] = 0
    without_train = load_mosaic(train_size=20, test_size=20, image_size=64, seed=0)
    assert np.array_equal(without_train.test.inputs, full.test.inputs)
    assert not np.array_equal(without_train.train.inputs, full.train.inputs)


def test_images_show_their_labels(monkeypatch):
    """When only sevens are drawn, contrast tells the images labelled seven, and no other label."""
    digits = load_digits()
    digits.images[digits.target != 7] = 0
    monkeypatch.setattr(mosaic, "load_digits", lambda: digits)
    data = load_mosaic(train_size=300, test_size=1, image_size=64, seed=0)
    contrast = data.train.inputs.std(axis=(1, 2))
    for label, column in enumerate(data.train.targets.T):
        separation = roc_auc_score(column, contrast)
        assert separation > 0.9 if label == 7 else 0.35 < separation < 0.65


def test_placing_a_patch_is_linear_interpolation():
    """A patch of 8 x 8 over the whole of an image of 8 x 8 is the image."""
    patch = np.random.default_rng(0).random((1, 1, 8, 8), np.float32)
    image = mosaic._place(patch, np.full((1, 1, 2), 0.5), np.ones((1, 1)), 8)
    assert np.allclose(image[0], patch[0, 0], atol=1e-6)
    # twice as large: pixels lie a quarter of the way between two of the patch
    image = mosaic._place(patch, np.full((1, 1, 2), 0.5), np.ones((1, 1)), 16)
    row = 0.75 * patch[0, 0, 2] + 0.25 * patch[0, 0, 3]
    assert np.allclose(image[0, 5, 5], 0.75 * row[2] + 0.25 * row[3], atol=1e-6)


@pytest.mark.parametrize("image_size", [24, 48, 96])
def test_other_image_sizes(image_size):
    data = load_mosaic(train_size=3, test_size=2, image_size=image_size, seed=0)
    assert data.train.inputs.shape == (3, image_size, image_size)


def test_too_small_images_are_refused():
    with pytest.raises(ValueError, match="at least 24 pixels; got 8"):
        load_mosaic(train_size=1, test_size=1, image_size=8, seed=0)
