"""Batches of a data set: which samples a process has, and how they reach its device."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from tests.training.test_trainer import samples
from tkpr.data.dataset import Split
from tkpr.data.features import FeatureDataset
from tkpr.data.images import ImageDataset
from tkpr.training.loader import explain_dead_worker, make_loader, prefetch, to_device
from tkpr.training.predict import fabric_on


def process(rank, count, device="cpu"):
    return SimpleNamespace(global_rank=rank, world_size=count, device=torch.device(device))


def batches(rank, count, **options):
    loader = make_loader(FeatureDataset(samples(11, 0)), process(rank, count), **options)
    return [index.tolist() for *_, index in loader]


def test_each_sample_occurs_once_without_a_seed():
    assert batches(0, 1, batch_size=4) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]]
    assert batches(0, 3, batch_size=3) == [[0, 3, 6], [9]]
    assert batches(2, 3, batch_size=3) == [[2, 5, 8]]


def test_processes_train_on_equally_many_samples():
    """11 samples on 3 processes are 4 each, and one occurs twice; incomplete batches may go."""
    parts = [batches(rank, 3, batch_size=3, shuffle_seed=5) for rank in range(3)]
    assert [[len(batch) for batch in part] for part in parts] == [[3, 1]] * 3
    seen = sorted(row for part in parts for batch in part for row in batch)
    assert (len(seen), set(seen)) == (12, set(range(11)))
    assert parts != [batches(rank, 3, batch_size=3, shuffle_seed=6) for rank in range(3)]
    fewer = [batches(rank, 3, batch_size=2, shuffle_seed=5, drop_last=True) for rank in range(3)]
    assert [[len(batch) for batch in part] for part in fewer] == [[2]] * 3
    assert len({row for part in fewer for batch in part for row in batch}) == 6


def test_the_order_is_shuffled_also_with_the_seed_0():
    order = [row for batch in batches(0, 1, batch_size=4, shuffle_seed=0) for row in batch]
    assert sorted(order) == list(range(11))
    assert order != list(range(11))


@pytest.mark.parametrize(("device", "pinned"), [("cpu", False), ("cuda", True)])
def test_memory_is_pinned_for_a_gpu_alone(device, pinned):
    dataset = FeatureDataset(samples(11, 0))
    loader = make_loader(dataset, process(0, 1, device), batch_size=4)
    assert (loader.pin_memory, loader.num_workers, loader.drop_last) == (pinned, 0, False)


def test_workers_are_those_asked_for():
    images = ImageDataset(Split(["a.jpg", "b.jpg"], np.eye(2, dtype=np.uint8), ["a", "b"]), size=8)
    for options, workers in (({}, 0), ({"num_workers": 2}, 2)):
        loader = make_loader(images, process(0, 1), batch_size=1, **options)
        assert loader.num_workers == workers


class Half(nn.Module):
    def forward(self, inputs):
        return inputs / 2


@pytest.mark.parametrize("last", [None, False, True])
def test_batches_are_converted_and_laid_out(last):
    pictures = torch.ones(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    flat = torch.ones(4, 2).T  # not an image: its layout is left alone
    given = [(part, "targets", torch.arange(2)) for part in (pictures, flat)]
    options = {} if last is None else {"channels_last": last}
    (image, targets, index), (features, *_) = to_device(given, fabric_on("cpu"), Half(), **options)
    assert image.unique().tolist() == [0.5]
    assert image.is_contiguous() == (not last)
    assert not features.is_contiguous()
    assert (targets, index.tolist()) == ("targets", [0, 1])


def test_an_empty_batch_is_not_converted():
    empty = torch.ones(0, 3), "targets", torch.arange(0)
    ((inputs, *_),) = to_device([empty], fabric_on("cpu"), nn.Linear(7, 7))
    assert inputs.shape == (0, 3)


def test_batches_go_to_the_device_one_by_one_without_a_gpu():
    fabric = SimpleNamespace(device=torch.device("cpu"), to_device=lambda batch: 2 * batch)
    assert list(prefetch([1, 2, 3], fabric)) == [2, 4, 6]


def failing(error):
    yield torch.ones(1, 2), "targets", torch.arange(1)
    raise error


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            ValueError("Caught ValueError in worker 0.\nTraceback\nValueError: 03.jpg: bad"),
            "03.jpg: bad",
        ),
        (OSError("Caught OSError in worker 0.\nTraceback\nOSError: no disk"), "no disk"),
        (ValueError("two lines:\nKeyError: 3"), "two lines:\nKeyError: 3"),
        (ValueError("plain"), "plain"),
    ],
)
def test_an_error_of_a_worker_is_its_last_line(error, message):
    found = to_device(failing(error), fabric_on("cpu"), nn.Identity())
    next(found)
    with pytest.raises(type(error)) as raised:
        next(found)
    assert str(raised.value) == message


def test_other_errors_are_no_dead_workers():
    with pytest.raises(RuntimeError, match=r"^shapes do not fit\.$"), explain_dead_worker():
        raise RuntimeError("shapes do not fit.")
    answer = r"^DataLoader worker \(pid 7\) exited; out of memory is the usual cause: lower "
    with pytest.raises(ChildProcessError, match=answer), explain_dead_worker():
        raise RuntimeError("DataLoader worker (pid 7) exited. \nTraceback")
