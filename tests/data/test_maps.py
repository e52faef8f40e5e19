"""Stored maps: what is written is read, and nothing else is."""

import errno
import json
import os

import numpy as np
import pytest
import torch

from tkpr.data.assemble import loader
from tkpr.data.dataset import MultiLabelData, Split
from tkpr.data.maps import MapDataset, fingerprint, read_maps, write_maps

HEADER = {
    **{"format": 1, "network": "net", "weights": "ab", "cut": "layer3", "size": 64},
    **{"mean": [0.5], "std": [0.5], "interpolation": "bicubic", "precision": "32"},
    **{"map": [2, 1, 1], "train": 4, "test": 3, "images": "cd"},
}
VALUES = np.arange(22, dtype=np.float16).reshape(11, 2, 1, 1)


def write(file, header=HEADER, unreadable=()):
    write_maps(file, header, VALUES.shape, lambda: iter((VALUES[:5], VALUES[5:])), [*unreadable])


def split(count):
    names = [f"image-{number}" for number in range(count)]
    return Split(names, np.eye(count, 5, dtype=np.uint8), names)


def test_what_is_written_is_read(tmp_path):
    write(tmp_path / "deep" / "m.npy")
    maps = read_maps(tmp_path / "deep" / "m.npy", HEADER)
    assert isinstance(maps.array, np.memmap)
    assert np.array_equal(maps.array, VALUES)
    assert sorted(path.name for path in (tmp_path / "deep").iterdir()) == ["m.json", "m.npy"]


@pytest.mark.parametrize("key", sorted(HEADER))
def test_maps_made_from_something_else_are_refused(tmp_path, key):
    value = {"str": "other", "int": 9, "list": [9, 1, 1]}[type(HEADER[key]).__name__]
    write(tmp_path / "m.npy", HEADER | {key: value})
    with pytest.raises(ValueError, match=rf"m\.npy holds other maps \({key} is ") as caught:
        read_maps(tmp_path / "m.npy", HEADER)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("damage", ["no maps", "no header", "half", "short", "no json", "type"])
def test_incomplete_files_are_refused(tmp_path, damage):
    file, note = tmp_path / "m.npy", tmp_path / "m.json"
    write(file)
    if damage == "no maps":
        file.unlink()
    elif damage == "no header":
        note.unlink()
    elif damage == "half":
        file.write_bytes(file.read_bytes()[:-10])
    elif damage == "short":
        np.save(file, VALUES[:-1])
    elif damage == "type":
        np.save(file, VALUES.astype(np.float32))
    else:
        note.write_text(note.read_text()[:20])
    error = FileNotFoundError if damage.startswith("no ") and damage != "no json" else ValueError
    with pytest.raises(error, match=r"there are no maps at|not a whole file|holds other maps"):
        read_maps(file, HEADER)


@pytest.mark.parametrize(
    "content", ["[" * 100_000, "[]", "null", "{}", '{"content": "", "unreadable": [1e300]}']
)
def test_foreign_headers_are_refused(tmp_path, content):
    write(tmp_path / "m.npy")
    (tmp_path / "m.json").write_text(content)
    with pytest.raises(ValueError, match=r"m\.npy is not a whole file of maps .*: delete it"):
        read_maps(tmp_path / "m.npy", HEADER)


@pytest.mark.parametrize("rows", [[-1], [11], [0.5], [True], "12", {"1": 2}, None])
def test_unreadable_rows_are_rows(tmp_path, rows):
    write(tmp_path / "m.npy")
    header = json.loads((tmp_path / "m.json").read_text())
    (tmp_path / "m.json").write_text(json.dumps(header | {"unreadable": rows}))
    with pytest.raises(ValueError, match="not a whole file of maps"):
        read_maps(tmp_path / "m.npy", HEADER)


@pytest.mark.parametrize("kind", ["archive", "broken archive"])
def test_an_archive_is_no_file_of_maps(tmp_path, kind):
    write(tmp_path / "m.npy")
    with (tmp_path / "m.npy").open("wb") as file:
        if kind == "archive":
            np.savez(file, VALUES)
        else:
            file.write(b"PK\x03\x04 and nothing else")
    with pytest.raises(ValueError, match="not a whole file of maps"):
        read_maps(tmp_path / "m.npy", HEADER)


@pytest.mark.parametrize("large", [False, True])
def test_maps_that_changed_places_are_noticed(tmp_path, monkeypatch, large):
    if large:
        monkeypatch.setattr("tkpr.data.maps.READ_WHOLE", 1)
    write(tmp_path / "m.npy")
    assert np.array_equal(read_maps(tmp_path / "m.npy", HEADER).array, VALUES)
    np.save(tmp_path / "m.npy", VALUES[::-1])
    with pytest.raises(ValueError, match=r"holds other maps \(its content is not what was written"):
        read_maps(tmp_path / "m.npy", HEADER)


