"""The folder of a run: one process at a time, one set of settings."""

import contextlib
import fcntl
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from tkpr import atomic
from tkpr.config import MACHINE_SETTINGS, flat


class InUse(Exception):
    """Another process is training in the run folder."""


@contextlib.contextmanager
def claim(folder: Path, cfg: DictConfig) -> Iterator[bool]:
    """Lock a run folder and store the settings in it; yield False where another process has it.

    The lock belongs to the process and ends with it, however it ends: the loader's workers, which
    may live a little longer, let go of it at once.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        os.register_at_fork(after_in_child=lock.close)
        atomic.remove_parts(folder)
        settings = flat(OmegaConf.to_container(cfg, resolve=True))
        stored = folder / "config.yaml"
        if stored.exists():
            before = flat(OmegaConf.to_container(OmegaConf.load(stored), resolve=True))
            changed = sorted(
                key
                for key in {*settings, *before}
                if settings.get(key) != before.get(key) and key not in MACHINE_SETTINGS
            )
            if changed:
                what = "; ".join(f"{k}: {before.get(k)} -> {settings.get(k)}" for k in changed)
                raise ValueError(
                    f"{folder} holds a run with other settings ({what}): "
                    f"name another folder with run_dir=... or delete this one"
                )
        else:
            atomic.write(stored, OmegaConf.to_yaml(cfg, resolve=True))
        yield True


@contextlib.contextmanager
def log_to(file: Path) -> Iterator[None]:
    """Write the log lines to a file as well, with the time, and an error that ends the run."""
    handler = logging.FileHandler(file)
    handler.setFormatter(logging.Formatter("%(asctime)s  %(message)s"))
    logging.getLogger("tkpr").addHandler(handler)
    try:
        yield
    except Exception as error:
        failed = {"msg": "failed: %s", "args": (error,), "exc_info": sys.exc_info()}
        handler.handle(logging.makeLogRecord(failed))
        raise
    finally:
        logging.getLogger("tkpr").removeHandler(handler)
        handler.close()
