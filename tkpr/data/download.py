"""Download archives from their official addresses: resumable, verified, safely unpacked."""

import fcntl
import hashlib
import http.client
import io
import re
import shutil
import stat
import tarfile
import time
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tqdm import tqdm

from tkpr.data.dataset import declared
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
        provides: a path that it unpacks to, relative to the target folder.
        options: the arguments of the loader that need this archive.
    """

    url: str
    size: int
    md5: str
    provides: str
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The file name."""
        return self.url.rpartition("/")[2]


def archives_of(target: str, options: Mapping[str, Any]) -> list[Archive]:
    """Return the archives of the data set that ``target`` loads with ``options``.

    A loader's module declares them as ``ARCHIVES``, small files first.

    >>> [archive.name for archive in archives_of("tkpr.data.voc.load_voc", {"year": 2012})]
    ['VOCtrainval_11-May-2012.tar']
    >>> archives_of("tkpr.data.csv.load_csv", {"root": "mine"})
    []
    """
    declared_here = declared(target, "ARCHIVES")
    return [archive for archive in declared_here if archive.options.items() <= options.items()]


def download(archives: Sequence[Archive], folder: Path) -> None:
    """Fetch and unpack what ``folder`` lacks; call it again to continue after an interruption.

    Every archive is verified before it is unpacked, including one that was already there. It is
    removed once it is unpacked, and an empty file ``<name>.unpacked`` takes its place. A data set
    that was put there by other means is left alone.

    >>> download([], Path("data/voc2012"))
    """
    if not archives:
        return
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder):
        for archive in archives:
            packed, mark = folder / archive.name, folder / f"{archive.name}.unpacked"
            started = packed.exists() or _part(packed).exists()
            complete = mark.exists() or not started
            if complete and (folder / archive.provides).exists():
                tqdm.write(f"{archive.name}: {folder / archive.provides} already exists")
                continue
            if packed.exists():
                verify(archive, packed)
            else:
                fetch(archive, packed)
            unpack(packed, folder)
            if not (folder / archive.provides).exists():
                raise ValueError(f"{packed} was unpacked but holds no {archive.provides}")
            mark.touch()
            packed.unlink()


def verify(archive: Archive, path: Path) -> None:
    """Raise an error if ``path`` is not the published archive; the file is kept."""
    if (size := path.stat().st_size) != archive.size:
        difference = f"{size:,} bytes instead of {archive.size:,}"
    elif (found := _md5(path)) != archive.md5:
        difference = f"the MD5 sum {found} instead of {archive.md5}"
    else:
        return
    raise ValueError(
        f"{path} has {difference}: it is damaged or another file; move it away and start again"
    )


def fetch(archive: Archive, target: Path) -> None:
    """Download an archive to ``target``, continuing an earlier attempt.

    The bytes go to ``<target>.part``, which is renamed once its size and sum are right.
    """
    part = _part(target)
    present = part.stat().st_size if part.exists() else 0
    if present > archive.size:  # not the start of this archive
        part.unlink()
        present = 0
    free, needed = shutil.disk_usage(target.parent).free, 2 * archive.size - present
    if free < needed:
        raise OSError(
            f"{target.parent} has {free / 1e9:.1f} GB free; {archive.name} needs "
            f"{needed / 1e9:.1f} GB to be downloaded and unpacked"
        )
    with (
        part.open("ab", buffering=0) as file,  # unbuffered: a full disk fails a write, not close()
        tqdm(
            desc=archive.name,
            total=archive.size,
            initial=present,
            unit="B",
            unit_scale=True,
            disable=None,
        ) as bar,
    ):
        for attempt in range(ATTEMPTS):
            time.sleep(attempt * WAIT)
            reason = "the connection was closed early"
            try:
                for position, chunk in _receive(archive, file.seek(0, 2)):
                    _write(file, position, chunk)
                    bar.update(position + len(chunk) - bar.n)
            except ConnectionError as error:
                reason = str(error)
            present = file.seek(0, 2)
            if present == archive.size:
                break
        else:
            raise ConnectionError(
                f"{archive.url}: {reason} ({ATTEMPTS} attempts); {present:,} of "
                f"{archive.size:,} bytes are kept, start again to continue"
            )
    if (found := _md5(part)) != archive.md5:
        part.unlink()  # else it would never be downloaded again
        raise ValueError(
            f"{archive.url} arrived with the MD5 sum {found} instead of {archive.md5} and was "
            "discarded; start again"
        )
    part.rename(target)


