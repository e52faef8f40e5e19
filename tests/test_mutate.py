import importlib.util
import runpy
from pathlib import Path

import pytest

SCRIPT = runpy.run_path(str(Path(__file__).parents[1] / "scripts" / "mutate.py"))


def texts(source):
    return [text for _, text, _ in SCRIPT["mutants"](source)]


@pytest.mark.parametrize(
    ("source", "mutant"),
    [
        ("a < b", "a < b  ->  a <= b"),
        ("a / b", "a / b  ->  a * b"),
        ("a and b", "a and b  ->  a or b"),
        ("not a", "not a  ->  a"),
        ("-a", "-a  ->  a"),
        ("f(True)", "True  ->  False"),
        ("f(0.5)", "0.5  ->  1.5"),
        ("a if b else c", "a if b else c  ->  c if b else a"),
        ("if a:\n    pass", "if a:  ->  if not a:"),
        ("raise ValueError('a')", "raise ValueError('a')  ->  pass"),
        ("a += 1", "a += 1  ->  pass"),
    ],
)
def test_kinds_of_mutants(source, mutant):
    assert mutant in texts(source)


def test_text_annotations_and_messages_are_left_alone():
    assert texts("def f(a: int = None) -> list[1]:\n    'x < 1'\n    g(f'{a - 1}', 'x + 1')") == []


def test_each_mutant_differs_in_one_place():
    """Run all of them: every value but one is as it was."""
    source = "x = 1 + 2\ny = 3 < 4\n"
    for _, text, code in SCRIPT["mutants"](source):
        found = {}
        exec(code, found)
        assert ((found["x"] != 3) + (found["y"] is not True)) <= 1, text


def test_a_mutant_is_imported_instead_of_the_module():
    code = compile("answer = 43", "<mutant>", "exec")
    loader = SCRIPT["Loader"](Path("made_up/module.py"), code)
    spec = loader.find_spec("made_up.module")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.answer == 43
    assert loader.find_spec("made_up") is None
