"""Measure a trained model on any data set.

python scripts/evaluate.py runs/mosaic/tkpr_a2/default
python scripts/evaluate.py model.safetensors dataset=voc2012 dataset.root=/data --split train
"""

import json
import logging
from pathlib import Path

from tkpr.runs.script import Parser, device, output_file, script

log = logging.getLogger("tkpr.evaluate")
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
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--device", type=device, default="auto", help="cpu, cuda, mps")
    parser.add_argument("--output", type=output_file, help="write the measures to this JSON file")
    arguments = parser.parse_intermixed_args()

    from tkpr import atomic
    from tkpr.data.fingerprint import fingerprint
    from tkpr.runs.evaluation import evaluation_data, reconfigure
    from tkpr.runs.run import load_data, table
    from tkpr.runs.saved_model import load_model
    from tkpr.training.predict import fabric_on, measure, predict, what_to_keep

    trained = load_model(arguments.run)
    cfg = reconfigure(trained.cfg, ROOT / "configs", arguments.overrides)
    loaded = load_data(cfg)
    if not any(word.startswith(("dataset=", "split.limit=")) for word in arguments.overrides):
        changed = [k for k, v in fingerprint(loaded).items() if trained.data.get(k) != v]
        if changed:
            log.warning("the data are not those of the run: %s differ", ", ".join(changed))
    data = evaluation_data(cfg, loaded, arguments.split)
    if data.class_names != trained.class_names:
        raise ValueError(
            f"the model knows {len(trained.class_names)} classes ({trained.class_names[0]}, ...), "
            f"the data set has {len(data.class_names)} ({data.class_names[0]}, ...)"
        )
    outputs = predict(
        trained.model,
        data.test,
        data.finish,
        fabric_on(arguments.device),
        batch_size=arguments.batch_size,
        **what_to_keep(data.test, arguments.ks),
    )
    measured = measure(data, outputs, arguments.ks)
    print(table(measured))
    if unreadable := int(data.test.unreadable.sum()):
        print(f"\n{unreadable} of {len(data.test)} images cannot be read and are left out")
        measured |= {"unreadable": unreadable}
    if arguments.output:
        atomic.write(arguments.output, json.dumps(measured, indent=2))


if __name__ == "__main__":
    script(main)
