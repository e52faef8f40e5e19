"""The command ``tkpr``, in a checkout and from a wheel."""

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from tkpr import __main__ as command

ROOT = Path(__file__).parents[1]
SHORT = ["trainer.epochs=1", "trainer.warmup_epochs=0", "dataset.train_size=64"]


def call(*words, folder, code=0, **env):
    """Run a program outside of the checkout; return its output."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [*map(str, words)], cwd=folder, env=kept | env, capture_output=True, text=True
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_every_script_is_a_command(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["tkpr"])
    command.main()
    printed = capsys.readouterr().out
    names = ["train", *(path.stem for path in (ROOT / "scripts").glob("*.py"))]
    assert {line.split()[0] for line in printed.splitlines()[2:]} == set(names)
    assert all(len(line.split()) > 1 for line in printed.splitlines()[2:]), "each says what it does"


@pytest.mark.parametrize(
    ("name", "answer"), [("predic", "did you mean predict?"), ("x", "choose one of train, ")]
)
def test_an_unknown_command_is_an_error_in_one_line(name, answer, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["tkpr", name])
    with pytest.raises(SystemExit, match=f"error: no command '{name}': {answer}"):
        command.main()


def test_a_command_in_a_checkout_runs_its_script(tmp_path):
    words = [sys.executable, "-m", "tkpr"]
    asked = call(*words, "evaluate", "--help", folder=tmp_path, PYTHONPATH=str(ROOT))
    plain = call(sys.executable, ROOT / "scripts" / "evaluate.py", "--help", folder=tmp_path)
    assert asked == plain


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The wheel in an environment of its own, which borrows the dependencies of this one."""
    folder = tmp_path_factory.mktemp("wheel")
    call(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, folder=ROOT)
    venv.create(folder / "env", with_pip=False)
    python = folder / "env" / "bin" / "python"
    site = next((folder / "env").glob("lib/python*/site-packages"))
    (site / "borrowed.pth").write_text(sysconfig.get_path("purelib"))
    (wheel,) = folder.glob("*.whl")
    pip = [sys.executable, "-m", "pip", "--python", python]
    call(*pip, "install", "--no-deps", "--no-index", wheel, folder=folder)
    return folder / "env" / "bin" / "tkpr"


@pytest.mark.slow
def test_the_wheel_trains_evaluates_and_predicts_from_any_folder(installed, tmp_path):
    where = "import tkpr; print(tkpr.__file__)"
    assert str(installed.parents[1]) in call(
        installed.with_name("python"), "-c", where, folder=tmp_path
    )
    assert "run folder: runs/mosaic" in call(installed, "train", *SHORT, folder=tmp_path)
    (run,) = (tmp_path / "runs" / "mosaic" / "tkpr_a2").iterdir()
    assert (run / "metrics.json").exists()
    assert "mAP" in call(installed, "evaluate", run, folder=tmp_path)
    call(
        sys.executable,
        "-c",
        "from PIL import Image; Image.new('RGB', (60, 40)).save('photo.png')",
        folder=tmp_path,
    )
    assert call(installed, "predict", run, "photo.png", "--top", 3, folder=tmp_path).count(
        "photo.png"
    ) == 3  # fmt: skip


@pytest.mark.slow
def test_the_wheel_starts_several_processes_and_sweeps(installed, tmp_path):
    said = call(
        installed, "train", *SHORT, "trainer.devices=2", folder=tmp_path, OMP_NUM_THREADS="1"
    )
    assert "2 processes share the work" in said
    call(installed, "train", "-m", *SHORT, "loss=bce,rank", folder=tmp_path)
    assert len(list((tmp_path / "runs").rglob("metrics.json"))) == 3


@pytest.mark.slow
def test_every_command_of_the_wheel_explains_itself(installed, tmp_path):
    for name in command.commands():
        assert "Traceback" not in call(installed, name, "--help", folder=tmp_path)
