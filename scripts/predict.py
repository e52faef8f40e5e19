"""Label images with a trained model, as many as there are.

python scripts/predict.py runs/voc2012/tkpr_a2/default photo.jpg folder/ --top 5
python scripts/predict.py model.safetensors folder/ --threshold 0.5 --output labels.csv
find photos -name "*.jpg" | python scripts/predict.py model.safetensors - --output labels.csv
"""

import csv
import json
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

from tkpr.reporting.escape import for_spreadsheet
from tkpr.runs.script import Parser, device, output_file, positive_int, script

SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp"}
FIELDS = ["image", "rank", "label", "score"]


def main() -> None:
    """Read the command line, predict, write one row per image and label as they come."""
    parser = Parser(__doc__)
    parser.add_argument(
        "run", type=Path, help="the folder of a finished run, or its model.safetensors"
    )
    parser.add_argument(
        "images", nargs="*", help="image files, or folders of them; -: names from standard input"
    )
    parser.add_argument("--list", type=Path, help="a file with the name of an image in each line")
    parser.add_argument("--top", type=positive_int, help="how many labels per image")
    parser.add_argument(
        "--threshold",
        type=float,
        help="labels with at least this probability\n"
        "(default: the thresholds stored in the model, see scripts/thresholds.py, else --top 5)",
    )
    parser.add_argument(
        "--output", type=output_file, help="a .csv or .json file; default: the terminal"
    )
    parser.add_argument(
        "--skip-unreadable", action="store_true", help="leave out and name broken images"
    )
    parser.add_argument("--batch-size", type=positive_int, default=32)
    parser.add_argument("--num-workers", type=int, default=0, help="processes that read images")
    parser.add_argument("--device", type=device, default="auto", help="cpu, cuda, mps")
    arguments = parser.parse_intermixed_args()
    if arguments.output and arguments.output.suffix not in (".csv", ".json"):
        raise ValueError(f"--output must end in .csv or .json; got {arguments.output}")
    if arguments.threshold is not None and not 0 <= arguments.threshold <= 1:
        raise ValueError(f"--threshold must be from 0 to 1; got {arguments.threshold}")
    if not arguments.images and not arguments.list:
        raise ValueError("name images, folders, or - for names from standard input; or --list FILE")

    import numpy as np
    from tqdm import tqdm

    from tkpr.config import build
    from tkpr.data.dataset import Split
    from tkpr.data.images import ImageDataset
    from tkpr.decisions import probabilities
    from tkpr.runs.saved_model import load_model
    from tkpr.training.predict import fabric_on, predict

    trained = load_model(arguments.run)
    if len(trained.input_shape) != 3:
        raise ValueError("this model was trained on features, not on images")
    pipeline, fabric = build(trained.cfg.transform), fabric_on(arguments.device)
    names = find_images(arguments.images, arguments.list)
    files: Iterable[Path] = names if "-" in arguments.images else list(names)
    total = len(files) if isinstance(files, list) else None
    cuts = cut_offs(trained.thresholds, len(trained.class_names), arguments)
    start, found = time.monotonic(), 0
    with (
        arguments.output.open("w") if arguments.output else nullcontext(sys.stdout) as file,
        tqdm(total=total, unit=" images", disable=None) as bar,
    ):
        writer = Writer(file, as_json=bool(arguments.output and arguments.output.suffix == ".json"))
        waiting = iter(files)
        while part := list(islice(waiting, 8 * arguments.batch_size)):
            targets = np.zeros((len(part), len(trained.class_names)), np.uint8)
            dataset = ImageDataset(
                Split(part, targets, [str(name) for name in part]),
                size=pipeline.size,
                interpolation=pipeline.interpolation,
                on_error="skip" if arguments.skip_unreadable else "raise",
            )
            try:
                logits = predict(
                    trained.model,
                    dataset,
                    pipeline.finish,
                    fabric,
                    batch_size=arguments.batch_size,
                    num_workers=arguments.num_workers,
                )
            except ValueError:
                if not (arguments.skip_unreadable and dataset.unreadable.all()):
                    raise
                continue  # each was named in the log
            scores = probabilities(logits.numpy(), trained.temperature)
            for row in (~dataset.unreadable).nonzero().flatten().tolist():
                writer.write(select(part[row], scores[row], trained.class_names, *cuts))
            file.flush()
            found += int((~dataset.unreadable).sum())
            bar.update(len(part))
        writer.end()
    if not found:
        raise ValueError("not one image was labelled")
    seconds = time.monotonic() - start
    print(f"{found} images, {found / seconds:.1f} images/s", file=sys.stderr)


def find_images(names: Sequence[str], list_file: Path | None) -> Iterator[Path]:
    """Yield the image files among the names, in folders among them, and in lists."""
    for name in names:
        path = Path(name)
        if name == "-":
            yield from listed(sys.stdin, "standard input")
        elif path.is_dir():
            found = sorted(file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES)
            if not found:
                raise FileNotFoundError(f"no images in {path}")
            yield from found
        elif path.is_file():
            yield path
        else:
            raise FileNotFoundError(f"no such image or folder: {path}")
    if list_file is not None:
        with list_file.open() as lines:
            yield from listed(lines, str(list_file))


def listed(lines: Iterable[str], source: str) -> Iterator[Path]:
    """Yield the files that lines name; empty lines are left out."""
    for number, line in enumerate(lines, 1):
        if name := line.strip():
            if not Path(name).is_file():
                raise FileNotFoundError(f"{source}, line {number}: no such image: {name}")
            yield Path(name)


def cut_offs(thresholds: list[float] | None, num_classes: int, arguments: Any) -> tuple[int, Any]:
    """Return how many labels an image may get, and from which probability on, per class."""
    if arguments.threshold is not None:
        return arguments.top or num_classes, [arguments.threshold] * num_classes
    if arguments.top or thresholds is None:
        return arguments.top or 5, [0.0] * num_classes
    return num_classes, thresholds


def select(
    file: Path, scores: Any, class_names: Sequence[str], top: int, thresholds: Sequence[float]
) -> list[dict[str, Any]]:
    """Return image, rank, label and probability of the labels to report."""
    order = (-scores).argsort(kind="stable")[:top].tolist()
    given = [label for label in order if scores[label] >= thresholds[label]]
    return [
        dict(
            zip(
                FIELDS, (str(file), place, class_names[label], round(scores[label], 6)), strict=True
            )
        )
        for place, label in enumerate(given, 1)
    ]


class Writer:
    """Writes rows as CSV, or as a JSON list, as they come.

    Args:
        file: open for writing.
        as_json: whether to write JSON.
    """

    def __init__(self, file: TextIO, *, as_json: bool) -> None:
        self.file, self.as_json, self.first = file, as_json, True
        self.table = csv.DictWriter(file, FIELDS, lineterminator="\n")
        if as_json:
            file.write("[")
        else:
            self.table.writeheader()

    def write(self, rows: list[dict[str, Any]]) -> None:
        """Add rows."""
        if not self.as_json:
            for row in rows:
                names = {key: for_spreadsheet(row[key]) for key in ("image", "label")}
                self.table.writerow(row | names)
            return
        for row in rows:
            self.file.write(("\n" if self.first else ",\n") + json.dumps(row))
            self.first = False

    def end(self) -> None:
        """Close the list."""
        if self.as_json:
            self.file.write("\n]\n")


if __name__ == "__main__":
    script(main)
