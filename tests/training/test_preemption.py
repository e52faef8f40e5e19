"""When a run saves and stops: its clock, its signals, and what its processes agree on."""

import signal

import pytest
import torch

from tkpr.training.predict import fabric_on
from tkpr.training.preemption import Preemption, stop_on_signals

ONE = fabric_on("cpu")


def test_a_state_may_stay_unsaved_for_some_minutes(clock):
    preemption = Preemption(ONE, save_minutes=2)
    clock.seconds += 120
    assert preemption.poll() == (0, False)
    clock.seconds += 0.5
    assert preemption.poll() == (0, True)
    preemption.saved()
    assert preemption.poll() == (0, False)
    clock.seconds += 121
    assert preemption.poll(sync=False) == (0, True)


def test_the_second_ctrl_c_ends_a_run_if_it_comes_a_second_later(clock):
    preemption = Preemption(ONE, save_minutes=2)
    preemption.ask_to_stop(signal.SIGINT)
    clock.seconds += 1
    preemption.ask_to_stop(signal.SIGINT)  # the same one, passed on by torchrun
    clock.seconds += 0.1
    with pytest.raises(KeyboardInterrupt):
        preemption.ask_to_stop(signal.SIGINT)
    assert preemption.poll() == (signal.SIGINT, False)


def test_the_first_signal_counts_and_a_second_sigterm_is_patient(clock):
    preemption = Preemption(ONE, save_minutes=2)
    preemption.ask_to_stop(signal.SIGTERM)
    clock.seconds += 9
    preemption.ask_to_stop(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):  # long after the first signal
        preemption.ask_to_stop(signal.SIGINT)
    assert preemption.poll() == (signal.SIGTERM, False)


class TwoProcesses:
    """The Fabric of one of two processes; a test sets what the other one says."""

    world_size = 2

    def __init__(self):
        self.other, self.syncs = [0.0, 0.0, 0.0], 0

    def to_device(self, tensor):
        return tensor

    def all_reduce(self, tensor, reduce_op):
        assert reduce_op == "max"
        self.syncs += 1
        return torch.maximum(tensor, torch.tensor(self.other))


def test_processes_stop_and_save_together(clock):
    fabric = TwoProcesses()
    preemption = Preemption(fabric, save_minutes=2)
    for other in ([15.0, 0.0, 0.0], [0.0, 1.0, 0.0]):
        clock.seconds += 1
        fabric.other = other
        assert preemption.poll() == (other[0], other[1] == 1)
    fabric.other = [0.0, 0.0, 0.0]
    clock.seconds += 1
    preemption.ask_to_stop(signal.SIGINT)
    assert preemption.poll() == (signal.SIGINT, False)


def test_processes_talk_about_once_a_second(clock):
    """A step takes a quarter of a second, then three seconds, then a quarter again."""
    fabric = TwoProcesses()
    preemption = Preemption(fabric, save_minutes=2)

    def steps(count, seconds, **options):
        before, answers = fabric.syncs, []
        for _ in range(count):
            clock.seconds += seconds
            answers.append(preemption.poll(**options))
        return fabric.syncs - before, answers

    go, stop = (0, False), (15, False)
    assert steps(1, 0.25, sync=False) == (1, [go])  # how long a step takes is not known yet
    preemption.ask_to_stop(signal.SIGTERM)
    assert steps(4, 0.25, sync=False) == (1, [go, go, go, stop])  # all hear of it together
    assert steps(8, 0.25, sync=False)[0] == 2
    assert steps(2, 0.25, sync=True) == (2, [stop, stop])
    assert steps(2, 0.25) == (2, [stop, stop])
    assert steps(4, 3, sync=False)[0] == 1
    assert steps(4, 3, sync=False)[0] == 4
    fabric.other = [0.0, 0.0, 8.0]  # the slowest process decides
    assert steps(2, 0.25, sync=False)[0] == 2


def test_processes_rather_talk_too_often_than_too_rarely(clock):
    """Two steps of 0.35 seconds, not three."""
    fabric = TwoProcesses()
    preemption = Preemption(fabric, save_minutes=2)
    syncs = []
    for _ in range(7):
        clock.seconds += 0.35
        preemption.poll(sync=False)
        syncs.append(fabric.syncs)
    assert syncs == [1, 1, 2, 2, 3, 3, 4]


def test_a_single_process_has_nothing_to_agree_on(clock):
    fabric = TwoProcesses()
    fabric.world_size = 1
    preemption = Preemption(fabric, save_minutes=2)
    preemption.ask_to_stop(signal.SIGTERM)
    assert preemption.poll(sync=False) == (15, False)
    assert fabric.syncs == 0


def test_signals_are_handled_within_a_run_only():
    preemption = Preemption(ONE, save_minutes=2)
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    with stop_on_signals(preemption):
        assert signal.getsignal(signal.SIGINT) == preemption.ask_to_stop
        signal.raise_signal(signal.SIGTERM)
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before
    assert preemption.poll() == (signal.SIGTERM, False)


def test_a_handler_that_was_set_during_a_run_is_left_in_place():
    before = signal.getsignal(signal.SIGTERM)
    try:
        with stop_on_signals(Preemption(ONE, save_minutes=2)):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)
