"""Algorithm 1 of the paper: a warm-up loss for E_w epochs, then the main loss, on any devices."""

import logging
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch
from lightning_fabric import Fabric
from omegaconf import DictConfig, OmegaConf
from timm.utils import ModelEmaV3
from torch import Tensor, nn
from tqdm import tqdm

from tkpr.config import build, epochs_to_train
from tkpr.data.assemble import Samples, TrainingData
from tkpr.losses.protocol import SharesState, TrainStats, UpdatesLabels, UsesEpoch
from tkpr.models.heads import is_chunked
from tkpr.training import state
from tkpr.training.collectives import all_reduce, sync_buffers
from tkpr.training.loader import Batch, make_loader, to_device
from tkpr.training.logbook import Logbook
from tkpr.training.nonfinite import LossReading, check_weights, raise_nonfinite
from tkpr.training.optimizer import build_optimizer, parameter_groups
from tkpr.training.predict import measure, predict, what_to_keep
from tkpr.training.preemption import Preemption
from tkpr.training.seeding import seed_everything
from tkpr.training.selection import first_main_epoch, out_of_patience
from tkpr.training.stages import change_stage, stage_one_epochs
from tkpr.training.unreadable import UnreadableImages

log = logging.getLogger(__name__)


class Trainer:
    """Trains one model with a warm-up loss and a main loss, and keeps its run folder up to date.

    :mod:`tkpr.losses.protocol` lists what a loss or a model may ask of it.

    Args:
        cfg: the whole configuration.
        fabric: launched.
        data: what to train and test on.
        model: from images or features to logits.
        folder: the run folder; a state in it is resumed.
    """

    def __init__(
        self, cfg: DictConfig, fabric: Fabric, data: TrainingData, model: nn.Module, folder: Path
    ) -> None:
        self.cfg, self.fabric, self.data, self.folder = cfg, fabric, data, folder
        self.settings = SimpleNamespace(**cast(dict[str, Any], OmegaConf.to_container(cfg.trainer)))
        self.epochs = epochs_to_train(self.settings)
        self.module: Any = model
        self.parts = (data.train, data.test)
        stats = train_stats(data, self.settings.epochs)
        self.losses: list[Any] = [build(cfg.warmup, facts=stats), build(cfg.loss, facts=stats)]
        self.loader: Any = make_loader(
            data.train,
            fabric,
            batch_size=self.settings.batch_size,
            num_workers=self.settings.num_workers,
            shuffle_seed=cfg.seed,
            drop_last=self.settings.drop_last,
        )
        self.steps = len(self.loader)  # batches per epoch
        if not self.steps:
            raise ValueError(
                f"{len(data.train)} training samples do not fill one batch: lower "
                f"trainer.batch_size={self.settings.batch_size} or set trainer.drop_last=false"
            )
        self.preemption = Preemption(fabric, save_minutes=self.settings.checkpoint_minutes)
        self.unreadable = UnreadableImages(fabric)
        self.saved_position: tuple[int, int, bool] | None = None
        saved = state.load_together(folder, fabric)
        if saved:
            state.restore(self, saved)
        else:
            self.set_up()
            self.progress = state.Progress()

    def set_up(self) -> None:
        """Start optimizer, schedule and averaged weights from the model as it is."""
        settings, fabric = self.settings, self.fabric
        if settings.channels_last:
            self.module = self.module.to(memory_format=torch.channels_last)
        self.network: Any = torch.compile(self.module) if settings.compile else self.module
        self.model: Any = fabric.setup_module(cast(nn.Module, self.network))
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
        # a fused optimizer unscales fp16 gradients inside its step, after they would be clipped
        clipped = settings.precision == "16-mixed" and settings.clip_norm
        fused = not clipped and not is_chunked(self.module)  # nor does it take sparse gradients
        optimizer = build_optimizer(self.cfg.optimizer, groups, fused=fused)
        self.optimizer = cast(Any, fabric.setup_optimizers(optimizer))
        epochs = settings.epochs - stage_one_epochs(self.module)
        steps = epochs * -(-self.steps // settings.accumulate)
        self.scheduler = build(self.cfg.scheduler)(self.optimizer.optimizer, steps)
        self.ema = ModelEmaV3(self.module, settings.ema_decay) if settings.ema_decay else None

    # Algorithm 1

    def fit(self) -> Tensor:
        """Train for the epochs that are left; return what was kept of the test set's logits.

        The measures of the last epoch, ``progress.history[-1]``, are of these numbers.
        """
        progress, logits = self.progress, None
        book = Logbook(self.folder, self.data, progress.history, enabled=self.fabric.is_global_zero)
        with book:
            while progress.epoch < self.epochs and not self.stops_early():
                self.begin_epoch()
                row = self.train_epoch()
                self.update_labels()
                logits, measured = self.test()
                progress.end_epoch(row | measured)
                # before the checkpoint: a run killed in between repeats the epoch and its rows
                book.write(progress.history, logits, total=self.epochs)
                self.save()
                self.pause_if_asked()
            if logits is None:  # stopped after the last epoch, before its results were written
                logits, measured = self.test()
                progress.history[-1] |= measured
                book.write_csv(progress.history)
        return logits

    @property
    def stage(self) -> int:
        """The loss of this epoch, 0 or 1: a hard switch after E_w epochs."""
        return 0 if self.progress.epoch < self.settings.warmup_epochs else 1

    def begin_epoch(self) -> None:
        """Choose the order and augmentations of the epoch, and set it in the losses."""
        epoch, step = self.progress.epoch, self.progress.step
        self.progress.begin_epoch()
        self.loader.sampler.set_epoch(epoch)
        self.loader.sampler.start = step * self.settings.batch_size
        self.data.train.set_epoch(epoch)
        change_stage(self)
        if self.settings.reset_optimizer and (epoch, step) == (self.settings.warmup_epochs, 0):
            self.optimizer.optimizer.state.clear()  # its moments are of another loss
        self.optimizer.zero_grad()  # of an epoch that ended with a skipped batch
        for loss in self.losses:
            if isinstance(loss, UsesEpoch):
                loss.set_epoch(epoch)

    def train_epoch(self) -> dict[str, float]:
        """One pass over the training set, or what is left of it after a resume."""
        settings, fabric, progress = self.settings, self.fabric, self.progress
        model, criterion = self.model.train(), self.criteria[self.stage].train()
        start, first_step = time.monotonic(), progress.step
        with self.progress_bar() as bar:
            for inputs, targets, index in self.training_batches():
                seed_everything(*self.step_seed())
                update = progress.step % settings.accumulate == 0 or progress.step == self.steps
                with fabric.no_backward_sync(model, enabled=not update):
                    logits = model(inputs)
                    loss = criterion(logits.float() / settings.temperature, targets, index)
                    reading = LossReading(loss, logits)
                    fabric.backward(loss / settings.accumulate)
                value, finite = reading.read()
                if not finite:
                    raise_nonfinite(self, value, inputs, targets, index, logits)
                progress.total_loss += value
                if update:
                    self.update_weights()
                    self.pause_if_asked()
                bar.update(progress.step - bar.n)
                if progress.step % 10 == 0:
                    rate = self.scheduler.get_last_lr()[0]
                    bar.set_postfix(loss=f"{value:.4f}", lr=f"{rate:.2e}")
        return self.summary(time.monotonic() - start, progress.step - first_step)

    def update_weights(self) -> None:
        """One optimizer step."""
        if self.settings.clip_norm:
            self.fabric.clip_gradients(
                self.model,
                self.optimizer,
                max_norm=self.settings.clip_norm,
                error_if_nonfinite=False,  # True is a host sync; check_weights finds it
            )
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.scheduler.step()
        if self.ema:
            self.ema.update(self.module)

    # what the loop calls

    def training_batches(self) -> Iterator[Batch]:
        """Yield and count the batches of an epoch, skipping batches without a readable image."""
        progress, channels_last = self.progress, self.settings.channels_last
        for batch in to_device(
            self.loader, self.fabric, self.data.finish, channels_last=channels_last
        ):
            if progress.step + 1 == self.steps:  # it may repeat samples of other ranks
                self.merge_losses()
            progress.step += 1
            skip = self.cfg.dataset.get("on_error") == "skip"
            if skip and self.unreadable.empty_on_any_rank(batch[2]):
                progress.skipped += 1  # what has accumulated goes into the next update
            else:
                yield batch
        self.unreadable.share(self.data.train)
        if progress.skipped == self.steps:
            raise ValueError(f"not one training batch of epoch {progress.epoch + 1} could be read")

    def step_seed(self) -> tuple[int, ...]:
        """The numbers that seed this step."""
        return self.cfg.seed, self.progress.epoch, self.fabric.global_rank, self.progress.step

    def summary(self, seconds: float, steps: int) -> dict[str, float]:
        """The row of an epoch that took ``steps`` steps since it was begun or resumed."""
        self.check_weights()
        progress = self.progress
        mean = torch.tensor(progress.total_loss / (self.steps - progress.skipped))
        images = steps * self.settings.batch_size * self.fabric.world_size
        return {
            "train_loss": all_reduce(self.fabric, mean).item() / self.fabric.world_size,
            "lr": self.scheduler.get_last_lr()[0],
            "images_per_second": min(images, len(self.data.train)) / seconds,
        }

    def update_labels(self) -> None:
        """After an epoch, let a loss revise the labels of the training set (EM+APL)."""
        self.merge_losses()
        loss = self.losses[self.stage]
        if self.progress.labels_updated:  # resumed in the evaluation that follows
            return
        if isinstance(loss, UpdatesLabels) and loss.wants_update():
            logits = self.predict(self.data.train, ema=False)
            logits[self.data.train.unreadable] = torch.inf  # never among the lowest
            loss.update_labels(self.fabric.to_device(logits / self.settings.temperature))
            self.progress.labels_updated = True

    def test(self) -> tuple[Tensor, dict[str, float]]:
        """Return the logits of the test set, the best of a sparse one, and their measures."""
        test, ks = self.data.test, self.settings.ks
        ema = self.settings.eval_weights == "ema"
        outputs = self.predict(test, ema=ema, **what_to_keep(test, ks))
        return outputs, measure(self.data, outputs, ks)

    def predict(self, dataset: Samples, *, ema: bool, **options: Any) -> Tensor:
        """Return fp32 logits ``[N, C]`` of a data set, the same on every rank."""
        model = self.ema.module if ema and self.ema else self.network
        sync_buffers(self.fabric, model)
        return predict(
            model,
            dataset,
            self.data.finish,
            self.fabric,
            batch_size=self.settings.batch_size,
            num_workers=self.settings.num_workers,
            channels_last=self.settings.channels_last,
            unreadable=self.unreadable,
            after_batch=self.pause_if_asked,
            **options,
        )

    def save(self) -> None:
        """Write the state of the run; all ranks call it, between two steps."""
        self.check_weights()
        self.merge_losses()
        for part in self.parts:
            self.unreadable.share(part)
        captured = state.capture(self)
        if self.fabric.is_global_zero:
            state.save(self.folder, captured)
        self.fabric.barrier()
        self.preemption.saved()
        self.saved_position = self.progress.position

    def pause_if_asked(self) -> None:
        """Save now and then within long epochs; after a SIGTERM or Ctrl-C save and stop."""
        progress = self.progress
        stop, late = self.preemption.poll(sync=not progress.step)
        if (stop or late) and progress.step and progress.position != self.saved_position:
            self.save()
            log.info("saved after epoch %d, step %d", progress.epoch, progress.step)
        if stop:
            name = "Ctrl-C" if stop == signal.SIGINT else signal.Signals(stop).name
            log.info("stopped by %s: the same command resumes from here", name)
            raise SystemExit(128 + stop)

    def stops_early(self) -> bool:
        """Early stopping: whether the monitored measure has stopped improving."""
        patience, skip = self.settings.patience, first_main_epoch(self.cfg)
        history, monitor = self.progress.history, self.settings.monitor
        return out_of_patience(history, monitor, patience=patience, skip=skip)

    def check_weights(self) -> None:
        """Stop before non-finite weights reach a checkpoint or a measure."""
        models = {"weights": self.module}
        if self.ema:
            models["averaged weights"] = self.ema.module
        position = f"epoch {self.progress.epoch + 1}, step {self.progress.step}"
        check_weights(models, self.folder, position=position)

    def merge_losses(self) -> None:
        """Bring together what the losses of all ranks have learnt of their samples."""
        for loss in self.losses:
            if isinstance(loss, SharesState) and self.fabric.world_size > 1:
                loss.merge_state(lambda tensor: all_reduce(self.fabric, tensor, "max"))

    def progress_bar(self) -> tqdm:
        """A bar on a terminal of rank 0; silent in a log."""
        return tqdm(
            desc=f"epoch {self.progress.epoch + 1}/{self.epochs}",
            initial=self.progress.step,
            total=self.steps,
            disable=True if not self.fabric.is_global_zero else None,
            leave=False,
            dynamic_ncols=True,
        )


def measures(row: dict[str, float]) -> dict[str, float]:
    """The part of a row of the history that measures the model.

    >>> measures({"epoch": 1, "train_loss": 0.3, "mAP@3": 0.9, "seconds": 2.5})
    {'mAP@3': 0.9}
    """
    rest = ("epoch", "train_loss", "lr", "images_per_second", "seconds")
    return {name: value for name, value in row.items() if name not in rest}


def train_stats(data: TrainingData, num_epochs: int) -> TrainStats:
    """What losses may take as constructor arguments."""
    targets = data.train_targets
    stats: TrainStats = {
        "num_samples": targets.shape[0],
        "num_classes": targets.shape[1],
        "class_counts": torch.from_numpy(targets.sum(0).astype(np.int64)),
        "expected_positives": float(data.clean_targets.sum(1).mean()),
        "num_epochs": num_epochs,
    }
    if isinstance(targets, np.ndarray):
        stats["train_targets"] = torch.from_numpy(targets)
    return stats
