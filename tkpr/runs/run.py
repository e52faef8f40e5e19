"""One run from its configuration to its folder: claim, build, train, write the results."""

import atexit
import contextlib
import logging
import os
import platform
import signal
import subprocess
from collections.abc import Iterator, Mapping
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from lightning_fabric import Fabric
from lightning_fabric.plugins.environments import TorchElasticEnvironment
from lightning_fabric.strategies import DDPStrategy
from omegaconf import DictConfig, OmegaConf
from torch import nn
from torch.distributed import PrefixStore, TCPStore

from tkpr import atomic, records
from tkpr.config import build, build_dataset, model_facts
from tkpr.data.assemble import Samples, TrainingData, assemble
from tkpr.data.dataset import MultiLabelData
from tkpr.data.features import FeatureDataset
from tkpr.data.fingerprint import digest, fingerprint
from tkpr.data.images import ImageDataset
from tkpr.data.maps import MapDataset
from tkpr.data.sparse import has_lists
from tkpr.metrics import count_empty
from tkpr.runs.compose import typed
from tkpr.runs.explain import data_summary, summary
from tkpr.runs.folder import InUse, check_data, claim, log_to
from tkpr.runs.maps import is_cut, stored_maps
from tkpr.runs.probe import start_from_probe
from tkpr.runs.saved_model import TrainedModel, save_model
from tkpr.runs.settle import (
    is_pretrained,
    left_to_labels,
    settle,
    settle_to_labels,
    warn_of_small_k,
)
from tkpr.training.checks import (
    check_against_data,
    check_classes,
    check_model,
    check_settings,
)
from tkpr.training.loader import explain_dead_worker
from tkpr.training.preemption import stop_on_signals
from tkpr.training.seeding import seed_everything
from tkpr.training.trainer import Trainer, measures

log = logging.getLogger(__name__)

# the files of a finished run whose checksums metrics.json holds
FILES = ("model.safetensors", "predictions.npz", "observed_labels.npz", "metrics.csv")


def run(cfg: DictConfig) -> dict[str, Any] | None:
    """Train in the run folder unless that is done already.

    Returns:
        What metrics.json holds; None on all processes but the first.

    Raises:
        InUse: where another process, or another group of them, is at work on the folder.
    """
    cfg = OmegaConf.masked_copy(cfg, [str(key) for key in cfg if key != "plan"])
    check_settings(cfg)
    settle(cfg)
    folder = Path(cfg.run_dir)
    fabric = launch(cfg)
    with contextlib.ExitStack() as stack:
        stack.enter_context(explain_lost_ranks(fabric))
        claimed = stack.enter_context(claim(folder, cfg)) if fabric.is_global_zero else None
        loaded = None
        if claimed:
            if not (folder / "metrics.json").exists():
                stack.enter_context(log_to(folder / "train.log"))
            loaded = load_data(cfg)
            check_data(folder, origin(cfg, loaded))
        # the first process looks for all: others may see a shared file system later
        claimed, finished = fabric.broadcast((claimed, (folder / "metrics.json").exists()))
        if not claimed:
            raise InUse(f"another process is training in {folder}: skipped")
        if finished:
            log.info("%s is finished: skipped", folder)
            return records.read_results(folder) if fabric.is_global_zero else None
        if fabric.world_size > 1 and fabric.is_global_zero:
            log.info("%d processes share the work", fabric.world_size)
        loaded = loaded or load_data(cfg)
        check_classes(loaded.class_names, list(cfg.trainer.ks))
        if left_to_labels(cfg):
            settle_to_labels(cfg, build(cfg.labels)(loaded.train).targets)
            check_settings(cfg)
        choices = HydraConfig.get().runtime.choices if HydraConfig.initialized() else {}
        log.info(summary(cfg, choices))
        seed_everything(cfg.seed)
        own = folder if fabric.is_global_zero else None
        data = build_data(cfg, own, data=loaded, maps=True)
        log.info(data_summary(data))
        warn_of_small_k(cfg, data.train_targets)
        if has_lists(data.test):
            log.info("labels are lists: no measure that needs the whole ranking, only those @K")
        if unknown := data.counts.get("test_unknown"):
            log.info("%d unknown labels of the test set are left out of the rankings", unknown)
        model = build_model(cfg, data)
        if isinstance(data.test, ImageDataset | FeatureDataset):
            check_model(model, input_shape(data), len(data.class_names))
        resumed = fabric.broadcast((folder / "last.ckpt").exists())
        if "probe" in cfg and is_pretrained(cfg) and not resumed:
            with explain_dead_worker():
                start_from_probe(model, cfg, data, fabric)
        trainer = Trainer(cfg, fabric, data, model, folder)
        check_against_data(trainer)
        stopping = stop_on_signals(trainer.preemption)
        with stopping, explain_lost_ranks(fabric), explain_dead_worker():
            outputs = trainer.fit().numpy()
        if fabric.is_global_zero:
            return write_results(trainer, outputs)
    return None


