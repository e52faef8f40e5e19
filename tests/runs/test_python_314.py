"""Hydra 1.3 under the argparse of Python 3.14, which checks help texts when they are added."""

import argparse
import os
import subprocess
import sys
from pathlib import Path

import hydra
import pytest

from tkpr.runs.cli import without_help_check

ROOT = Path(__file__).parents[2]


@pytest.fixture
def argparse_of_314(monkeypatch):
    """Give the argparse at hand the check of Python 3.14: a help text must expand as a string."""

    def check_help(self, action):
        if action.help and hasattr(self, "_get_formatter"):
            try:
                self._get_formatter()._expand_help(action)
                if "%" not in action.help:
                    return
            except (ValueError, TypeError, KeyError) as error:
                raise ValueError("badly formed help string") from error

    add_argument = argparse.ArgumentParser.add_argument

    def add_and_check(self, *args, **kwargs):
        action = add_argument(self, *args, **kwargs)
        self._check_help(action)
        return action

    monkeypatch.setattr(argparse.ArgumentParser, "_check_help", check_help, raising=False)
    monkeypatch.setattr(argparse.ArgumentParser, "add_argument", add_and_check)


def parse():
    """Build Hydra's parser."""
    return hydra.main.__globals__["get_args_parser"]()


@pytest.mark.usefixtures("argparse_of_314")
def test_hydra_starts():
    with pytest.raises(ValueError, match="badly formed help string"):
        parse()
    with without_help_check():
        parse()
    with pytest.raises(ValueError, match="badly formed help string"):
        parse()


def test_older_pythons_are_left_alone():
    with without_help_check():
        parse()


FORKSERVER = """
import multiprocessing, sys
from pathlib import Path

if __name__ == "__main__":
    multiprocessing.set_start_method("forkserver")
    from tests.short_runs import SMALL, train

    words = ["trainer.epochs=1", "trainer.warmup_epochs=0", "trainer.num_workers=2"]
    train(*SMALL, *words, folder=Path(sys.argv[1]))
"""


@pytest.mark.slow
def test_loader_workers_start_without_fork(tmp_path):
    """Python 3.14 starts processes by a fork server, to which the data set is pickled."""
    (tmp_path / "main.py").write_text(FORKSERVER)
    command = [sys.executable, tmp_path / "main.py", tmp_path / "run"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run(command, check=True, cwd=ROOT, env=environment)
    assert (tmp_path / "run" / "metrics.json").exists()
