"""The record of a run while it trains: log lines, metrics.csv, TensorBoard."""

import csv
import io
import logging
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor

from tkpr import atomic, records
from tkpr.data.assemble import TrainingData
from tkpr.data.sparse import has_lists
from tkpr.metrics import mean_average_precision, rank_distribution

log = logging.getLogger(__name__)

NUM_IMAGES = 4


class Logbook:
    """Writes each epoch's row to the log, to metrics.csv and to TensorBoard.

    Args:
        folder: the run folder.
        data: for class names and test images.
        history: rows of the epochs before a resume; TensorBoard drops what came after them.
        enabled: only on rank 0.
    """

    def __init__(
        self, folder: Path, data: TrainingData, history: list[dict[str, float]], *, enabled: bool
    ) -> None:
        self.folder, self.data, self.enabled = folder, data, enabled
        if enabled:
            from torch.utils.tensorboard import SummaryWriter

            self.board: Any = SummaryWriter(str(folder), purge_step=len(history) + 1)

    def __enter__(self) -> "Logbook":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.enabled:
            self.board.close()

    def write(self, history: list[dict[str, float]], logits: Tensor, *, total: int) -> None:
        """Write the newest epoch.

        Args:
            history: one row per epoch so far.
            logits: predictions for the test set after this epoch, ``[N, C]``; of a sparse data set,
                its best labels.
            total: the number of epochs planned.
        """
        if not self.enabled:
            return
        row, epoch = history[-1], len(history)
        left = (total - epoch) * row["seconds"]
        log.info(
            "epoch %d/%d  loss %.4f  mAP@%d %.4f  %s%.0f images/s  %s left",
            *(epoch, total, row["train_loss"], self.k(row), row[f"mAP@{self.k(row)}"]),
            f"ranking loss {row['ranking_loss']:.4f}  " if "ranking_loss" in row else "",
            *(row["images_per_second"], clock(left)),
        )
        self.write_csv(history)
        self.write_board(row, epoch, logits)

    def write_csv(self, history: list[dict[str, float]]) -> None:
        """Write metrics.csv, one row per epoch."""
        if not self.enabled:
            return
        table = io.StringIO(newline="")
        run = records.run_id(self.folder)
        writer = csv.DictWriter(table, fieldnames=[*history[-1], "run"])
        writer.writeheader()
        writer.writerows(row | {"run": run} for row in history)
        atomic.write(self.folder / "metrics.csv", table.getvalue())

    def write_board(self, row: dict[str, float], epoch: int, logits: Tensor) -> None:
        """Send one epoch to TensorBoard."""
        board, test = self.board, self.data.test
        for name, value in row.items():
            if name in ("train_loss", "lr", "images_per_second"):
                board.add_scalar(f"train/{name}", value, epoch)
            elif name not in ("epoch", "seconds"):
                board.add_scalar(f"test/{name}", value, epoch)
        if has_lists(test):
            board.flush()
            return
        readable = ~test.unreadable
        shown, targets = logits[readable], test.targets[readable]
        unknown = None if test.known is None else ~test.known[readable]
        per_class = mean_average_precision(shown, targets, reduction="none", unknown=unknown)
        for name, value in zip(self.data.class_names, per_class.tolist(), strict=True):
            if not np.isnan(value):
                board.add_scalar(f"average_precision/{name}", value, epoch)
        counts = rank_distribution(shown, targets, unknown=unknown)
        ranks = np.repeat(np.arange(1, len(counts) + 1), counts.astype(int))
        board.add_histogram("rank_of_relevant_labels", ranks, epoch, bins=len(counts))
        for row_number in readable.nonzero().flatten()[:NUM_IMAGES].tolist():
            picture, target, _ = test[row_number]
            if picture.dtype == torch.uint8:  # neither features nor maps
                drawn = self.annotate(picture, target, logits[row_number])
                board.add_image(f"predictions/{row_number}", drawn, epoch)
        board.flush()

    def annotate(self, picture: Tensor, target: Tensor, logits: Tensor) -> np.ndarray:
        """Draw an image with its labels and its top-5 predictions below, ``[3, H, W]``."""
        image = Image.fromarray(picture.permute(1, 2, 0).numpy()).resize((256, 256))
        top = logits.topk(min(5, len(logits))).indices.tolist()
        sheet = Image.new("RGB", (256, 256 + 14 * (len(top) + 1) + 4), "white")
        sheet.paste(image)
        draw = ImageDraw.Draw(sheet)
        names = self.data.class_names
        truth = ", ".join(names[c] for c in target.nonzero().flatten().tolist())
        draw.text((4, 257), f"labels: {truth}", fill="black")
        for line, label in enumerate(top, 1):
            text = f"{line}. {names[label]} {logits[label].sigmoid():.2f}"
            color = "green" if target[label] else "firebrick"
            draw.text((4, 257 + 14 * line), text, fill=color)
        return np.asarray(sheet).transpose(2, 0, 1)

    @staticmethod
    def k(row: dict[str, float]) -> int:
        """The smallest K that was evaluated."""
        return min(int(name[4:]) for name in row if name.startswith("mAP@"))


def clock(seconds: float) -> str:
    """Format a duration.

    >>> clock(75), clock(7300)
    ('1:15', '2:01:40')
    """
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"