def origin(cfg: DictConfig, loaded: MultiLabelData) -> dict[str, str]:
    """Return the fingerprints of a run's data and of its pretrained weights."""
    return fingerprint(loaded) | {"weights": weights_fingerprint(cfg, len(loaded.class_names))}


def check_present_data(cfg: DictConfig, folder: Path) -> None:
    """Refuse a finished run that was computed from other data than its settings name now.

    Args:
        cfg: its settings, as composed.
        folder: of the run.
    """
    cfg = OmegaConf.masked_copy(cfg, [str(key) for key in cfg if key != "plan"])
    settle(cfg)
    check_data(folder, origin(cfg, load_data(cfg)))


def launch(cfg: DictConfig) -> Fabric:
    """Start the processes of a run, or join the ones started by torchrun or Slurm."""
    devices, nodes = cfg.trainer.devices, cfg.trainer.num_nodes
    if TorchElasticEnvironment.detect():  # torchrun knows how many it has started
        devices, nodes = int(os.environ["LOCAL_WORLD_SIZE"]), int(os.environ["GROUP_WORLD_SIZE"])
    elif devices != 1 and HydraConfig.initialized() and HydraConfig.get().mode == RunMode.MULTIRUN:
        raise ValueError(
            f"a sweep with trainer.devices={devices} must be started by torchrun: "
            f"torchrun --standalone --nproc-per-node={devices} train.py -m ..."
        )
    several = nodes > 1 or devices != 1
    timeout = timedelta(minutes=cfg.trainer.timeout_minutes)
    try:
        fabric = Fabric(
            accelerator=cfg.trainer.accelerator,
            devices=devices,
            num_nodes=nodes,
            strategy=DDPStrategy(timeout=timeout) if several else "auto",
            precision=cfg.trainer.precision,
        )
    except Exception as error:  # Fabric raises errors of many kinds
        raise ValueError(
            f"trainer.accelerator={cfg.trainer.accelerator} with trainer.devices={devices} is not "
            f"possible on this machine: {str(error).strip().splitlines()[0]}"
        ) from error
    if os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0":
        rejoin(fabric.device, timeout)
    fabric.launch()
    atexit.unregister(leave_group)  # once, however many runs a sweep has
    atexit.register(leave_group)
    if not fabric.is_global_zero:  # only rank 0 logs; every rank logs errors
        logging.getLogger("tkpr").setLevel(logging.ERROR)
    return fabric


def leave_group() -> None:
    """Leave the process group: gloo's threads may abort a process that ends within it."""
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


def rejoin(device: torch.device, timeout: timedelta) -> None:
    """Form the process group after torchrun has restarted its processes.

    torchrun's store outlives them and still holds the addresses of the dead, which torch may take
    for those of the living. Each restart therefore gets keys of its own.

    Args:
        device: of this process.
        timeout: of every collective.
    """
    restart, rank = os.environ["TORCHELASTIC_RESTART_COUNT"], int(os.environ["RANK"])
    store = TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        is_master=rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True",
        timeout=timeout,
    )
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        store=PrefixStore(f"restart {restart}", store),
        rank=rank,
        world_size=int(os.environ["WORLD_SIZE"]),
        timeout=timeout,
    )


