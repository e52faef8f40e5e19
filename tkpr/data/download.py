"""Fetch VOC and COCO from their official addresses: resumable, verified, safely unpacked."""

import hashlib
import http.client
import shutil
import stat
import tarfile
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from tkpr.data.files import inside

ATTEMPTS = 5
WAIT = 1.0  # seconds before the second attempt, twice as many before the third, ...
TIMEOUT = 60  # seconds without a byte
CHUNK = 1 << 20


@dataclass(frozen=True)
class Archive:
    """A file to download and unpack.

    Attributes:
        url: its address.
        size: its size in bytes.
        md5: its MD5 sum.
        provides: a path, relative to the folder it is unpacked in, that it brings.
    """

    url: str
    size: int
    md5: str
    provides: str

    @property
    def name(self) -> str:
        """The name of the file."""
        return self.url.rpartition("/")[2]


_VOC = "http://host.robots.ox.ac.uk/pascal/VOC"
_COCO = "http://images.cocodataset.org"

# Sizes and sums as the servers and the published checksum lists give them.
ARCHIVES = {
    ("tkpr.data.voc.load_voc", 2007): (
        Archive(
            f"{_VOC}/voc2007/VOCtrainval_06-Nov-2007.tar",
            460_032_000,
            "c52e279531787c972589f7e41ab4ae64",
            "VOCdevkit/VOC2007/ImageSets/Main/trainval.txt",
        ),
        Archive(
            f"{_VOC}/voc2007/VOCtest_06-Nov-2007.tar",
            451_020_800,
            "b6e924de25625d8de591ea690078ad9f",
            "VOCdevkit/VOC2007/ImageSets/Main/test.txt",
        ),
    ),
    ("tkpr.data.voc.load_voc", 2012): (
        Archive(
            f"{_VOC}/voc2012/VOCtrainval_11-May-2012.tar",
            1_999_639_040,
            "6cd6e144f989b92b3379bac3b3de84fd",
            "VOCdevkit/VOC2012/ImageSets/Main/trainval.txt",
        ),
    ),
    ("tkpr.data.coco.load_coco", 2014): (
        Archive(
            f"{_COCO}/annotations/annotations_trainval2014.zip",
            252_872_794,
            "0a379cfc70b0e71301e0f377548639bd",
            "annotations/instances_train2014.json",
        ),
        Archive(
            f"{_COCO}/zips/val2014.zip",
            6_645_013_297,
            "a3d79f5ed8d289b7a7554ce06a5782b3",
            "val2014",
        ),
        Archive(
            f"{_COCO}/zips/train2014.zip",
            13_510_573_713,
            "0da8c0bd3d6becc4dcb32757491aca88",
            "train2014",
        ),
    ),
    ("tkpr.data.coco.load_coco", 2017): (
        Archive(
            f"{_COCO}/annotations/annotations_trainval2017.zip",
            252_907_541,
            "f4bbac642086de4f52a3fdda2de5fa2c",
            "annotations/instances_train2017.json",
        ),
        Archive(
            f"{_COCO}/zips/val2017.zip",
            815_585_330,
            "442b8da7639aecaf257c1dceb8ba8c80",
            "val2017",
        ),
        Archive(
            f"{_COCO}/zips/train2017.zip",
            19_336_861_798,
            "cced6f7f71b7629ddf16f17bbcfab6b2",
            "train2017",
        ),
    ),
}
"""What to fetch for which loader and year, the small files first."""


def download(archives: Sequence[Archive], folder: Path) -> None:
    """Fetch and unpack what ``folder`` lacks; call it again to go on after an interruption.

    An unpacked archive is removed and leaves an empty file ``<name>.unpacked``. What the user
    put there without this function is left alone.

    >>> download([], Path("data/voc2012"))
    """
    for archive in archives:
        folder.mkdir(parents=True, exist_ok=True)
        packed, mark = folder / archive.name, folder / f"{archive.name}.unpacked"
        begun = packed.exists() or _part(packed).exists()
        if mark.exists() or ((folder / archive.provides).exists() and not begun):
            tqdm.write(f"{archive.name}: {folder / archive.provides} is already there")
            continue
        fetch(archive, packed)
        unpack(packed, folder)
        mark.touch()
        packed.unlink()


