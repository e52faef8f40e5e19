"""Damaged files in every format we read: the right answer, or an error that names the file.

TKPR_FUZZ sets the number of damaged files per format.
"""

import gzip
import io
import json
import os
import random
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

from tests.data.miniature import load, make_arff, make_coco, make_csv, make_nuswide, make_voc
from tests.robustness import readings
from tkpr.data.dataset import MultiLabelData
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
                *[mix_up(rb"[^\r\n]+", content, dice), mix_up(rb"[\w-]+", content, dice)] * 2,
            ]
        )
        content = content[:200_000]
    return content


def mix_up(pattern, content, dice):
    """Put a line or a word of a file in the place of another: often it still says something."""
    parts = list(re.finditer(pattern, content))
    if not parts:
        return content
    one, other = dice.choice(parts), dice.choice(parts)
    return content[: one.start()] + other[0] + content[one.end() :]


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


VALUES = [None, True, 0, 1, 7, -1, 1.5, 1e999, "", "1", "a", "../a", "a\0", [], {}, [1], {"id": 1}]


def damage_values(content, dice):
    """Change a few values of a JSON file, to others of any type."""
    tree = json.loads(content)
    for _ in range(dice.choice([1, 1, 2])):
        part = tree
        while True:
            key = dice.choice(list(part) if isinstance(part, dict) else range(len(part)))
            inner = part[key]
            if not isinstance(inner, dict | list) or not inner or dice.random() < 0.1:
                break
            part = inner
        part[key] = dice.choice([*VALUES, inner])
    return json.dumps(tree).encode()


# a way to make a folder, one to read it, the files of it to damage, a second way to read it
FORMATS = {
    "coco": (make_coco, lambda f: load("coco", f), "annotations/*.json", readings.coco),
    "coco values": (make_coco, lambda f: load("coco", f), "annotations/*.json", readings.coco),
    "voc lists": (
        make_voc,
        lambda f: load("voc2012", f),
        "VOCdevkit/VOC2012/ImageSets/Main/*.txt",
        readings.voc_lists,
    ),
    "voc xml": (
        make_voc,
        lambda f: load("voc2012", f, labels_from="xml"),
        "VOCdevkit/VOC2012/Annotations/*.xml",
        readings.voc_xml,
    ),
    "nuswide lists": (
        make_nuswide,
        lambda f: load("nuswide", f),
        "*.txt",
        readings.nuswide_lists,
    ),
    "nuswide packed": (make_packed, lambda f: load("nuswide", f), "*.gz", readings.nuswide_lists),
    "nuswide original": (
        lambda f: make_nuswide(f, "original"),
        lambda f: load("nuswide", f, version="original"),
        "*/**/*.txt",
        readings.nuswide_original,
    ),
    "nuswide csv": (
        lambda f: make_nuswide(f, "csv"),
        lambda f: load("nuswide", f, version="csv"),
        "*.csv",
        readings.nuswide_csv,
    ),
    "csv": (make_csv, lambda f: load("csv", f), "*.csv", readings.table),
    "csv per class": (
        lambda f: make_csv(f, per_class=True),
        lambda f: load("csv", f),
        "*.csv",
        readings.table,
    ),
    "arff": (make_arff, lambda f: load("arff", f, name="mini"), "mini*", readings.arff),
    "arff sparse": (
        lambda f: make_arff(f, sparse=True, split=False),
        lambda f: load("arff", f, name="mini"),
        "mini*",
        readings.arff,
    ),
    "features": (make_features, read_features, "f.npz", readings.features),
}


