"""The folder of a run belongs to one process, one set of settings and one data set."""

import logging

import pytest
from omegaconf import OmegaConf

from tkpr import records
from tkpr.runs.folder import check_config, check_data, claim, log_to, read_config

SETTINGS = {"seed": 0, "loss": {"k": 5}, "trainer": {"num_workers": 2}, "dataset": {"root": "/a"}}
DATA = {"train_labels": "1", "test_labels": "2"}


def claimed(folder, **changes):
    """Claim a folder and let go of it; return whether it was free."""
    with claim(folder, OmegaConf.create(SETTINGS | changes)) as mine:
        return mine


def begun(folder):
    """A folder in which a run has begun."""
    assert claimed(folder)
    check_data(folder, DATA)
    return folder


def test_a_new_folder_keeps_the_settings(tmp_path):
    folder = tmp_path / "some" / "where"
    assert claimed(folder)
    assert OmegaConf.load(folder / "config.yaml") == SETTINGS
    assert claimed(folder)


def test_a_folder_is_claimed_once_at_a_time(tmp_path):
    with claim(tmp_path, OmegaConf.create(SETTINGS)) as mine:
        assert mine
        assert not claimed(tmp_path)
        assert not claimed(tmp_path, seed=1)  # and its settings are not looked at
    assert claimed(tmp_path)


def test_what_a_killed_process_left_is_removed(tmp_path):
    (tmp_path / ".last.ckpt.0123.part").touch()
    assert claimed(tmp_path)
    assert not list(tmp_path.glob("*.part"))


def test_every_changed_setting_is_named(tmp_path):
    begun(tmp_path)
    before = (tmp_path / "config.yaml").read_text()
    answer = r"other settings \(loss\.alpha: None -> 2; loss\.k: 5 -> None; seed: 0 -> 1\)"
    with pytest.raises(ValueError, match=answer):
        claimed(tmp_path, seed=1, loss={"alpha": 2})
    assert (tmp_path / "config.yaml").read_text() == before


def test_the_machine_and_the_place_of_the_data_may_change(tmp_path):
    begun(tmp_path)
    moved = {"root": "/b", "file": "/b/features.npz"}
    assert claimed(tmp_path, trainer={"num_workers": 0, "devices": 4}, dataset=moved)


def test_settings_are_kept_and_compared_by_value(tmp_path):
    assert claimed(tmp_path, loss={"k": "${seed}"})
    assert OmegaConf.load(tmp_path / "config.yaml").loss.k == 0
    assert "$" not in (tmp_path / "config.yaml").read_text()
    assert claimed(tmp_path, loss={"k": 0})
    assert claimed(tmp_path, loss={"k": "${seed}"})
    with pytest.raises(ValueError, match=r"\(loss\.k: 0 -> 1; seed: 0 -> 1\)"):
        claimed(tmp_path, seed=1, loss={"k": "${seed}"})
    file = tmp_path / "by_hand.yaml"
    file.write_text("seed: 3\nloss:\n  k: ${seed}\n")
    assert read_config(file) == {"seed": 3, "loss.k": 3}


def test_settings_that_are_lost_or_damaged_are_not_replaced(tmp_path):
    file = begun(tmp_path) / "config.yaml"
    text = file.read_text()
    file.write_text(text.replace("seed: 0", "seed: 1"))
    for refuse in (lambda: claimed(tmp_path, seed=1), lambda: check_config(tmp_path)):
        with pytest.raises(ValueError, match=r"config\.yaml is damaged, or it and run\.json"):
            refuse()
    file.unlink()
    with pytest.raises(ValueError, match=r"has no config\.yaml, which holds the settings"):
        claimed(tmp_path)
    assert not file.exists()
    file.write_text(text)
    assert claimed(tmp_path)


def test_settings_that_are_not_yaml_are_named(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text("seed: [0")
    with pytest.raises(ValueError, match=r"config\.yaml cannot be read \(.*\): restore it"):
        read_config(file)


def test_a_run_goes_on_with_its_own_data_only(tmp_path):
    identity = records.read(begun(tmp_path) / "run.json")
    assert identity["data"] == DATA
    assert identity["config"] == records.file_checksum(tmp_path / "config.yaml")
    check_data(tmp_path, DATA)
    assert records.read(tmp_path / "run.json") == identity
    other = {"train_labels": "1", "weights": "3"}
    with pytest.raises(ValueError, match=r"other data \(test_labels, weights differ\)"):
        check_data(tmp_path, other)
    assert records.read(tmp_path / "run.json") == identity


@pytest.mark.parametrize("name", ["last.ckpt", "metrics.json"])
def test_results_of_unknown_data_are_not_adopted(name, tmp_path):
    assert claimed(tmp_path)
    (tmp_path / name).touch()
    with pytest.raises(ValueError, match=rf"no run\.json, which says what data {name} was"):
        check_data(tmp_path, DATA)
    assert not (tmp_path / "run.json").exists()


def log_and_fail():
    logging.getLogger("tkpr.test").warning("one of %d", 2)
    return 1 / 0


def test_the_log_of_a_run_ends_with_its_error(tmp_path):
    file = tmp_path / "run.log"
    with pytest.raises(ZeroDivisionError), log_to(file):
        log_and_fail()
    logging.getLogger("tkpr.test").warning("of another run")
    first, failed, *trace = file.read_text().splitlines()
    assert first.endswith("  one of 2")
    assert failed.endswith("  failed: division by zero")
    assert trace[-1] == "ZeroDivisionError: division by zero"
    assert "of another run" not in file.read_text()
