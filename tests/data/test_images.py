import io
import os
import shutil
import signal
import time
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import RandomSampler

from tkpr.data import images
from tkpr.data.assemble import loader
from tkpr.data.cache import ImageCache
from tkpr.data.dataset import Split
from tkpr.data.images import ImageDataset, read_image, squash, to_rgb
from tkpr.data.transforms import PixelsToFloat, RandAugment
from tkpr.training.predict import fabric_on, predict


def photograph(width=120, height=90):
    x, y = np.meshgrid(np.linspace(0, 3, width), np.linspace(0, 2, height))
    pixels = np.stack([np.sin(x + y), np.cos(2 * x), np.sin(x * y)], axis=-1) * 100 + 128
    return Image.fromarray(pixels.astype(np.uint8))


def difference(one, other):
    return np.abs(np.asarray(one, int) - np.asarray(other, int))


@pytest.fixture
def split(tmp_path):
    """Eight JPEG files of different sizes."""
    paths = []
    for number in range(8):
        paths.append(tmp_path / f"{number}.jpg")
        photograph(60 + 10 * number, 80).rotate(10 * number).save(paths[-1], quality=95)
    targets = np.eye(8, 5, dtype=np.uint8)
    return Split(paths, targets, [path.stem for path in paths])


@pytest.fixture
def decodes(monkeypatch):
    """The paths that were decoded."""
    seen = []
    original = images.read_image

    def counted(path, **options):
        seen.append(path)
        return original(path, **options)

    monkeypatch.setattr(images, "read_image", counted)
    return seen


# Reading


def test_grey_jpeg(tmp_path):
    photograph().convert("L").save(tmp_path / "grey.jpg", quality=100)
    image = read_image(tmp_path / "grey.jpg")
    assert image.mode == "RGB"
    assert difference(image, photograph().convert("L").convert("RGB")).max() <= 3


def test_cmyk_jpeg(tmp_path):
    photograph().convert("CMYK").save(tmp_path / "cmyk.jpg", quality=100)
    image = read_image(tmp_path / "cmyk.jpg")
    assert image.mode == "RGB"
    assert difference(image, photograph()).mean() < 2


def test_palette(tmp_path):
    photograph().quantize(256).save(tmp_path / "palette.png")
    assert Image.open(tmp_path / "palette.png").mode == "P"
    image = read_image(tmp_path / "palette.png")
    assert image.mode == "RGB"
    assert difference(image, photograph()).mean() < 6


def test_sixteen_bits(tmp_path):
    values = np.linspace(0, 65535, 120 * 90).reshape(90, 120).astype(np.uint16)
    Image.fromarray(values).save(tmp_path / "deep.png")
    image = read_image(tmp_path / "deep.png")
    assert np.array_equal(np.asarray(image)[..., 1], values >> 8)


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_transparent_parts_become_white(tmp_path, mode):
    image = Image.new("RGBA", (4, 4), (255, 0, 0, 0))
    image.paste((0, 0, 0, 255), (0, 0, 2, 4))
    image.convert(mode).save(tmp_path / "hole.png")
    pixels = np.asarray(read_image(tmp_path / "hole.png"))
    assert (pixels[:, :2] == 0).all()
    assert (pixels[:, 2:] == 255).all()


@pytest.mark.parametrize("orientation", range(1, 9))
def test_rotation_by_exif_is_carried_out(tmp_path, orientation):
    upright = photograph()
    exif = Image.Exif()
    exif[0x0112] = orientation
    turn = Image.Transpose
    stored = {  # how a camera stores an upright picture under each tag
        1: upright,
        2: upright.transpose(turn.FLIP_LEFT_RIGHT),
        3: upright.transpose(turn.ROTATE_180),
        4: upright.transpose(turn.FLIP_TOP_BOTTOM),
        5: upright.transpose(turn.TRANSPOSE),
        6: upright.transpose(turn.ROTATE_90),
        7: upright.transpose(turn.TRANSVERSE),
        8: upright.transpose(turn.ROTATE_270),
    }[orientation]
    stored.save(tmp_path / "turned.jpg", quality=100, subsampling=0, exif=exif)
    image = read_image(tmp_path / "turned.jpg", size=32)
    assert image.size == upright.size
    assert difference(image, upright).max() <= 4


