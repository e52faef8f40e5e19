"""Tab. 4: how long a step takes with each loss: forward, loss, backward; and how much memory."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from omegaconf import OmegaConf
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from tkpr.config import build
from tkpr.models.backbone import create
from tkpr.reporting.benchmark import time_stages
from tkpr.reporting.paper_numbers import paper_efficiency

# as the paper names them, and as torch or configs/loss does
LOSSES = {
    "torch.ml": "torch.nn.MultiLabelMarginLoss",
    "L_rank": "rank",
    **{f"L_u{i}": f"u{i}" for i in range(1, 5)},
    "TKPR": "tkpr_a2",
}
# the name in timm and the side of the input; "none" leaves the network out: logits to loss only
BACKBONES: dict[str, tuple[str, int]] = {
    "resnet50": ("resnet50", 448),
    "swin": ("swin_base_patch4_window12_384", 384),
    "none": ("", 0),
}
TIMES = ("forward_s", "loss_s", "backward_s", "total_s")


@dataclass(frozen=True)
class Setting:
    """What is the same for all losses; the defaults are the paper's.

    Attributes:
        batch_size: images per step.
        k: K of the TKPR loss.
        trials: steps in all.
        averaged: how many of the last steps count.
        labels: relevant labels per image; the paper does not say how many it takes.
        device: where to compute.
        seed: of weights, inputs and labels.
    """

    batch_size: int = 16
    k: int = 15
    trials: int = 300
    averaged: int = 200
    labels: int = 3
    device: str = "cpu"
    seed: int = 0


def make_loss(configs: Path, name: str, setting: Setting) -> nn.Module:
    """Build a loss of the timing table: torch's own, or one of configs/loss."""
    if name == "torch.ml":
        return nn.MultiLabelMarginLoss()
    cfg = OmegaConf.load(configs / "loss" / f"{LOSSES[name]}.yaml")
    if name == "TKPR":
        cfg.k = setting.k
    return build(cfg).to(setting.device)  # type: ignore[arg-type]


def time_step(
    model: nn.Module | None, criterion: nn.Module, inputs: Tensor, targets: Tensor, *, device: str
) -> list[float]:
    """Seconds of forward, loss and backward of one step, waiting for the device after each."""
    stages = [
        model or (lambda logits: logits),
        lambda logits: criterion(logits, targets),
        lambda loss: loss.backward(),
    ]
    seconds = time_stages(stages, inputs, device=device)
    inputs.grad = None
    if model is not None:
        model.zero_grad(set_to_none=True)
    return seconds


def measure(
    configs: Path,
    *,
    backbones: Iterable[str],
    classes: Iterable[int],
    losses: Iterable[str] = tuple(LOSSES),
    setting: Setting,
) -> pd.DataFrame:
    """Time every loss on every backbone for every number of classes.

    Args:
        configs: the folder of the configuration.
        backbones: of ``BACKBONES``.
        classes: numbers of classes C.
        losses: of ``LOSSES``.
        setting: batch, K, trials, device.

    Returns:
        A line per combination: four times in seconds, and the peak memory of a step in MB beyond
        what lay there before it.
    """
    lines = []
    for backbone in backbones:
        for num_classes in classes:
            torch.manual_seed(setting.seed)
            model, inputs, targets = prepare(backbone, num_classes, setting)
            for name in losses:
                criterion = make_loss(configs, name, setting)
                labels = label_lists(targets) if name == "torch.ml" else targets
                step = partial(time_step, model, criterion, inputs, labels, device=setting.device)
                steps = [step() for _ in range(setting.trials)][-setting.averaged :]
                means = [sum(part) / len(steps) for part in zip(*steps, strict=True)]
                lines.append(
                    {"backbone": backbone, "num_classes": num_classes, "loss": name}
                    | dict(zip(TIMES, [*means, sum(means)], strict=True))
                    | {"peak_memory_mb": peak_tensor_memory(step, setting.device)}
                )
    return pd.DataFrame(lines)


def prepare(
    backbone: str, num_classes: int, setting: Setting
) -> tuple[nn.Module | None, Tensor, Tensor]:
    """Make the network in training mode, a batch of noise and random labels."""
    if backbone not in BACKBONES:
        raise ValueError(f"no backbone {backbone!r}: choose one of {', '.join(BACKBONES)}")
    size, device = setting.batch_size, setting.device
    targets = torch.zeros(size, num_classes)
    places = torch.rand(size, num_classes).topk(setting.labels).indices
    targets.scatter_(1, places, 1.0)
    if backbone == "none":
        logits = torch.randn(size, num_classes, device=device).requires_grad_()
        return None, logits, targets.to(device)
    model_name, side = BACKBONES[backbone]
    model = create(model_name, num_classes, pretrained=False).to(device).train()
    return model, torch.randn(size, 3, side, side, device=device), targets.to(device)


