"""Measure a trained model on any data set.

python scripts/evaluate.py runs/mosaic/tkpr_a2/default
python scripts/evaluate.py model.safetensors dataset=voc2012 dataset.root=/data --split train
"""

import json
from pathlib import Path

from tkpr.runs.script import Parser, device, output_file, script

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    """Read the command line, predict, print the table."""
    parser = Parser(__doc__)
    parser.add_argument(
        "run", type=Path, help="the folder of a finished run, or its model.safetensors"
    )
    parser.add_argument(
        "overrides", nargs="*", help="dataset=... dataset.root=... transform.size=..."
    )
    parser.add_argument("--split", choices=["test", "train"], default="test")
    parser.add_argument("--ks", type=int, nargs="+", default=[3, 5], help="K of the measures")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--device", type=device, default="auto", help="cpu, cuda, mps")
    parser.add_argument("--output", type=output_file, help="write the measures to this JSON file")
    arguments = parser.parse_intermixed_args()

    from tkpr import atomic
    from tkpr.runs.run import build_data, table
    from tkpr.runs.saved_model import load_model, reconfigure
    from tkpr.training.predict import fabric_on, measure, predict, what_to_keep

    trained = load_model(arguments.run)
    cfg = reconfigure(trained.cfg, ROOT / "configs", arguments.overrides)
    data = build_data(cfg, test_split=arguments.split)
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
