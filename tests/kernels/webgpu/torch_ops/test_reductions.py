# SPDX-License-Identifier: BSD-3-Clause
"""Sums, means and extremes over any dimensions, of views as well."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from blockscale.kernels.webgpu.gpu.memory import download, upload
from blockscale.kernels.webgpu.torch_device import WebGPUTensor
from blockscale.kernels.webgpu.torch_ops.reductions import dense
from tests.kernels.webgpu.torch_ops.numbers import FLOATS, hard, same
from tests.support.some import crossed

DIMS = [(0,), (1,), (-1,), (0, 2), (2, 1), (0, 1, 2)]


def close(found: Tensor, expected: Tensor) -> None:
    assert found.dtype == expected.dtype
    eps = torch.finfo(expected.dtype).eps
    torch.testing.assert_close(found.cpu(), expected, atol=max(1e-4, eps), rtol=4 * eps)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("dims", DIMS, ids=str)
@pytest.mark.parametrize("keep", [False, True])
def test_sums_and_means(
    dims: tuple[int, ...], keep: bool, dtype: torch.dtype, device: torch.device
) -> None:
    x = torch.randn(5, 70, 9).to(dtype)
    on = x.to(device)
    for cut in (lambda t: t, lambda t: t.transpose(0, 2), lambda t: t[1:, ::3]):
        close(cut(on).sum(dims, keep), cut(x).sum(dims, keep))
        close(cut(on).mean(dims, keep), cut(x).mean(dims, keep))
        assert same(cut(on).amax(dims, keep), cut(x).amax(dims, keep))
        assert same(cut(on).amin(dims, keep), cut(x).amin(dims, keep))


def test_all_of_a_large_tensor(device: torch.device) -> None:
    x = torch.randint(-8, 8, (50, 1700)).float()  # whose sums are exact in any order
    on = x.to(device)
    assert on.sum().item() == x.sum().item()
    assert on.mean().item() == pytest.approx(x.mean().item(), rel=1e-6)
    assert on.max().item() == 7
    assert on.min().item() == -8
    assert torch.equal(
        on.T.reshape(-1).view(2, -1).sum(1).cpu(), x.T.reshape(-1).view(2, -1).sum(1)
    )


@pytest.mark.parametrize("name", ["amax", "amin"])
def test_extremes_of_any_bits(name: str, device: torch.device) -> None:
    x = hard(count=2031).view(-1, 4)
    reduce = getattr(torch, name)
    assert torch.equal(reduce(x.to(device), 1).cpu().nan_to_num(3.5), reduce(x, 1).nan_to_num(3.5))


def test_of_nothing_and_of_one_number(device: torch.device) -> None:
    assert same(torch.zeros(0, 3, device=device).sum(0), torch.zeros(3))
    assert torch.isnan(torch.zeros(0, device=device).mean()).item()
    assert torch.tensor(3.5, device=device).sum().item() == 3.5
    with (
        pytest.warns(UserWarning, match=r"no kernel for aten\.amax"),
        pytest.raises(IndexError),
    ):
        torch.zeros(0, 3, device=device).amax(0)


def test_norms(device: torch.device) -> None:
    x = torch.randn(6, 33)
    close(x.to(device).norm(dim=-1), x.norm(dim=-1))
    close(torch.nn.functional.normalize(x.to(device)), torch.nn.functional.normalize(x))
    close(torch.linalg.vector_norm(x.to(device)), torch.linalg.vector_norm(x))


def test_dtype_of_the_result(device: torch.device) -> None:
    x = torch.randn(4, 5).half()
    close(x.to(device).sum(1, dtype=torch.float32), x.sum(1, dtype=torch.float32))


INFINITE = float("inf")


def close_of_norms(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert found.dtype == expected.dtype
    eps = torch.finfo(expected.dtype).eps
    torch.testing.assert_close(
        found.cpu(), expected, atol=max(1e-6, eps), rtol=16 * eps, equal_nan=True
    )


@pytest.mark.some(3)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_softmax(dim: int, dtype: torch.dtype, device: torch.device) -> None:
    x = (torch.randn(7, 90, 5) * 5).to(dtype)
    for cut in (lambda t: t, lambda t: t[:, ::2].transpose(0, 1)):
        found, expected = cut(x.to(device)), cut(x)
        close_of_norms(found.softmax(dim), expected.softmax(dim))
        close_of_norms(found.log_softmax(dim), expected.log_softmax(dim))


def test_rows_of_infinities(device: torch.device) -> None:
    x = torch.tensor(
        [[1, -INFINITE, 2], [-INFINITE] * 3, [INFINITE, 0, 0], [float("nan"), 1, 1], [1e4, 0, -1e4]]
    )
    close_of_norms(x.to(device).softmax(-1), x.softmax(-1))
    close_of_norms(x.to(device).log_softmax(-1), x.log_softmax(-1))
    safe = torch.ops.aten._safe_softmax.default
    close_of_norms(safe(x.to(device), -1), safe(x, -1))


def test_of_one_number_and_of_nothing(device: torch.device) -> None:
    close_of_norms(torch.tensor(3.0, device=device).softmax(0), torch.tensor(1.0))
    close_of_norms(torch.zeros(0, 4, device=device).softmax(1), torch.zeros(0, 4))


@pytest.mark.some(3)
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
    close_of_norms(F.layer_norm(on.T, (33,)).detach(), F.layer_norm(x.T, (33,)).detach())
    F.layer_norm(x.T, (33,)).square().sum().backward()
    with pytest.warns(UserWarning, match="native_layer_norm_backward"):
        F.layer_norm(on.T, (33,)).square().sum().backward()
    assert on.grad is not None
    torch.testing.assert_close(on.grad.cpu(), x.grad, atol=1e-4, rtol=1e-4)


def test_shapes_that_do_not_fit(device: torch.device) -> None:
    with pytest.raises(RuntimeError):
        F.layer_norm(torch.ones(3, 4, device=device), (3,))


SHAPES = [(1, 1, 1), (3, 5, 2), (64, 64, 64), (65, 17, 130), (1, 200, 70), (130, 3, 1)]


def close_of_products(found: torch.Tensor, exact: torch.Tensor, dtype: torch.dtype) -> None:
    assert found.dtype == dtype
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(found.cpu().double(), exact, atol=1e-4 + 8 * eps, rtol=2 * eps)


@pytest.mark.some(4)
@pytest.mark.parametrize(("shape", "dtype"), crossed(3, SHAPES, FLOATS), ids=str)
def test_products(shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device) -> None:
    m, k, n = shape
    a, b, c = torch.randn(m, k).to(dtype), torch.randn(k, n).to(dtype), torch.randn(n).to(dtype)
    exact = a.double() @ b.double()
    on = a.to(device), b.to(device), c.to(device)
    close_of_products(on[0] @ on[1], exact, dtype)
    close_of_products(on[0].T.contiguous().T @ on[1], exact, dtype)
    close_of_products(F.linear(on[0], on[1].T, on[2]), exact + c.double(), dtype)
    close_of_products(F.linear(on[0], on[1].T.contiguous(), on[2]), exact + c.double(), dtype)
    scaled = torch.addmm(on[2], on[0], on[1], beta=0.5, alpha=2)
    close_of_products(scaled, 0.5 * c.double() + 2 * exact, dtype)


def test_batches_and_views(device: torch.device) -> None:
    a, b = torch.randn(2, 6, 40, 7), torch.randn(6, 7, 30)
    on, other = a.to(device), b.to(device)
    close_of_products(on @ other, a.double() @ b.double(), torch.float32)
    close_of_products(
        on[:, 1:4, ::3] @ other[1:4, :, 2:],
        a[:, 1:4, ::3].double() @ b[1:4, :, 2:].double(),
        torch.float32,
    )
    added = torch.randn(6, 1, 30)
    found = torch.baddbmm(added.to(device), on[0], other)
    close_of_products(found, added.double() + a[0].double() @ b.double(), torch.float32)


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


def test_products_shapes_that_do_not_fit(device: torch.device) -> None:
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


@pytest.mark.some(5)
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
