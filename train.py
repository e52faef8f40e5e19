"""Train one model, or with -m a sweep: python train.py dataset=coco loss=tkpr_a2."""

import sys
from pathlib import Path

CONFIGS = Path(__file__).parent / "configs"


def main() -> None:
    """Answer --help at once; else compose the configuration and run it."""
    if {"--help", "-h"} & set(sys.argv[1:]):
        from tkpr.runs.help import overview

        print(overview(CONFIGS))
        return
    from tkpr.runs.sweep import train

    train(CONFIGS)


if __name__ == "__main__":
    main()
