"""Choose the probability from which on each label is given, on samples that were not trained on.

python scripts/thresholds.py runs/photos                    # best F1 of each class, on its hold-out
python scripts/thresholds.py runs/photos --precision 0.9    # 90 % of the labels given are right
python scripts/thresholds.py model.safetensors dataset=csv dataset.root=more --calibrate

The thresholds are stored in the model's file; predict.py, evaluate.py and export.py use them.
"""

from dataclasses import replace
from pathlib import Path

from tkpr.runs.script import Parser, device, output_file, positive_int, script

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    """Read the command line, predict, choose, store."""
    parser = Parser(__doc__)
    parser.add_argument(
        "run", type=Path, help="the folder of a finished run, or its model.safetensors"
    )
    parser.add_argument("overrides", nargs="*", help="dataset=... dataset.root=... split.limit=...")
    parser.add_argument(
        "--split",
        choices=["test", "holdout", "train"],
        help="which samples to choose on (default: the hold-out of the run)",
    )
    parser.add_argument("--precision", type=float, help="wanted of each class, instead of best F1")
    parser.add_argument(
        "--calibrate", action="store_true", help="fit a temperature first: better probabilities"
    )
    parser.add_argument("--batch-size", type=positive_int, default=64)
    parser.add_argument("--device", type=device, default="auto", help="cpu, cuda, mps")
    parser.add_argument("--output", type=output_file, help="another file than the model's own")
    arguments = parser.parse_intermixed_args()
    if arguments.precision is not None and not 0 < arguments.precision <= 1:
        raise ValueError(f"--precision must be above 0 and at most 1; got {arguments.precision}")

    import numpy as np
    import torch

    from tkpr.decisions import choose_thresholds, class_report, fit_temperature, probabilities
    from tkpr.runs.evaluation import evaluate_on
    from tkpr.runs.saved_model import load_model, save_model

    trained = load_model(arguments.run)
    other_data = any(word.startswith("dataset=") for word in arguments.overrides)
    if not (arguments.split or other_data or trained.cfg.split.holdout):
        raise ValueError(
            "the run has held out nothing to choose thresholds on: train with split.holdout=0.2, "
            "name other data with dataset=..., or say --split test (then its test results are no "
            "longer those of unseen images)"
        )
    data, outputs = evaluate_on(
        trained,
        ROOT / "configs",
        arguments.overrides,
        split=arguments.split,
        device=arguments.device,
        batch_size=arguments.batch_size,
        ks=[1],
    )
    if not isinstance(data.test.targets, torch.Tensor):
        raise ValueError("a sparse data set has too many classes for a threshold each")
    readable = ~data.test.unreadable
    logits, targets = outputs[readable].numpy(), data.test.targets[readable].numpy()
    known = np.ones(logits.shape, dtype=bool)
    if data.test.known is not None:
        known = data.test.known[readable].numpy()
    temperature = fit_temperature(logits[known], targets[known]) if arguments.calibrate else 1.0
    scores = np.where(known, probabilities(logits, temperature), 0)  # the lowest: never given
    chosen, undecided = choose_thresholds(scores, targets, precision=arguments.precision)
    trained = replace(trained, temperature=temperature, thresholds=chosen.tolist())
    own = arguments.run / "model.safetensors" if arguments.run.is_dir() else arguments.run
    file = arguments.output or own
    save_model(file, trained)
    for row in class_report(scores, targets, chosen, trained.class_names):
        print(
            f"{row['class']:<24} threshold {row['threshold']:.4f}  precision {row['precision']:.4f}"
            f"  recall {row['recall']:.4f}  F1 {row['f1']:.4f}  support {row['support']}"
        )
    if undecided:
        names = ", ".join(trained.class_names[label] for label in undecided)
        print(f"\nnot to be decided on these samples: {names}")
    print(f"\ntemperature {temperature:.4f}; written to {file}")


if __name__ == "__main__":
    script(main)
