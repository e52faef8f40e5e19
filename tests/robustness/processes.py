"""Start train.py as people do, and stop it as clusters do."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def start(*words, python=("train.py",), **options):
    """Start ``python train.py words`` and return the process; its output is kept."""
    first, *rest = python
    script = [str(ROOT / first)] if first.endswith(".py") else [first]
    return subprocess.Popen(
        [sys.executable, *script, *rest, *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        **options,
    )


def finish(process, timeout=600):
    """Wait for a process; return its exit code and all that it said."""
    out, err = process.communicate(timeout=timeout)
    return process.returncode, out + err


def metrics(folder):
    """The measures that a run ended with."""
    return json.loads((folder / "metrics.json").read_text())["metrics"]
