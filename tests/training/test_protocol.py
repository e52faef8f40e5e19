"""The trainer calls what a loss or a model asks for, at the moments that the protocol names."""

import pytest
import torch
from torch import nn

from tests.short_runs import SMALL, train
from tkpr.losses import EMAPL, ROLE, SPLC, TKPR, GeneralizedRobust, LargeLoss, protocol
from tkpr.models.ccd import ccd
from tkpr.training.optimizer import parameter_groups
from tkpr.training.stages import stage_one_epochs


class Diary(nn.Module):
    """A loss that asks for everything a single process offers, and notes what it is given."""

    learning_rate_multiplier = 10.0
    notes: list = []  # noqa: RUF012 (the trainer builds the loss; the test reads the class)

    def __init__(self, num_samples, num_classes, train_targets):
        super().__init__()
        assert train_targets.shape == (num_samples, num_classes)
        self.scale = nn.Parameter(torch.ones(()))
        self.epoch = None

    def set_epoch(self, epoch):
        self.epoch = epoch
        self.notes.append(f"epoch {epoch}")

    def wants_update(self):
        return self.epoch == 1

    def update_labels(self, logits):
        self.notes.append(f"labels {tuple(logits.shape)}")

    def forward(self, logits, targets, index=None):
        if self.training:
            self.notes.append("batch")
        return self.scale * (logits - targets).square().mean()


def test_a_loss_is_called_when_it_asks_to_be(tmp_path, monkeypatch):
    monkeypatch.setattr(Diary, "notes", [])
    loss = f"{{_target_: {__name__}.Diary}}"
    words = [f"~loss={'tkpr_a2'}", f"+loss={loss}", "trainer.epochs=3", "trainer.warmup_epochs=1"]
    train(*SMALL, *words, folder=tmp_path)
    batches = ["batch"] * 5
    expected = ["epoch 0", "epoch 1", *batches, "labels (40, 10)", "epoch 2", *batches]
    assert Diary.notes == expected
    state = torch.load(tmp_path / "last.ckpt", weights_only=True)
    assert state["losses"][1]["scale"] != 1  # it was optimized


def test_the_parameters_of_a_loss_have_their_own_rate():
    role = ROLE(expected_positives=1.0, train_targets=torch.eye(3))
    groups = parameter_groups(nn.Linear(3, 2), [role], lr=0.1, weight_decay=0.01)
    assert groups[-1]["params"] == [role.theta]
    assert (groups[-1]["lr"], groups[-1]["weight_decay"]) == (1.0, 0.0)


def test_the_parameters_of_a_loss_that_asks_for_no_rate_have_that_of_the_model():
    groups = parameter_groups(nn.Linear(3, 2), [nn.PReLU()], lr=0.1, weight_decay=0.01)
    assert [group["lr"] for group in groups] == [0.1, 0.1, 0.1]


@pytest.mark.parametrize(
    ("loss", "asked"),
    [
        (TKPR(k=5, alpha=2), []),
        (SPLC(), ["UsesEpoch"]),
        (GeneralizedRobust(num_epochs=3), ["UsesEpoch"]),
        (
            LargeLoss(scheme="correct_permanently", num_samples=3, num_classes=2),
            ["SharesState", "UsesEpoch"],
        ),
        (ROLE(expected_positives=1.0, train_targets=torch.eye(3)), ["LearnsFaster"]),
        (
            EMAPL(alpha=0.1, beta=0.1, warmup_epochs=1, train_targets=torch.eye(3), num_epochs=3),
            ["UpdatesLabels", "UsesEpoch"],
        ),
        (ccd("resnet18", 5, context_epochs=6, pretrained=False), ["HasStages"]),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else None,
)
def test_who_asks_for_what(loss, asked):
    protocols = ["HasStages", "LearnsFaster", "SharesState", "UpdatesLabels", "UsesEpoch"]
    assert [name for name in protocols if isinstance(loss, getattr(protocol, name))] == asked


def test_only_models_with_stages_have_a_first_one():
    assert stage_one_epochs(ccd("resnet18", 5, context_epochs=6, pretrained=False)) == 6
    assert stage_one_epochs(nn.Linear(2, 2)) == 0
