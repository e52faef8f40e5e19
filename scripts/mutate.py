"""Mutation testing: change one operator, number or condition at a time; do the tests notice?

python scripts/mutate.py tkpr/ranking.py --tests tests/test_ranking.py tests/test_metrics.py
python scripts/mutate.py tkpr/losses/tkpr.py --tests tests/losses/test_tkpr.py --sample 40

A mutant is killed if a test or a doctest of the module fails. Survivors are printed with their
line. Each mutant is tested in a forked process that has the libraries, but not tkpr, loaded.
"""

import ast
import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import multiprocessing
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType

from tkpr.runs.script import Parser, script

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


def mutants(source: str) -> list[tuple[int, str, CodeType]]:
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


def survives(path: Path, code: CodeType | None, tests: list[str]) -> None:
    """Exit with 0 if the tests pass with a mutant (or, without code, the module itself)."""
    import pytest

    if code is not None:
        sys.meta_path.insert(0, Loader(path, code))
    with open(os.devnull, "w") as null, contextlib.redirect_stdout(null):
        os.dup2(null.fileno(), 2)
        # --assert=plain: rewriting would load the module itself instead of the mutant
        words = ["-x", "-q", "--assert=plain", "-p", "no:cacheprovider", str(path), *tests]
        os._exit(int(pytest.main(words)))


def main() -> None:
    """Read the command line, test the mutants, print the survivors and a line of CSV."""
    parser = Parser(__doc__)
    parser.add_argument("module", type=Path, help="a file, relative to the working directory")
    parser.add_argument("--tests", nargs="+", default=[], help="test files, fastest first")
    parser.add_argument("--sample", type=int, help="the number of mutants to draw; default all")
    parser.add_argument("--lines", type=int, nargs="+", help="only mutants of these lines")
    parser.add_argument("--timeout", type=float, default=600, help="seconds; later means killed")
    arguments = parser.parse_args()
    for name in [name for name in sys.modules if name.partition(".")[0] == "tkpr"]:
        del sys.modules[name]  # the children import it anew
    for name in ("hypothesis", "pandas", "scipy.stats", "sklearn.metrics", "hydra", "pytest"):
        importlib.import_module(name)  # once for all children
    import torch

    torch.set_num_threads(1)
    fork = multiprocessing.get_context("fork")

    def passes(code: CodeType | None) -> bool:
        child = fork.Process(target=survives, args=(arguments.module, code, arguments.tests))
        child.start()
        child.join(arguments.timeout)
        child.kill()
        child.join()
        return child.exitcode == 0

    if not passes(None):
        raise ValueError("the tests fail without any change")
    every = mutants(arguments.module.read_text())
    drawn = [mutant for mutant in every if not arguments.lines or mutant[0] in arguments.lines]
    if arguments.sample is not None:
        drawn = random.Random(0).sample(drawn, min(arguments.sample, len(drawn)))
    killed = 0
    for line, text, code in drawn:
        if passes(code):
            print(f"survived: {arguments.module}:{line}: {text}", flush=True)
        else:
            killed += 1
    print(f"{arguments.module},{len(every)},{len(drawn)},{killed}", flush=True)


if __name__ == "__main__":
    script(main)
