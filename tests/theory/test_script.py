import runpy
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "theory.py"


def run(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *map(str, arguments)])
    runpy.run_path(str(SCRIPT), run_name="__main__")


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("discriminancy", " 3                 6                1  6.00"),
        pytest.param("bounds", " 5  4    1  4        True", marks=pytest.mark.slow),
        pytest.param("bayes", "{(0,): 2, (1, 2): 3}", marks=pytest.mark.slow),
        pytest.param("consistency", "spread  4           100%", marks=pytest.mark.slow),
        pytest.param("generalisation", "COCO 2014 exponential *   0.41", marks=pytest.mark.slow),
    ],
)
def test_each_subject_prints_a_table_and_writes_its_figure(
    name, line, tmp_path, monkeypatch, capsys
):
    run(monkeypatch, name, "--out", tmp_path)
    assert line in capsys.readouterr().out
    assert (tmp_path / f"{name}.pdf").read_bytes().startswith(b"%PDF")
    assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_the_comparison_of_the_losses_is_that_of_the_paper(tmp_path, monkeypatch, capsys):
    run(monkeypatch, "comparison", "--out", tmp_path)
    lines = {line.split()[0]: line.split() for line in capsys.readouterr().out.splitlines() if line}
    for loss, consistent, terms in (
        ("L_rank", "no", 231),
        ("L_u2", "yes", 80),
        ("TKPR", "yes", 33),
    ):
        assert consistent in lines[loss]
        assert lines[loss][-1] == str(terms)


@pytest.mark.slow
def test_own_histogram(tmp_path, monkeypatch, capsys):
    run(monkeypatch, "generalisation", "--out", tmp_path, "--histogram", 0, 400, 200, 100)
    printed = capsys.readouterr().out
    assert "given exponential *   0.69" in printed
    assert "COCO" not in printed


def test_unknown_subject_is_refused(tmp_path, monkeypatch, capsys):
    with pytest.raises(SystemExit):
        run(monkeypatch, "alchemy", "--out", tmp_path)
    assert "invalid choice: 'alchemy'" in capsys.readouterr().err
