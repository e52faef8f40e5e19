"""Collectives: what the ranks of a run exchange.

A collective that one rank does not reach leaves the others waiting. So none is called in a place
that depends on a rank's own share of the data (a rank may have no batch, or none that can be read),
and no wrapped model is called outside of training, since its forward pass is a collective.
"""

from typing import Any, Literal, cast

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn


def all_reduce(fabric: Fabric, tensor: Tensor, op: Literal["sum", "max"] = "sum") -> Tensor:
    """Return the elementwise sum or maximum over all ranks, on the device.

    >>> all_reduce(Fabric(accelerator="cpu", devices=1), torch.tensor([1, 2]))
    tensor([1, 2])
    """
    return cast(Tensor, fabric.all_reduce(fabric.to_device(tensor), reduce_op=op))


def gather(fabric: Fabric, value: Any) -> list[Any]:
    """Return the values of all ranks, in their order.

    >>> gather(Fabric(accelerator="cpu", devices=1), 0.5)
    [0.5]
    """
    values = [value] * fabric.world_size
    if fabric.world_size > 1:
        torch.distributed.all_gather_object(values, value)
    return values


def sync_buffers(fabric: Fabric, model: nn.Module) -> None:
    """Give every rank the batch statistics of rank 0, which are the ones that are saved."""
    if fabric.world_size > 1:
        for buffer in model.buffers():
            torch.distributed.broadcast(buffer, src=0)
