"""Every command of README.md and docs/ is run as it is, or listed here with the reason why not."""

import argparse
import itertools
import math
import re
import runpy
import socket
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from torch.distributed.run import get_args_parser

from tests.readme_commands import (
    EXTRAS,
    FENCE,
    PAGES,
    PROGRAMS,
    ROOT,
    Clone,
    blocks,
    commands,
    extras,
    split,
)
from tkpr.runs.compose import compose as compose_words

CI = (ROOT / ".ci" / "run").read_text()
COMMANDS = commands()


@dataclass(frozen=True)
class Instead:
    """What is done instead of a command, and why.

    Attributes:
        why: what is missing here.
        run: the commands to run, at the same time.
        in_ci: the line of .ci/run that does it.
        code: the exit code that is right here.
        says: what is printed.
    """

    why: str
    run: tuple[str, ...] = ()
    in_ci: str = ""
    code: int = 0
    says: str = ""


INSTALLS = Instead(
    "installs packages", in_ci='pip install --quiet --editable ".[dev,efficientnet,sweep,export]"'
)
LONG = Instead("takes long; these tests are run by themselves")
INSTEAD = {
    "python3 -m venv .venv": Instead("installs packages", in_ci="-m venv"),
    ".venv/bin/pip install -e .": INSTALLS,
    ".venv/bin/pip install -e '.[dev,efficientnet]'": INSTALLS,
    "pip install -e '.[export]'": INSTALLS,
    "pip install -e '.[efficientnet]'": INSTALLS,
    "pip install -e '.[sweep]'": INSTALLS,
    "pip install -e '.[dev]' -c constraints.txt": INSTALLS,
    "source .venv/bin/activate": Instead("is for a shell", in_ci='export PATH="$environment/bin'),
    ".venv/bin/pytest -q -n 2": Instead("is what runs this test", in_ci="pytest -q -n 2"),
    "pytest tests/robustness": Instead("is part of the tests", in_ci="pytest -q -n 2"),
    "pytest tests/robustness -m slow": LONG,
    "tensorboard --logdir runs": Instead(
        "serves until it is stopped",
        run=("tensorboard --logdir runs --inspect",),
        says="Event statistics for",
    ),
    "python train.py dataset=coco trainer.devices=4": Instead(
        "wants four GPUs: two processes on the CPU",
        run=("python train.py dataset=coco trainer.devices=2 trainer.accelerator=cpu",),
        says="2 processes share the work",
    ),
    "torchrun --standalone --nproc-per-node=4 train.py dataset=coco": Instead(
        "wants four GPUs: two processes on the CPU",
        run=("torchrun --standalone --nproc-per-node=2 train.py dataset=coco",),
        says="2 processes share the work",
    ),
    "torchrun --nnodes=2 --nproc-per-node=4 --max-restarts=3 --rdzv-backend=c10d "
    "--rdzv-endpoint=node1:29500 train.py dataset=coco": Instead(
        "wants two machines: twice on this one, a process each",
        run=(
            "torchrun --nnodes=2 --nproc-per-node=1 --max-restarts=3 --rdzv-backend=c10d "
            "--rdzv-endpoint=localhost:PORT train.py dataset=coco",
        )
        * 2,
        says="2 processes share the work",
    ),
    "python train.py -m hydra/launcher=submitit_slurm hydra.launcher.partition=gpu "
    "hydra.launcher.gpus_per_node=1 hydra.launcher.timeout_min=1440 dataset=coco "
    "loss=tkpr_a1,tkpr_a2 seed=0,1,2": Instead(
        "wants Slurm: processes of this machine, without the words for Slurm",
        run=(
            "python train.py -m hydra/launcher=submitit_local hydra.launcher.timeout_min=1440 "
            "dataset=coco loss=tkpr_a1,tkpr_a2 seed=0",
        ),
    ),
    "python scripts/prepare_data.py dataset=voc2012 download=true": Instead(
        "fetches 2 GB: the check of what is there, which finds too few images",
        run=("python scripts/prepare_data.py dataset=voc2012",),
        code=1,
        says="18 of 18 image files are there",
    ),
    "python scripts/prepare_data.py dataset=coco dataset.root=/data/coco "
    "check_images=true": Instead(
        "wants COCO in a folder of that name: the small one, which has too few images",
        run=("python scripts/prepare_data.py dataset=coco check_images=true workers=0",),
        code=1,
        says="18 of 18 image files can be decoded",
    ),
    "python scripts/tune.py voc2012_mlml_ranking_resnet50 --budget features": Instead(
        "takes 226 runs: two rows and a small grid",
        run=(
            "python scripts/tune.py voc2012_mlml_ranking_resnet50 --budget features "
            "--methods rank tkpr_a2 --seeds 0 1 --tries 3 optimizer.lr=1e-3,3e-3 "
            "trainer.warmup_epochs=0,1 loss.k=3,5",
        ),
        says="tkpr_a2: optimizer.lr=",
    ),
    "python train.py -m experiment=voc2012_mlml_decay budget=features optimizer.lr=1e-2 "
    "seed=0,1,2": Instead(
        "takes 180 runs: two methods, two strengths, one seed",
        run=(
            "python train.py -m experiment=voc2012_mlml_decay budget=features optimizer.lr=1e-2 "
            "method=rank,tkpr_a2 optimizer.weight_decay=1e-4,1e-2",
        ),
    ),
    "python scripts/bench_cuts.py --cuts blocks.6 blocks.5 blocks.4": Instead(
        "takes minutes on a processor without bfloat16: smaller images and batches",
        run=("python scripts/bench_cuts.py --cuts blocks.6 blocks.5 blocks.4 --size 64 --batch 2",),
        says="blocks.4",
    ),
    "python scripts/compare.py RUN_A RUN_B": Instead(
        "leaves the runs to the reader",
        run=("python scripts/compare.py runs/mosaic/tkpr_a2/default runs/mosaic/bce/default",),
        says="95 % interval",
    ),
}