@pytest.mark.parametrize("when", ["maps", "header"])
def test_a_full_disk_leaves_nothing_half_written(tmp_path, monkeypatch, when):
    full = OSError(errno.ENOSPC, "No space left on device")

    def batches():
        yield VALUES[:5]
        raise full

    if when == "maps":
        with pytest.raises(OSError, match=r"m\.npy cannot be written .*No space left"):
            write_maps(tmp_path / "m.npy", HEADER, VALUES.shape, batches, [])
    else:
        monkeypatch.setattr("tkpr.data.maps.json.dumps", lambda *_, **__: _raise(full))
        with pytest.raises(OSError, match="No space left"):
            write(tmp_path / "m.npy")
    assert list(tmp_path.iterdir()) == []


def _raise(error):
    raise error


def test_training_images_are_mirrored_half_of_the_time(tmp_path):
    write(tmp_path / "m.npy")
    maps = read_maps(tmp_path / "m.npy", HEADER)
    dataset = MapDataset(maps, split(4), 2 * np.arange(4), augment=True, seed=3)
    seen = []
    for epoch in range(200):
        dataset.set_epoch(epoch)
        inputs, targets, index = dataset.__getitems__([2, 0])
        assert inputs.dtype == torch.float16
        assert (targets.argmax(1).tolist(), index.tolist()) == ([2, 0], [2, 0])
        # the values of the file count up: 4 per image, 2 per view
        rows = inputs[:, 0, 0, 0] / 2
        seen.append((rows - torch.tensor([4, 0])).tolist())
        again = MapDataset(maps, split(4), 2 * np.arange(4), augment=True, seed=3)
        again.set_epoch(epoch)
        assert again[2][0].equal(inputs[0])  # whatever the batch
    views = np.array(seen)
    assert set(np.unique(views)) == {0, 1}
    assert 70 < views[:, 0].sum() < 130
    assert not np.array_equal(views[:, 0], views[:, 1])


def test_test_images_are_as_they_are(tmp_path):
    write(tmp_path / "m.npy")
    maps = read_maps(tmp_path / "m.npy", HEADER)
    dataset = MapDataset(maps, split(3), 8 + np.arange(3))
    assert loader(dataset, batch_size=2, num_workers=2).num_workers == 0  # maps are not pickled
    assert dataset.__getitems__([0, 2])[0][:, 0, 0, 0].tolist() == [16, 20]


def test_unreadable_images_are_left_out(tmp_path):
    write(tmp_path / "m.npy", unreadable=[2, 9])
    maps = read_maps(tmp_path / "m.npy", HEADER)
    assert json.loads((tmp_path / "m.json").read_text())["unreadable"] == [2, 9]
    train = MapDataset(maps, split(4), 2 * np.arange(4))
    test = MapDataset(maps, split(3), 8 + np.arange(3))
    assert train.unreadable.tolist() == [False, True, False, False]
    assert test.unreadable.tolist() == [False, True, False]
    assert train.__getitems__([1, 3])[2].tolist() == [3]
    with pytest.raises(ValueError, match="image-1 cannot be read"):
        train[1]


def test_the_fingerprint_changes_with_names_order_and_files(tmp_path):
    paths = [tmp_path / name for name in ("a.jpg", "b.jpg")]
    for path in paths:
        path.write_bytes(b"12")
    targets = np.eye(2, dtype=np.uint8)

    def digest(inputs, ids):
        part = Split(inputs, targets, ids)
        return fingerprint(MultiLabelData(["x", "y"], part, part))

    first = digest(paths, ["a", "b"])
    assert digest(paths, ["a", "b"]) == first
    others = {digest(paths[::-1], ["b", "a"]), digest(paths, ["a", "c"])}
    paths[0].write_bytes(b"123")
    others |= {digest(paths, ["a", "b"]), digest(np.zeros((2, 4, 4), np.uint8), ["a", "b"])}
    paths[0].write_bytes(b"21")  # of the same length
    others |= {digest(paths, ["a", "b"])}
    assert len(others | {first}) == 6


def test_of_many_images_the_dates_count(tmp_path, monkeypatch):
    monkeypatch.setattr("tkpr.data.maps.READ_WHOLE", 1)
    path = tmp_path / "a.jpg"
    part = Split([path], np.ones((1, 1), np.uint8), ["a"])
    found = set()
    for date in (1, 2, 1):
        path.write_bytes(b"12")
        os.utime(path, ns=(date, date))
        found.add(fingerprint(MultiLabelData(["x"], part, part)))
    assert len(found) == 2
