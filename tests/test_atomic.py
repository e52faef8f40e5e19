import errno
import os
import stat

import pytest

from tkpr import atomic


@pytest.fixture
def flushed(tmp_path, monkeypatch):
    """What is flushed, and the files of the folder at that time; an error number for folders."""
    seen = []

    def fsync(descriptor):
        is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        seen.append((is_folder, [name for name in os.listdir(tmp_path) if name[0] != "."]))
        if is_folder and fsync.number:
            raise OSError(fsync.number, os.strerror(fsync.number))

    fsync.number, fsync.seen = 0, seen
    monkeypatch.setattr(os, "fsync", fsync)
    return fsync


def test_the_folder_is_flushed_after_the_rename(tmp_path, flushed):
    """Else a loss of power could bring the old file back, or none."""
    atomic.write(tmp_path / "a.txt", "new")
    assert flushed.seen == [(False, []), (True, ["a.txt"])]


def test_file_systems_that_cannot_flush_folders(tmp_path, flushed):
    flushed.number = errno.EINVAL
    atomic.write(tmp_path / "a.txt", "new")
    assert (tmp_path / "a.txt").read_text() == "new"


def test_a_folder_that_fails_is_named(tmp_path, flushed):
    flushed.number = errno.EIO
    with pytest.raises(OSError, match=rf"{tmp_path} cannot be flushed to the disk \(.*error"):
        atomic.write(tmp_path / "a.txt", "new")


def test_a_write_that_fails_is_reported_and_changes_nothing(tmp_path):
    file = tmp_path / "a.txt"
    atomic.write(file, "old")

    def fail(opened):
        opened.write(b"half")
        raise RuntimeError("no space left\nin many lines")

    with pytest.raises(OSError, match=r"a\.txt cannot be written \(no space left\); what was"):
        atomic.write(file, fail)
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


def test_a_part_that_another_process_removes_first_does_not_matter(tmp_path, monkeypatch):
    monkeypatch.setattr(type(tmp_path), "glob", lambda folder, pattern: [folder / ".gone.part"])
    atomic.remove_parts(tmp_path)
