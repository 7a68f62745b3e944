# SPDX-License-Identifier: BSD-3-Clause
"""Sums, means and extremes over any dimensions, of views as well."""

import pytest
import torch
from torch import Tensor

from tests.kernels.webgpu.torch_ops.numbers import FLOATS, hard, same

DIMS = [(0,), (1,), (-1,), (0, 2), (2, 1), (0, 1, 2)]


def close(found: Tensor, expected: Tensor) -> None:
    assert found.dtype == expected.dtype
    eps = torch.finfo(expected.dtype).eps
    torch.testing.assert_close(found.cpu(), expected, atol=max(1e-4, eps), rtol=4 * eps)


@pytest.mark.some(4)
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
