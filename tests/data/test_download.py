"""Downloads from a server that misbehaves; archives that are damaged, foreign or hostile."""

import errno
import os
import shutil
import stat
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.data.server import tar_bytes, zip_bytes
from tkpr.data import download as downloading
from tkpr.data.download import Archive, download, fetch, unpack

TAR = tar_bytes()


def names(folder):
    return {path.name for path in folder.iterdir() if path.name != ".download.lock"}


@pytest.mark.parametrize(("name", "content"), [("a.tar", TAR), ("a.zip", zip_bytes())])
def test_download_and_unpack(server, tmp_path, name, content):
    archive = server.archive(name, content)
    download([archive], tmp_path / "new")
    assert (tmp_path / "new" / "inner" / "a.txt").read_text() == "hi"
    assert names(tmp_path / "new") == {"inner", f"{name}.unpacked"}
    download([archive], tmp_path / "new")  # a second time there is nothing to do
    assert len(server.asked) == 1


def test_interrupted_download_continues(server, tmp_path):
    archive = server.archive("a.tar", TAR)
    target = tmp_path / "a.tar"
    server.break_after = 1000
    with pytest.raises(ConnectionError, match=r"5,000 of 10,240 bytes are kept, start again"):
        fetch(archive, target)
    assert not target.exists()
    assert (tmp_path / "a.tar.part").read_bytes() == TAR[:5000]
    server.break_after = None
    server.asked.clear()
    fetch(archive, target)
    assert server.asked == ["bytes=5000-"]  # only the rest was asked for
    assert target.read_bytes() == TAR
    assert not (tmp_path / "a.tar.part").exists()


def test_server_without_ranges_starts_again(server, tmp_path):
    archive = server.archive("a.tar", TAR)
    (tmp_path / "a.tar.part").write_bytes(TAR[:5000])
    server.ranges = False
    fetch(archive, tmp_path / "a.tar")
    assert (tmp_path / "a.tar").read_bytes() == TAR


def test_wrong_size_and_sum(server, tmp_path):
    archive = server.archive("a.tar", TAR, size=len(TAR) + 1)
    with pytest.raises(ValueError, match=r"has 10240 bytes, expected 10241: it is another file"):
        fetch(archive, tmp_path / "a.tar")
    archive = server.archive("a.tar", TAR, md5="0" * 32)
    with pytest.raises(ValueError, match=r"MD5 sum .* instead of 0000"):
        fetch(archive, tmp_path / "a.tar")
    assert not (tmp_path / "a.tar").exists()
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) == 0  # nothing wrong is kept


@pytest.mark.parametrize("ranges", [True, False])
@pytest.mark.parametrize("start", [0, 5000])
def test_a_body_of_unknown_length_is_bounded(server, tmp_path, ranges, start):
    archive = server.archive("a.tar", TAR)
    (tmp_path / "a.tar.part").write_bytes(TAR[:start])
    server.content_length, server.endless, server.ranges = False, True, ranges
    server.content_range = "bytes {start}-{last}/*"
    with pytest.raises(ValueError, match=r"sends more than the expected 10,240 bytes"):
        fetch(archive, tmp_path / "a.tar")
    assert (tmp_path / "a.tar.part").stat().st_size <= len(TAR)
    server.endless = False  # without a length, but the right bytes
    fetch(archive, tmp_path / "a.tar")
    assert (tmp_path / "a.tar").read_bytes() == TAR


@pytest.mark.parametrize("extra", [1, 1 << 20])
def test_a_part_that_is_too_long_starts_anew(server, tmp_path, extra):
    archive = server.archive("a.tar", TAR)
    (tmp_path / "a.tar.part").write_bytes(bytes(len(TAR) + extra))
    fetch(archive, tmp_path / "a.tar")
    assert (tmp_path / "a.tar").read_bytes() == TAR
    assert server.asked == ["bytes=0-"]


def test_a_part_of_another_file_is_noticed_and_discarded(server, tmp_path):
    archive = server.archive("a.tar", TAR)
    (tmp_path / "a.tar.part").write_bytes(bytes(5000))
    with pytest.raises(ValueError, match=r"arrived with the MD5 sum .* discarded; start again"):
        fetch(archive, tmp_path / "a.tar")
    fetch(archive, tmp_path / "a.tar")
    assert (tmp_path / "a.tar").read_bytes() == TAR