@contextlib.contextmanager
def explain_lost_ranks(fabric: Fabric) -> Iterator[None]:
    """Say in one line that another process of a run died or fell silent, where torch says more."""
    try:
        yield
    except RuntimeError as error:
        lost = ("Connection closed", "Connection reset", "Broken pipe", "Timed out", "timeout")
        if fabric.world_size == 1 or not any(word in str(error) for word in lost):
            raise
        # torchrun sends it to the survivors, who shall say first why they end
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise ConnectionError(
            f"process {fabric.global_rank} of {fabric.world_size} has lost another one "
            f"({str(error).strip().splitlines()[0]}): see that one's message; the same command "
            "resumes from the last checkpoint"
        ) from error


def load_data(cfg: DictConfig) -> MultiLabelData:
    """Load the data set of a configuration, or as much of it as split.limit says."""
    limit = cfg.split.limit
    if limit is not None and (type(limit) is not int or limit < 1):
        raise ValueError(f"split.limit must be a whole number of at least 1, or null; got {limit}")
    data: MultiLabelData = build_dataset(cfg.dataset)
    return data if limit is None else data.limit(limit)


def build_data(
    cfg: DictConfig,
    folder: Path | None = None,
    *,
    data: MultiLabelData | None = None,
    maps: bool = False,
) -> TrainingData:
    """Apply the labels, split and transforms of a configuration to its data set.

    Args:
        cfg: the whole configuration.
        folder: the run folder, where what the learner may see is written down.
        data: the data set; None: it is loaded.
        maps: of a network that is cut, store what its frozen part gives, and use that instead of
            the images.
    """
    data = data or load_data(cfg)
    return assemble(
        data,
        labels=build(cfg.labels),
        pipeline=build(cfg.transform),
        maps=stored_maps(cfg, data) if maps and is_cut(cfg) else None,
        holdout=cfg.split.holdout,
        seed=cfg.seed,
        run_dir=folder,
        cache_dir=cfg.cache_dir,
        on_error=cfg.dataset.get("on_error", "raise"),
        test_unknown=cfg.split.test_unknown,
    )


def weights_fingerprint(cfg: DictConfig, num_classes: int) -> str:
    """Return a digest of the pretrained weights that a run starts from; "none" without any.

    It depends on the weights alone, whether they come from the hub, a package or a file: they are
    loaded into the network, without a cut, whose new layers are always drawn with the same seed.

    >>> model = {"_target_": "tkpr.models.tiny.TinyCNN", "width": 8}
    >>> cfg = OmegaConf.create({"model": model, "trainer": {"random_weights": False}})
    >>> weights_fingerprint(cfg, 10)
    'none'
    """
    if cfg.trainer.random_weights or not cfg.model.get("pretrained"):
        return "none"
    torch.manual_seed(0)
    whole = {"cut": None} if "cut" in cfg.model else {}
    weights = build(cfg.model, facts={"num_classes": num_classes}, **whole).state_dict()
    return digest(part for name in sorted(weights) for part in (name, weights[name].numpy()))


def build_model(cfg: DictConfig, data: TrainingData) -> nn.Module:
    """Build the model for the inputs and classes of the data."""
    model = cfg.model.copy()
    if cfg.trainer.random_weights and "pretrained" in model:
        model.pretrained = False
    return build(model, facts=model_facts(input_shape(data), len(data.class_names)))


def input_shape(data: TrainingData) -> tuple[int, ...]:
    """The shape of one input as the network takes it."""
    test = data.test
    if isinstance(test, ImageDataset | MapDataset):
        return 3, test.size, test.size
    return tuple(test.inputs.shape[1:])


