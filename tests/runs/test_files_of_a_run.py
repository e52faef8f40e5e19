"""What does not belong together is named: each file of a run, by each reader."""

import re
import shutil
import struct
import zipfile

import numpy as np
import pytest
from omegaconf import OmegaConf

from tests.runs.test_scripts import script
from tests.short_runs import SMALL, compose
from tkpr import records
from tkpr.reporting.rows import load_runs
from tkpr.runs.run import run
from tkpr.runs.saved_model import load_model, load_predictions

TABLE = "voc2012_mlml_ranking_resnet50"
WORDS = [*SMALL, "trainer.epochs=1", "trainer.warmup_epochs=0", "split.holdout=0.2"]
ALWAYS = {"metrics.json", "run.json"}


def train(*words, folder):
    """Train as a row of a table."""
    cfg = compose(*words, folder=folder)
    row = OmegaConf.create({"table": TABLE, "budget": "smoke", "row": "TKPR_a2"})
    return run(OmegaConf.merge(OmegaConf.create(OmegaConf.to_container(cfg)), row))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two finished runs that differ in the seed."""
    folder = tmp_path_factory.mktemp("runs")
    for seed in (0, 1):
        train(*WORDS, f"seed={seed}", folder=folder / f"{seed}")
    return folder


@pytest.fixture(scope="module")
def tested(tmp_path_factory):
    """Two more, on the test set, as tables and figures want them."""
    folder = tmp_path_factory.mktemp("tested")
    for seed in (0, 1):
        train(*WORDS, "split.holdout=0", f"seed={seed}", folder=folder / f"{seed}")
    return folder


def skip(folder):
    return train(*WORDS, "seed=0", folder=folder)["metrics"]


def resume(folder):
    (folder / "metrics.json").unlink()
    return skip(folder)


def weights(path):
    return {name: value.tolist() for name, value in load_model(path).model.state_dict().items()}


READERS = {
    "skip": (skip, ALWAYS | {"config.yaml"}),
    "resume": (resume, {"run.json", "config.yaml", "last.ckpt", "observed_labels.npz"}),
    "model": (weights, ALWAYS | {"model.safetensors"}),
    "model by its name": (
        lambda folder: weights(folder / "model.safetensors"),
        ALWAYS | {"model.safetensors"},
    ),
    "predictions": (
        lambda folder: load_predictions(folder)["logits"].tolist(),
        ALWAYS | {"predictions.npz"},
    ),
    "history": (records.read_history, ALWAYS | {"metrics.csv"}),
    "results": (lambda folder: [one.metrics for one in load_runs(folder)], ALWAYS),
}
FILES = sorted({name for _, names in READERS.values() for name in names})


def exchange(folder, name, runs):
    shutil.copy(runs / "1" / name, folder / name)


def flip(folder, name, runs):
    """Flip one bit in the middle; of an archive, in the middle of its largest member."""
    file = folder / name
    content = bytearray(file.read_bytes())
    place = len(content) // 2
    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as archive:
            member = max(archive.infolist(), key=lambda one: one.compress_size)
        name_length, extra_length = struct.unpack_from("<HH", content, member.header_offset + 26)
        place = member.header_offset + 30 + name_length + extra_length + member.compress_size // 2
    content[place] ^= 1
    file.write_bytes(content)


def named(name):
    """An error that names a file and says what is wrong with it."""
    return pytest.raises(
        ValueError, match=rf"(?=.*{re.escape(name)}).*(damaged|different|another|cannot be read)"
    )


@pytest.mark.parametrize("damage", [exchange, flip])
@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("reader", READERS)
def test_a_reader_names_a_file_or_does_without(reader, name, damage, runs, tmp_path):
    folder = shutil.copytree(runs / "0", tmp_path / "run")
    read, needed = READERS[reader]
    damage(folder, name, runs)
    if name in needed:
        with named(name):
            read(folder)
    else:
        assert read(folder) == read(shutil.copytree(runs / "0", tmp_path / "whole"))


SCRIPTS = {
    "evaluate": ["RUN"],
    "thresholds": ["RUN", "--output", "OUT/model.safetensors"],
    "export": ["RUN", "--format", "torch", "--output", "OUT/model.pt2"],
    "best": ["RUN"],
    "compare": ["RUN", "OTHER"],
}


@pytest.mark.parametrize("damage", [exchange, flip])
@pytest.mark.parametrize(
    ("name", "scripts"),
    [
        ("model.safetensors", ["evaluate", "thresholds", "export"]),
        ("metrics.csv", ["best"]),
        ("predictions.npz", ["compare"]),
        ("metrics.json", SCRIPTS),
        ("run.json", SCRIPTS),
    ],
)
def test_so_do_the_scripts(name, scripts, damage, runs, tmp_path, monkeypatch):
    folder = shutil.copytree(runs / "0", tmp_path / "run")
    damage(folder, name, runs)
    places = {"RUN": str(folder), "OTHER": str(runs / "1"), "OUT": str(tmp_path)}
    for called in scripts:
        words = SCRIPTS[called]
        for key, value in places.items():
            words = [word.replace(key, value) for word in words]
        with named(name):
            script(called, *words, monkeypatch=monkeypatch)


@pytest.mark.parametrize("damage", [exchange, flip])
@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["tables", TABLE, "--output", "OUT"], ["metrics.json", "run.json"]),
        (["report", "--output", "OUT/report.html"], ["metrics.csv", "metrics.json", "run.json"]),
        (["figures", "dots", "--table", TABLE, "--output", "OUT"], ["metrics.json", "run.json"]),
        (["figures", "ranks", "--table", TABLE, "--output", "OUT"], ["predictions.npz"]),
        (["figures", "consistency", "--table", TABLE, "--output", "OUT"], ["metrics.csv"]),
    ],
)
def test_so_do_tables_figures_and_reports(words, names, damage, tested, tmp_path, monkeypatch):
    words = [word.replace("OUT", str(tmp_path)) for word in words]
    words += ["--budget", "smoke"] if words[0] != "report" else []
    for name in names:
        root = tmp_path / name
        folder = shutil.copytree(tested / "0", root / "run")
        damage(folder, name, tested)
        with named(name):
            script(*words, "--runs", root, monkeypatch=monkeypatch)


def test_every_file_carries_the_id_of_its_run(runs):
    folder = runs / "0"
    own = records.run_id(folder)
    assert len(own) == 32
    assert own != records.run_id(runs / "1")
    assert records.read(folder / "metrics.json")["run"] == own
    assert load_model(folder).run == own
    for name in ("predictions.npz", "observed_labels.npz"):
        with np.load(folder / name) as arrays:
            assert str(arrays["run"]) == own
    head, *rows = (folder / "metrics.csv").read_text().splitlines()
    assert [row.split(",")[head.split(",").index("run")] for row in rows] == [own]
    identity = records.read(folder / "run.json")
    assert identity["config"] == records.file_checksum(folder / "config.yaml")


def test_settings_that_were_deleted_are_not_replaced_by_others(runs, tmp_path):
    folder = shutil.copytree(runs / "0", tmp_path / "run")
    (folder / "config.yaml").unlink()
    with pytest.raises(ValueError, match=r"has no config\.yaml, which holds the settings"):
        train(*WORDS, "seed=5", folder=folder)
    assert not (folder / "config.yaml").exists()


def test_thresholds_may_change_a_model_named_by_its_file(runs, tmp_path, monkeypatch):
    folder = shutil.copytree(runs / "0", tmp_path / "run")
    script("thresholds", folder / "model.safetensors", monkeypatch=monkeypatch)
    assert load_model(folder).thresholds is not None


def test_but_not_replace_the_model_of_another_run(runs, tmp_path, monkeypatch):
    other = shutil.copytree(runs / "1", tmp_path / "other")
    words = [runs / "0", "--output", other / "model.safetensors"]
    for called in (["thresholds"], ["export", "--format", "safetensors"]):
        with pytest.raises(ValueError, match=r"model\.safetensors is the model of another run"):
            script(*called, *words, monkeypatch=monkeypatch)
    assert weights(other) == weights(runs / "1")
