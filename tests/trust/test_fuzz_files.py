"""Damaged files in every format we read: the right answer, or an error that names the file.

TKPR_FUZZ sets the number of damaged files per format.
"""

import gzip
import os
import random
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.data.miniature import load, make_arff, make_coco, make_csv, make_nuswide, make_voc
from tkpr.data.core import MultiLabelData
from tkpr.data.features import load_features, save_features
from tkpr.data.images import read_image, squash

CASES = int(os.environ.get("TKPR_FUZZ", "25"))

PIECES = [
    *(b"", b"\0", b"\xff", b"\xef\xbb\xbf", b"\n", b"\r", b",", b";", b"'", b'"', b"{", b"}", b"["),
    *(
        b"]",
        b"<",
        b">",
        b"&",
        b"&a;",
        b"..",
        b"/",
        b"\\",
        b":",
        b"%",
        b"@data",
        b"?",
        b"-",
        b"1e999",
    ),
    *(b"nan", b"-1", b"0", b"1", b"2", b"null", b"true", b"99999999999999999999", b" ", b"\t"),
    *("é".encode(), "\u2028".encode(), "\u0661".encode(), b"x" * 5000, b"[" * 3000, b"<a>" * 3000),
]


def damage(content, dice):
    """Change a few places of a file: bytes flipped, cut out, doubled, swapped, put in."""
    for _ in range(dice.choice([1, 1, 2, 5])):
        at, length = dice.randrange(len(content) + 1), dice.choice([1, 2, 8, 60])
        part = content[at : at + length]
        content = dice.choice(
            [
                content[:at]
                + bytes(b ^ 1 << dice.randrange(8) for b in part[:1])
                + content[at + 1 :],
                content[:at],
                content[:at] + content[at + length :],
                content[:at] + part + content[at:],
                content[:at] + dice.choice(PIECES) + content[at + dice.choice([0, length]) :],
                content.replace(part, dice.choice(PIECES), 1) if part else content,
            ]
        )
        content = content[:200_000]
    return content


def make_packed(folder):
    make_nuswide(folder)
    for name in ("nus_train_full.txt", "nus_val.txt"):
        file = folder / name
        (folder / f"{name}.gz").write_bytes(gzip.compress(file.read_bytes()))
        file.unlink()


def make_features(folder):
    folder.mkdir()
    targets = np.eye(6, 3)
    splits = ["train"] * 4 + ["test"] * 2
    save_features(
        folder / "f.npz",
        np.eye(6),
        labels=targets,
        ids=list("abcdef"),
        split=splits,
        class_names=list("abc"),
    )


def read_features(folder):
    file = folder / "f.npz"
    return load_features(file, difficult="negative", train_split="train", test_split=None)


# a way to make a folder, one to read it, and the files of it to damage
FORMATS = {
    "coco": (make_coco, lambda f: load("coco", f), "annotations/*.json"),
    "voc lists": (make_voc, lambda f: load("voc2012", f), "VOCdevkit/VOC2012/ImageSets/Main/*.txt"),
    "voc xml": (
        make_voc,
        lambda f: load("voc2012", f, labels_from="xml"),
        "VOCdevkit/VOC2012/Annotations/*.xml",
    ),
    "nuswide lists": (make_nuswide, lambda f: load("nuswide", f), "*.txt"),
    "nuswide packed": (make_packed, lambda f: load("nuswide", f), "*.gz"),
    "nuswide original": (
        lambda f: make_nuswide(f, "original"),
        lambda f: load("nuswide", f, version="original"),
        "*/**/*.txt",
    ),
    "nuswide csv": (
        lambda f: make_nuswide(f, "csv"),
        lambda f: load("nuswide", f, version="csv"),
        "*.csv",
    ),
    "csv": (make_csv, lambda f: load("csv", f), "*.csv"),
    "csv per class": (lambda f: make_csv(f, per_class=True), lambda f: load("csv", f), "*.csv"),
    "arff": (make_arff, lambda f: load("arff", f, name="mini"), "mini*"),
    "arff sparse": (
        lambda f: make_arff(f, sparse=True, split=False),
        lambda f: load("arff", f, name="mini"),
        "mini*",
    ),
    "features": (make_features, read_features, "f.npz"),
}


@pytest.mark.parametrize("name", FORMATS)
def test_damaged_lists_and_annotations(name, tmp_path):
    make, read, pattern = FORMATS[name]
    folder = tmp_path / "data"
    make(folder)
    whole = read(folder)
    files = sorted(file for file in folder.glob(pattern) if file.is_file())
    refused = 0
    for case in range(CASES):
        dice = random.Random(f"{name} {case}")
        file = dice.choice(files)
        content = file.read_bytes()
        file.write_bytes(damage(content, dice))
        try:
            found = read(folder)
        except (ValueError, FileNotFoundError) as error:
            refused += 1
            assert_names_a_file(error, folder, case)
        except Exception as error:
            shutil.copy(file, tmp_path / f"case{case}{file.suffix}")
            raise AssertionError(f"case {case}, {file.name}: {error!r}") from error
        else:
            assert_well_formed(found, whole)
        file.write_bytes(content)
    assert refused
    assert_equal(read(folder), whole)


def assert_names_a_file(error, folder, case):
    """The message says which file (or, of several, which folder) to look at."""
    assert str(folder) in str(error) or "train2014" in str(error) or "val2014" in str(error), (
        f"case {case}: {error}"
    )


def assert_well_formed(data, whole):
    """What a damaged file may still say: 0/1 labels, one row per sample."""
    assert isinstance(data, MultiLabelData)
    for split in (data.train, data.test):
        assert len(split) > 0
        assert set(np.unique(split.targets)) <= {0, 1}
        assert len(set(split.ids)) == len(split.ids)
        if isinstance(split.inputs, np.ndarray):
            assert np.isfinite(split.inputs).all()
        else:
            assert all(Path(path).is_file() for path in split.inputs)
    assert type(data) is type(whole)


def assert_equal(one, other):
    for mine, yours in ((one.train, other.train), (one.test, other.test)):
        assert list(mine.ids) == list(yours.ids)
        assert np.array_equal(mine.targets, yours.targets)


@pytest.mark.parametrize("kind", ["jpg", "png", "gif", "webp", "tiff", "bmp"])
def test_damaged_images(kind, tmp_path):
    """Pillow reads what it can; else the error names the file."""
    from PIL import Image

    pixels = np.random.default_rng(0).integers(0, 256, (40, 30, 3), dtype=np.uint8)
    file = tmp_path / f"photo.{kind}"
    Image.fromarray(pixels).save(file)
    whole = file.read_bytes()
    refused = 0
    for case in range(CASES):
        dice = random.Random(f"{kind} {case}")
        file.write_bytes(damage(whole, dice))
        try:
            square = squash(read_image(file, size=16), 16)
        except (ValueError, FileNotFoundError) as error:
            refused += 1
            assert_names_a_file(error, file, case)
        else:
            assert square.shape == (3, 16, 16)
    assert refused