@pytest.mark.parametrize(
    "answer",
    [
        None,
        "",
        "bytes",
        "bytes */10240",
        "bytes 0-9/10240",
        "bytes 9000-10239/10240",
        "bytes " + 5000 * "9" + "-10239/10240",
        "bytes \u0665000-10239/10240".encode().decode("latin-1"),
        "rows 5000-10239/10240",
    ],
)
def test_a_partial_answer_without_the_right_range(server, tmp_path, answer):
    archive = server.archive("a.tar", TAR)
    (tmp_path / "a.tar.part").write_bytes(TAR[:5000])
    server.content_range = answer
    with pytest.raises(ValueError, match=r"asked for the bytes from 5000 on") as got:
        fetch(archive, tmp_path / "a.tar")
    assert len(str(got.value).splitlines()) == 1
    assert len(str(got.value)) < 400
    assert (tmp_path / "a.tar.part").read_bytes() == TAR[:5000]
    assert len(server.asked) == 1


def test_errors_of_the_server(server, tmp_path):
    archive = server.archive("a.tar", TAR)
    server.errors = [503, 500, 429, 408]  # temporary
    fetch(archive, tmp_path / "a.tar")
    server.errors = [404]
    with pytest.raises(ValueError, match=r"a.tar: HTTP Error 404"):
        fetch(archive, tmp_path / "b.tar")
    assert len(server.asked) == 6  # not asked again after 404


def test_no_network(tmp_path, monkeypatch):
    monkeypatch.setattr(downloading, "WAIT", 0)
    archive = Archive("http://127.0.0.1:1/a.tar", 10, "", "a")
    with pytest.raises(ConnectionError, match=r"refused.*5 attempts.*0 of 10 bytes are kept"):
        fetch(archive, tmp_path / "a.tar")


def test_too_little_space_is_known_beforehand(tmp_path):
    archive = Archive("http://127.0.0.1:1/a.tar", 10**18, "", "a")
    with pytest.raises(OSError, match=r"GB free; a.tar needs 2000000000.0 GB"):
        fetch(archive, tmp_path / "a.tar")


LIMITED = """
import resource, signal, sys
from pathlib import Path
from tkpr.data.download import Archive, fetch
url, size, md5, target = sys.argv[1:]
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))
fetch(Archive(url, int(size), md5, "a"), Path(target))
"""


def test_a_disk_that_is_full_stops_at_once_and_keeps_what_arrived(server, tmp_path):
    """A limit on the size of files stands for a full disk."""
    archive = server.archive("a.tar", TAR)
    words = [archive.url, str(archive.size), archive.md5, str(tmp_path / "a.tar")]
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, *words], capture_output=True, text=True, check=False
    )
    assert f"OSError: {tmp_path}/a.tar.part cannot be written (" in done.stderr
    assert len(server.asked) == 1  # it is no fault of the network
    assert (tmp_path / "a.tar.part").read_bytes() == TAR[:4000]
    fetch(archive, tmp_path / "a.tar")
    assert server.asked[1:] == ["bytes=4000-"]


def test_no_space_while_unpacking_keeps_the_archive(server, tmp_path, monkeypatch):
    archive = server.archive("a.tar", TAR)

    def fail(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(tarfile.TarFile, "extract", fail)
        with pytest.raises(OSError, match=r"a.tar cannot be unpacked .*No space left.*it is kept"):
            download([archive], tmp_path)
    assert names(tmp_path) == {"a.tar"}
    download([archive], tmp_path)
    assert names(tmp_path) == {"inner", "a.tar.unpacked"}
    assert len(server.asked) == 1


def test_a_data_set_that_is_there_is_left_alone(server, tmp_path):
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "a.txt").write_text("mine")
    archive = server.archive("a.tar", TAR)
    download([archive], tmp_path)
    assert server.asked == []
    assert (tmp_path / "inner" / "a.txt").read_text() == "mine"
    (tmp_path / "a.tar").write_bytes(TAR)  # downloaded, but unpacking was interrupted
    download([archive], tmp_path)
    assert (tmp_path / "inner" / "a.txt").read_text() == "hi"