def fetch(archive: Archive, target: Path) -> None:
    """Download an archive to ``target``, going on where an earlier attempt was cut off.

    The bytes go to ``<target>.part``, which gets its final name once size and sum are right.
    """
    if target.exists():
        return
    part = _part(target)
    here = part.stat().st_size if part.exists() else 0
    free = shutil.disk_usage(target.parent).free
    if free < 2 * archive.size - here:
        raise OSError(
            f"{target.parent} has {free / 1e9:.1f} GB free; {archive.name} needs "
            f"{(2 * archive.size - here) / 1e9:.1f} GB to be downloaded and unpacked"
        )
    for attempt in range(ATTEMPTS):
        time.sleep(attempt * WAIT)
        reason = "it broke off"
        try:
            _append(archive, part)
        except urllib.error.HTTPError as error:
            if error.code < 500:  # asking again will not help
                raise ConnectionError(f"{archive.url}: {error}") from error
            reason = str(error)
        except (OSError, http.client.HTTPException) as error:
            reason = str(error)
        here = part.stat().st_size if part.exists() else 0
        if here == archive.size:
            break
    else:
        raise ConnectionError(
            f"{archive.url}: {reason}, {ATTEMPTS} times; {here:,} of {archive.size:,} bytes are "
            "kept, start again to go on"
        )
    with part.open("rb") as file:
        found = hashlib.file_digest(file, "md5").hexdigest()
    if found != archive.md5:
        part.unlink()
        raise ValueError(
            f"{archive.url} arrived with the MD5 sum {found} instead of {archive.md5} and was "
            "thrown away; start again"
        )
    part.rename(target)


def _part(target: Path) -> Path:
    """Return the name under which an unfinished download is kept."""
    return target.with_name(f"{target.name}.part")


def _append(archive: Archive, part: Path) -> None:
    """Ask for what ``part`` lacks and write it, with a progress bar."""
    start = part.stat().st_size if part.exists() else 0
    if start >= archive.size:
        return
    request = urllib.request.Request(archive.url, headers={"Range": f"bytes={start}-"})
    with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
        if answer.status == 206:
            sent, _, total = answer.headers["Content-Range"].removeprefix("bytes ").partition("/")
            start = int(sent.partition("-")[0])
        else:  # the server knows no ranges and sends everything
            start, total = 0, answer.headers["Content-Length"]
        if total not in (None, "*", str(archive.size)):
            raise ValueError(
                f"{archive.url} has {total} bytes, expected {archive.size}: it is another file"
            )
        with (
            part.open("r+b" if part.exists() else "wb") as file,
            tqdm(
                desc=archive.name,
                total=archive.size,
                initial=start,
                unit="B",
                unit_scale=True,
                disable=None,
            ) as bar,
        ):
            file.truncate(start)
            file.seek(start)
            while chunk := answer.read(CHUNK):
                file.write(chunk)
                bar.update(len(chunk))


def unpack(packed: Path, folder: Path) -> None:
    """Unpack a tar or zip file into ``folder``; a member that leads out of it is an error."""
    bar = {"desc": f"unpacking {packed.name}", "unit": "file", "disable": None}
    if packed.suffix == ".zip":
        with zipfile.ZipFile(packed) as members:
            for member in tqdm(members.infolist(), **bar):
                inside(folder, member.filename, where=str(packed))
                if stat.S_ISLNK(member.external_attr >> 16):
                    raise ValueError(f"{packed}: {member.filename!r} is a symbolic link")
                members.extract(member, folder)
    else:
        with tarfile.open(packed) as members:
            for member in tqdm(members, **bar):
                members.extract(member, folder, filter="data")