def test_floats_are_refused(tmp_path):
    Image.new("F", (4, 4), 0.5).save(tmp_path / "float.tiff")
    with pytest.raises(ValueError, match=r"float.tiff cannot be read \(pixels of mode F"):
        read_image(tmp_path / "float.tiff")


@pytest.mark.parametrize(
    ("name", "spoil"),
    [
        ("cut.jpg", lambda content: content[: len(content) // 2]),
        ("cut.png", lambda content: content[: len(content) // 2]),
        ("empty.jpg", lambda content: b""),
        ("text.jpg", lambda content: b"<html>404 not found</html>"),
        ("bad.png", lambda content: content[:60] + b"\0" * 60 + content[120:]),
    ],
)
def test_broken_files_are_named(tmp_path, name, spoil):
    buffer = io.BytesIO()
    photograph().save(buffer, "PNG" if name.endswith("png") else "JPEG")
    (tmp_path / name).write_bytes(spoil(buffer.getvalue()))
    with pytest.raises(ValueError, match=rf"{name} cannot be read .* replace it"):
        read_image(tmp_path / name)


def test_broken_file_is_named_by_a_worker(split):
    split.inputs[3].write_bytes(split.inputs[3].read_bytes()[:500])
    with pytest.raises(ValueError, match=r"3\.jpg cannot be read"):
        list(loader(ImageDataset(split, size=16), batch_size=4, num_workers=1))


def test_missing_file_is_named(split):
    split.inputs[3].unlink()
    with pytest.raises(FileNotFoundError, match=r"no image file .*3\.jpg"):
        ImageDataset(split, size=16)[3]


# Squashing


@pytest.mark.parametrize("size", [(500, 375), (333, 500), (64, 448), (40, 40)])
def test_squash_is_pillows_to_within_one_level(size):
    image = photograph(*size)
    wanted = image.resize((112, 112), Image.Resampling.BILINEAR)
    got = squash(image, 112)
    assert got.shape == (3, 112, 112)
    assert got.dtype == torch.uint8
    assert difference(got.permute(1, 2, 0), wanted).max() <= 1


def test_an_image_of_the_right_size_is_left_alone():
    image = photograph(32, 32)
    assert np.array_equal(squash(image, 32).permute(1, 2, 0), image)


def test_grey_pixels_from_memory():
    pixels = np.arange(64, dtype=np.uint8).reshape(8, 8)
    assert np.array_equal(squash(pixels, 8), np.stack([pixels] * 3))
    assert np.array_equal(to_rgb(Image.fromarray(pixels)).getchannel(2), pixels)


def test_large_jpegs_are_decoded_at_a_smaller_scale(tmp_path):
    photograph(1024, 768).save(tmp_path / "large.jpg", quality=95)
    small = read_image(tmp_path / "large.jpg", size=64)
    assert small.size == (256, 192)  # not below twice the square
    wanted = squash(read_image(tmp_path / "large.jpg"), 64)
    assert difference(squash(small, 64), wanted).mean() < 0.5
    assert difference(squash(small, 64), wanted).max() <= 4
    assert read_image(tmp_path / "large.jpg", size=448).size == (1024, 768)


# Data set


def test_items_and_batches(split):
    dataset = ImageDataset(split, size=24)
    image, targets, index = dataset[2]
    assert (image.shape, image.dtype, index) == ((3, 24, 24), torch.uint8, 2)
    assert targets.tolist() == [0, 0, 1, 0, 0]
    batch, batch_targets, batch_index = dataset.__getitems__([7, 2])
    assert torch.equal(batch[1], image)
    assert torch.equal(batch_targets[1], targets)
    assert batch_targets.dtype == torch.float32
    assert batch_index.tolist() == [7, 2]


def test_augmentation_depends_on_seed_epoch_and_index_alone(split):
    def epoch(dataset, number, order=range(8)):
        dataset.set_epoch(number)
        return {index: dataset[index][0] for index in order}

    def equal(one, other):
        return [torch.equal(one[index], other[index]) for index in range(8)]

    dataset = ImageDataset(split, size=24, augment=RandAugment(), seed=5)
    first = epoch(dataset, 0)
    torch.manual_seed(99)
    before = torch.get_rng_state()
    assert all(equal(first, epoch(dataset, 0, range(7, -1, -1))))
    assert torch.equal(torch.get_rng_state(), before)
    assert not all(equal(first, epoch(dataset, 1)))
    other_seed = ImageDataset(split, size=24, augment=RandAugment(), seed=6)
    assert not all(equal(first, epoch(other_seed, 0)))
    assert len({image.numpy().tobytes() for image in first.values()}) == 8


def test_batches_are_the_same_for_any_number_of_workers(split):
    def epochs(num_workers):
        dataset = ImageDataset(split, size=24, augment=RandAugment(), seed=5)
        sampler = RandomSampler(dataset, generator=torch.Generator().manual_seed(0))
        batches = loader(dataset, batch_size=3, sampler=sampler, num_workers=num_workers)
        seen = []
        for epoch in range(3):  # the same workers serve all three
            dataset.set_epoch(epoch)
            seen += list(batches)
        return seen

    alone = epochs(0)
    assert len(alone) == 9
    assert not torch.equal(alone[0][2], alone[3][2])
    for num_workers in (1, 2):
        for batch, other in zip(alone, epochs(num_workers), strict=True):
            assert all(torch.equal(a, b) for a, b in zip(batch, other, strict=True))


def test_a_batch_of_unreadable_images_is_empty(split, tmp_path):
    for path in split.inputs[4:7]:
        path.write_bytes(b"no image")
    split.inputs[7].unlink()
    dataset = ImageDataset(split, size=24, on_error="skip")
    for num_workers in (0, 1):
        whole, empty = loader(dataset, batch_size=4, num_workers=num_workers)
        assert [len(part) for part in whole] == [4, 4, 4]
        assert [part.shape[1:] for part in empty] == [part.shape[1:] for part in whole]
        assert [part.dtype for part in empty] == [part.dtype for part in whole]
        assert [len(part) for part in empty] == [0, 0, 0]
        assert dataset.unreadable.tolist() == [False] * 4 + [True] * 4


def test_predictions_go_on_without_unreadable_images(split, caplog):
    for path in split.inputs[4:]:
        path.unlink()
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 2)).eval()
    dataset = ImageDataset(split, size=8, on_error="skip")
    logits = predict(model, dataset, PixelsToFloat(), fabric_on("cpu"), batch_size=3)
    images = PixelsToFloat()(torch.stack([dataset[index][0] for index in range(4)]))
    expected = model(images.contiguous()).detach()
    np.testing.assert_allclose(logits[:4], expected, rtol=1e-5, atol=1e-6)
    assert not logits[4:].any()
    assert [line.split()[-1] for line in caplog.messages] == list(split.ids[4:])
    for path in split.inputs[:4]:
        path.unlink()
    with pytest.raises(ValueError, match="not one of the 8 images can be read"):
        predict(model, dataset, PixelsToFloat(), fabric_on("cpu"), batch_size=3)


# Cache


def cached(split, folder, size=24, **options):
    cache = ImageCache(folder, split.inputs, size=size)
    return ImageDataset(split, size=size, cache=cache, **options)


def test_a_second_epoch_decodes_nothing(split, tmp_path, decodes):
    plain = ImageDataset(split, size=24)
    wanted = [plain[index][0] for index in range(8)]
    decodes.clear()
    dataset = cached(split, tmp_path / "cache", augment=None)
    for _ in range(2):
        assert all(torch.equal(dataset[index][0], wanted[index]) for index in range(8))
        assert decodes == split.inputs
    again = cached(split, tmp_path / "cache")  # as another run would
    assert all(torch.equal(again[index][0], wanted[index]) for index in range(8))
    assert len(decodes) == 8


def test_workers_fill_the_cache_for_all(split, tmp_path, decodes):
    list(loader(cached(split, tmp_path / "cache"), batch_size=2, num_workers=2))
    dataset = cached(split, tmp_path / "cache")
    assert torch.equal(dataset[4][0], ImageDataset(split, size=24)[4][0])
    assert len(decodes) == 1  # by the data set without cache


def test_augmentation_does_not_enter_the_cache(split, tmp_path):
    def brighter(image):
        return image.clamp_(min=200)

    dataset = cached(split, tmp_path / "cache", augment=brighter)
    assert dataset[0][0].min() == 200
    assert torch.equal(cached(split, tmp_path / "cache")[0][0], ImageDataset(split, size=24)[0][0])


def test_changed_files_and_other_sizes_are_decoded_anew(split, tmp_path, decodes):
    for dataset in (cached(split, tmp_path / "cache"), cached(split, tmp_path / "cache", size=16)):
        dataset.__getitems__(range(8))
    assert len(decodes) == 16
    photograph(50, 50).save(split.inputs[0])
    dataset = cached(split, tmp_path / "cache")
    assert torch.equal(dataset[0][0], ImageDataset(split, size=24)[0][0])


def test_damaged_records_are_not_read(split, tmp_path, decodes):
    dataset = cached(split, tmp_path / "cache")
    dataset.__getitems__(range(8))
    record = 4 + 3 * 24 * 24
    with open(dataset.cache.path, "r+b") as file:
        file.seek(3 * record + 1000)  # as if writing had stopped within record 3
        file.write(b"\0" * (record - 1000))
    decodes.clear()
    again = cached(split, tmp_path / "cache")
    wanted = ImageDataset(split, size=24).__getitems__(range(8))[0]
    decodes.clear()
    assert torch.equal(again.__getitems__(range(8))[0], wanted)
    assert decodes == [split.inputs[3]]
    assert again.cache.get(3) is not None


def test_a_missing_image_does_not_stop_the_cache(split, tmp_path):
    split.inputs[1].unlink()
    with pytest.raises(FileNotFoundError, match="there is no image file"):
        cached(split, tmp_path / "cache")[1]
    dataset = cached(split, tmp_path / "cache", on_error="skip")
    assert dataset.__getitems__([0, 1])[2].tolist() == [0]
    shutil.copy(split.inputs[0], split.inputs[1])  # it has come: another cache
    assert cached(split, tmp_path / "cache").cache.path != dataset.cache.path


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no disk that is always full")
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_full_disk_is_named(split, tmp_path, on_error):
    dataset = cached(split, tmp_path / "cache", on_error=on_error)
    dataset.cache.path = Path("/dev/full")
    with pytest.raises(OSError, match=r"/dev/full cannot be written \(.*No space left .*make room"):
        dataset.__getitems__([0])
    assert not dataset.unreadable.any()  # the image is not to blame


def test_half_a_record_is_an_error(split, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "pwrite", lambda file, record, at: len(record) // 2)
    with pytest.raises(OSError, match=r"\.bin cannot be written \(wrote 866 of 1732 bytes\)"):
        cached(split, tmp_path / "cache")[0]


def test_parts_share_one_cache(split, tmp_path):
    whole = ImageCache(tmp_path / "cache", split.inputs, size=4)
    whole.put(5, torch.full((3, 4, 4), 7, dtype=torch.uint8))
    part = whole.subset(np.array([1, 5]))
    assert part.get(0) is None
    assert part.get(1).unique().tolist() == [7]


def _write_forever(path, inputs):
    cache = ImageCache(path, inputs, size=64)
    while True:
        for value in range(256):
            cache.put(0, torch.full((3, 64, 64), value, dtype=torch.uint8))
            time.sleep(0.001)


def test_reader_beside_a_writer_that_is_killed(split, tmp_path):
    """Whatever is read is whole: one value, never a mixture of two."""
    cache = ImageCache(tmp_path / "cache", split.inputs, size=64)
    writer = get_context("fork").Process(
        target=_write_forever, args=(tmp_path / "cache", split.inputs), daemon=True
    )
    writer.start()
    reads = 0
    deadline = time.monotonic() + 60
    while reads < 50 and time.monotonic() < deadline:
        if (image := cache.get(0)) is not None:
            reads += 1
            assert len(image.unique()) == 1
    os.kill(writer.pid, signal.SIGKILL)
    writer.join()
    assert reads == 50
    if (image := cache.get(0)) is not None:
        assert len(image.unique()) == 1


def test_an_error_of_the_augmentation_is_not_taken_for_an_unreadable_image():
    def broken(image):
        raise ValueError("crop larger than the image")

    split = Split([np.zeros((8, 8), np.uint8)], np.ones((1, 2), dtype=np.uint8), ["a"])
    dataset = ImageDataset(split, size=8, augment=broken, on_error="skip")
    with pytest.raises(ValueError, match="crop larger"):
        dataset.__getitems__([0])
    assert not dataset.unreadable.any()
