"""The maps of a cut network for a data set: found in a folder, or made and put there."""

import contextlib
import fcntl
import hashlib
import json
import logging
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig
from torch import nn
from torchvision.transforms import v2
from tqdm import tqdm

from tkpr import atomic
from tkpr.config import build, model_facts
from tkpr.data.assemble import loader
from tkpr.data.dataset import MultiLabelData
from tkpr.data.files import absolute
from tkpr.data.images import ImageDataset
from tkpr.data.maps import Maps, fingerprint, read_maps, write_maps
from tkpr.data.transforms import ImagePipeline
from tkpr.models.cut import CutNetwork
from tkpr.runs.settle import is_pretrained
from tkpr.training.loader import explain_dead_worker, without_worker_traceback

log = logging.getLogger(__name__)


def is_cut(cfg: DictConfig) -> bool:
    """Whether a run has a frozen part whose outputs can be stored: random weights have not."""
    return bool(cfg.model.get("cut")) and is_pretrained(cfg)


def stored_maps(cfg: DictConfig, data: MultiLabelData, *, batch_size: int = 32) -> Maps:
    """Return the maps of a data set's images, from ``cfg.map_dir``; make them if need be.

    The file is named by all that it depends on. Of several processes that need it, one makes it
    and the others wait.

    Args:
        cfg: the whole configuration, settled.
        data: the data set.
        batch_size: images at a time.
    """
    pipeline: ImagePipeline = build(cfg.transform)
    if pipeline.size is None or not isinstance(pipeline.augment, v2.RandomHorizontalFlip):
        raise ValueError(
            "stored maps are of the image and of its mirror image: use transform=spml, or "
            "model.cut=null"
        )
    network = frozen_part(build(cfg.model, facts=model_facts((3, pipeline.size, pipeline.size), 0)))
    header = describe(cfg, data, network)
    key = hashlib.sha256(json.dumps(header, sort_keys=True).encode()).hexdigest()[:12]
    file = map_folder(cfg) / f"{header['network']}-{header['cut']}-{header['size']}-{key}.npy"
    on_error = cfg.dataset.get("on_error", "raise")
    with only_one(file) as denied:
        if not (file.exists() and file.with_suffix(".json").exists()):
            if denied:
                raise denied
            device = "cuda" if torch.cuda.is_available() else "cpu"
            parts = [
                ImageDataset(
                    part,
                    size=pipeline.size,
                    on_error=on_error,
                    interpolation=pipeline.interpolation,
                )
                for part in (data.train, data.test)
            ]
            with heard():
                extract(
                    *(file, header, network.to(device), parts, pipeline.finish),
                    batch_size=batch_size,
                    num_workers=cfg.trainer.num_workers,
                )
        maps = read_maps(file, header)
    if len(maps.unreadable) and on_error == "raise":
        ids = [name for name in data.train.ids for _ in range(2)] + list(data.test.ids)
        raise ValueError(
            f"{len(maps.unreadable)} images could not be read when {file} was made, the first is "
            f"{ids[maps.unreadable[0]]}: set dataset.on_error=skip, or mend them and delete the "
            "file"
        )
    return maps


def map_folder(cfg: DictConfig) -> Path:
    """Return the folder of stored maps and probes."""
    if not cfg.map_dir:
        raise ValueError("map_dir must name the folder of stored maps; got nothing")
    return absolute(cfg.map_dir)


def frozen_part(model: nn.Module) -> CutNetwork:
    """Find the cut network in a model."""
    return next(part for part in model.modules() if isinstance(part, CutNetwork))


def describe(cfg: DictConfig, data: MultiLabelData, network: CutNetwork) -> dict[str, Any]:
    """Return all that the maps of a data set depend on."""
    return {
        "format": 2,
        "network": str(cfg.model.get("model_name") or cfg.model._target_.split(".")[-2]),
        "weights": network.digest,
        "cut": cfg.model.cut,
        "size": cfg.transform.size,
        "mean": plain(cfg.transform.mean),
        "std": plain(cfg.transform.std),
        "interpolation": cfg.transform.interpolation,
        "precision": "bf16" if cfg.trainer.precision.startswith("bf16") else "32",
        "map": list(network.map_shape),
        "train": len(data.train),
        "test": len(data.test),
        "images": fingerprint(data),
    }


