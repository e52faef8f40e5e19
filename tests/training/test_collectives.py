"""What the processes of a run exchange, and images that one of them could not read."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from tkpr.training.collectives import all_reduce, gather, sync_buffers
from tkpr.training.predict import fabric_on
from tkpr.training.seeding import ResumableSampler, seed_everything
from tkpr.training.unreadable import UnreadableImages

ONE = fabric_on("cpu")


class TwoProcesses:
    """The Fabric of one of two processes; ``other`` is what the other one brings."""

    world_size = 2

    def __init__(self, other):
        self.other = torch.tensor(other)

    def to_device(self, tensor):
        return tensor

    def all_reduce(self, tensor, reduce_op):
        return {"sum": torch.add, "max": torch.maximum}[reduce_op](tensor, self.other)


def test_tensors_are_added_unless_their_maximum_is_asked_for():
    fabric = TwoProcesses([3, 1])
    assert all_reduce(fabric, torch.tensor([1, 2])).tolist() == [4, 3]
    assert all_reduce(fabric, torch.tensor([1, 2]), "max").tolist() == [3, 2]


def test_values_of_all_processes_are_gathered(monkeypatch):
    def of_two(values, value):
        values[:] = [value, "theirs"]

    monkeypatch.setattr(torch.distributed, "all_gather_object", of_two)
    assert gather(TwoProcesses(0), "ours") == ["ours", "theirs"]
    assert gather(ONE, "ours") == ["ours"]


def test_batch_statistics_are_those_of_the_first_process(monkeypatch):
    def broadcast(buffer, src):
        buffer.fill_({0: 7}[src])

    monkeypatch.setattr(torch.distributed, "broadcast", broadcast)
    model = nn.BatchNorm1d(2)
    sync_buffers(ONE, model)
    assert model.running_mean.tolist() == [0, 0]
    sync_buffers(TwoProcesses(0), model)
    assert model.running_mean.tolist() == [7, 7]
    assert model.weight.tolist() == [1, 1]


def photos(*unreadable):
    marked = torch.zeros(4, dtype=torch.bool)
    marked[list(unreadable)] = True
    return SimpleNamespace(unreadable=marked, ids=["a", "b", "c", "d"])


def test_what_any_process_cannot_read_is_known_to_all_and_named_once(caplog):
    dataset, other = photos(1), photos()
    images = UnreadableImages(TwoProcesses([0, 1, 0, 1]))
    images.share(dataset)
    assert dataset.unreadable.tolist() == [False, True, False, True]
    assert [record.args for record in caplog.records] == [("b",), ("d",)]
    caplog.clear()
    images.fabric = TwoProcesses([1, 1, 0, 1])
    images.share(dataset)
    assert [record.args for record in caplog.records] == [("a",)]
    caplog.clear()
    images.fabric = TwoProcesses([0, 0, 0, 0])
    images.share(dataset)
    assert dataset.unreadable.tolist() == [True, True, False, True]
    assert not caplog.records
    images.fabric = TwoProcesses([0, 1, 0, 0])
    images.share(other)  # a data set of its own
    assert [record.args for record in caplog.records] == [("b",)]


def test_what_was_named_before_a_stop_is_not_named_again(caplog):
    dataset, images = photos(), UnreadableImages(ONE)
    images.restore(dataset, torch.tensor([2]))
    assert dataset.unreadable.tolist() == [False, False, True, False]
    dataset.unreadable[3] = True
    images.share(dataset)
    assert [record.args for record in caplog.records] == [("d",)]


@pytest.mark.parametrize(
    ("fabric", "rows", "empty"),
    [
        (ONE, [], True),
        (ONE, [3], False),
        (TwoProcesses(0.0), [3], False),
        (TwoProcesses(1.0), [3], True),
        (TwoProcesses(0.0), [], True),
        (TwoProcesses(1.0), [], True),
    ],
)
def test_a_batch_is_empty_if_one_process_has_nothing(fabric, rows, empty):
    assert UnreadableImages(fabric).empty_on_any_rank(torch.tensor(rows)) is empty


def test_a_gpu_is_seeded_if_it_is_in_use(monkeypatch):
    seeds = []
    monkeypatch.setattr(torch.cuda, "manual_seed", seeds.append)
    seed_everything(3)
    assert not seeds
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    seed_everything(3)
    assert seeds == [torch.initial_seed()]


def test_nothing_is_left_of_an_epoch_beyond_its_end():
    sampler = ResumableSampler(range(6), num_replicas=1, rank=0, seed=0)
    assert len(sampler) == 6
    sampler.start = 8
    assert (len(sampler), list(sampler)) == (0, [])
