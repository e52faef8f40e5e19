"""Contextual debiasing, CCD: a classifier head with two stages (Liu et al., CVPR 2022).

Stage 1 trains a context classifier on average-pooled features. Then one pass over the training set
gives the confounder memory, the mean feature of each class. Stage 2 takes from the max-pooled
features what the context explains, and classifies the rest. The original trains stage 1 for 6
epochs (ResNet101) or 3 (Swin-B), then starts optimizer, schedule and averaged weights anew.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tkpr.models.backbone import create, feature_map, map_channels

STORED_MODELS_MAY_BUILD = ("ccd",)


class InterventionalClassifier(nn.Module):
    """A linear classifier on directions, split into heads.

    With features x and the weights w of a class cut into H heads,

        logit = tau / H * sum_h <x_h / |x_h|, w_h / (|w_h| + beta)>,

    so the logits stay between -tau and tau. There is no bias.

    Args:
        in_features: D, a multiple of ``num_heads``.
        num_classes: C.
        num_heads: H.
        tau: scale of the logits.
        beta: added to the norm of the weights.

    >>> classifier = InterventionalClassifier(8, 5)
    >>> classifier(torch.randn(2, 8)).shape
    torch.Size([2, 5])
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        *,
        num_heads: int = 4,
        tau: float = 32.0,
        beta: float = 1 / 32,
    ) -> None:
        super().__init__()
        if in_features % num_heads:
            raise ValueError(
                f"in_features must be a multiple of the {num_heads} heads; got {in_features}"
            )
        self.num_heads = num_heads
        self.tau = tau
        self.beta = beta
        bound = in_features**-0.5
        self.weight = nn.Parameter(torch.empty(num_classes, in_features).uniform_(-bound, bound))

    def forward(self, features: Tensor) -> Tensor:
        """Return logits ``[B, C]`` of features ``[B, D]``."""
        heads = F.normalize(features.unflatten(1, (self.num_heads, -1)), dim=2)
        weights = self.weight.unflatten(1, (self.num_heads, -1))
        weights = weights / (weights.norm(dim=2, keepdim=True) + self.beta)
        return self.tau / self.num_heads * F.linear(heads.flatten(1), weights.flatten(1))


class CCDHead(nn.Module):
    """The head of CCD: context classifier, confounder memory, debiased classifier.

    With a = average-pooled and m = max-pooled features,

        stage 1:  logits = context(a)
        stage 2:  logits = debiased(m - tanh(selector(m)) * (softmax(context(a)) @ memory)).

    The stage is a buffer, so it is saved and restored with the weights, as the memory is.

    Args:
        in_features: D, a multiple of ``num_heads``.
        num_classes: C.
        **constants: ``num_heads``, ``tau``, ``beta`` of both classifiers.

    >>> head = CCDHead(8, 5)
    >>> head.set_memory(torch.randn(5, 8))
    >>> head.start_stage_two()
    >>> head(torch.randn(2, 8, 7, 7)).shape
    torch.Size([2, 5])
    """

    memory: Tensor
    stage: Tensor

    def __init__(self, in_features: int, num_classes: int, **constants: Any) -> None:
        super().__init__()
        self.context = InterventionalClassifier(in_features, num_classes, **constants)
        self.selector = nn.Linear(in_features, in_features)
        self.debiased = InterventionalClassifier(in_features, num_classes, **constants)
        self.register_buffer("memory", torch.zeros(num_classes, in_features))
        self.register_buffer("stage", torch.tensor(1))
        self._freeze_unused()
        self.register_load_state_dict_post_hook(self._freeze_unused)  # type: ignore[no-untyped-call]

    def set_memory(self, memory: Tensor) -> None:
        """Set the mean feature of each class, ``[C, D]``."""
        if memory.shape != self.memory.shape:
            raise ValueError(
                f"memory must be [C, D], {tuple(self.memory.shape)}; got {tuple(memory.shape)}"
            )
        self.memory.copy_(memory)

    def start_stage_two(self) -> None:
        """From now on compute the debiased logits."""
        self.stage.fill_(2)
        self._freeze_unused()

    def _freeze_unused(self, *_: Any) -> None:
        """Freeze the parts that the current stage does not use."""
        # a copy on the host: reading the buffer at every step would be a host sync
        self._trains_context = self.stage.item() == 1
        for part in (self.selector, self.debiased):
            part.requires_grad_(not self._trains_context)

    def context_features(self, feature_map: Tensor) -> Tensor:
        """Return average-pooled features ``[B, D]`` of ``[B, D, H, W]`` or ``[B, D, HW]``."""
        return feature_map.flatten(2).mean(dim=2)

    def forward(self, feature_map: Tensor) -> Tensor:
        """Return the logits of the current stage, ``[B, C]``.

        Args:
            feature_map: ``[B, D, H, W]`` or ``[B, D, HW]``.
        """
        context = self.context(self.context_features(feature_map))
        # with zero gradients instead of none, weight decay would shrink the second stage's
        # weights during the first
        if self.training and self._trains_context:
            return context
        pooled = feature_map.flatten(2).max(dim=2).values
        confounder = context.softmax(dim=1) @ self.memory
        debiased = self.debiased(pooled - torch.tanh(self.selector(pooled)) * confounder)
        # a choice without a branch, so that a model in evaluation mode can be exported
        return torch.where(self.stage == 1, context, debiased)


