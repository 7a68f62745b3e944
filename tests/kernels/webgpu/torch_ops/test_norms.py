# SPDX-License-Identifier: BSD-3-Clause
"""softmax and layer_norm, along any dimension and of views."""

import pytest
import torch
import torch.nn.functional as F

from tests.kernels.webgpu.torch_ops.numbers import FLOATS

INFINITE = float("inf")


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert found.dtype == expected.dtype
    eps = torch.finfo(expected.dtype).eps
    torch.testing.assert_close(
        found.cpu(), expected, atol=max(1e-6, eps), rtol=16 * eps, equal_nan=True
    )


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_softmax(dim: int, dtype: torch.dtype, device: torch.device) -> None:
    x = (torch.randn(7, 90, 5) * 5).to(dtype)
    for cut in (lambda t: t, lambda t: t[:, ::2].transpose(0, 1)):
        found, expected = cut(x.to(device)), cut(x)
        close(found.softmax(dim), expected.softmax(dim))
        close(found.log_softmax(dim), expected.log_softmax(dim))


def test_rows_of_infinities(device: torch.device) -> None:
    x = torch.tensor(
        [[1, -INFINITE, 2], [-INFINITE] * 3, [INFINITE, 0, 0], [float("nan"), 1, 1], [1e4, 0, -1e4]]
    )
    close(x.to(device).softmax(-1), x.softmax(-1))
    close(x.to(device).log_softmax(-1), x.log_softmax(-1))
    safe = torch.ops.aten._safe_softmax.default
    close(safe(x.to(device), -1), safe(x, -1))


def test_of_one_number_and_of_nothing(device: torch.device) -> None:
    close(torch.tensor(3.0, device=device).softmax(0), torch.tensor(1.0))
    close(torch.zeros(0, 4, device=device).softmax(1), torch.zeros(0, 4))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("shape", [(33,), (5, 33)], ids=str)
@pytest.mark.parametrize("affine", ["both", "weight", "none"])
def test_layer_norm(
    affine: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> None:
    x = (torch.randn(4, 5, 33) * 3 + 1).to(dtype)
    weight = None if affine == "none" else torch.randn(shape).to(dtype)
    bias = torch.randn(shape).to(dtype) if affine == "both" else None
    moved = [None if each is None else each.to(device) for each in (weight, bias)]
    found = F.layer_norm(x.to(device), shape, *moved, 1e-5)
    expected = F.layer_norm(x, shape, weight, bias, 1e-5)
    torch.testing.assert_close(
        found.cpu(), expected, atol=4e-6 + 4 * torch.finfo(dtype).eps, rtol=1e-5
    )


def test_layer_norm_of_a_view_and_its_gradient(device: torch.device) -> None:
    x = torch.randn(33, 4)
    on = x.to(device).requires_grad_()
    x.requires_grad_()
    close(F.layer_norm(on.T, (33,)).detach(), F.layer_norm(x.T, (33,)).detach())
    F.layer_norm(x.T, (33,)).square().sum().backward()
    with pytest.warns(UserWarning, match="native_layer_norm_backward"):
        F.layer_norm(on.T, (33,)).square().sum().backward()
    assert on.grad is not None
    torch.testing.assert_close(on.grad.cpu(), x.grad, atol=1e-4, rtol=1e-4)


def test_shapes_that_do_not_fit(device: torch.device) -> None:
    with pytest.raises(RuntimeError):
        F.layer_norm(torch.ones(3, 4, device=device), (3,))
