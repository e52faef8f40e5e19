"""Mutation testing: change one operator, number or condition at a time; do the tests notice?

python scripts/mutate.py tkpr/ranking.py --tests tests/test_ranking.py tests/test_metrics.py
python scripts/mutate.py tkpr/losses/tkpr.py --tests tests/losses/test_tkpr.py --sample 40

A mutant is killed if a test or a doctest of the module fails. It has timed out if its tests need
more than --timeout seconds of processor time: an endless loop is as good as killed, tests that are
slow by themselves say nothing, so these are counted apart. It is undecided, and not counted, if the
machine has no time for it. The last line holds module, mutants, tested, killed, timed out.

Each mutant is tested in a process of its own. A change inside a function is tested by the tests
that call it, the fastest first; the tests are collected once, and the function is replaced in the
forked process. Any other change is tested by importing the mutant.
"""

import ast
import contextlib
import gc
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import multiprocessing
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import TYPE_CHECKING, Any, TypeVar, cast

from tkpr.runs.script import Parser, script

if TYPE_CHECKING:
    import pytest

T = TypeVar("T")
Mutant = tuple[int, str, CodeType]  # line, description, code
FORK = multiprocessing.get_context("fork")
TIMED_OUT = "time"  # what ends a process that needs too much of it
# --assert=plain: rewriting would load the module itself instead of the mutant
PYTEST = ["-x", "-q", "--assert=plain", "-p", "no:cacheprovider"]
SWAPS: dict[type, type] = {
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt},
    **{ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is},
    **{ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And},
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult},
    **{ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult, ast.Pow: ast.Mult, ast.MatMult: ast.Mult},
    **{ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd},
}


def changes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what a node may be replaced by."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPS:
        yield ast.Compare(node.left, [SWAPS[type(node.ops[0])](), *node.ops[1:]], node.comparators)
    elif isinstance(node, ast.BinOp) and type(node.op) in SWAPS:
        yield ast.BinOp(node.left, SWAPS[type(node.op)](), node.right)
    elif isinstance(node, ast.BoolOp):
        yield ast.BoolOp(SWAPS[type(node.op)](), node.values)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.Not | ast.Invert):
        yield node.operand
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        yield ast.Constant(node.value + 1)
    elif isinstance(node, ast.IfExp):
        yield ast.IfExp(node.test, node.orelse, node.body)
    elif isinstance(node, ast.If):
        yield ast.If(ast.UnaryOp(ast.Not(), node.test), node.body, node.orelse)
    elif isinstance(node, ast.Raise | ast.AugAssign):
        yield ast.Pass()


def places(parent: ast.AST) -> Iterator[tuple[ast.AST, str, int | None]]:
    """Yield (parent, field, position) of every node, except in annotations and messages."""
    for field, value in ast.iter_fields(parent):
        if field in ("annotation", "returns", "decorator_list", "exc"):
            continue
        for position, node in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if isinstance(node, ast.AST) and not isinstance(node, ast.JoinedStr):
                yield parent, field, position
                yield from places(node)


def mutants(source: str) -> list[Mutant]:
    """Return (line, description, code) of every mutant of a module.

    >>> [(line, text) for line, text, _ in mutants("x = 1 < y")]
    [(1, '1 < y  ->  1 <= y'), (1, '1  ->  2')]
    """
    found = []
    for number, (parent, field, position) in enumerate(places(ast.parse(source))):
        value = getattr(parent, field)
        node = value if position is None else value[position]
        for change in changes(node):
            tree = ast.parse(source)
            other, _, _ = list(places(tree))[number]
            if position is None:
                setattr(other, field, change)
            else:
                getattr(other, field)[position] = change
            before, after = (ast.unparse(part).splitlines()[0] for part in (node, change))
            code = compile(ast.fix_missing_locations(tree), "<mutant>", "exec")
            found.append((getattr(node, "lineno", 0), f"{before}  ->  {after}", code))
    return found