def _write(file: io.FileIO, position: int, chunk: bytes) -> None:
    """Write ``chunk`` at ``position``, where the file ends afterwards."""
    try:
        file.truncate(position)
        if file.write(chunk) < len(chunk):
            raise OSError("no space left")
    except OSError as error:
        raise OSError(
            f"{file.name} cannot be written ({error}); make room and start again to continue"
        ) from error


def _receive(archive: Archive, start: int) -> Iterator[tuple[int, bytes]]:
    """Yield (position, bytes) of an archive from byte ``start`` on.

    Raises:
        ConnectionError: the connection failed; another attempt may succeed.
        ValueError: the server does not have this archive.
    """
    if start == archive.size:
        return
    request = urllib.request.Request(archive.url, headers={"Range": f"bytes={start}-"})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
            position = _position(archive, answer, start)
            while chunk := answer.read(min(CHUNK, archive.size - position + 1)):
                if position + len(chunk) > archive.size:
                    raise ValueError(
                        f"{archive.url} sends more than the expected {archive.size:,} bytes: it "
                        "is another file"
                    )
                yield position, chunk
                position += len(chunk)
    except urllib.error.HTTPError as error:
        if 400 <= error.code < 500 and error.code not in (408, 429):  # asking again will not help
            raise ValueError(f"{archive.url}: {error}") from error
        raise ConnectionError(str(error)) from error
    except (OSError, http.client.HTTPException) as error:
        raise ConnectionError(str(error) or repr(error)) from error


def _position(archive: Archive, answer: http.client.HTTPResponse, start: int) -> int:
    """Return the position of the first byte of an answer: ``start``, or 0 without range support."""
    total = answer.headers["Content-Length"]
    if answer.status == 206:
        content_range = answer.headers["Content-Range"] or ""
        match = re.fullmatch(r"bytes (\d{1,18})-\d+/(\d+|\*)", content_range, re.ASCII)
        if match is None or int(match[1]) != start:
            raise ValueError(
                f"{archive.url}: asked for the bytes from {start} on, the server answered with "
                f"Content-Range {content_range!r:.60}; try again later, or download the file to "
                "the folder by other means"
            )
        total = match[2]
    if total not in (None, "*", str(archive.size)):
        raise ValueError(
            f"{archive.url} has {total:.20} bytes, expected {archive.size}: it is another file"
        )
    return start if answer.status == 206 else 0


def unpack(packed: Path, folder: Path) -> None:
    """Unpack a tar or zip file into ``folder``; a member that leads out of it is an error."""
    bar = {"desc": f"unpacking {packed.name}", "unit": "file", "disable": None}
    try:
        if packed.suffix == ".zip":
            with zipfile.ZipFile(packed) as archive:
                for entry in tqdm(archive.infolist(), **bar):
                    inside(folder, entry.filename, where=str(packed))
                    if stat.S_ISLNK(entry.external_attr >> 16):
                        raise ValueError(f"{packed}: {entry.filename!r} is a symbolic link")
                    archive.extract(entry, folder)
        else:
            with tarfile.open(packed) as archive:
                for member in tqdm(archive, **bar):
                    archive.extract(member, folder, filter="data")
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"{packed} cannot be unpacked: {reason}") from error
    except OSError as error:
        raise OSError(
            f"{packed} cannot be unpacked ({error}); it is kept, start again once that is solved"
        ) from error


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep other processes from downloading to the same folder."""
    path = folder / ".download.lock"
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OSError(f"another process is downloading to {folder}; wait for it") from None
        yield


def _part(target: Path) -> Path:
    """Return the name of an unfinished download."""
    return target.with_name(f"{target.name}.part")


def _md5(path: Path) -> str:
    """Return the MD5 sum of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "md5").hexdigest()
