import hashlib
import http.server
import importlib.util
import io
import subprocess
import sys
import tarfile
import threading
import zipfile
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir

from tests.data.miniature import CONFIGS, make_arff, make_coco, make_csv, make_voc
from tkpr.data import download as downloading
from tkpr.data.download import ARCHIVES, Archive, download, fetch, unpack

SCRIPT = CONFIGS.parent / "scripts" / "prepare_data.py"
spec = importlib.util.spec_from_file_location("prepare_data", SCRIPT)
prepare_data = importlib.util.module_from_spec(spec)
spec.loader.exec_module(prepare_data)


def prepare(*overrides):
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        return prepare_data.prepare(compose("prepare_data", list(overrides)))


def run(*overrides, cwd):
    command = [sys.executable, str(SCRIPT), *overrides]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


def test_script_prints_the_table_and_succeeds(tmp_path):
    make_csv(tmp_path / "data" / "csv")
    done = run("dataset=csv", cwd=tmp_path)  # data/csv, relative to where the user is
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1].split() == ["images", "12", "-", "6", "-"]
    assert "18 of 18 image files are there" in done.stdout
    assert {path.name for path in tmp_path.iterdir()} == {"data"}  # leaves nothing behind


def test_script_fails_with_a_message_and_no_traceback(tmp_path):
    done = run("dataset=coco", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith(f"there is no folder {tmp_path}/data/coco; get it with: ")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", ["coco", "voc2007", "voc2012", "nuswide", "csv", "arff"])
def test_root_is_a_default_or_an_environment_variable(name, monkeypatch):
    def root():
        with initialize_config_dir(str(CONFIGS), version_base="1.3"):
            return compose("prepare_data", [f"dataset={name}"]).dataset.root

    variable = f"TKPR_{name.upper()}_ROOT"
    monkeypatch.delenv(variable, raising=False)
    assert root() == f"data/{name}"
    monkeypatch.setenv(variable, "/somewhere")
    assert root() == "/somewhere"


def test_lists_on_the_command_line(tmp_path, capsys):
    mine = make_csv(tmp_path / "csv")
    names = "dataset.class_names=[tree,old car,dog,cat]"
    assert prepare("dataset=csv", f"dataset.root={mine}", names) == []
    tabular = make_arff(tmp_path / "arff")
    settings = [f"dataset.root={tabular}", "dataset.name=mini", "dataset.exclude=[colour]"]
    assert prepare("dataset=arff", *settings) == []


def test_root_from_the_environment(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TKPR_CSV_ROOT", str(make_csv(tmp_path / "mine")))
    assert prepare("dataset=csv") == []
    assert "18 of 18" in capsys.readouterr().out


def test_counts_that_differ_are_wrong(tmp_path, capsys):
    make_voc(tmp_path, 2012)
    problems = prepare("dataset=voc2012", f"dataset.root={tmp_path}")
    assert len(problems) == 2
    assert "the first is images: 12 instead of 5,717" in problems[0]
    assert "5,823" in capsys.readouterr().out


def test_missing_and_unreadable_files_are_named(tmp_path, capsys):
    root = make_csv(tmp_path / "csv")
    (root / "photos" / "02.jpg").unlink()
    (root / "photos" / "04.jpg").write_bytes(b"\xff\xd8\xff")
    overrides = ["dataset=csv", f"dataset.root={root}"]
    assert prepare(*overrides) == [f"missing: {root / 'photos' / '02.jpg'}"]
    missing, unreadable = prepare(*overrides, "check_images=true", "workers=0")
    assert missing.endswith("02.jpg")
    assert unreadable.startswith(f"unreadable: the image file {root / 'photos' / '04.jpg'} ")
    assert "16 of 18 image files can be decoded" in capsys.readouterr().out


def test_a_missing_folder_is_one_line(tmp_path):
    root = make_coco(tmp_path / "coco")
    (root / "val2014").rename(root / "elsewhere")
    problems = prepare("dataset=coco", f"dataset.root={root}", "dataset.cache_dir=null")
    assert problems[-1] == f"missing: the folder {root / 'val2014'} (6 images)"


def test_bad_input_is_reported(tmp_path):
    root = make_csv(tmp_path / "csv")
    (root / "labels.csv").write_text("path,labels\na.jpg,cat\n")
    (problem,) = prepare("dataset=csv", f"dataset.root={root}")
    assert problem.startswith(f"{root / 'labels.csv'}, line 1: there is no column 'image'")


def test_data_without_files(tmp_path, capsys):
    root = make_arff(tmp_path / "arff")
    assert prepare("dataset=arff", f"dataset.root={root}", "dataset.name=mini") == []
    assert "image files" not in capsys.readouterr().out
    with pytest.raises(ValueError, match="only COCO and VOC can be downloaded"):
        prepare("dataset=arff", f"dataset.root={root}", "download=true")


class Server(http.server.ThreadingHTTPServer):
    """Serves ``content``; can break off, know no ranges, or answer with an error."""

    def __init__(self):
        self.content = {}
        self.break_after = None
        self.ranges = True
        self.errors = []
        self.asked = []
        super().__init__(("127.0.0.1", 0), Handler)

    def archive(self, name, content, **changes):
        self.content[f"/{name}"] = content
        facts = {
            "url": f"http://127.0.0.1:{self.server_port}/{name}",
            "size": len(content),
            "md5": hashlib.md5(content).hexdigest(),
            "provides": "inner/a.txt",
        }
        return Archive(**facts | changes)


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        asked = self.headers["Range"]
        self.server.asked.append(asked)
        if self.server.errors:
            self.send_error(self.server.errors.pop(0))
            return
        content = self.server.content[self.path]
        start = int(asked.removeprefix("bytes=").rstrip("-")) if self.server.ranges else 0
        body = content[start:]
        self.send_response(206 if self.server.ranges else 200)
        self.send_header("Content-Length", str(len(body)))
        if self.server.ranges:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.end_headers()
        if self.server.break_after is not None:
            body = body[: self.server.break_after]
            self.close_connection = True
        self.wfile.write(body)

    def log_message(self, *args):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(downloading, "WAIT", 0)
    monkeypatch.setattr(downloading, "CHUNK", 4)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    server = Server()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def tar_bytes(names=("inner/a.txt",), link=None):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as members:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = 2
            members.addfile(member, io.BytesIO(b"hi"))
        if link:
            member = tarfile.TarInfo("inner/link")
            member.type, member.linkname = tarfile.SYMTYPE, link
            members.addfile(member)
    return buffer.getvalue()


def zip_bytes(names=("inner/a.txt",)):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as members:
        for name in names:
            members.writestr(name, "hi")
    return buffer.getvalue()


@pytest.mark.parametrize(("name", "content"), [("a.tar", tar_bytes()), ("a.zip", zip_bytes())])
def test_download_and_unpack(server, tmp_path, name, content):
    archive = server.archive(name, content)
    download([archive], tmp_path / "new")
    assert (tmp_path / "new" / "inner" / "a.txt").read_text() == "hi"
    assert {path.name for path in (tmp_path / "new").iterdir()} == {"inner", f"{name}.unpacked"}
    download([archive], tmp_path / "new")  # a second time there is nothing to do
    assert len(server.asked) == 1


def test_interrupted_download_goes_on(server, tmp_path):
    content = tar_bytes()
    archive = server.archive("a.tar", content)
    target = tmp_path / "a.tar"
    server.break_after = 1000
    with pytest.raises(ConnectionError, match=r"5,000 of 10,240 bytes are kept, start again"):
        fetch(archive, target)
    assert not target.exists()
    assert (tmp_path / "a.tar.part").read_bytes() == content[:5000]
    server.break_after = None
    server.asked.clear()
    fetch(archive, target)
    assert server.asked == ["bytes=5000-"]  # only the rest was asked for
    assert target.read_bytes() == content
    assert not (tmp_path / "a.tar.part").exists()


def test_server_without_ranges_starts_again(server, tmp_path):
    content = tar_bytes()
    archive = server.archive("a.tar", content)
    (tmp_path / "a.tar.part").write_bytes(content[:5000])
    server.ranges = False
    fetch(archive, tmp_path / "a.tar")
    assert (tmp_path / "a.tar").read_bytes() == content


def test_wrong_size_and_sum(server, tmp_path):
    content = tar_bytes()
    archive = server.archive("a.tar", content, size=len(content) + 1)
    with pytest.raises(ValueError, match=r"has 10240 bytes, expected 10241: it is another file"):
        fetch(archive, tmp_path / "a.tar")
    archive = server.archive("a.tar", content, md5="0" * 32)
    with pytest.raises(ValueError, match=r"MD5 sum .* instead of 0000"):
        fetch(archive, tmp_path / "a.tar")
    assert not list(tmp_path.iterdir())  # nothing wrong is kept


def test_errors_of_the_server(server, tmp_path):
    archive = server.archive("a.tar", tar_bytes())
    server.errors = [503, 500]  # passing troubles
    fetch(archive, tmp_path / "a.tar")
    server.errors = [404]
    with pytest.raises(ConnectionError, match=r"a.tar: HTTP Error 404"):
        fetch(archive, tmp_path / "b.tar")
    assert len(server.asked) == 4  # not asked again after 404


def test_no_network(tmp_path, monkeypatch):
    monkeypatch.setattr(downloading, "WAIT", 0)
    archive = Archive("http://127.0.0.1:1/a.tar", 10, "", "a")
    with pytest.raises(ConnectionError, match=r"refused.*5 times; 0 of 10 bytes are kept"):
        fetch(archive, tmp_path / "a.tar")


def test_full_disk(tmp_path):
    archive = Archive("http://127.0.0.1:1/a.tar", 10**18, "", "a")
    with pytest.raises(OSError, match=r"GB free; a.tar needs 2000000000.0 GB"):
        fetch(archive, tmp_path / "a.tar")


def test_what_the_user_has_is_left_alone(server, tmp_path):
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "a.txt").write_text("mine")
    archive = server.archive("a.tar", tar_bytes())
    download([archive], tmp_path)
    assert server.asked == []
    assert (tmp_path / "inner" / "a.txt").read_text() == "mine"
    (tmp_path / "a.tar").write_bytes(tar_bytes())  # fetched, but unpacking was interrupted
    download([archive], tmp_path)
    assert (tmp_path / "inner" / "a.txt").read_text() == "hi"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.tar", tar_bytes(["../evil.txt"])),
        ("a.tar", tar_bytes(link="/etc")),
        ("a.zip", zip_bytes(["../evil.txt"])),
        ("a.zip", zip_bytes(["/tmp/evil.txt"])),
    ],
)
def test_archives_may_not_lead_out(tmp_path, name, content):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / name).write_bytes(content)
    with pytest.raises((ValueError, tarfile.FilterError), match=r"evil|link"):
        unpack(folder / name, folder)
    assert not (tmp_path / "evil.txt").exists()


def test_download_option(server, tmp_path, monkeypatch, capsys):
    source = make_voc(tmp_path / "source", 2012)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as members:
        members.add(source / "VOCdevkit", "VOCdevkit")
    archive = server.archive("voc.tar", buffer.getvalue(), provides="VOCdevkit/VOC2012")
    monkeypatch.setitem(ARCHIVES, ("tkpr.data.voc.load_voc", 2012), (archive,))
    target = tmp_path / "target" / "VOCdevkit"
    problems = prepare("dataset=voc2012", f"dataset.root={target}", "download=true")
    assert "12 instead of 5,717" in problems[0]  # it arrived, though it is not the real one
    assert "18 of 18 image files are there" in capsys.readouterr().out


def test_addresses_fit_the_loaders():
    assert set(ARCHIVES) == {
        ("tkpr.data.voc.load_voc", 2007),
        ("tkpr.data.voc.load_voc", 2012),
        ("tkpr.data.coco.load_coco", 2014),
        ("tkpr.data.coco.load_coco", 2017),
    }
    for archives in ARCHIVES.values():
        for archive in archives:
            assert Path(archive.name).suffix in (".tar", ".zip")
            assert len(archive.md5) == 32
