"""Adam for sparse gradients and dense ones: rows without a gradient are left alone."""

from typing import Any

import torch
from torch import Tensor


class LazyAdam(torch.optim.Adam):
    """Adam that updates the weights, and their moments, only of the rows that have a gradient.

    A sparse gradient, as logits in chunks give it (:mod:`tkpr.losses.chunked`), names these rows.
    If it names all of them at each step, the result is Adam's; so it is for a dense gradient.
    ``torch.optim.SparseAdam`` does the same for sparse gradients but takes no dense ones, which
    other layers of the network have, and other losses on the same layer.

    >>> weight = torch.nn.Parameter(torch.zeros(3, 1))
    >>> weight.grad = torch.sparse_coo_tensor([[2]], torch.ones(1, 1), (3, 1))
    >>> LazyAdam([weight], lr=0.1).step()
    >>> weight.detach().flatten()
    tensor([ 0.0000,  0.0000, -0.1000])
    """

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Update the parameters."""
        found = [
            (parameter, parameter.grad, group)
            for group in self.param_groups
            for parameter in group["params"]
            if parameter.grad is not None and parameter.grad.is_sparse
        ]
        for parameter, _, _ in found:
            parameter.grad = None  # not for Adam
        loss = super().step(closure)
        for parameter, gradient, group in found:
            self._update_rows(parameter, gradient.coalesce(), group)
            parameter.grad = gradient
        return loss

    def _update_rows(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        """Take a step of Adam with the rows of a sparse gradient."""
        if group["weight_decay"]:
            raise ValueError("weight_decay must be 0 for a parameter with a sparse gradient")
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros(())
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        state["step"] += 1
        (rows,), values = gradient.indices(), gradient.values()
        (beta1, beta2), step = group["betas"], state["step"]
        mean = state["exp_avg"].index_select(0, rows).lerp_(values, 1 - beta1)
        square = state["exp_avg_sq"].index_select(0, rows).mul_(beta2)
        square.addcmul_(values, values, value=1 - beta2)
        state["exp_avg"].index_copy_(0, rows, mean)
        state["exp_avg_sq"].index_copy_(0, rows, square)
        deviation = (square / (1 - beta2**step)).sqrt_().add_(group["eps"])
        parameter.index_add_(0, rows, mean / deviation / (1 - beta1**step), alpha=-group["lr"])
