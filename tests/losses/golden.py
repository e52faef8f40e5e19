"""Stored values and gradients of the original implementations, and how to compare with them."""

import json
import os
from pathlib import Path

import torch
from torch import Tensor

FOLDER = Path(os.environ.get("TKPR_GOLDEN", Path(__file__).parents[1] / "golden"))


def golden(name: str) -> dict:
    """Return the stored file of that name: params, notes, and cases.

    The environment variable TKPR_GOLDEN names another folder with files of the same form.
    """
    return json.loads((FOLDER / f"{name}.json").read_text())


def cases(*names: str) -> list[tuple[str, dict, dict]]:
    """List (id, params of the file, case) over the files, for pytest.mark.parametrize."""
    out = []
    for name in names:
        stored = golden(name)
        out += [(f"{name}-{case['name']}", stored["params"], case) for case in stored["cases"]]
    return out


def tensors(case: dict) -> tuple[Tensor, Tensor]:
    """Return float64 logits that require a gradient, and targets."""
    logits = torch.tensor(case["logits"], dtype=torch.float64, requires_grad=True)
    return logits, torch.tensor(case["targets"], dtype=torch.float64)


def assert_matches(loss: Tensor, logits: Tensor, case: dict, rtol: float = 1e-10) -> None:
    """Compare the value and the gradient with the stored ones, relative to the largest entry."""
    (grad,) = torch.autograd.grad(loss, logits, retain_graph=True)
    value = torch.tensor(case["value"], dtype=torch.float64)
    stored = torch.tensor(case["grad"], dtype=torch.float64)
    torch.testing.assert_close(loss.detach(), value, rtol=rtol, atol=1e-14)
    scale = stored.abs().max().clamp(min=1e-300)
    torch.testing.assert_close(grad / scale, stored / scale, rtol=rtol, atol=rtol)
