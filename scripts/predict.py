"""Label images with a trained model.

python scripts/predict.py runs/voc2012/tkpr_a2/default photo.jpg folder/ --top 5
python scripts/predict.py model.safetensors folder/ --threshold 0.5 --output labels.csv
"""

import csv
import io
import json
from pathlib import Path

from tkpr.runs.script import Parser, device, output_file, script

SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp"}


def main() -> None:
    """Read the command line, predict, write one row per image and label."""
    parser = Parser(__doc__)
    parser.add_argument(
        "run", type=Path, help="the folder of a finished run, or its model.safetensors"
    )
    parser.add_argument("images", type=Path, nargs="+", help="image files, or folders of them")
    parser.add_argument("--top", type=int, help="so many labels per image (default 5)")
    parser.add_argument("--threshold", type=float, help="the labels with at least this probability")
    parser.add_argument(
        "--output", type=output_file, help="a .csv or .json file; default: the terminal"
    )
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--device", type=device, default="auto", help="cpu, cuda, mps")
    arguments = parser.parse_args()
    if arguments.output and arguments.output.suffix not in (".csv", ".json"):
        raise ValueError(f"--output must end in .csv or .json; got {arguments.output}")

    import numpy as np

    from tkpr import atomic
    from tkpr.config import build
    from tkpr.data.dataset import Split
    from tkpr.data.images import ImageDataset
    from tkpr.runs.saved_model import load_model
    from tkpr.training.predict import fabric_on, predict

    trained = load_model(arguments.run)
    files = list_images(arguments.images)
    if len(trained.input_shape) != 3:
        raise ValueError("this model was trained on features, not on images")
    targets = np.zeros((len(files), len(trained.class_names)), np.uint8)
    split = Split(files, targets, [str(file) for file in files])
    recipe = build(trained.cfg.transform)
    logits = predict(
        trained.model,
        ImageDataset(split, size=recipe.size, interpolation=recipe.interpolation),
        recipe.finish,
        fabric_on(arguments.device),
        batch_size=arguments.batch_size,
    )
    rows = list(select(files, logits, trained.class_names, arguments.top, arguments.threshold))
    if arguments.output and arguments.output.suffix == ".json":
        text = json.dumps(rows, indent=2)
    else:
        table = io.StringIO(newline="")
        writer = csv.DictWriter(table, ["image", "rank", "label", "score"], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        text = table.getvalue()
    if arguments.output:
        atomic.write(arguments.output, text)
    else:
        print(text, end="")


def list_images(paths):
    """List the image files among the paths and in the folders among them."""
    files = []
    for path in paths:
        if path.is_dir():
            found = sorted(file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES)
            if not found:
                raise FileNotFoundError(f"no images in {path}")
            files += found
        elif path.is_file():
            files.append(path)
        else:
            raise FileNotFoundError(f"no such image or folder: {path}")
    return files


def select(files, logits, class_names, top, threshold):
    """Yield image, rank, label and probability of the labels to report."""
    scores = logits.sigmoid()
    limit = top or (len(class_names) if threshold is not None else 5)
    for file, row in zip(files, scores, strict=True):
        order = row.argsort(descending=True, stable=True).tolist()
        for place, label in enumerate(order[:limit], 1):
            if threshold is None or row[label] >= threshold:
                yield {
                    "image": str(file),
                    "rank": place,
                    "label": class_names[label],
                    "score": round(row[label].item(), 6),
                }


if __name__ == "__main__":
    script(main)
