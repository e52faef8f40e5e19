import importlib.util
import os
import runpy
import signal
import time
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


def wait(end, seconds):
    time.sleep(seconds)
    return "done"


def spin(end):
    while True:
        pass


def die(end):
    os.kill(os.getpid(), signal.SIGKILL)


def interrupt(end):
    raise KeyboardInterrupt


def test_how_a_mutant_ends():
    """One that never ends has timed out; one that had to wait for the machine is undecided."""
    in_child, outcome = SCRIPT["in_child"], SCRIPT["outcome"]
    assert in_child(wait, 0, timeout=60, wall=60) == "done"
    assert in_child(lambda end: end("early"), timeout=60, wall=60) == "early"
    assert outcome(in_child(spin, timeout=1, wall=300)) == "timed out"
    assert outcome(in_child(wait, 60, timeout=60, wall=0.1)) == "undecided"
    assert in_child(die, timeout=60, wall=60) == "exit code -9"
    assert in_child(interrupt, timeout=60, wall=60) == "KeyboardInterrupt outside of a test"


def test_a_change_that_no_test_reaches_survives():
    """A function that no test calls has no test to fail."""
    session = object.__new__(SCRIPT["Session"])
    outcome = SCRIPT["in_child"](session.replaced, [], [], [], timeout=60, wall=60)
    assert SCRIPT["outcome"](outcome) == "survived"


def test_no_process_outlives_a_sigterm():
    """The script has a process that runs the tests, that one a mutant's, which may start more."""
    last_end, held = SCRIPT["FORK"].Pipe(duplex=False)  # by all of them
    ready, tell = SCRIPT["FORK"].Pipe(duplex=False)

    def mutant(end):
        SCRIPT["FORK"].Process(target=time.sleep, args=(600,)).start()
        tell.send("ready")
        time.sleep(600)

    def session():
        SCRIPT["in_child"](mutant, timeout=60, wall=600)

    def main():
        SCRIPT["end_on_sigterm"]()
        with SCRIPT["beside"](session):
            time.sleep(600)

    script = SCRIPT["FORK"].Process(target=main)
    script.start()
    held.close()
    assert ready.poll(60)
    script.terminate()
    assert last_end.poll(60)  # closed by the last of them
    with pytest.raises(EOFError):
        last_end.recv()
    script.join()
    assert script.exitcode == 128 + signal.SIGTERM


def test_only_the_function_that_changes_is_named():
    source = "limit = 1\n\ndef f(a=2):\n    return [x + 3 for x in a]\n\nclass A:\n    b = 4\n"
    before = SCRIPT["parts"](compile(source, "", "exec"))
    found = {
        text: SCRIPT["changed_function"](before, SCRIPT["parts"](code))
        for _, text, code in SCRIPT["mutants"](source)
    }
    inside = found.pop("3  ->  4")
    assert before[inside].co_qualname.startswith("f")
    assert found.pop("x + 3  ->  x - 3") == inside
    assert set(found.values()) == {None}
