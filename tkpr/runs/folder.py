"""The folder of a run: one process at a time, one set of settings, one data set."""

import contextlib
import fcntl
import logging
import os
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from tkpr import atomic, records
from tkpr.config import LOCATIONS, MACHINE_SETTINGS, flat
from tkpr.runs.script import message


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
            check_config(folder)
            before = read_config(stored)
            changed = sorted(
                key
                for key in {*settings, *before} - MACHINE_SETTINGS - LOCATIONS
                if settings.get(key) != before.get(key)
            )
            if changed:
                what = "; ".join(f"{k}: {before.get(k)} -> {settings.get(k)}" for k in changed)
                raise ValueError(
                    f"{folder} holds a run with other settings ({what}): "
                    f"name another folder with run_dir=... or delete this one"
                )
        elif (folder / "run.json").exists():
            raise ValueError(
                f"{folder} has no config.yaml, which holds the settings of its run: restore it, or "
                "delete the folder to start over"
            )
        else:
            atomic.write(stored, OmegaConf.to_yaml(cfg, resolve=True))
        yield True


def check_config(folder: Path) -> None:
    """Refuse a config.yaml that is damaged or comes from another run than run.json."""
    file, identity = folder / "config.yaml", folder / "run.json"
    if identity.exists() and records.read(identity)["config"] != records.file_checksum(file):
        raise ValueError(
            f"{file} is damaged, or it and run.json belong to different runs (its checksum is not "
            "the one in run.json): restore it, or delete the folder to start over"
        )


def read_config(file: Path) -> dict[str, Any]:
    """Return the settings in a config.yaml, with dotted keys."""
    try:
        return flat(OmegaConf.to_container(OmegaConf.load(file), resolve=True))
    except Exception as error:  # broken YAML fails in many ways
        raise ValueError(
            f"{file} cannot be read ({message(error)}): restore it, or delete the folder to start "
            "over"
        ) from error


def check_data(folder: Path, data: dict[str, str]) -> None:
    """Refuse to resume or skip a run on other data; begin a new one with its run.json.

    It holds the id of the run, which is in every other file of it, the fingerprint of its data, and
    the checksum of config.yaml.

    Args:
        folder: claimed.
        data: :func:`tkpr.data.fingerprint.fingerprint`, and that of the pretrained weights.
    """
    file = folder / "run.json"
    if not file.exists():
        for name in ("last.ckpt", "metrics.json"):
            if (folder / name).exists():
                raise ValueError(
                    f"{folder} has no run.json, which says what data {name} was computed from: "
                    "restore it, or delete the folder to start over"
                )
        config = records.file_checksum(folder / "config.yaml")
        records.write(file, {"run": uuid.uuid4().hex, "data": data, "config": config})
        return
    before = records.read(file)["data"]
    changed = sorted(key for key in {*data, *before} if data.get(key) != before.get(key))
    if changed:
        raise ValueError(
            f"{folder} holds a run on other data ({', '.join(changed)} differ): name another "
            "folder with run_dir=..., or delete this one"
        )


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