class CCD(nn.Module):
    """A backbone with the head of CCD.

    Args:
        backbone: a timm model without classifier and pooling
            (``timm.create_model(..., num_classes=0, global_pool="")``).
        head: its ``in_features`` are the channels of the backbone.
        context_epochs: number of epochs of stage 1.

    >>> model = ccd("resnet18", 5, context_epochs=6, pretrained=False)
    >>> model(torch.randn(2, 3, 64, 64)).shape
    torch.Size([2, 5])
    """

    def __init__(self, backbone: nn.Module, head: CCDHead, *, context_epochs: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head
        self.context_epochs = context_epochs

    def feature_map(self, images: Tensor) -> Tensor:
        """Return features with the channels first, ``[B, D, H, W]`` or ``[B, D, L]`` for tokens."""
        return feature_map(self.backbone, images)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of the head's stage, ``[B, C]``."""
        return self.head(self.feature_map(images))

    @torch.no_grad()
    def confounder_sums(self, images: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Sum the context features of the images of each class.

        Args:
            images: ``[B, 3, H, W]``.
            targets: 0/1 labels, ``[B, C]``.

        Returns:
            The sums ``[C, D]`` and how many images went into each ``[C]``, float32, to be added up
            over batches and processes.
        """
        features = self.head.context_features(self.feature_map(images)).float()
        # bfloat16 would lose the low digits of a sum over thousands of images
        with torch.autocast(features.device.type, enabled=False):
            return targets.float().T @ features, targets.float().sum(dim=0)

    def learn_confounders(
        self,
        batches: Iterable[tuple[Tensor, Tensor]],
        *,
        all_reduce_sum: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        """Fill the memory with the mean context feature of the images that have each label.

        A class without positives keeps a row of zeros: nothing is taken away for it. The pass runs
        in evaluation mode, and the mode is restored.

        Args:
            batches: (images, targets) of the training set, on the module's device.
            all_reduce_sum: returns the sum of a tensor over the processes, for distributed runs.
        """
        training = self.training
        self.eval()
        sums = torch.zeros_like(self.head.memory)
        counts = sums.new_zeros(len(sums))
        for images, targets in batches:
            batch_sums, batch_counts = self.confounder_sums(images, targets)
            sums += batch_sums
            counts += batch_counts
        self.train(training)
        if all_reduce_sum is not None:
            sums, counts = all_reduce_sum(sums), all_reduce_sum(counts)
        self.head.set_memory(sums / counts.clamp(min=1)[:, None])

    def start_stage_two(self) -> None:
        """From now on compute the debiased logits."""
        self.head.start_stage_two()


def ccd(
    model_name: str,
    num_classes: int,
    *,
    context_epochs: int,
    image_size: int | None = None,
    **options: Any,
) -> CCD:
    """Build CCD on a timm backbone.

    Args:
        model_name: the backbone's name in timm.
        num_classes: C.
        context_epochs: length of stage 1.
        image_size: side of the input in pixels.
        **options: further arguments of :func:`tkpr.models.backbone.create`.

    >>> ccd("resnet18", 5, context_epochs=6, pretrained=False).head.memory.shape
    torch.Size([5, 512])
    """
    backbone = create(model_name, 0, global_pool="", image_size=image_size, **options)
    head = CCDHead(map_channels(backbone), num_classes)
    return CCD(backbone, head, context_epochs=context_epochs)