def prediction_arrays(test: Samples, outputs: np.ndarray) -> dict[str, Any]:
    """What predictions.npz holds of a test set: logits and targets, or the best labels.

    Args:
        test: the samples.
        outputs: what :meth:`Trainer.test` returns.
    """
    ids = np.array(test.ids)
    if has_lists(test):
        labels, scores = np.hsplit(outputs, 2)
        return {"labels": labels.astype(np.int64), "scores": scores, "ids": ids}
    readable = ~test.unreadable.numpy()
    targets = test.targets.numpy()[readable]
    arrays = {"logits": outputs[readable], "targets": targets, "ids": ids[readable]}
    if test.known is not None:
        arrays["unknown"] = ~test.known.numpy()[readable]
    return arrays


def write_results(trainer: Trainer, outputs: np.ndarray) -> dict[str, Any]:
    """Write predictions, weights and, last of all, metrics.json, which marks a run as finished."""
    cfg, data, folder = trainer.cfg, trainer.data, trainer.folder
    arrays = prediction_arrays(data.test, outputs)
    arrays["class_names"] = np.array(data.class_names)
    empty = count_empty(arrays.get("targets", data.test.targets), arrays.get("unknown"))
    unreadable = {
        f"{name}_unreadable": int(part.unreadable.sum())
        for name, part in (("train", data.train), ("test", data.test))
    }
    identity = records.read(folder / "run.json")
    arrays["run"] = np.array(identity["run"])
    atomic.write(
        folder / "predictions.npz",
        lambda file: np.savez_compressed(file, **arrays),
    )
    source = (
        trainer.ema.module if trainer.ema and cfg.trainer.eval_weights == "ema" else trainer.module
    )
    save_model(
        folder / "model.safetensors",
        TrainedModel(
            cfg,
            data.class_names,
            source,
            input_shape(data),
            run=identity["run"],
            data=identity["data"],
        ),
    )
    results = {
        "metrics": measures(trainer.progress.history[-1]),
        "tested_on": "held-out training images" if cfg.split.holdout else "the official test set",
        "weights": cfg.trainer.eval_weights,
        "epochs": len(trainer.progress.history),
        "seconds": trainer.progress.seconds,
        "processes": trainer.fabric.world_size,
        "folder": str(folder),
        "run": identity["run"],
        "fingerprint": digest(identity["data"].values()),
        "files": {name: records.file_checksum(folder / name) for name in FILES},
        "config": OmegaConf.to_container(cfg, resolve=True),
        "overrides": typed(HydraConfig.get().overrides.task) if HydraConfig.initialized() else [],
        "seed": cfg.seed,
        "counts": data.counts | unreadable | {f"test_{k}": v for k, v in empty.items()},
        "versions": versions(),
        "commit": commit(),
    }
    records.write(folder / "metrics.json", results)
    return results


def versions() -> dict[str, str]:
    """The versions that a run depends on."""
    packages = ("tkpr", "torch", "torchvision", "timm", "lightning-fabric", "numpy", "hydra-core")
    return {"python": platform.python_version()} | {name: version(name) for name in packages}


def commit() -> str | None:
    """The commit of the project's source, marked where files have changed since."""
    git = ["git", "-C", str(Path(__file__).parent)]
    try:
        done = subprocess.run(
            [*git, "describe", "--always", "--abbrev=40", "--dirty"],
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):  # not a checkout, or no git
        return None
    return done.stdout.strip()


def table(metrics: Mapping[str, float]) -> str:
    """Lay the measures out with one row per measure and one column per K.

    >>> print(table({"P@1": 0.5, "P@3": 0.25, "mAP": 0.75}))
                       @1      @3
    P              0.5000  0.2500
    mAP            0.7500
    """
    ks = sorted({int(name.split("@")[1]) for name in metrics if "@" in name})
    lines = [f"{'':<13}" + "".join(f"{'@' + str(k):>8}" for k in ks)]
    for name in dict.fromkeys(name.split("@")[0] for name in metrics if "@" in name):
        lines.append(f"{name:<13}" + "".join(f"{metrics[f'{name}@{k}']:>8.4f}" for k in ks))
    lines += [f"{name:<13}{value:>8.4f}" for name, value in metrics.items() if "@" not in name]
    return "\n".join(lines)
