"""How every script starts and ends: its arguments checked before the work, errors as one line."""

import argparse
import contextlib
import logging
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn, TextIO

# errors a user can fix; any other exception is a bug and shows its traceback
USER_ERRORS = (ValueError, OSError, FloatingPointError, ImportError)


def script(main: Callable[[], None]) -> None:
    """Run the ``main`` of a script: set up logging, and turn errors into one line and exit code 1.

    Example::

        if __name__ == "__main__":
            script(main)
    """
    set_up(log_to=sys.stderr)
    with one_line_errors():
        main()


def set_up(*, log_to: TextIO) -> None:
    """Send the package's log lines to a stream, and choose CPU kernels that work everywhere."""
    logger = logging.getLogger("tkpr")
    logger.handlers, logger.propagate = [logging.StreamHandler(log_to)], False
    logger.setLevel(logging.INFO)
    logging.getLogger("timm").setLevel(logging.WARNING)
    # oneDNN's bfloat16 kernels for AMX end in an illegal instruction on some virtual machines
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")


@contextlib.contextmanager
def one_line_errors() -> Iterator[None]:
    """Exit with one line on stderr for errors that a user can fix.

    With ``TKPR_TRACEBACK=1`` in the environment they are raised as they are.
    """
    try:
        yield
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # the reader of the output, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except USER_ERRORS as error:
        if os.environ.get("TKPR_TRACEBACK"):
            raise
        sys.exit(f"error: {message(error)}\n(TKPR_TRACEBACK=1 shows where)")


def message(error: BaseException) -> str:
    """Return what an error says in one line, or its name where it says nothing.

    >>> message(ValueError("no weights")), message(AssertionError())
    ('no weights', 'AssertionError')
    """
    return " ".join(str(error).split()) or type(error).__name__


class Parser(argparse.ArgumentParser):
    """The command line of a script; a wrong argument is answered by one line and exit code 2.

    Args:
        description: the docstring of the script, printed by --help as it is.
    """

    def __init__(self, description: str | None) -> None:
        super().__init__(
            description=description,
            formatter_class=argparse.RawTextHelpFormatter,
            allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        """Exit."""
        self.exit(2, f"error: {message} (--help shows all arguments)\n")


def output_file(text: str) -> Path:
    """An argument that names a file to write; its folder is created, and must be writable.

    >>> output_file("/")
    Traceback (most recent call last):
    argparse.ArgumentTypeError: / is a folder, not a file
    """
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{path} is a folder, not a file")
    output_folder(str(path.parent))
    return path


def output_folder(text: str) -> Path:
    """An argument that names a folder to write to; it is created, and must be writable."""
    path = Path(text)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise argparse.ArgumentTypeError(
            f"cannot create the folder {path}: {error.strerror}"
        ) from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise argparse.ArgumentTypeError(f"the folder {path} is not writable")
    return path


def device(text: str) -> str:
    """An argument that names a torch device of this machine; ``auto`` is a GPU if there is one.

    >>> device("cpu")
    'cpu'
    >>> device("tpu")
    Traceback (most recent call last):
    argparse.ArgumentTypeError: tpu is not available on this machine: use cpu
    """
    import torch

    if text == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(1, device=text)
    except (RuntimeError, AssertionError) as error:  # unknown, not built in, or not there
        raise argparse.ArgumentTypeError(
            f"{text} is not available on this machine: use cpu"
        ) from error
    return text


def positive_int(text: str) -> int:
    """An argument that is a whole number of at least 1.

    >>> positive_int("0")
    Traceback (most recent call last):
    argparse.ArgumentTypeError: must be a whole number of at least 1; got 0
    """
    if not (text.isascii() and text.isdecimal() and int(text)):
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1; got {text}")
    return int(text)
