"""Measure a trained model on any data set.

python scripts/evaluate.py runs/mosaic/tkpr_a2/default
python scripts/evaluate.py model.safetensors dataset=voc2012 dataset.root=/data --split train
"""

import json
from pathlib import Path
from typing import Any

from tkpr.runs.script import Parser, device, output_file, positive_int, script

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    """Read the command line, predict, print the table."""
    parser = Parser(__doc__)
    parser.add_argument(
        "run", type=Path, help="the folder of a finished run, or its model.safetensors"
    )
    parser.add_argument(
        "overrides",
        nargs="*",
        help="dataset=... dataset.root=... transform.size=... split.limit=...",
    )
    parser.add_argument(
        "--split",
        choices=["test", "holdout", "train"],
        help="the official test set, the held-out part of the training set, or the rest of it\n"
        "(default: what the run was tested on)",
    )
    parser.add_argument("--ks", type=int, nargs="+", default=[3, 5], help="K of the measures")
    parser.add_argument("--batch-size", type=positive_int, default=64)
    parser.add_argument("--device", type=device, default="auto", help="cpu, cuda, mps")
    parser.add_argument("--output", type=output_file, help="write the measures to this JSON file")
    arguments = parser.parse_intermixed_args()

    import numpy as np
    import torch

    from tkpr import atomic
    from tkpr.decisions import class_report, confusions, probabilities
    from tkpr.runs.evaluation import evaluate_on
    from tkpr.runs.run import table
    from tkpr.runs.saved_model import load_model
    from tkpr.training.predict import measure

    trained = load_model(arguments.run)
    data, outputs = evaluate_on(
        trained,
        ROOT / "configs",
        arguments.overrides,
        split=arguments.split,
        device=arguments.device,
        batch_size=arguments.batch_size,
        ks=arguments.ks,
    )
    measured: dict[str, Any] = measure(data, outputs, arguments.ks)
    print(table(measured))
    if isinstance(data.test.targets, torch.Tensor):  # a sparse set has too many classes
        readable = ~data.test.unreadable
        scores = probabilities(outputs[readable].numpy(), trained.temperature)
        targets = data.test.targets[readable].numpy()
        if data.test.known is not None:  # what is unknown counts neither as given nor as missed
            scores = np.where(data.test.known[readable].numpy(), scores, 0)
        cuts = np.array(trained.thresholds or [0.5] * len(trained.class_names))
        measured["classes"] = class_report(scores, targets, cuts, trained.class_names)
        measured["confusions"] = confusions(scores, targets, cuts, trained.class_names)
        print(f"\n{class_table(measured['classes'])}")
        if measured["confusions"]:
            print("\nmost often confused: missed, given instead, images")
        for pair in measured["confusions"]:
            print(f"  {pair['missed']:<24}{pair['given']:<24}{pair['images']:>6}")
    if unknown := data.counts.get("test_unknown"):
        print(f"\n{unknown:,} unknown labels are left out of the rankings")
    if unreadable := int(data.test.unreadable.sum()):
        print(f"\n{unreadable} of {len(data.test)} images cannot be read and are left out")
        measured |= {"unreadable": unreadable}
    if arguments.output:
        atomic.write(arguments.output, json.dumps(measured, indent=2))


def class_table(report: list[dict[str, Any]]) -> str:
    """Lay out what each class gets right at its threshold, the worst first."""
    lines = [f"{'class':<24}{'precision':>10}{'recall':>8}{'F1':>8}{'support':>9}{'threshold':>11}"]
    for row in sorted(report, key=lambda row: row["f1"]):
        lines.append(
            f"{row['class']:<24}{row['precision']:>10.4f}{row['recall']:>8.4f}{row['f1']:>8.4f}"
            f"{row['support']:>9}{row['threshold']:>11.4f}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    script(main)
