"""A linear probe: the classifier is trained first, on features of the network as it comes.

From a random classifier the first steps of fine-tuning pull good features out of shape; from a
trained one they do not (Kumar et al., ICLR 2022).
"""

import copy
from typing import Any, cast

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from tkpr.data.assemble import TrainingData
from tkpr.data.targets import take
from tkpr.training.predict import predict
from tkpr.training.unreadable import UnreadableImages


class BeforeClassifier(nn.Module):
    """A network up to its linear classifier: what would reach it, ``[B, D]``.

    Of several places of an image the mean is returned.

    Args:
        network: with a linear classifier (timm's ``get_classifier``).
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, inputs: Tensor) -> Tensor:
        """Run the whole network, and return the input of its last layer."""
        found: list[Tensor] = []
        classifier = cast(Any, self.network).get_classifier()
        hook = classifier.register_forward_pre_hook(lambda _, given: found.append(given[0]))
        try:
            self.network(inputs)
        finally:
            hook.remove()
        features = found[0].float()
        return features.flatten(1, -2).mean(1) if features.ndim > 2 else features


def classifier_inputs(
    model: nn.Module,
    data: TrainingData,
    fabric: Fabric,
    *,
    batch_size: int,
    num_workers: int = 0,
) -> tuple[Tensor, Tensor]:
    """Return what reaches the classifier for each training sample, and the samples' rows.

    The ranks of a run share the work, and all get the result.

    Args:
        model: with a linear classifier (timm's ``get_classifier``).
        data: its training samples are taken as they are, without augmentation.
        fabric: launched; it names device and precision.
        batch_size: samples per batch and process.
        num_workers: processes that load images.

    Returns:
        Features float32 ``[N, D]``, the mean over places where there are several, and rows ``[N]``,
        without those that cannot be read.
    """
    plain: Any = copy.copy(data.train)
    plain.augment = None
    features = predict(
        *(BeforeClassifier(model), plain, data.finish, fabric),
        batch_size=batch_size,
        num_workers=num_workers,
        unreadable=UnreadableImages(fabric, quiet=True),  # training names them
    )
    rows = (~plain.unreadable).nonzero().flatten()
    return features[rows], rows


def fit(
    features: Tensor,
    targets: Tensor,
    rows: Tensor,
    loss: nn.Module,
    *,
    seed: int,
    known: Tensor | None = None,
    epochs: int = 20,
    batch_size: int = 64,
    lr: float = 1e-2,
    weight_decay: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Train a linear classifier by AdamW and 1-cycle, and return its weight and bias.

    The features are centred and brought to a common scale first; both goes into the result.

    Args:
        features: ``[N, D]``.
        targets: 0/1 labels, ``[N, C]``.
        rows: of the samples in the training set, for losses that keep a state per sample.
        loss: what to minimise.
        seed: of the order of the samples.
        known: False where a label is unknown, ``[N, C]``; None: all are known.
        epochs: passes over them.
        batch_size: samples per step.
        lr: the peak of the learning rate.
        weight_decay: decoupled.

    >>> from tkpr.losses import AsymmetricLoss
    >>> features, targets = torch.eye(4), torch.tensor([[1.0, 0], [1, 0], [0, 1], [0, 1]])
    >>> weight, bias = fit(features, targets, torch.arange(4), AsymmetricLoss(), seed=0, lr=0.1)
    >>> ((features @ weight.T + bias > 0) == (targets > 0)).all()
    tensor(True)
    """
    mean = features.mean(0)
    scale = features.sub(mean).pow(2).mean().sqrt().clamp(min=1e-12)
    features = (features - mean) / scale
    # from zero, so that a probe read from a file leaves torch's random numbers the same
    weight = features.new_zeros(targets.shape[1], features.shape[1], requires_grad=True)
    bias = features.new_zeros(targets.shape[1], requires_grad=True)
    optimizer = torch.optim.AdamW([weight, bias], lr=lr, weight_decay=weight_decay)
    steps = epochs * -(-len(features) // batch_size)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=max(steps, 10))
    generator = torch.Generator().manual_seed(seed)
    loss = loss.to(features.device).train()
    targets = targets.to(features.device)
    known = None if known is None else known.to(features.device)
    for epoch in range(epochs):
        if hasattr(loss, "set_epoch"):
            loss.set_epoch(epoch)  # type: ignore[operator]
        order = torch.randperm(len(features), generator=generator)
        for batch in order.split(batch_size):
            logits = torch.nn.functional.linear(features[batch], weight, bias)
            optimizer.zero_grad()
            loss(logits, take(targets, known, batch), rows[batch]).backward()
            optimizer.step()
            schedule.step()
    unscaled = weight.detach() / scale
    return unscaled, bias.detach() - unscaled @ mean
