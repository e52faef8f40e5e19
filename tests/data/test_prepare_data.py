import importlib.util
import io
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from PIL import Image

from tests.data.miniature import CONFIGS, make_arff, make_coco, make_csv, make_voc
from tkpr.data import coco, nuswide, voc
from tkpr.data.download import archives_of
from tkpr.data.reference_counts import reference_counts

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


@pytest.mark.slow
def test_script_prints_the_table_and_succeeds(tmp_path):
    make_csv(tmp_path / "data" / "csv")
    done = run("dataset=csv", cwd=tmp_path)  # data/csv, relative to where the user is
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1].split() == ["images", "12", "-", "6", "-"]
    assert "18 of 18 image files are there" in done.stdout
    assert {path.name for path in tmp_path.iterdir()} == {"data"}  # leaves nothing behind


@pytest.mark.slow
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


def test_copies_in_the_test_set_are_reported(tmp_path, capsys):
    root = make_csv(tmp_path / "csv")
    overrides = ["dataset=csv", f"dataset.root={root}", "check_images=true", "workers=0"]
    assert prepare(*overrides) == []  # a note only: published sets may have copies, too
    assert "test images are copies of training images, such as" in capsys.readouterr().out
    for number, photo in enumerate(sorted((root / "photos").iterdir())):
        Image.new("RGB", (64, 48), (number, 0, 0)).save(photo)
    assert prepare(*overrides) == []
    assert "copies" not in capsys.readouterr().out


def test_bad_input_is_reported(tmp_path):
    root = make_csv(tmp_path / "csv")
    (root / "labels.csv").write_text("path,labels\na.jpg,cat\n")
    (problem,) = prepare("dataset=csv", f"dataset.root={root}")
    assert problem.startswith(f"{root / 'labels.csv'}, line 1: there is no column 'image'")


def test_data_without_files(tmp_path, capsys):
    root = make_arff(tmp_path / "arff")
    assert prepare("dataset=arff", f"dataset.root={root}", "dataset.name=mini") == []
    assert "image files" not in capsys.readouterr().out
    with pytest.raises(ValueError, match="cannot be downloaded automatically"):
        prepare("dataset=arff", f"dataset.root={root}", "download=true")


def test_download_option(server, tmp_path, monkeypatch, capsys):
    source = make_voc(tmp_path / "source", 2012)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as members:
        members.add(source / "VOCdevkit", "VOCdevkit")
    archive = server.archive("voc.tar", buffer.getvalue(), provides="VOCdevkit/VOC2012")
    monkeypatch.setattr(voc, "ARCHIVES", [archive])
    target = tmp_path / "target" / "VOCdevkit"
    problems = prepare("dataset=voc2012", f"dataset.root={target}", "download=true")
    assert "12 instead of 5,717" in problems[0]  # it arrived, though it is not the real one
    assert "18 of 18 image files are there" in capsys.readouterr().out


@pytest.mark.parametrize("module", [coco, voc])
def test_archives_are_complete(module):
    for archive in module.ARCHIVES:
        assert Path(archive.name).suffix in (".tar", ".zip")
        assert len(archive.md5) == 32
        assert set(archive.options) == {"year"}
    years = {archive.options["year"] for archive in module.ARCHIVES}
    assert years == ({2007, 2012} if module is voc else {2014, 2017})


def test_archives_are_those_of_the_year():
    names = [archive.name for archive in archives_of("tkpr.data.coco.load_coco", {"year": 2017})]
    assert names == ["annotations_trainval2017.zip", "val2017.zip", "train2017.zip"]
    assert archives_of("tkpr.data.coco.load_coco", {"year": 2015}) == []


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (["dataset=mosaic", "dataset.seed=abc"], "dataset.seed must be an integer; got 'abc'"),
        (["dataset=mosaic", "dataset.train_size=1.5"], "dataset.train_size must be an integer"),
        (["dataset=mosaic", "dataset.train_size=0"], "train_size and test_size must be at least 1"),
        (["dataset=mosaic", "dataset.seed=-1"], "seed at least 0; got 4000, 1000 and -1"),
        (
            ["dataset=voc2012", "dataset.root=null"],
            "dataset.root must be a text or a path; got None",
        ),
        (["dataset=voc2012", "dataset.labels_from=3"], "dataset.labels_from must be a text"),
        (["dataset=csv", "dataset.allow_outside=yes please"], "must be true or false"),
        (["dataset=arff", "dataset.exclude=protein"], "dataset.exclude must be a list"),
        (["dataset=arff", "dataset.name=null"], "dataset.name must be a text; got None"),
        (["dataset=features", "dataset.file=null"], "dataset.file must be a text or a path"),
        (["dataset=nuswide", "dataset.train_list=null"], "dataset.train_list must be a text"),
    ],
)
def test_settings_of_the_wrong_type_are_one_line(overrides, problem):
    (found,) = prepare(*overrides)
    assert problem in found


COUNTED = {  # as data/README.md calls them: the loader, its options, the split
    "VOC 2007 trainval": ("voc", {"year": 2007, "difficult": "negative"}, "train"),
    "VOC 2007 test": ("voc", {"year": 2007, "difficult": "negative"}, "test"),
    "VOC 2012 train": ("voc", {"year": 2012, "difficult": "negative"}, "train"),
    "VOC 2012 val": ("voc", {"year": 2012, "difficult": "negative"}, "test"),
    "COCO 2014 train": ("coco", {"year": 2014, "drop_unlabelled": True}, "train"),
    "COCO 2014 val": ("coco", {"year": 2014, "drop_unlabelled": True}, "test"),
    "NUS-WIDE train (lists)": ("nuswide", nuswide.REFERENCE_COUNTS[0].options, "train"),
    "NUS-WIDE test (lists)": ("nuswide", nuswide.REFERENCE_COUNTS[0].options, "test"),
}


def test_the_counts_in_the_readme_are_the_reference_counts():
    text = (CONFIGS.parent / "data" / "README.md").read_text()
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    found = {row[0]: row[1:] for row in rows if row[0] in COUNTED}
    assert found.keys() == COUNTED.keys()
    for name, (images, mean, most, histogram) in found.items():
        loader, options, split = COUNTED[name]
        reference = reference_counts(f"tkpr.data.{loader}.load_{loader}", options)
        counts = getattr(reference, split)
        assert images == f"{counts.images:,}"
        assert mean == f"{counts.labels / counts.images:.4f}"
        assert int(most) == len(counts.histogram) - 1
        assert histogram == ", ".join(map(str, counts.histogram))