def test_a_data_set_that_was_deleted_is_fetched_again(server, tmp_path):
    archive = server.archive("a.tar", TAR)
    download([archive], tmp_path)
    shutil.rmtree(tmp_path / "inner")
    download([archive], tmp_path)
    assert (tmp_path / "inner" / "a.txt").read_text() == "hi"


@pytest.mark.parametrize(
    ("content", "difference"),
    [
        (b"", r"0 bytes instead of 10,240"),
        (TAR[:-1], r"10,239 bytes"),
        (TAR[:600], r"600 bytes"),
        (TAR + b"\0", r"10,241 bytes"),
        (TAR[:-1] + b"x", r"the MD5 sum .{32} instead of"),
        (bytes(len(TAR)), r"the MD5 sum"),
        (tar_bytes(["inner/b.txt"]), r"the MD5 sum"),
    ],
)
def test_an_archive_of_the_user_is_verified_and_never_deleted(
    server, tmp_path, content, difference
):
    archive = server.archive("a.tar", TAR)
    (tmp_path / "a.tar").write_bytes(content)
    with pytest.raises(ValueError, match=difference):
        download([archive], tmp_path)
    assert names(tmp_path) == {"a.tar"}  # neither unpacked nor marked as such
    assert (tmp_path / "a.tar").read_bytes() == content
    assert server.asked == []


def test_an_archive_of_the_user_that_is_right_is_unpacked(server, tmp_path):
    archive = server.archive("a.tar", TAR)
    (tmp_path / "a.tar").write_bytes(TAR)
    download([archive], tmp_path)
    assert names(tmp_path) == {"inner", "a.tar.unpacked"}
    assert server.asked == []


def test_an_archive_without_what_it_should_provide(server, tmp_path):
    archive = server.archive("a.tar", TAR, provides="inner/b.txt")
    with pytest.raises(ValueError, match=r"a.tar was unpacked but holds no inner/b.txt"):
        download([archive], tmp_path)
    assert names(tmp_path) == {"inner", "a.tar"}


def test_one_process_at_a_time(server, tmp_path):
    archive = server.archive("a.tar", TAR)
    with (
        downloading._locked(tmp_path),
        pytest.raises(OSError, match=r"another process is downloading to .*; wait for it"),
    ):
        download([archive], tmp_path)
    download([archive], tmp_path)
    assert names(tmp_path) == {"inner", "a.tar.unpacked"}


OUT = ["../evil.txt", "inner/../../evil.txt"]
LINK = stat.S_IFLNK | 0o777


@pytest.mark.parametrize(
    ("name", "content"),
    [
        *(("a.tar", tar_bytes([path])) for path in OUT),
        ("a.tar", tar_bytes(link="/etc")),
        ("a.tar", tar_bytes(["inner/link/evil.txt"], link="../..")),
        *(("a.zip", zip_bytes([path])) for path in [*OUT, "/tmp/evil.txt", "..\\evil.txt"]),
        ("a.zip", zip_bytes(["evil"], mode=LINK)),
    ],
)
def test_archives_may_not_lead_out(tmp_path, name, content):
    folder = tmp_path / "outer" / "folder"
    folder.mkdir(parents=True)
    (folder / name).write_bytes(content)
    with pytest.raises(ValueError, match=rf"{name}.*(evil|link)"):
        unpack(folder / name, folder)
    assert not list(tmp_path.rglob("evil*"))
    assert not Path("/tmp/evil.txt").exists()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.tar", b""),
        ("a.tar", b"no archive" * 100),
        ("a.tar", TAR[:513]),
        ("a.zip", b""),
        ("a.zip", zip_bytes()[:-1]),
        ("a.zip", zip_bytes()[:30] + b"\xff" * 10 + zip_bytes()[40:]),
        ("a.zip", zip_bytes().replace(b"hi", b"ho")),
    ],
)
def test_broken_archives_are_one_line(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=rf"{name} cannot be unpacked") as got:
        unpack(tmp_path / name, tmp_path)
    assert len(str(got.value).splitlines()) == 1


def test_unpacked_files_get_no_special_rights(tmp_path):
    (tmp_path / "a.zip").write_bytes(zip_bytes(mode=stat.S_ISUID | 0o777))
    unpack(tmp_path / "a.zip", tmp_path)
    assert not os.stat(tmp_path / "inner" / "a.txt").st_mode & stat.S_ISUID
