"""Time a step with each loss, as in the paper's Tab. 4, and put the paper's numbers beside.

python scripts/efficiency.py                      on a GPU: ResNet50 and Swin, 300 trials each
python scripts/efficiency.py --light              on a CPU: the loss alone, batch 8, 60 trials
"""

import os
from pathlib import Path

from tkpr.runs.script import Parser, device, output_folder, script

ROOT = Path(__file__).resolve().parents[1]
FULL = {"backbones": ["resnet50", "swin"], "batch_size": 16, "trials": 300, "averaged": 200}
LIGHT = {"backbones": ["none"], "batch_size": 8, "trials": 60, "averaged": 40}


def main() -> None:
    """Read the command line, measure, print and write the table."""
    parser = Parser(__doc__)
    parser.add_argument("--backbones", nargs="+", help="resnet50 swin, or none")
    parser.add_argument("--classes", type=int, nargs="+", default=[100, 1000, 5000, 10000])
    parser.add_argument("--batch-size", type=int, help="16")
    parser.add_argument("--k", type=int, default=15, help="K of TKPR")
    parser.add_argument("--labels", type=int, default=3, help="relevant labels per image")
    parser.add_argument("--trials", type=int, help="300")
    parser.add_argument("--averaged", type=int, help="average the last trials only: 200")
    parser.add_argument("--device", type=device, default="auto", help="cpu, cuda, cuda:1, mps")
    parser.add_argument(
        "--light",
        action="store_true",
        help="where nothing else is said --backbones none, batch 8, 60 trials, the last 40",
    )
    parser.add_argument("--output", type=output_folder, default="tables", help="where to write")
    arguments = parser.parse_args()

    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # torch's profiler is silent about itself

    from tkpr import atomic
    from tkpr.reporting.efficiency import Setting, about, beside_the_paper, layout, measure
    from tkpr.reporting.formats import frame_to_csv

    for name, value in (LIGHT if arguments.light else FULL).items():
        if getattr(arguments, name) is None:
            setattr(arguments, name, value)
    if not 1 <= arguments.averaged <= arguments.trials:
        raise ValueError(
            f"--averaged must be from 1 to the {arguments.trials} trials; got {arguments.averaged}"
        )
    setting = Setting(
        batch_size=arguments.batch_size,
        k=arguments.k,
        trials=arguments.trials,
        averaged=arguments.averaged,
        labels=arguments.labels,
        device=arguments.device,
    )
    times = measure(
        ROOT / "configs", backbones=arguments.backbones, classes=arguments.classes, setting=setting
    )
    facts = "\n".join(f"- {name}: {value}" for name, value in about(setting).items())
    text = f"{layout(times)}\n{beside_the_paper(times)}\n{facts}\n"
    print(text)
    arguments.output.mkdir(parents=True, exist_ok=True)
    name = "efficiency-light" if arguments.light else "efficiency"
    atomic.write(arguments.output / f"{name}.csv", frame_to_csv(times))
    atomic.write(arguments.output / f"{name}.md", text)
    print(f"written to {arguments.output}/{name}.csv and .md")


if __name__ == "__main__":
    script(main)
