"""The linear probe against a bare loop."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from tests.training.test_trainer import samples
from tkpr.data.features import FeatureDataset
from tkpr.losses import AssumeNegative
from tkpr.losses.partial_labels import PartialLabels
from tkpr.training.predict import fabric_on
from tkpr.training.probe import classifier_inputs, fit


class Noting(nn.Module):
    """Binary cross entropy that notes what it is given."""

    def __init__(self):
        super().__init__()
        self.epochs, self.rows, self.irrelevant, self.modes = [], [], [], []

    def set_epoch(self, epoch):
        self.epochs.append(epoch)

    def forward(self, logits, targets, index):
        self.rows.append(index.tolist())
        self.modes.append(self.training)
        if isinstance(targets, PartialLabels):
            self.irrelevant.append(targets.irrelevant)
            targets = targets.relevant.float()
        return nn.functional.binary_cross_entropy_with_logits(logits, targets)


def bare_fit(features, targets, *, seed, epochs, batch_size, lr, weight_decay):
    """Train on features of mean 0, and of mean square 1 over all of them; return their logits."""
    values = features.double().numpy()
    values = values - values.mean(0)
    values = torch.from_numpy(values / np.sqrt((values**2).mean())).float()
    model = nn.Linear(values.shape[1], targets.shape[1])
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=weight_decay)
    batches = (len(values) + batch_size - 1) // batch_size
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, lr, total_steps=epochs * batches if epochs * batches >= 10 else 10
    )
    generator, rows = torch.Generator().manual_seed(seed), []
    for _ in range(epochs):
        order = torch.randperm(len(values), generator=generator)
        for batch in range(batches):
            chosen = order[batch * batch_size : (batch + 1) * batch_size]
            rows.append((100 + chosen).tolist())
            loss = nn.functional.binary_cross_entropy_with_logits(
                model(values[chosen]), targets[chosen]
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return model(values).detach(), rows


@pytest.mark.parametrize(
    ("count", "spread", "options", "updates"),
    [
        (70, 3.0, {}, 40),  # 20 epochs of a batch of 64 and one of 6
        (20, 0.1, {"epochs": 2, "batch_size": 8, "lr": 0.3, "weight_decay": 0.1}, 6),
        (20, 3.0, {"epochs": 3, "batch_size": 5, "lr": 0.3, "weight_decay": 0.1}, 12),
    ],
)
def test_the_probe_does_what_a_bare_loop_does(count, spread, options, updates):
    generator = torch.Generator().manual_seed(1)
    features = 5 + spread * torch.randn(count, 4, generator=generator)
    targets = (torch.rand(count, 3, generator=generator) < 0.4).float()
    loss = Noting().eval()
    weight, bias = fit(features, targets, 100 + torch.arange(count), loss, seed=7, **options)
    used = {"epochs": 20, "batch_size": 64, "lr": 1e-2, "weight_decay": 1.0} | options
    expected, rows = bare_fit(features, targets, seed=7, **used)
    torch.testing.assert_close(features @ weight.T + bias, expected, rtol=1e-3, atol=1e-4)
    assert expected.abs().max() > 0.05
    assert loss.rows == rows
    assert len(rows) == updates
    assert loss.epochs == list(range(used["epochs"]))
    assert all(loss.modes)
    assert not weight.requires_grad
    assert not bias.requires_grad


def test_unknown_labels_reach_the_loss():
    generator = torch.Generator().manual_seed(1)
    features, known = torch.randn(6, 2, generator=generator), torch.eye(6, 3).bool()
    loss = Noting()
    fit(features, torch.zeros(6, 3), torch.arange(6), loss, seed=0, known=known, epochs=1)
    (found,) = loss.irrelevant
    assert torch.equal(found, known[loss.rows[0]])


def test_features_that_are_all_the_same_give_the_share_of_each_class():
    """There is nothing to scale by; and a loss need not know of epochs."""
    targets = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 0.0]])
    weight, bias = fit(
        *(torch.full((4, 3), 2.0), targets, torch.arange(4), AssumeNegative()),
        **{"seed": 0, "lr": 0.5, "weight_decay": 0.0, "epochs": 200},
    )
    shares = (torch.full((4, 3), 2.0) @ weight.T + bias).sigmoid()
    torch.testing.assert_close(shares, torch.tensor([[0.75, 0.25]] * 4), rtol=0, atol=0.01)


class Network(nn.Module):
    """Gives the classifier six places of an image, or features."""

    def __init__(self, shape):
        super().__init__()
        torch.manual_seed(0)
        self.shape, self.head = shape, nn.Linear(2, 4)
        self.body = nn.Linear(5, 2 * int(np.prod(shape)))

    def get_classifier(self):
        return self.head

    def forward(self, inputs):
        return self.head(self.body(inputs).unflatten(1, (*self.shape, 2)))


class Augmented(FeatureDataset):
    """Rows that are spoilt unless augmentation is switched off; some cannot be read."""

    augment, broken = "strong", ()

    def __getitems__(self, indices):
        good = [row for row in indices if row not in self.broken]
        self.unreadable[list(self.broken)] = True
        inputs, targets, index = super().__getitems__(torch.tensor(good, dtype=torch.long))
        return inputs * 0 if self.augment else inputs, targets, index


@pytest.mark.parametrize("shape", [(), (6,), (2, 3)])
def test_what_reaches_a_classifier(shape, caplog):
    """The mean over places, of the network in evaluation mode, of rows that can be read."""
    dataset = Augmented(samples(7, 0))
    dataset.broken = (2, 3, 4)  # of them 2 and 3 are a batch
    data = SimpleNamespace(train=dataset, finish=nn.Flatten())
    model = Network(shape).train()
    seen = []
    model.register_forward_hook(lambda module, *_: seen.append(module.training))
    features, rows = classifier_inputs(model, data, fabric_on("cpu"), batch_size=2)
    assert rows.tolist() == [0, 1, 5, 6]
    assert not caplog.records  # training names what cannot be read
    places = model.body(dataset.inputs[rows]).detach().reshape(4, -1, 2)
    torch.testing.assert_close(features, places.mean(1))
    assert seen == [False, False, False]
    assert dataset.augment == "strong"
    model(dataset.inputs)  # nothing is kept any more
    assert len(features) == 4


def test_features_in_bfloat16():
    data = SimpleNamespace(train=Augmented(samples(7, 0)), finish=nn.Identity())
    model, half = Network(()), fabric_on("cpu", "bf16-mixed")
    exact, _ = classifier_inputs(model, data, fabric_on("cpu"), batch_size=7)
    rounded, _ = classifier_inputs(model, data, half, batch_size=7)
    assert rounded.dtype == torch.float32
    assert torch.equal(rounded, rounded.bfloat16().float())
    assert not torch.equal(rounded, exact)
    torch.testing.assert_close(rounded, exact, rtol=0.05, atol=0.05)