def test_commands_are_cut_as_a_shell_would():
    text = "python train.py -m 'loss.k=range(2,6)' \\\n    seed=0,1   # why\n\n# another\na && b\n"
    words = [command.words for command in split(text, 0)]
    assert words == [("python", "train.py", "-m", "loss.k=range(2,6)", "seed=0,1"), ("a",), ("b",)]


def test_the_pages_have_commands():
    assert len(COMMANDS) > 20
    assert len({command.block for command in COMMANDS}) > 5


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_every_code_block_is_read(page):
    text = PAGES[page]
    languages = [name for name, _ in FENCE.findall(text)]
    assert set(languages) <= {"bash", "python", "bibtex", "text"}, "others are not read here"
    assert text.count("```") == 2 * len(languages), "a code block without a language is not read"


@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_it_is_run_or_listed(command):
    if str(command) in INSTEAD:
        in_ci = INSTEAD[str(command)].in_ci
        assert in_ci in CI, f".ci/run lacks {in_ci}"
        return
    assert command.program in PROGRAMS, f"neither run nor listed in INSTEAD: {command}"
    assert command.script, f"runs no file of the project and is not listed: {command}"
    shell = [word for word in command.words if re.fullmatch(r"[|<>;&].*|.*\$.*", word)]
    assert not shell, f"needs a shell, for {shell[0]}, and is not listed: {command}"


def test_what_is_listed_is_on_a_page():
    assert set(INSTEAD) <= {str(command) for command in COMMANDS}


@pytest.mark.parametrize("text", blocks("python"), ids=lambda text: text.splitlines()[0])
def test_python_code_runs(text, capsys):
    exec(compile(text, "README.md", "exec"), {"__name__": "__main__"})
    assert ("print(" in text) == bool(capsys.readouterr().out)


def skip_without_extra(text):
    """Skip where a package is missing that only an extra brings."""
    for part, package in EXTRAS.items():
        try:
            version(package) if part in text else None
        except PackageNotFoundError:
            extra = next(name for name, listed in extras().items() if package in listed)
            pytest.skip(f"{package} is not installed: pip install -e '.[{extra}]'")


def combinations(name, words):
    """Compose each option that the words ask for, beside the first of the others.

    Returns the number of runs.
    """
    words = [word for word in words if word not in ("-m", "--multirun")]
    fixed, swept = choices(words)
    composed = compose(name, [*fixed, *(options[0] for options in swept)])
    params = composed.hydra.sweeper.get("params") or {}
    named = {word.partition("=")[0] for word in words}
    swept += choices([f"{key}={value}" for key, value in params.items() if key not in named])[1]
    for at, options in enumerate(swept):
        others = [found[0] for found in swept[:at] + swept[at + 1 :]]
        for option in options:
            compose(name, [*fixed, *others, option])
    return math.prod(map(len, swept))


def compose(name, words):
    return compose_words(ROOT / "configs", words, name=name, hydra_config=True)


def choices(words):
    """Part the words that hold one value from the sweeps; list the words of each sweep."""
    parsed = OverridesParser.create().parse_overrides(words)
    fixed = [one.input_line for one in parsed if not one.is_sweep_override()]
    swept = [
        [f"{one.get_key_element()}={value}" for value in one.sweep_string_iterator()]
        for one in parsed
        if one.is_sweep_override()
    ]
    return fixed, swept


