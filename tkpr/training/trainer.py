"""Algorithm 1 of the paper: a warm-up loss for E_w epochs, then the main loss, on any devices."""

import logging
import signal
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch
from lightning_fabric import Fabric
from omegaconf import DictConfig, OmegaConf
from timm.utils import ModelEmaV3
from torch import Tensor, nn
from torch.utils.data import DataLoader
from tqdm import tqdm

from tkpr.config import build, epochs_to_train
from tkpr.data.assemble import TrainingData
from tkpr.metrics import evaluate
from tkpr.training import state as checkpoint
from tkpr.training.loader import Samples, cut, on_device
from tkpr.training.logbook import Logbook
from tkpr.training.nonfinite import advice, check_weights, save_batch
from tkpr.training.optimizer import parameter_groups
from tkpr.training.preemption import Preemption
from tkpr.training.seeding import seed_everything, seed_torch
from tkpr.training.selection import first_main_epoch, out_of_patience

log = logging.getLogger(__name__)


class Trainer:
    """Trains one model with one pair of losses and keeps its run folder up to date.

    Losses and models that need a moment of their own have a method for it, which the loop calls
    where it exists:

    * ``loss.set_epoch(epoch)`` before each epoch;
    * ``loss.wants_update()`` and ``loss.update_labels(logits)`` after an epoch, with predictions
      for the whole training set (EM+APL);
    * ``loss.merge_state(all_reduce_max)`` after an epoch, when processes share the work (LL-Cp);
    * ``model.learn_confounders(batches)`` before epoch ``model.context_epochs`` (CCD).

    Args:
        cfg: the whole configuration.
        fabric: launched.
        data: what to train and test on.
        model: from images or features to logits.
        folder: the run folder.
    """

    def __init__(
        self, cfg: DictConfig, fabric: Fabric, data: TrainingData, model: nn.Module, folder: Path
    ) -> None:
        self.cfg, self.fabric, self.data, self.folder = cfg, fabric, data, folder
        self.settings = SimpleNamespace(**cast(dict, OmegaConf.to_container(cfg.trainer)))
        self.epochs = epochs_to_train(self.settings)
        known = facts(data, self.settings.epochs)
        self.losses: list[Any] = [build(cfg.warmup, facts=known), build(cfg.loss, facts=known)]
        self.module: Any = model
        self.epoch = 0
        self.history: list[dict[str, float]] = []
        self.reset_epoch()
        self.spent, self.began = 0.0, 0.0  # seconds before this process, and before this epoch
        self.preemption = Preemption(fabric, save_minutes=self.settings.checkpoint_minutes)
        self.may_skip = cfg.dataset.get("on_error") == "skip"
        self.saved_place: tuple[int, ...] | None = None
        self.reported: dict[int, Tensor] = {}  # which unreadable images were named, per data set
        saved = checkpoint.load_together(folder, fabric)
        if saved:
            if (before := len(saved["total_loss"])) != fabric.world_size:
                raise ValueError(
                    f"{folder} holds a run of {before} processes, this one has "
                    f"{fabric.world_size}: go on with {before}, as its batches and its learning "
                    "rates were planned for, or delete the folder"
                )
            self.module.load_state_dict(saved["model"])
            for loss, state in zip(self.losses, saved["losses"], strict=True):
                loss.load_state_dict(state)
        self.loader: Any = cut(data.train, fabric, self.settings, shuffle_seed=cfg.seed)
        self.steps = len(self.loader)
        if not self.steps:
            raise ValueError(
                f"{len(data.train)} training samples do not fill one batch: lower "
                f"trainer.batch_size={self.settings.batch_size} or set trainer.drop_last=false"
            )
        self.set_up()
        if saved:
            self.optimizer.load_state_dict(saved["optimizer"])
            self.scheduler.load_state_dict(saved["scheduler"])
            self.fabric.strategy.precision.load_state_dict(saved["precision"])
            if self.ema:
                self.ema.load_state_dict(saved["ema"])
            self.epoch, self.history = saved["epoch"], saved["history"]
            self.step, self.skipped = saved["step"], saved["skipped"]
            self.total_loss = saved["total_loss"][fabric.global_rank]
            self.labels_updated = saved["labels_updated"]
            self.spent, self.began = saved["seconds"]
            for part, rows in zip((data.train, data.test), saved["unreadable"], strict=True):
                part.unreadable[rows] = True
                self.reported[id(part)] = part.unreadable.clone()
            log.info("resuming after epoch %d, step %d", self.epoch, self.step)
        self.started = time.monotonic()

    def reset_epoch(self) -> None:
        """Start to count an epoch's steps."""
        self.step, self.skipped, self.total_loss = 0, 0, 0.0
        self.labels_updated = False

    def seconds(self) -> float:
        """How long the run has taken so far, in this process and in those before it."""
        return self.spent + time.monotonic() - self.started

    def set_up(self) -> None:
        """Start optimizer, schedule and averaged weights from the model as it is."""
        settings, fabric = self.settings, self.fabric
        if settings.channels_last:
            self.module = self.module.to(memory_format=torch.channels_last)
        self.model: Any = fabric.setup_module(
            cast(nn.Module, torch.compile(self.module)) if settings.compile else self.module
        )
        self.criteria: list[Any] = [
            fabric.setup_module(loss) if list(loss.parameters()) else fabric.to_device(loss)
            for loss in self.losses
        ]
        groups = parameter_groups(
            self.module,
            self.losses if settings.warmup_epochs else self.losses[1:],
            lr=self.cfg.optimizer.lr,
            weight_decay=self.cfg.optimizer.weight_decay,
            head_lr_multiplier=settings.head_lr_multiplier,
        )
        self.optimizer = cast(Any, fabric.setup_optimizers(build(self.cfg.optimizer)(groups)))
        stage = settings.epochs - getattr(self.module, "context_epochs", 0)
        steps = stage * -(-self.steps // settings.accumulate)
        self.scheduler = build(self.cfg.scheduler)(self.optimizer.optimizer, steps)
        self.ema = ModelEmaV3(self.module, settings.ema_decay) if settings.ema_decay else None

    def fit(self) -> dict[str, float]:
        """Train for the epochs that are left and return the measures of the last one."""
        main = self.fabric.is_global_zero
        book = Logbook(self.folder, self.data, self.history, enabled=main)
        with book:
            while self.epoch < self.epochs and not self.out_of_patience():
                if not self.step:
                    self.began = self.seconds()
                self.begin_epoch(self.epoch)
                row = self.train_epoch(self.epoch)
                self.end_epoch(self.epoch)
                logits = self.predict(self.data.test)
                readable = ~self.data.test.unreadable
                targets = self.data.test.targets[readable]
                row |= evaluate(logits[readable], targets, self.settings.ks)
                row["seconds"] = self.seconds() - self.began
                self.history.append({"epoch": self.epoch + 1, **row})
                self.epoch += 1
                self.reset_epoch()
                # before the checkpoint: a run killed in between repeats the epoch and its rows
                book.write(self.history, logits, total=self.epochs)
                self.save()
                self.pause_if_asked()
        return measures(self.history[-1])

    def stage(self, epoch: int) -> int:
        """Which loss an epoch has, 0 or 1: a hard switch after E_w epochs (Alg. 1)."""
        return 0 if epoch < self.settings.warmup_epochs else 1

    def begin_epoch(self, epoch: int) -> None:
        """Tell everyone the epoch; CCD changes its stage here."""
        seed_everything(self.cfg.seed, epoch, self.fabric.global_rank)
        self.loader.sampler.set_epoch(epoch)
        self.loader.sampler.start = self.step * self.settings.batch_size
        self.data.train.set_epoch(epoch)
        if epoch and epoch == getattr(self.module, "context_epochs", None) and not self.step:
            batches = ((x, y) for x, y, _ in self.interruptible(self.loader))
            self.module.learn_confounders(batches, all_reduce_sum=self.all_reduce_sum)
            self.module.head.start_stage_two()
            self.set_up()
        self.optimizer.zero_grad()  # left where the last batch of an epoch was skipped
        for loss in self.losses:
            if hasattr(loss, "set_epoch"):
                loss.set_epoch(epoch)

    def train_epoch(self, epoch: int) -> dict[str, float]:
        """One pass over the training set."""
        settings, fabric, criterion = self.settings, self.fabric, self.criteria[self.stage(epoch)]
        seed = self.cfg.seed
        self.model.train()
        criterion.train()
        start, first = time.monotonic(), self.step
        bar = self.progress(self.loader, f"epoch {epoch + 1}/{self.epochs}")
        for inputs, targets, index in self.on_device(bar):
            if self.step + 1 == self.steps:  # it may repeat samples that other processes have had
                self.merge_losses()
            self.step_seed = hash((seed, epoch, fabric.global_rank, self.step)) % 2**63
            seed_torch(self.step_seed)
            self.step += 1
            if self.empty_on_any_rank(index):
                self.skipped += 1
                continue  # what accumulates goes into the next update
            update = self.step % settings.accumulate == 0 or self.step == self.steps
            with fabric.no_backward_sync(self.model, enabled=not update):
                logits = self.model(inputs)
                loss = criterion(logits.float(), targets, index)
                fabric.backward(loss / settings.accumulate)
            value, whole = torch.stack((loss.detach(), logits.isfinite().all())).tolist()
            if not (whole and np.isfinite(value)):
                self.raise_nonfinite(value, inputs, targets, index, logits)
            self.total_loss += value
            if update:
                if settings.clip_norm:
                    fabric.clip_gradients(self.model, self.optimizer, max_norm=settings.clip_norm)
                self.optimizer.step()
                self.optimizer.zero_grad()
                self.scheduler.step()
                if self.ema:
                    self.ema.update(self.module)
                self.pause_if_asked()
            if self.step % 10 == 0:
                bar.set_postfix(loss=f"{value:.4f}", lr=f"{self.scheduler.get_last_lr()[0]:.2e}")
        self.share_unreadable(self.data.train)
        if self.skipped == self.steps:
            raise ValueError(f"not one training batch of epoch {epoch + 1} could be read")
        self.check_weights()
        seconds, steps = time.monotonic() - start, self.steps - self.skipped
        mean = torch.tensor(self.total_loss / steps)
        images = (self.step - first) * settings.batch_size * fabric.world_size
        return {
            "train_loss": self.all_reduce_sum(mean).item() / fabric.world_size,
            "lr": self.scheduler.get_last_lr()[0],
            "images_per_second": min(images, len(self.data.train)) / seconds,
        }

    def end_epoch(self, epoch: int) -> None:
        """Let the losses that keep a state per sample bring it up to date."""
        self.merge_losses()
        criterion = self.losses[self.stage(epoch)]
        if self.labels_updated:  # before a stop in the evaluation that follows
            return
        if hasattr(criterion, "wants_update") and criterion.wants_update():
            logits = self.predict(self.data.train, ema=False)
            logits[self.data.train.unreadable] = torch.inf  # so they are never among the lowest
            criterion.update_labels(self.fabric.to_device(logits))
            self.labels_updated = True

    def merge_losses(self) -> None:
        """Bring what losses have learnt of the samples of each process to all of them."""
        for loss in self.losses:
            if hasattr(loss, "merge_state") and self.fabric.world_size > 1:
                loss.merge_state(lambda tensor: self.fabric.all_reduce(tensor, reduce_op="max"))

    @torch.no_grad()
    def predict(self, dataset: Samples, *, ema: bool | None = None) -> Tensor:
        """Return fp32 logits ``[N, C]`` in the order of the data set, the same on every process.

        Each process fills in the rows it computed; the sum over processes puts them together, so
        every sample counts once whatever their number. Rows of unreadable images stay 0.
        """
        use_ema = self.settings.eval_weights == "ema" if ema is None else ema
        model = self.ema.module if use_ema and self.ema else self.model
        if use_ema and self.ema and self.fabric.world_size > 1:
            for buffer in model.buffers():  # batch statistics: DDP shares those of the model only
                torch.distributed.broadcast(buffer, src=0)
        model.eval()
        logits = torch.zeros(len(dataset), len(self.data.class_names), device=self.fabric.device)
        for inputs, _, index in self.interruptible(cut(dataset, self.fabric, self.settings)):
            with self.fabric.autocast():
                rows = model(inputs)
            logits[index] = rows.float()
        self.share_unreadable(dataset)
        return self.all_reduce_sum(logits).cpu()

    def save(self) -> None:
        """Write everything that a resumed run needs; called between two optimizer steps."""
        self.check_weights()
        self.merge_losses()
        parts = (self.data.train, self.data.test)
        for part in parts:
            self.share_unreadable(part)
        totals = [self.total_loss]
        if self.fabric.world_size > 1:
            totals *= self.fabric.world_size
            torch.distributed.all_gather_object(totals, self.total_loss)
        if self.fabric.is_global_zero:
            state = {
                "model": self.module.state_dict(),
                "ema": self.ema.state_dict() if self.ema else None,
                "losses": [loss.state_dict() for loss in self.losses],
                "optimizer": self.optimizer.state_dict(),
                "scheduler": self.scheduler.state_dict(),
                "precision": self.fabric.strategy.precision.state_dict(),
                "epoch": self.epoch,
                "step": self.step,
                "skipped": self.skipped,
                "total_loss": totals,
                "labels_updated": self.labels_updated,
                "seconds": (self.seconds(), self.began),
                "unreadable": [part.unreadable.nonzero().flatten() for part in parts],
                "history": self.history,
            }
            checkpoint.save(self.folder, state)
        self.fabric.barrier()
        self.preemption.saved()
        self.saved_place = self.place()

    def place(self) -> tuple[int, ...]:
        """What tells a state from those before it."""
        return self.epoch, self.step, self.labels_updated

    def pause_if_asked(self) -> None:
        """Save now and then within long epochs; after a SIGTERM save and stop."""
        stop, late = self.preemption.now(at_once=not self.step)
        if (stop or late) and self.step and self.place() != self.saved_place:
            self.save()
            log.info("saved after epoch %d, step %d", self.epoch, self.step)
        if stop:
            log.info("stopped by SIGTERM: the same command goes on from here")
            raise SystemExit(128 + signal.SIGTERM)

    def check_weights(self) -> None:
        """Stop before weights that are not finite reach a checkpoint or a measure."""
        models = {"weights": self.module}
        if self.ema:
            models["averaged weights"] = self.ema.module
        check_weights(models, self.folder, place=f"epoch {self.epoch + 1}, step {self.step}")

    def share_unreadable(self, dataset: Samples) -> None:
        """Let all processes know which images could not be read; name each of them once."""
        found = self.all_reduce_sum(dataset.unreadable.long()).cpu() > 0
        dataset.unreadable |= found
        known = self.reported.setdefault(id(dataset), torch.zeros_like(found))
        for row in (found & ~known).nonzero().flatten().tolist():
            log.warning("left out, because it cannot be read: %s", dataset.ids[row])
        known |= found

    def out_of_patience(self) -> bool:
        """Early stopping: the monitored measure has not improved for ``patience`` epochs."""
        patience, monitor = self.settings.patience, self.settings.monitor
        skip = first_main_epoch(self.cfg)
        return out_of_patience(self.history, monitor, patience=patience, skip=skip)

    def raise_nonfinite(self, value: float, inputs: Tensor, *batch: Tensor) -> None:
        """Leave what a loss that is not finite was computed from, and stop.

        The state of the loss is the one after it was computed; of the losses here, only LL-Cp
        changes its own there, which holds 0 and 1.
        """
        targets, index, logits = batch
        names = [self.data.train.ids[row] for row in index.tolist()]
        file = self.folder / f"bad_batch_rank{self.fabric.global_rank}.pt"
        content = {
            **{"inputs": inputs, "targets": targets, "index": index, "ids": names},
            **{"logits": logits, "loss_value": value},
            **{"epoch": self.epoch, "step": self.step, "seed": self.step_seed},
            **{"model": self.module.state_dict(), "stage": self.stage(self.epoch)},
            "loss": self.losses[self.stage(self.epoch)].state_dict(),
        }
        save_batch(file, content)
        what = f"the loss is {value}" if not np.isfinite(value) else "the logits are not finite"
        raise FloatingPointError(
            f"{what} in epoch {self.epoch + 1}, step {self.step}, on the samples "
            f"{', '.join(names[:8])}{' ...' if len(names) > 8 else ''}; batch, weights and seed "
            f"are in {file}, {advice(self.folder)}"
        )

    def empty_on_any_rank(self, index: Tensor) -> bool:
        """Whether all images of a batch are unreadable, here or in another process.

        All leave such a step out together, as their gradients are added up.
        """
        if not self.may_skip:
            return False
        return self.all_reduce_sum(torch.tensor(float(not len(index)))).item() > 0

    def on_device(self, batches: Iterable[Any]) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Hand batches on as the network takes them."""
        channels_last = self.settings.channels_last
        return on_device(batches, self.fabric, self.data.finish, channels_last=channels_last)

    def interruptible(self, batches: DataLoader) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Hand on batches that are not empty; after each, save or stop where that is asked for.

        Processes may have a batch more or less than others, but all must ask equally often.
        """
        length = self.fabric.to_device(torch.tensor(len(batches)))
        left = int(cast(Tensor, self.fabric.all_reduce(length, reduce_op="max")))
        for batch in self.on_device(batches):
            if len(batch[2]):
                yield batch
            self.pause_if_asked()
            left -= 1
        for _ in range(left):
            self.pause_if_asked()

    def all_reduce_sum(self, tensor: Tensor) -> Tensor:
        """Return the sum over all processes."""
        return cast(Tensor, self.fabric.all_reduce(self.fabric.to_device(tensor), reduce_op="sum"))

    def progress(self, batches: DataLoader, title: str) -> tqdm:
        """A bar on a terminal of the first process; silent in a log."""
        quiet = True if not self.fabric.is_global_zero else None
        return tqdm(batches, desc=title, disable=quiet, leave=False, dynamic_ncols=True)


def measures(row: dict[str, float]) -> dict[str, float]:
    """The part of a row of the history that measures the model.

    >>> measures({"epoch": 1, "train_loss": 0.3, "mAP@3": 0.9, "seconds": 2.5})
    {'mAP@3': 0.9}
    """
    rest = ("epoch", "train_loss", "lr", "images_per_second", "seconds")
    return {name: value for name, value in row.items() if name not in rest}


def facts(data: TrainingData, num_epochs: int) -> dict[str, Any]:
    """What losses may ask to know of the training set."""
    targets = torch.from_numpy(data.train_targets)
    return {
        "num_samples": targets.shape[0],
        "num_classes": targets.shape[1],
        "class_counts": targets.sum(0),
        "expected_positives": float(data.clean_targets.sum(1).mean()),
        "train_targets": targets,
        "num_epochs": num_epochs,
    }
