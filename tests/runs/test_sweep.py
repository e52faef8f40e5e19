"""A sweep goes on after a failed run, and says at its end which runs failed and why."""

import pytest

from tests.robustness.processes import finish, start
from tests.short_runs import CONFIGS, SMALL, train
from tkpr import records
from tkpr.runs.sweep import train_here

SHORT = [*SMALL, "trainer.epochs=1", "trainer.warmup_epochs=0"]


def sweep(folder, *words, **options):
    """Train with three values of K, of which the data set has too few classes for one."""
    name = f"run_dir={folder}/${{hydra:runtime.choices.loss}}-${{loss.k}}"
    words = ["-m", "loss=tkpr_a2", "loss.k=2,50,3", *SHORT, name, *words]
    return finish(start(*words, cwd=folder, **options))


def check(folder, code, said):
    assert code == 1, said
    assert "error: 1 runs failed:" in said
    last = said.split("error: 1 runs failed:")[1]
    assert f"{folder}/tkpr_a2-50: loss does not fit the data set" in last
    assert "does not fit the data set" in (folder / "tkpr_a2-50" / "train.log").read_text()
    assert not (folder / "tkpr_a2-50" / "metrics.json").exists()
    for k in (2, 3):
        assert (folder / f"tkpr_a2-{k}" / "metrics.json").exists(), said
    assert not list(folder.glob(".sweep-*"))


@pytest.mark.slow
def test_a_failed_run_does_not_stop_a_sweep(tmp_path):
    code, said = sweep(tmp_path)
    check(tmp_path, code, said)


@pytest.mark.slow
def test_nor_where_other_processes_train(tmp_path):
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    code, said = sweep(tmp_path, "hydra/launcher=joblib", "hydra.launcher.n_jobs=2")
    check(tmp_path, code, said)


def test_the_error_of_a_single_run_is_in_its_log(tmp_path):
    with pytest.raises(ValueError, match="does not fit the data set"):
        train(*SHORT, "loss.k=50", folder=tmp_path)
    text = (tmp_path / "train.log").read_text()
    assert "failed: loss does not fit the data set" in text
    assert "Traceback" in text


def test_so_is_that_of_data_which_cannot_be_read(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere"):
        train("dataset=csv", "dataset.root=nowhere", "model=tiny", folder=tmp_path)
    assert "failed: " in (tmp_path / "train.log").read_text()


def test_a_finished_run_is_not_logged_again(tmp_path):
    train(*SHORT, folder=tmp_path)
    before = (tmp_path / "train.log").read_bytes()
    train(*SHORT, folder=tmp_path)
    assert (tmp_path / "train.log").read_bytes() == before


@pytest.mark.slow
def test_a_run_in_this_process_is_that_of_the_command(tmp_path, monkeypatch):
    """The same folder, words and numbers as with Hydra's launcher."""
    monkeypatch.chdir(tmp_path)
    words = ["experiment=voc2012_mlml_ranking_resnet50", "budget=smoke", "method=u3", *SHORT]
    words = [word for word in words if not word.startswith(("model.", "transform."))]
    value = train_here(CONFIGS, words)
    (here,) = (tmp_path / "runs").rglob("metrics.json")
    here = here.rename(tmp_path / "here.json")
    code, said = finish(start(*words, cwd=tmp_path / "runs"))
    assert code == 0, said
    (there,) = (tmp_path / "runs" / "runs").rglob("metrics.json")
    one, other = records.read(here), records.read(there)
    assert one["metrics"] == other["metrics"]
    assert one["metrics"]["mAP@3"] == value
    assert sorted(one["overrides"]) == sorted(other["overrides"])
    assert one["folder"].rpartition("runs/")[2] == other["folder"].rpartition("runs/")[2]
