"""Train one model, or with -m a sweep: python train.py dataset=coco loss=tkpr_a2."""

import logging
import sys
from pathlib import Path

CONFIGS = Path(__file__).parent / "configs"
IN_USE: list[str] = []  # folders of this sweep that other processes were training in


def main() -> None:
    """Answer --help at once; else compose the configuration and run it."""
    if {"--help", "-h"} & set(sys.argv[1:]):
        from tkpr.runs.help import overview

        print(overview(CONFIGS))
        return
    from tkpr.runs.cli import run_main

    run_main(CONFIGS, "train", train)
    if IN_USE:
        left = set(IN_USE)
        IN_USE.clear()
        log = logging.getLogger("tkpr")
        log.info("back to the runs of other workers, for what a dead one has left")
        run_main(CONFIGS, "train", lambda cfg: train(cfg) if cfg.run_dir in left else None)
        if IN_USE:
            log.info(
                "left to other workers: %s; should one die, the same command ends its runs",
                ", ".join(IN_USE),
            )


def train(cfg) -> float | None:  # type: ignore[no-untyped-def]
    """Run one configuration and print its results; return what a sweeper may optimize."""
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode

    from tkpr.runs.run import InUse, run, table

    try:
        results = run(cfg)
    except InUse as skipped:
        logging.getLogger("tkpr").info(skipped)
        if HydraConfig.get().mode == RunMode.MULTIRUN:
            IN_USE.append(cfg.run_dir)
        return None
    if results is None:
        return None
    print(f"\n{table(results['metrics'])}\n\nrun folder: {results['folder']}")
    return results["metrics"].get(cfg.trainer.monitor)


if __name__ == "__main__":
    main()
