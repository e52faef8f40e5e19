"""Measure what each cut of a network costs: disk, parameters, images per second of one core.

python scripts/bench_cuts.py
python scripts/bench_cuts.py --network resnet50 --size 448 --cuts layer3.5 layer4.1

For each cut the frozen part is run, and the rest is trained by BCE and AdamW on random maps, in
float32 and in bfloat16. Images per second are per second of CPU time on one thread, so that other
work on the machine does not count.
"""

import time
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import timm
import torch

from tkpr import atomic
from tkpr.models.cut import CutNetwork, cuts
from tkpr.reporting.benchmark import machine
from tkpr.runs.script import Parser, script

STEPS = 4  # of each measurement; the first two are warm-up


def main() -> None:
    """Measure every cut and write one row for each."""
    parser = Parser(description=__doc__)
    parser.add_argument("--network", default="tf_efficientnet_lite0", help="a name in timm")
    parser.add_argument("--size", type=int, default=224, help="side of the images")
    parser.add_argument("--batch", type=int, default=64, help="images per step")
    parser.add_argument("--classes", type=int, default=20, help="outputs of the classifier")
    parser.add_argument("--cuts", nargs="+", help="default: all of the network")
    parser.add_argument("--output", type=Path, help="a CSV file; default: print only")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    network = timm.create_model(arguments.network, num_classes=arguments.classes)
    rows = []
    for cut in arguments.cuts or cuts(network):
        rows.append({"network": arguments.network, "size": arguments.size, "cut": cut})
        rows[-1] |= measure(network, cut, size=arguments.size, batch=arguments.batch)
        rows[-1]["processor"] = machine()["processor"]
        print(", ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
        if arguments.output:
            atomic.write(arguments.output, pd.DataFrame(rows).to_csv(index=False))


def measure(network: torch.nn.Module, cut: str, *, size: int, batch: int) -> dict[str, object]:
    """Return the costs of one cut."""
    model = CutNetwork(network, cut, image_size=size)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-9)
    images, maps = torch.rand(8, 3, size, size), torch.rand(batch, *model.map_shape)

    def train(bf16: bool) -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            logits = model(maps)
        logits.float().sigmoid().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    def store(bf16: bool) -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            model.maps(images)

    return {
        "map": "x".join(map(str, model.map_shape)),
        "kilobytes_per_map": round(2 * maps[0].numel() / 1000, 1),
        "trained_parameters": sum(parameter.numel() for parameter in trained),
        "train_fp32": rate(lambda: train(False), batch),
        "train_bf16": rate(lambda: train(True), batch),
        "store_fp32": rate(lambda: store(False), len(images)),
        "store_bf16": rate(lambda: store(True), len(images)),
    }


def rate(step: Callable[[], None], images: int) -> int:
    """Return images per second of CPU time, the best of a few steps."""
    seconds = []
    for _ in range(STEPS):
        start = time.process_time()
        step()
        seconds.append(time.process_time() - start)
    return round(images / min(seconds[2:]))


if __name__ == "__main__":
    script(main)
