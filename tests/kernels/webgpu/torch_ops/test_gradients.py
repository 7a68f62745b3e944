# SPDX-License-Identifier: BSD-3-Clause
"""Gradients are those of the CPU."""

import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from blockscale.kernels.webgpu.torch_device.handlers import HANDLERS

OPS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "softmax": lambda x: x.softmax(-1),
    "softmax_of_columns": lambda x: x.softmax(0),
    "slice": lambda x: x[1:, ::2],
    "select": lambda x: x[2],
    "products": lambda x: x @ x.T,
    "means": lambda x: x.mean(1) * x.sum(0)[: x.shape[0]],
    "quotients": lambda x: 1 / (x * x + 1),
}


@pytest.mark.parametrize("name", OPS)
def test_gradients(name: str, device: torch.device) -> None:
    x = torch.randn(5, 8)
    x[0, :3] = torch.tensor([0.0, -0.0, 1.0])
    on = x.to(device).requires_grad_()
    x.requires_grad_()
    for each in (x, on):
        y = OPS[name](each)
        (y * y).sum().backward()
    assert on.grad is not None
    torch.testing.assert_close(on.grad.cpu(), x.grad, atol=1e-5, rtol=1e-5)


EARLIER = """
import warnings
import torch
import blockscale as bs

torch.ones(2, requires_grad=True).sum().backward()
warnings.simplefilter("ignore")
x = torch.ones(3, device=bs.webgpu(), requires_grad=True)
(x * x).sum().backward()
(x * x).cpu().sum().backward()
torch.autograd.grad((x * 0).sum(), x)
print(x.grad.tolist())
"""


@pytest.mark.slow  # a process of its own
def test_after_a_pass_without_the_device() -> None:
    done = subprocess.run(
        [sys.executable, "-c", EARLIER], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "[4.0, 4.0, 4.0]", done.stderr


def test_an_error_within_a_pass(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: object) -> None:
        raise ValueError("as planned")

    x = torch.ones(4, device=device).requires_grad_()
    with monkeypatch.context() as patched:
        patched.setitem(HANDLERS, torch.ops.aten.threshold_backward.default, fails)
        with pytest.raises(ValueError, match="as planned"):
            torch.relu(x).sum().backward()
    torch.relu(x).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [1, 1, 1, 1]
