"""Check a data set on disk against its reference counts; download it where that is possible.

    python scripts/prepare_data.py dataset=voc2012
    python scripts/prepare_data.py dataset=coco dataset.root=/data/coco download=true
    python scripts/prepare_data.py dataset=csv dataset.root=mine check_images=true

The exit code is 0 only if everything is as it should be.
"""

import sys
from collections import Counter
from pathlib import Path

from omegaconf import DictConfig

from tkpr.config import build_dataset
from tkpr.data.dataset import MultiLabelData
from tkpr.data.download import archives_of, download
from tkpr.data.files import absolute, missing_files
from tkpr.data.inspection import copied_files, summary, unreadable_files
from tkpr.data.reference_counts import reference_counts
from tkpr.runs.cli import run_main

CONFIGS = Path(__file__).resolve().parents[1] / "configs"


def prepare(cfg: DictConfig) -> list[str]:
    """Print what the data set holds; return what is wrong with it, a line each."""
    if cfg.download:
        fetch_missing(cfg.dataset)
    dataset = cfg.dataset.copy()
    if "check_files" in dataset:
        dataset.check_files = False  # here all missing files are named, not only the first
    try:
        data = build_dataset(dataset)
    except (ValueError, OSError) as error:
        return [str(error)]
    reference = reference_counts(dataset._target_, dataset)
    same_order = reference is not None and reference.order.items() <= dataset.items()
    table, differences = summary(data, reference, check_order=same_order)
    print(table)
    return differences + file_problems(data, decode=cfg.check_images, workers=cfg.workers)


def fetch_missing(dataset: DictConfig) -> None:
    """Download what the folder of the data set lacks."""
    archives = archives_of(dataset._target_, dataset)
    if not archives:
        raise ValueError(
            "this data set cannot be downloaded automatically; data/README.md says how to get it"
        )
    root = absolute(dataset.root)
    includes_root = archives[0].provides.startswith(f"{root.name}/")  # such as VOCdevkit
    download(archives, root.parent if includes_root else root)


def file_problems(data: MultiLabelData, *, decode: bool, workers: int) -> list[str]:
    """List missing image files and, with ``decode``, unreadable ones."""
    splits = [split for split in (data.train, data.test) if isinstance(split.inputs[0], Path)]
    paths = [path for split in splits for path in split.inputs]
    missing = missing_files(paths)
    folders = Counter(path.parent for path in missing if not path.parent.is_dir())
    problems = [f"missing: the folder {folder} ({n:,} images)" for folder, n in folders.items()]
    problems += [f"missing: {path}" for path in missing if path.parent not in folders]
    if decode:
        absent = set(missing)
        present = [path for path in paths if path not in absent]
        bad = unreadable_files(present, workers=workers)
        problems += [f"unreadable: {reason}" for _, reason in bad]
        print(f"{len(present) - len(bad):,} of {len(paths):,} image files can be decoded")
        if copies := copied_files(*([p for p in s.inputs if p not in absent] for s in splits)):
            test, train = copies[0]
            print(
                f"{len(copies):,} test images are copies of training images, such as {test} of "
                f"{train}"
            )
    elif paths:
        print(f"{len(paths) - len(missing):,} of {len(paths):,} image files are there")
    return problems


def check(cfg: DictConfig) -> None:
    """Run the check and turn its result into an exit code."""
    problems = prepare(cfg)
    for problem in problems:
        print(problem, file=sys.stderr)
    if problems:
        sys.exit(1)
    print("all is well")


if __name__ == "__main__":
    run_main(CONFIGS, "prepare_data", check)