class Loader(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module from the code of a mutant."""

    def __init__(self, path: Path, code: CodeType) -> None:
        self.path, self.code = path, code
        self.name = ".".join(path.with_suffix("").parts).removesuffix(".__init__")

    def find_spec(
        self, fullname: str, path: object = None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Claim the mutated module."""
        if fullname != self.name:
            return None
        return importlib.util.spec_from_file_location(
            fullname, self.path.absolute(), loader=self, submodule_search_locations=None
        )

    def exec_module(self, module: object) -> None:
        """Run the mutant."""
        exec(self.code, module.__dict__)


def end_on_sigterm() -> None:
    """Leave by an exception, so that the processes started from here are ended first."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


@contextlib.contextmanager
def beside(task: Callable[..., None], *arguments: Any) -> Iterator[None]:
    """Run a task in a process of its own that does not outlive the block."""
    child = FORK.Process(target=task, args=arguments)
    child.start()
    try:
        yield
    finally:
        child.terminate()
        child.join()


def in_child(task: Callable[..., Any], *arguments: Any, timeout: float, wall: float) -> Any:
    """Return what a task returns in a process of its own, how it died, or None if it is unknown.

    The process leads a group, which ends with it: the processes that a test has started.

    Args:
        task: its first argument is a function that ends the process with a result.
        *arguments: its others.
        timeout: seconds of processor time.
        wall: seconds in all; a machine that is busy with other work may exceed them.
    """
    ours, theirs = FORK.Pipe(duplex=False)

    def end(result: Any) -> None:
        theirs.send(result)
        os._exit(0)

    def run() -> None:
        os.setpgid(0, 0)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CPU, (int(timeout), int(timeout) + 1))
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        try:
            result = task(end, *arguments)
        except BaseException as error:  # a KeyboardInterrupt, for instance, ends the tests as well
            result = f"{type(error).__name__} outside of a test"
        end(result)

    child = FORK.Process(target=run)
    child.start()
    theirs.close()
    try:
        return ours.recv() if ours.poll(wall) else None
    except EOFError:
        child.join(wall)
        if child.exitcode == -signal.SIGXCPU:
            return TIMED_OUT
        return f"exit code {child.exitcode}" if child.exitcode else None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(cast(int, child.pid), signal.SIGKILL)
        child.kill()
        child.join()


def imported(end: Callable[[Any], None], path: Path, code: CodeType, tests: list[str]) -> str:
    """Import a mutant instead of the module and return whether a test fails."""
    import pytest

    sys.meta_path.insert(0, Loader(path, code))
    return "a test" if pytest.main([*PYTEST, str(path), *tests]) else ""


def parts(code: CodeType) -> list[CodeType]:
    r"""Return the code of a module and of everything that is defined in it, in order.

    >>> code = compile("class A:\n    def f(self):\n        pass", "", "exec")
    >>> [part.co_qualname for part in parts(code)]
    ['<module>', 'A', 'A.f']
    """
    inside = [part for part in code.co_consts if isinstance(part, CodeType)]
    return [code, *(deeper for part in inside for deeper in parts(part))]


def changed_function(before: list[CodeType], after: list[CodeType]) -> int | None:
    """Return which of a module's parts a mutant changes; None unless it is one function alone."""
    if len(before) != len(after):
        return None

    def own(code: CodeType) -> tuple[Any, ...]:
        values = [repr(value) for value in code.co_consts if not isinstance(value, CodeType)]
        return code.co_code, code.co_names, code.co_freevars, values

    pairs = enumerate(zip(before, after, strict=True))
    found = [number for number, (one, other) in pairs if own(one) != own(other)]
    if len(found) != 1 or not before[found[0]].co_flags & inspect.CO_OPTIMIZED:
        return None
    return found[0]


class Session:
    """A plugin of pytest that collects tests once and runs them on one mutant after another.

    Args:
        path: the module.
        codes: of its mutants.
        timeout: seconds of processor time for a mutant.
        results: for each mutant whether its change is inside a function and, if it is, the name of
            the test that kills it, TIMED_OUT, "" if it survives, None if it is undecided.
    """

    def __init__(self, path: Path, codes: list[CodeType], timeout: float, results: Any) -> None:
        self.path, self.timeout, self.results = str(path.resolve()), timeout, results
        self.before = parts(compile(path.read_text(), self.path, "exec"))
        self.places = {place(code): number for number, code in enumerate(self.before)}
        self.mutants = [parts(code) for code in codes]
        self.end: Callable[[Any], None] = print

    def pytest_runtest_logreport(self, report: "pytest.TestReport") -> None:
        """End the process of a mutant with the first test that fails."""
        if report.failed:
            self.end(report.nodeid)

    def pytest_runtestloop(self, session: "pytest.Session") -> bool:
        """Run the tests on the module as it is, then on each mutant."""
        functions = [one for one in gc.get_objects() if self.is_ours(one)]
        items, base = session.items, Path(session.config.option.basetemp)
        calls = in_child(self.trace, items, timeout=1e6, wall=1e6)
        if not isinstance(calls, list):
            self.results.send((True, f"the tests fail without any change: {calls}"))
            return True
        kills: Counter[str] = Counter()
        for after in self.mutants:
            number = changed_function(self.before, after)
            if number is None:
                self.results.send((False, None))
                continue
            useful = sorted(
                (seconds / (1 + kills[item.nodeid]), position)
                for position, (item, (seconds, seen)) in enumerate(zip(items, calls, strict=True))
                if number in seen
            )
            tests = [items[position] for _, position in useful]
            limits = {"timeout": self.timeout, "wall": 30 * self.timeout}
            killer = in_child(self.replaced, functions, after, tests, **limits)
            kills[killer or ""] += 1
            self.results.send((True, killer))
            shutil.rmtree(base, ignore_errors=True)
            base.mkdir()
        return True

    def is_ours(self, one: object) -> bool:
        """Whether an object is a function of the module."""
        return (
            isinstance(one, FunctionType)
            and one.__code__.co_filename == self.path
            and place(one.__code__) in self.places
        )

    def trace(
        self, end: Callable[[Any], None], items: list["pytest.Item"]
    ) -> list[tuple[float, set[int]]]:
        """Return how long each test takes, and which functions of the module it calls."""
        self.end, found, seen = end, [], set()

        def note(frame: FrameType, event: str, value: object) -> None:
            if frame.f_code.co_filename == self.path:
                seen.add(self.places[place(frame.f_code)])

        for item, following in with_next(items):
            seen.clear()
            start = time.process_time()
            sys.settrace(note)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            sys.settrace(None)
            found.append((time.process_time() - start, set(seen)))
        return found

    def replaced(
        self,
        end: Callable[[Any], None],
        functions: list[FunctionType],
        after: list[CodeType],
        items: list["pytest.Item"],
    ) -> str:
        """Replace the functions of the module by a mutant's, then run tests."""
        self.end = end
        for one in functions:
            one.__code__ = after[self.places[place(one.__code__)]]
        for item, following in with_next(items):  # none: no test calls the function
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        return ""


def with_next(items: list[T]) -> Iterator[tuple[T, T | None]]:
    """Yield each item and the one after it, None after the last.

    >>> list(with_next([1, 2])), list(with_next([]))
    ([(1, 2), (2, None)], [])
    """
    return zip(items, [*items[1:], None], strict=False)


def place(code: CodeType) -> tuple[str, int, bytes]:
    """Return what tells a function from the others of its module."""
    return code.co_qualname, code.co_firstlineno, code.co_linetable


def run_session(session: Session, tests: list[str]) -> None:
    """Collect tests and run them on mutants."""
    import pytest

    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    with tempfile.TemporaryDirectory() as base:
        pytest.main([*PYTEST, "-s", f"--basetemp={base}/tests", *tests], [session])


def main() -> None:
    """Read the command line, test the mutants, print each and a line of CSV."""
    parser = Parser(__doc__)
    parser.add_argument("module", type=Path, help="a file, relative to the working directory")
    parser.add_argument("--tests", nargs="+", default=[], help="test files, fastest first")
    parser.add_argument("--sample", type=int, help="the number of mutants to draw; default all")
    parser.add_argument("--lines", type=int, nargs="+", help="only mutants of these lines")
    parser.add_argument("--timeout", type=float, default=60, help="seconds of processor time")
    arguments = parser.parse_args()
    for name in [name for name in sys.modules if name.partition(".")[0] == "tkpr"]:
        del sys.modules[name]  # the children import it anew
    for name in ("hypothesis", "pandas", "scipy.stats", "sklearn.metrics", "hydra", "pytest"):
        importlib.import_module(name)  # once for all children
    import torch

    torch.set_num_threads(1)
    path, tests, timeout = arguments.module, arguments.tests, arguments.timeout
    every = mutants(path.read_text())
    drawn = [mutant for mutant in every if not arguments.lines or mutant[0] in arguments.lines]
    if arguments.sample is not None:
        drawn = random.Random(0).sample(drawn, min(arguments.sample, len(drawn)))
    ours, theirs = FORK.Pipe(duplex=False)
    session = Session(path, [code for _, _, code in drawn], timeout, theirs)
    outcomes: Counter[str] = Counter()
    end_on_sigterm()
    with beside(run_session, session, [str(path), *tests]):
        theirs.close()
        for line, text, code in drawn:
            inside, killer = ours.recv()
            if not inside:
                limits = {"timeout": 5 * timeout, "wall": 30 * timeout}
                killer = in_child(imported, path, code, tests, **limits)
            elif killer and killer.startswith("the tests fail"):
                raise ValueError(killer)
            outcomes[outcome(killer)] += 1
            by = f" by {killer}" if outcome(killer) == "killed" else ""
            print(f"{outcome(killer)}{by}: {path}:{line}: {text}", flush=True)
    tested = len(drawn) - outcomes["undecided"]
    counts = [len(every), tested, outcomes["killed"], outcomes["timed out"]]
    print(path, *counts, sep=",", flush=True)


def outcome(killer: str | None) -> str:
    """Say what became of a mutant.

    >>> [outcome(killer) for killer in ("tests/test_a.py::test_b", TIMED_OUT, "", None)]
    ['killed', 'timed out', 'survived', 'undecided']
    """
    if killer is None:
        return "undecided"
    if killer == TIMED_OUT:
        return "timed out"
    return "killed" if killer else "survived"


if __name__ == "__main__":
    script(main)
