"""What train.py does: one run, or a sweep in which a failed run does not stop the others."""

import json
import logging
import math
import os
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, open_dict

from tkpr.runs.cli import run_main
from tkpr.runs.compose import compose
from tkpr.runs.folder import InUse
from tkpr.runs.run import run, table
from tkpr.runs.script import message, set_up

log = logging.getLogger(__name__)

# The file in which the processes of a sweep, on one machine or several, note what was not trained
NOTES = "TKPR_SWEEP_NOTES"


def train(configs: Path) -> None:
    """Train what the command line asks for.

    Runs of a sweep that other workers had locked are tried once more at the end, in case a worker
    has died. Those that fail are listed with their errors, and the exit code is 1.

    Args:
        configs: the folder of the configuration.
    """
    file = Path(f".sweep-{uuid.uuid4().hex}.jsonl").absolute()
    os.environ[NOTES] = str(file)
    try:
        run_main(configs, "train", train_one)
        if in_use := set(noted("in use")):
            log.info("retrying runs that other workers had locked")
            note("second pass")
            run_main(
                configs, "train", lambda cfg: train_one(cfg) if cfg.run_dir in in_use else None
            )
            if left := noted("in use", after="second pass"):
                log.info(
                    "left to other workers: %s; should one die, the same command ends its runs",
                    ", ".join(left),
                )
    finally:
        failed = noted("failed")
        file.unlink(missing_ok=True)
        if failed:
            lines = [f"  {folder}: {error}" for folder, error in failed.items()]
            print(f"error: {len(failed)} runs failed:", *lines, sep="\n", file=sys.stderr)
    if failed:
        sys.exit(1)


def train_here(configs: Path, words: Sequence[str]) -> float | None:
    """Train one configuration without Hydra's launcher, which composes it six times.

    Args:
        configs: the folder of the configuration.
        words: as on the command line.
    """
    set_up(log_to=sys.stdout)
    cfg = compose(configs, words, hydra_config=True)
    HydraConfig.instance().set_config(cfg)
    with open_dict(cfg):
        del cfg["hydra"]
    return train_one(cfg)


def train_one(cfg: DictConfig) -> float | None:
    """Train one configuration and print its results; return what a sweeper may optimize."""
    sweep = HydraConfig.get().mode == RunMode.MULTIRUN
    try:
        results = run(cfg)
    except InUse as skipped:
        log.info(skipped)
        if sweep:
            note("in use", cfg.run_dir)
        return None
    except Exception as error:
        # processes that share a run must all leave it, or they would wait for each other
        if not sweep or int(os.environ.get("WORLD_SIZE", 1)) > 1:
            raise
        log.error("%s failed: %s", cfg.run_dir, message(error))
        note("failed", cfg.run_dir, message(error))
        return math.nan
    if results is None:
        return None
    print(f"\n{table(results['metrics'])}\n\nrun folder: {results['folder']}")
    return results["metrics"].get(cfg.trainer.monitor)


def note(kind: str, folder: str = "", error: str = "") -> None:
    """Add a line to the notes of the sweep."""
    with open(os.environ[NOTES], "a") as file:
        file.write(json.dumps([kind, folder, error]) + "\n")


def noted(kind: str, *, after: str | None = None) -> dict[str, str]:
    """Return the folders of a kind and their errors, as far as noted after a line of another."""
    file = Path(os.environ[NOTES])
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    start = 0 if after is None else [found for found, _, _ in lines].index(after)
    return {folder: error for found, folder, error in lines[start:] if found == kind}