def plain(values: Any) -> list[float]:
    """Return one number, or a list from a configuration, as a list."""
    return [float(value) for value in np.atleast_1d(np.array(values))]


@contextlib.contextmanager
def only_one(file: Path) -> Iterator[OSError | None]:
    """Wait until no other process makes ``file``; the lock ends with the process.

    Gives None, or why the folder cannot be written to: what it holds may still be read.
    """
    with contextlib.ExitStack() as stack:
        denied = None
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            lock = stack.enter_context(file.with_suffix(".lock").open("w"))
            fcntl.flock(lock, fcntl.LOCK_EX)
            for part in file.parent.glob(f".{file.name}.*{atomic.PART}"):  # of a killed process
                part.unlink()
        except OSError as error:
            denied = OSError(
                f"the folder {file.parent} cannot be written to ({error.strerror}): name another "
                "with map_dir=..."
            )
        yield denied


@torch.no_grad()
def extract(
    file: Path,
    header: Mapping[str, Any],
    network: CutNetwork,
    parts: list[ImageDataset],
    finish: nn.Module,
    *,
    batch_size: int,
    num_workers: int = 0,
) -> None:
    """Run every image through the frozen part, training images mirrored as well, and store it.

    Args:
        file: where to.
        header: what to say about the maps.
        network: on the device to compute on.
        parts: the training and the test images.
        finish: from uint8 pixels to the network's input.
        batch_size: images at a time.
        num_workers: processes that load images.
    """
    device = next(network.parameters()).device
    finish = finish.to(device)
    network = network.eval().to(memory_format=torch.channels_last)
    shape = (2 * len(parts[0]) + len(parts[1]), *header["map"])
    size = np.prod(shape) * 2 / 1e6
    log.info("storing the maps of %d images, %.0f MB: %s", sum(map(len, parts)), size, file)
    unreadable: list[int] = []
    started = time.monotonic()
    bar = tqdm(total=sum(map(len, parts)), unit=" images", leave=False, disable=None)

    def batches() -> Iterator[np.ndarray]:
        first = 0
        for part, views in zip(parts, (2, 1), strict=True):
            loaded = loader(part, batch_size=batch_size, num_workers=num_workers)
            for images, _, index in without_worker_traceback(loaded):
                # a batch in which images are missing still takes the rows of all of them
                start = first
                first = min(start + batch_size, len(part))
                maps = np.zeros((first - start, views, *header["map"]), np.float16)
                if len(index):
                    inputs = finish(images.to(device))
                    seen = [inputs, inputs.flip(-1)][:views]
                    with torch.autocast(device.type, torch.bfloat16, header["precision"] == "bf16"):
                        found = torch.stack([network.maps(view).float() for view in seen], 1)
                    if not found.abs().max() < 65504:
                        raise ValueError("the maps do not fit half precision; choose another cut")
                    maps[index.numpy() - start] = found.cpu().numpy()
                bar.update(len(maps))
                yield maps.reshape(-1, *header["map"])
            first = 0
            offset = 2 * len(parts[0]) if views == 1 else 0
            for row in part.unreadable.nonzero().flatten().tolist():
                log.warning("left out, because it cannot be read: %s", part.ids[row])
                unreadable.append(offset + views * row)

    with bar, explain_dead_worker():
        write_maps(file, header, shape, batches, unreadable)
    log.info("stored in %.0f s", time.monotonic() - started)


@contextlib.contextmanager
def heard() -> Iterator[None]:
    """Log from this process, too, if only rank 0 does: any rank may be the one to store maps."""
    logger = logging.getLogger("tkpr")
    level = logger.level
    logger.setLevel(min(level, logging.INFO))
    try:
        yield
    finally:
        logger.setLevel(level)
