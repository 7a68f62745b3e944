# SPDX-License-Identifier: BSD-3-Clause
"""Products of matrices of any strides, near those of float64."""

import pytest
import torch
import torch.nn.functional as F

from blockscale.kernels.webgpu.gpu.memory import download, upload
from blockscale.kernels.webgpu.torch_device.tensor import WebGPUTensor
from blockscale.kernels.webgpu.torch_ops.products import dense
from tests.kernels.webgpu.torch_ops.numbers import FLOATS
from tests.support.some import crossed

SHAPES = [(1, 1, 1), (3, 5, 2), (64, 64, 64), (65, 17, 130), (1, 200, 70), (130, 3, 1)]


def close(found: torch.Tensor, exact: torch.Tensor, dtype: torch.dtype) -> None:
    assert found.dtype == dtype
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(found.cpu().double(), exact, atol=1e-4 + 8 * eps, rtol=2 * eps)


@pytest.mark.parametrize(("shape", "dtype"), crossed(3, SHAPES, FLOATS), ids=str)
def test_products(shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device) -> None:
    m, k, n = shape
    a, b, c = torch.randn(m, k).to(dtype), torch.randn(k, n).to(dtype), torch.randn(n).to(dtype)
    exact = a.double() @ b.double()
    on = a.to(device), b.to(device), c.to(device)
    close(on[0] @ on[1], exact, dtype)
    close(on[0].T.contiguous().T @ on[1], exact, dtype)
    close(F.linear(on[0], on[1].T, on[2]), exact + c.double(), dtype)
    close(F.linear(on[0], on[1].T.contiguous(), on[2]), exact + c.double(), dtype)
    scaled = torch.addmm(on[2], on[0], on[1], beta=0.5, alpha=2)
    close(scaled, 0.5 * c.double() + 2 * exact, dtype)


def test_batches_and_views(device: torch.device) -> None:
    a, b = torch.randn(2, 6, 40, 7), torch.randn(6, 7, 30)
    on, other = a.to(device), b.to(device)
    close(on @ other, a.double() @ b.double(), torch.float32)
    close(
        on[:, 1:4, ::3] @ other[1:4, :, 2:],
        a[:, 1:4, ::3].double() @ b[1:4, :, 2:].double(),
        torch.float32,
    )
    added = torch.randn(6, 1, 30)
    found = torch.baddbmm(added.to(device), on[0], other)
    close(found, added.double() + a[0].double() @ b.double(), torch.float32)


def test_nothing_to_sum(device: torch.device) -> None:
    found = torch.ones(3, 0, device=device) @ torch.ones(0, 2, device=device)
    assert torch.equal(found.cpu(), torch.zeros(3, 2))
    assert (torch.ones(0, 3, device=device) @ torch.ones(3, 2, device=device)).shape == (0, 2)


def test_attention(device: torch.device) -> None:
    q, k, v = (torch.randn(2, 3, 9, 16) for _ in range(3))
    mask = torch.rand(2, 1, 9, 9) > 0.3
    mask[..., 0] = True
    on = [x.to(device) for x in (q, k, v, mask)]
    found = F.scaled_dot_product_attention(*on[:3], attn_mask=on[3])
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    torch.testing.assert_close(found.cpu(), expected, atol=1e-5, rtol=1e-5)


def test_the_gradient(device: torch.device) -> None:
    a, b = torch.randn(9, 6), torch.randn(6, 4)
    on = [x.to(device).requires_grad_() for x in (a, b)]
    a.requires_grad_(), b.requires_grad_()
    (a @ b).square().sum().backward()
    (on[0] @ on[1]).square().sum().backward()
    for x, y in zip(on, (a, b), strict=True):
        assert x.grad is not None
        torch.testing.assert_close(x.grad.cpu(), y.grad, atol=1e-4, rtol=1e-5)


def test_shapes_that_do_not_fit(device: torch.device) -> None:
    with pytest.raises(RuntimeError):
        torch.ones(3, 4, device=device) @ torch.ones(3, 4, device=device)
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        torch.bmm(torch.ones(2, 3, 4, device=device), torch.ones(3, 4, 2, device=device))


ROUNDS = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}


def view(x: torch.Tensor, turned: bool) -> WebGPUTensor:
    """The same numbers on the GPU behind three others, perhaps with rows and columns exchanged."""
    stored = x.mT.contiguous() if turned else x
    whole = torch.cat([torch.full((3,), torch.nan, dtype=x.dtype), stored.reshape(-1)])
    stride = stored.mT.stride() if turned else stored.stride()
    return WebGPUTensor(upload(whole), tuple(x.shape), x.dtype, stride, 3)


@pytest.mark.parametrize("shape", [(1, 5, 33, 7), (3, 70, 65, 66), (2, 1, 8, 300)], ids=str)
def test_views_of_any_strides(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    batches, m, k, n = shape
    for i, dtype in enumerate(ROUNDS):
        a, b = torch.randn(batches, m, k).to(dtype), torch.randn(batches, k, n).to(dtype)
        memory = dense(view(a, i == 1), view(b, i != 1), dtype)
        found = download(memory, (batches, m, n), dtype).double()
        exact = a.double() @ b.double()
        bound = 64 * 2.0**-24 * (a.double().abs() @ b.double().abs())
        assert ((found - exact).abs() <= bound + ROUNDS[dtype] * (exact.abs() + bound)).all()