def label_lists(targets: Tensor) -> Tensor:
    """The targets as torch's loss wants them: columns of the relevant labels, then -1, ``[B, C]``.

    Made before the clock starts: the form of the labels is the data loader's business.

    >>> label_lists(torch.tensor([[0.0, 1.0, 0.0, 1.0]]))
    tensor([[ 1,  3, -1, -1]])
    """
    columns = torch.arange(targets.shape[1], device=targets.device).expand_as(targets)
    order = columns.where(targets == 1, targets.shape[1]).sort(dim=1).values
    return order.where(order < targets.shape[1], -1)


def peak_tensor_memory(step: Callable[[], Any], device: str) -> float:
    """How much more memory torch held at the worst moment of a step than at its start, in MB.

    >>> step = lambda: torch.zeros(2**18).sum()  # 2^18 numbers of 4 bytes
    >>> round(peak_tensor_memory(step, "cpu"), 1)
    1.0
    """
    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        step()
        return (torch.cuda.max_memory_allocated(device) - before) / 2**20
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        step()
    events = [e for e in recorded.profiler.kineto_results.events() if e.name() == "[memory]"]
    changes = [event.nbytes() for event in sorted(events, key=lambda e: e.start_ns())]
    return max(accumulate(changes), default=0) / 2**20


def ratios(times: pd.DataFrame, column: str) -> pd.Series:
    """Each time divided by that of L_u1 on the same backbone with as many classes.

    >>> frame = pd.DataFrame({"backbone": ["swin"] * 2, "num_classes": [100] * 2,
    ...                       "loss": ["L_rank", "L_u1"], "loss_s": [0.006, 0.002]})
    >>> ratios(frame, "loss_s").round(6).tolist()
    [3.0, 1.0]
    """
    keys = ["backbone", "num_classes"]
    base = times[times.loss == "L_u1"].set_index(keys)[column]
    return times[column] / [
        base.get(key, float("nan")) for key in times[keys].itertuples(index=False)
    ]


def layout(times: pd.DataFrame) -> str:
    """The paper's layout in Markdown: a block per C, a line per loss, four times per backbone."""
    backbones = list(dict.fromkeys(times.backbone))
    blocks = []
    for num_classes, block in times.groupby("num_classes"):
        head = [f"{b}: {t.removesuffix('_s')} (s)" for b in backbones for t in TIMES]
        head += [f"{b}: peak memory (MB)" for b in backbones]
        lines = [f"C = {num_classes:,}", "", _line(["loss", *head]), "|---" * (len(head) + 1) + "|"]
        for loss in dict.fromkeys(times.loss):
            here = block[block.loss == loss].set_index("backbone")
            cells = [f"{here.loc[b, t]:.5f}" for b in backbones for t in TIMES]
            cells += [f"{here.loc[b, 'peak_memory_mb']:,.1f}" for b in backbones]
            lines.append(_line([loss, *cells]))
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"


def beside_the_paper(times: pd.DataFrame) -> str:
    """Ratios to L_u1, ours beside those of the paper's A100, in Markdown.

    The paper's "loss" is compared where the network was left out, else the paper's "total".
    """
    paper = paper_efficiency()
    lines = []
    for backbone, ours in times.groupby("backbone", sort=False):
        column = "loss_s" if backbone == "none" else "total_s"
        theirs = paper[paper.backbone == ("resnet50" if backbone == "none" else backbone)].copy()
        theirs["ratio"] = ratios(theirs, column)
        known = theirs.set_index(["num_classes", "loss"])["ratio"]
        sizes = list(dict.fromkeys(ours.num_classes))
        what = "loss alone" if backbone == "none" else f"{backbone}, whole step"
        lines += [
            f"Ratio to L_u1, {what}: ours / the paper's (A100, {theirs.backbone.iloc[0]})",
            "",
        ]
        lines += [
            _line(["loss", *(f"C = {size:,}" for size in sizes)]),
            "|---" * (len(sizes) + 1) + "|",
        ]
        mine = ours.assign(ratio=ratios(ours, column)).set_index(["num_classes", "loss"])["ratio"]
        for loss in dict.fromkeys(ours.loss):
            cells = [
                f"{mine[size, loss]:.2f} / {known.get((size, loss), float('nan')):.2f}"
                for size in sizes
            ]
            lines.append(_line([str(loss), *cells]))
        lines.append("")
        if backbone == "none":
            lines += ["The paper's times have four decimals, so its ratios here are coarse.", ""]
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def about(setting: Setting) -> Mapping[str, Any]:
    """What a reader must know of the machine."""
    device = setting.device
    name = torch.cuda.get_device_name(device) if device.startswith("cuda") else device
    return {
        "device": name,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "batch_size": setting.batch_size,
        "k": setting.k,
        "labels per image": setting.labels,
        "trials": f"{setting.trials}, the last {setting.averaged} averaged",
    }