class Accepted(Exception):
    """Raised where a script would go on to work."""


def and_stop(parse):
    """Read the arguments with ``parse`` and go no further."""

    def parse_and_stop(parser):
        parse(parser)
        raise Accepted

    return parse_and_stop


def accepts(command, monkeypatch):
    """Let a script read its arguments, and nothing more."""
    parser = argparse.ArgumentParser
    for name in ("parse_args", "parse_intermixed_args"):
        monkeypatch.setattr(parser, name, and_stop(getattr(parser, name)))
    monkeypatch.setattr(sys, "argv", [command.script, *command.arguments])
    try:
        runpy.run_path(str(ROOT / command.script), run_name="__main__")
    except Accepted:
        return True
    except SystemExit as end:
        return end.code in (0, None) and "--help" in command.arguments
    return False


@pytest.mark.parametrize("command", [one for one in COMMANDS if one.script], ids=str)
def test_the_words_are_accepted(command, tmp_path, monkeypatch, capsys):
    """Settings are composed, arguments read; nothing is trained."""
    monkeypatch.chdir(tmp_path)
    skip_without_extra(str(command))
    if command.program == "torchrun":
        told = get_args_parser().parse_args(list(command.words[1:]))
        assert told.training_script == command.script
    if command.trains:
        assert combinations("train", command.arguments)
    elif command.script in ("scripts/prepare_data.py", "scripts/extract_features.py"):
        assert combinations(command.script[len("scripts/") : -len(".py")], command.arguments) == 1
    elif command.script == "train.py":
        assert {"--help", "--explain"} & set(command.arguments)
    else:
        assert accepts(command, monkeypatch), capsys.readouterr().err


@pytest.mark.parametrize(
    "command", [one for one in COMMANDS if one.program in ("pip", "pytest")], ids=str
)
def test_extras_and_files_exist(command):
    """What is installed or tested, in the commands that are not run."""
    named = {name for word in command.words for name in re.findall(r"\w+", word.partition("[")[2])}
    assert named <= set(extras())
    files = [word for word in command.words if re.match(r"tests/|.*\.txt$", word)]
    assert all((ROOT / file).exists() for file in files)


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    return Clone(tmp_path_factory.mktemp("clone"))


def prepare(words, command, clone):
    """Make what a command reads: a run by its name, the rest by the commands before it."""
    for word in words:
        path = word.partition("=")[2] or word
        if re.fullmatch(r"runs/[^/]+/[^/]+/[^/]+/?", path) and not (clone.folder / path).exists():
            clone.train_by_name(path)
    if command.script.startswith("scripts/") or re.search(
        r"[= ](runs|data)/|budget=features", str(command)
    ):
        for earlier in itertools.takewhile(lambda one: one != command, COMMANDS):
            if earlier.block == command.block and str(earlier) not in clone.done:
                execute(earlier, clone)


def execute(command, clone):
    """Run a command, or what is listed instead, and look at what it leaves behind."""
    clone.done.add(str(command))
    told = INSTEAD.get(str(command), Instead("", run=(str(command),)))
    if not told.run:
        return
    skip_without_extra(str(told.run))
    with socket.create_server(("localhost", 0)) as free:
        port = str(free.getsockname()[1])
    run = [split(text.replace("PORT", port), command.block)[0] for text in told.run]
    prepare(run[0].words, command, clone)
    said, finished = clone.call(*run, code=told.code)
    assert told.says in said
    if run[0].trains:
        expected = combinations("train", run[0].arguments)
        if "hydra/sweeper" in str(run[0]):  # it draws, and may draw the same again
            expected = finished
        assert finished == expected > 0, said
    words = run[0].words
    outputs = [word.partition("=")[2] for word in words if word.startswith("output=")]
    outputs += [words[at + 1] for at, word in enumerate(words) if word == "--output"]
    assert all((clone.folder / output).exists() for output in outputs)


# the commands of a code block go together where several processes share the tests
RUN = [
    pytest.param(one, marks=pytest.mark.xdist_group(f"block{one.block}"))
    for one in COMMANDS
    if str(one) not in INSTEAD or INSTEAD[str(one)].run
]


@pytest.mark.slow
@pytest.mark.parametrize("command", RUN, ids=str)
def test_it_runs(command, clone):
    """In a small copy of the project, in the order of the pages."""
    if str(command) not in clone.done:
        execute(command, clone)