@pytest.mark.parametrize("name", FORMATS)
def test_damaged_lists_and_annotations(name, tmp_path):
    """What is read from a damaged file is what it says: another way to read it finds the same."""
    make, read, pattern, read_again = FORMATS[name]
    folder = tmp_path / "data"
    make(folder)
    whole = read(folder)
    assert_says(whole, read_again(folder))
    files = sorted(file for file in folder.glob(pattern) if file.is_file())
    change = damage_values if name == "coco values" else damage
    refused = 0
    for case in range(CASES):
        dice = random.Random(f"{name} {case}")
        file = dice.choice(files)
        content = file.read_bytes()
        file.write_bytes(change(content, dice))
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
            try:
                assert_says(found, read_again(folder))
            except Exception as error:
                shutil.copy(file, tmp_path / f"case{case}{file.suffix}")
                raise AssertionError(f"case {case}, {file.name}: {error!r}") from error
        file.write_bytes(content)
    assert refused
    assert_says(read(folder), read_again(folder))


@pytest.mark.parametrize("name", FORMATS)
def test_a_wrong_answer_would_be_noticed(name, tmp_path):
    """One label, one sample or one feature that is not as the file says."""
    make, read, _, read_again = FORMATS[name]
    make(tmp_path / "data")
    data, reading = read(tmp_path / "data"), read_again(tmp_path / "data")
    split = data.test
    assert_says(data, reading)
    wrong = [replace(split, targets=1 - split.targets), split.subset(np.arange(1, len(split)))]
    if isinstance(split.inputs, np.ndarray):
        wrong.append(replace(split, inputs=split.inputs + np.eye(*split.inputs.shape)))
    if None not in {told[0] for told in reading.values()}:
        wrong.append(data.train)
    for part in wrong:
        with pytest.raises(AssertionError):
            assert_says(replace(data, test=part), reading)


def assert_says(data, reading):
    """The samples, their splits, labels and features are those of another reading."""
    found = {}
    for split, part in (("train", data.train), ("test", data.test)):
        for name, row, features in zip(part.ids, part.targets, part.inputs, strict=True):
            labels = {data.class_names[at] for at in np.flatnonzero(row)}
            found[name] = split, labels, features if isinstance(features, np.ndarray) else None
    assert found.keys() == reading.keys()
    for name, (split, labels, features) in found.items():
        told = reading[name]
        assert told[0] in (None, split), (name, told, split)
        assert told[1] == labels, (name, told, labels)
        assert told[2] is None or np.array_equal(told[2], features), (name, told, features)


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


@pytest.mark.parametrize("kind", ["jpg", "png", "gif", "webp", "tiff", "bmp"])
def test_damaged_images(kind, tmp_path):
    """The pixels are those that Pillow finds in the same bytes, or the error names the file."""
    pixels = np.random.default_rng(0).integers(0, 256, (40, 30, 3), dtype=np.uint8)
    file = tmp_path / f"photo.{kind}"
    Image.fromarray(pixels).save(file)
    whole = file.read_bytes()
    refused = 0
    for case in range(CASES):
        damaged = damage(whole, random.Random(f"{kind} {case}"))
        file.write_bytes(damaged)
        try:
            image = read_image(file, size=8)
        except (ValueError, FileNotFoundError) as error:
            refused += 1
            assert_names_a_file(error, file, case)
            continue
        again = Image.open(io.BytesIO(damaged))
        again.draft(None, (16, 16))  # a JPEG of many pixels is decoded at a part of its size
        wanted = on_white(again)
        assert np.abs(np.asarray(image, int) - wanted).max() <= 1, case
        square = Image.fromarray(wanted.astype(np.uint8)).resize((8, 8), Image.Resampling.BILINEAR)
        difference = squash(image, 8).permute(1, 2, 0).numpy().astype(int) - np.asarray(square, int)
        assert np.abs(difference).max() <= 2, case
    assert refused


def on_white(image):
    """Pixels by Pillow, upright, with transparent parts white."""
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I;16"):
        return np.repeat(np.asarray(image).astype(int)[..., None] // 256, 3, axis=2)
    pixels = np.asarray(image.convert("RGBA"), int)
    share = pixels[..., 3:] / 255
    return np.round(pixels[..., :3] * share + 255 * (1 - share)).astype(int)
