"""The architecture as a test: each package imports only from packages above it."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ORDER = [
    *("atomic", "records", "config", "ranking", "metrics", "decisions"),
    *("losses", "models", "data", "theory", "training", "runs", "reporting", "__main__"),
]


def imports(file: Path) -> set[str]:
    """The parts of tkpr that a file imports, wherever in the file."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: imports are absolute"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        found |= {name.split(".")[1] for name in names if name.startswith("tkpr.")}
    return found


def wrong_way(package: Path) -> list[str]:
    """Imports that point down the order, as ``file -> part``."""
    found = []
    for file in sorted(package.rglob("*.py")):
        own = file.relative_to(package).with_suffix("").parts[0]
        if own != "__init__":
            below = ORDER[ORDER.index(own) + 1 :]
            found += [
                f"{file.relative_to(package)} -> {part}" for part in below if part in imports(file)
            ]
    return found


def test_every_part_has_a_place_in_the_order():
    parts = {path.stem for path in (ROOT / "tkpr").iterdir() if path.suffix in ("", ".py")}
    assert parts - {"__init__", "__pycache__"} == set(ORDER)


def test_packages_import_only_from_those_above():
    assert wrong_way(ROOT / "tkpr") == []


def test_a_wrong_way_import_is_found(tmp_path):
    (tmp_path / "losses").mkdir()
    (tmp_path / "losses" / "new.py").write_text("def f():\n    from tkpr.runs import run\n")
    assert wrong_way(tmp_path) == ["losses/new.py -> runs"]


@pytest.mark.parametrize("module", ["tkpr.losses", "tkpr.metrics"])
def test_losses_and_measures_load_no_framework(module):
    code = (
        f"import sys, {module}; "
        "print([name for name in ('hydra', 'omegaconf', 'timm', 'pandas', 'lightning_fabric') "
        "if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.strip() == "[]"


def test_results_are_read_without_the_trainer():
    code = (
        "import sys, tkpr.reporting.rows; "
        "print('timm' in sys.modules, 'lightning_fabric' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.split() == ["False", "False"]
