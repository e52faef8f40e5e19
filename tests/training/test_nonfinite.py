"""Numbers that are not finite: what is noticed, what the file about them holds, what is advised."""

import types

import pytest
import torch
from torch import nn

from tests.training.test_trainer import FEATURES, SAMPLES, STEPS, linear, make_trainer
from tkpr.losses.chunked import ChunkedLogits
from tkpr.losses.label_lists import LabelLists
from tkpr.losses.partial_labels import PartialLabels
from tkpr.models.sparse_linear import Bags
from tkpr.training.nonfinite import LossReading, check_weights, on_cpu, plain
from tkpr.training.seeding import seed_everything


class Overflowing(nn.Module):
    """A mean square that is infinite at one call, or only appears to be finite."""

    def __init__(self, at, value):
        super().__init__()
        self.at, self.value, self.calls = at, value, 0
        self.register_buffer("scale", torch.ones(()))

    def forward(self, logits, targets, index=None):
        self.calls += 1
        loss = (self.scale * logits - targets).square().mean()
        return loss * self.value if self.calls == self.at else loss


def overflowing(at, value):
    return {"_target_": f"{__name__}.Overflowing", "at": at, "value": value}


def test_the_file_holds_the_batch_the_weights_and_the_seed(tmp_path):
    """In the second epoch, of the main loss; the last state is that of the first."""
    trainer = make_trainer(tmp_path, loss=overflowing(3, torch.inf))
    with pytest.raises(FloatingPointError) as stopped:
        trainer.fit()
    kept = torch.load(tmp_path / "bad_batch_rank0.pt", weights_only=True)
    names = [trainer.data.train.ids[row] for row in kept["index"].tolist()]
    assert str(stopped.value) == (
        f"the loss is inf in epoch 2, step 3, on the samples {', '.join(names)}; batch, weights "
        f"and seed are in {tmp_path / 'bad_batch_rank0.pt'}, the last good state is in "
        f"{tmp_path / 'last.ckpt'}: lower the learning rate or clip the gradient "
        "(trainer.clip_norm=1)"
    )
    assert (kept["epoch"], kept["step"], kept["stage"]) == (1, 3, 1)
    assert (kept["ids"], kept["loss_value"]) == (names, torch.inf)
    assert kept["seed"] == [trainer.cfg.seed, 1, 0, 3]
    assert kept["loss"].keys() == {"scale"}
    model = nn.Linear(FEATURES, kept["targets"].shape[1])
    model.load_state_dict(kept["model"])
    seed_everything(*kept["seed"])
    torch.testing.assert_close(model(kept["inputs"]).detach(), kept["logits"], rtol=0, atol=0)
    assert not kept["logits"].requires_grad


@pytest.mark.parametrize(("batch", "more"), [(8, ""), (9, " ...")])
def test_eight_samples_are_named_and_no_state_is_spoken_of_before_there_is_one(
    batch, more, tmp_path
):
    trainer = make_trainer(tmp_path, warmup=overflowing(1, torch.nan), batch_size=batch)
    with pytest.raises(FloatingPointError) as stopped:
        trainer.fit()
    rows = list(trainer.loader.sampler)[:8]
    names = ", ".join(f"0-{row}" for row in rows)
    assert str(stopped.value).startswith(
        f"the loss is nan in epoch 1, step 1, on the samples {names}{more}; batch"
    )
    assert "rank0.pt, no state was saved yet: lower" in str(stopped.value)


def test_logits_are_looked_at_too(tmp_path):
    model = linear()
    model.bias.data[2] = torch.inf
    silent = {"_target_": f"{__name__}.Silent"}
    with pytest.raises(FloatingPointError, match=r"^the logits are not finite in epoch 1, step 1"):
        make_trainer(tmp_path, model, warmup=silent).fit()


class Silent(nn.Module):
    """A loss that does not mind."""

    def forward(self, logits, targets, index=None):
        return logits.nan_to_num(0, 0, 0).sum()


def test_finite_numbers_pass(tmp_path):
    trainer = make_trainer(tmp_path, loss=overflowing(1, 1.0), stop_after=2)
    trainer.fit()
    assert trainer.losses[1].calls == STEPS
    assert not (tmp_path / "bad_batch_rank0.pt").exists()


def test_of_chunked_logits_the_features_are_read():
    features = torch.ones(SAMPLES, 3)
    logits = ChunkedLogits(features, torch.ones(4, 3), torch.zeros(4))
    assert LossReading(torch.tensor(2.0), logits).read() == (2.0, True)
    features[1, 2] = torch.nan
    assert LossReading(torch.tensor(2.0), logits).read() == (2.0, False)


class OnGPU(torch.Tensor):
    """A tensor that says it is on a GPU."""

    is_cuda = True


def test_a_gpu_is_waited_for_when_the_answer_is_read(monkeypatch):
    """The copy goes to pinned memory while the device computes on."""
    notes, empty, stack = [], torch.empty, torch.stack

    class Event:
        def record(self):
            notes.append("record")

        def synchronize(self):
            notes.append("wait")

    def pinned(*shape, dtype, pin_memory):
        target = empty(*shape, dtype=dtype)

        def copy(self, source, non_blocking):
            notes.append(("copy", pin_memory, non_blocking, tuple(self.shape)))
            self.data = source.as_subclass(torch.Tensor).clone()

        target.copy_ = types.MethodType(copy, target)
        return target

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch, "empty", pinned)
    monkeypatch.setattr(torch, "stack", lambda parts: stack(parts).as_subclass(OnGPU))
    reading = LossReading(torch.tensor(0.5), torch.ones(1, 2))
    assert notes == [("copy", True, True, (2,)), "record"]
    assert reading.read() == (0.5, True)
    assert notes[2:] == ["wait"]


def test_every_model_is_looked_at(tmp_path):
    good, bad = nn.BatchNorm1d(2), nn.BatchNorm1d(2)
    check_weights({"weights": good, "averaged weights": bad}, tmp_path, position="epoch 1, step 2")
    bad.running_var[1] = torch.nan
    answer = r"^the averaged weights \(running_var\) are not finite in epoch 1, step 2, though the "
    with pytest.raises(FloatingPointError, match=answer):
        check_weights(
            {"weights": good, "averaged weights": bad}, tmp_path, position="epoch 1, step 2"
        )


def test_what_a_file_without_code_can_hold():
    tensor = torch.ones(2)
    assert plain(tensor) is tensor
    lists = plain(LabelLists(torch.tensor([[1, 3], [2, -1]])))
    assert {name: part.tolist() for name, part in lists.items()} == {
        "rows": [0, 0, 1],
        "columns": [1, 3, 2],
    }
    partial = plain(PartialLabels.from_states(torch.tensor([[1, 0, -1]])))
    assert type(partial) is dict
    assert partial["relevant"].tolist() == [[True, False, False]]
    bags = Bags(*(torch.full((1,), number) for number in range(len(Bags._fields))))
    assert list(plain(bags)) == list(Bags._fields)
    nested = on_cpu({"a": {"b": torch.ones(1, requires_grad=True)}, "c": "text"})
    assert not nested["a"]["b"].requires_grad
    assert nested["c"] == "text"
