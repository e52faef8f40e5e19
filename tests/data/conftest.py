import os
import tarfile
import threading
from pathlib import Path

import pytest

from tests.data.server import Server
from tkpr.data import download

PROJECT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder with genuine label files; tests that need it are skipped where it is absent."""
    folder = Path(os.environ.get("TKPR_TEST_DATA", PROJECT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no real data in {folder}; TKPR_TEST_DATA names another folder")
    return folder


def _unpack_voc(real_data: Path, folder: Path, wanted: tuple[str, ...]) -> Path:
    for name in ("voc2007-annotations-complete.tar.xz", "voc2012-small.tar.gz"):
        with tarfile.open(real_data / name) as members:
            for member in members:
                if any(part in member.name for part in wanted):
                    members.extract(member, folder, filter="data")
    return folder


@pytest.fixture(scope="session")
def real_voc(real_data, tmp_path_factory) -> Path:
    """The label lists of VOC 2007 and 2012 in one devkit."""
    return _unpack_voc(real_data, tmp_path_factory.mktemp("voc"), ("ImageSets/Main",))


@pytest.fixture(scope="session")
def real_voc_xml(real_data, tmp_path_factory) -> Path:
    """The same with the XML annotations."""
    wanted = ("ImageSets/Main", "Annotations")
    return _unpack_voc(real_data, tmp_path_factory.mktemp("voc_xml"), wanted)


@pytest.fixture
def server(monkeypatch):
    """A server of archives on this machine; downloads do not wait between attempts."""
    monkeypatch.setattr(download, "WAIT", 0)
    monkeypatch.setattr(download, "CHUNK", 4)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    server = Server()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()
