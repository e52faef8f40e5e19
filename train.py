"""Train one model, or with -m a sweep: python train.py dataset=coco loss=tkpr_a2."""

import sys
from pathlib import Path

CONFIGS = Path(__file__).parent / "configs"


def main() -> None:
    """Answer --help at once; else compose the configuration and run it."""
    if {"--help", "-h"} & set(sys.argv[1:]):
        from tkpr.help import overview

        print(overview(CONFIGS))
        return
    from tkpr.cli import run_main

    run_main(CONFIGS, "train", train)


def train(cfg) -> float | None:  # type: ignore[no-untyped-def]
    """Run one configuration and print its results; return what a sweeper may optimize."""
    from tkpr.run import run, table

    results = run(cfg)
    if results is None:
        return None
    print(f"\n{table(results['metrics'])}\n\nrun folder: {results['folder']}")
    return results["metrics"].get(cfg.trainer.monitor)


if __name__ == "__main__":
    main()
