"""Every script starts and ends the same way: arguments checked first, one line for an error."""

import logging
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from tests.short_runs import SMALL, train
from tkpr.runs.script import one_line_errors

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted(path.stem for path in (ROOT / "scripts").glob("*.py"))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a finished run."""
    folder = tmp_path_factory.mktemp("run")
    train(*SMALL, "trainer.epochs=1", "trainer.warmup_epochs=0", "loss=bce", folder=folder)
    return folder


@pytest.fixture
def call(monkeypatch, capsys, tmp_path):
    """Return a function that runs a script in an empty folder: its exit code and its last line."""
    logger = logging.getLogger("tkpr")
    for name in ("handlers", "propagate", "level"):
        monkeypatch.setattr(logger, name, getattr(logger, name))
    monkeypatch.chdir(tmp_path)

    def run_script(name, *words):
        monkeypatch.setattr(sys, "argv", [name, *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(ROOT / "scripts" / f"{name}.py"), run_name="__main__")
        code = ended.value.code  # a text is printed, and stands for 1
        return (1, code) if isinstance(code, str) else (code, capsys.readouterr().err)

    return run_script


def test_all_scripts_share_the_runner():
    for name in SCRIPTS:
        text = (ROOT / "scripts" / f"{name}.py").read_text()
        assert "script(main)" in text or "run_main(CONFIGS" in text, name
        assert "ArgumentParser" not in text, name


def test_errors_are_one_line(capsys, monkeypatch):
    monkeypatch.delenv("TKPR_TRACEBACK", raising=False)
    with pytest.raises(SystemExit, match=r"^error: no such thing"), one_line_errors():
        raise ValueError("no such\n   thing")
    with pytest.raises(KeyError), one_line_errors():
        raise KeyError("a bug shows its traceback")
    with pytest.raises(SystemExit) as ended, one_line_errors():
        raise KeyboardInterrupt
    assert ended.value.code == 130
    assert capsys.readouterr().err == "interrupted\n"


CASES = {
    "a device that is not there": (["--device", "cuda:7"], "cuda:7 is not available"),
    "a file in place of a folder": (["--output", "file/out.json"], "cannot create the folder file"),
    "a folder in place of a file": (["--output", "."], "is a folder, not a file"),
    "an unknown argument": (["--ouput", "x"], "unrecognized arguments: --ouput"),
    "an unknown data set": (["dataset=vok2012"], "no option 'vok2012' in dataset=: did you mean"),
}


@pytest.mark.parametrize(("words", "answer"), CASES.values(), ids=CASES)
def test_wrong_arguments_of_evaluate(words, answer, run, call, tmp_path):
    (tmp_path / "file").touch()
    code, said = call("evaluate", run, *words)
    assert code in (1, 2)
    assert said.startswith("error: ")
    assert answer in said
    assert len(said.splitlines()) <= 2, said


@pytest.mark.parametrize("name", ["evaluate", "predict", "export"])
def test_a_folder_that_is_no_run(name, call, tmp_path):
    words = {"predict": ["."], "export": ["--format", "torch", "--output", "m.pt2"]}
    code, said = call(name, tmp_path, *words.get(name, []))
    assert code == 1
    assert said.startswith("error: no weights at"), said


def test_an_unknown_data_set_to_prepare(call):
    code, said = call("prepare_data", "dataset=vok2012")
    assert code == 1
    assert said.startswith("error: no option 'vok2012' in dataset=: did you mean voc2012"), said


@pytest.mark.slow
def test_a_reader_that_has_seen_enough(run, tmp_path):
    """``predict.py ... | head -1`` ends without a traceback."""
    from PIL import Image

    for number in range(3):
        Image.new("RGB", (40, 40)).save(tmp_path / f"{number}.png")
    words = [sys.executable, str(ROOT / "scripts" / "predict.py"), str(run), str(tmp_path)]
    with subprocess.Popen(
        [*words, "--top", "10"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
