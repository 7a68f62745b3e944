# SPDX-License-Identifier: BSD-3-Clause
"""Whole numbers are torch's, at the ends of their ranges as well."""

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.kernels.webgpu.torch_ops.numbers import same

WHOLE = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
ARITHMETIC = [torch.add, torch.sub, torch.mul, torch.maximum, torch.minimum]
BITS = [torch.bitwise_and, torch.bitwise_or, torch.bitwise_xor]
COMPARISONS = [torch.eq, torch.ne, torch.lt, torch.le, torch.gt, torch.ge]


def ends(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Each of some numbers with each, among them the ends of the dtype's range."""
    info = torch.iinfo(dtype)
    middle = [0, 1, 2, 3, 77, 100, 2**15 + 7, 2**31 + 5, 2**33 - 1, 2**40 + 3]
    some = [info.min, info.min + 1, info.max, info.max - 1, *middle, *(-n for n in middle)]
    few = torch.tensor(sorted({n for n in some if info.min <= n <= info.max}), dtype=dtype)
    a, b = torch.cartesian_prod(few, few).T
    return a, b


@pytest.mark.some(4)
@pytest.mark.parametrize("dtype", WHOLE, ids=str)
@pytest.mark.parametrize("op", [*ARITHMETIC, *BITS, *COMPARISONS], ids=lambda op: op.__name__)
def test_of_two(op: Callable[..., Tensor], dtype: torch.dtype, device: torch.device) -> None:
    a, b = ends(dtype)
    assert same(op(a.to(device), b.to(device)), op(a, b))
    number = int(b[3])
    if op not in (torch.maximum, torch.minimum):
        assert same(op(a.to(device), number), op(a, number))


@pytest.mark.parametrize(
    "op", [torch.add, torch.mul, *BITS, *COMPARISONS], ids=lambda op: op.__name__
)
def test_of_booleans(op: Callable[..., Tensor], device: torch.device) -> None:
    a, b = torch.cartesian_prod(*[torch.tensor([True, False])] * 2).T
    assert same(op(a.to(device), b.to(device)), op(a, b))
    assert same(torch.logical_and(a.to(device), b.to(device)), torch.logical_and(a, b))
    assert same(~a.to(device), ~a)
    assert same(a.to(device).logical_not(), a.logical_not())


@pytest.mark.parametrize(("a", "b"), [*itertools.combinations(WHOLE, 2)], ids=str)
def test_of_two_dtypes(a: torch.dtype, b: torch.dtype, device: torch.device) -> None:
    x, y = torch.arange(-5, 6).to(a), torch.arange(5, -6, -1).to(b)[:, None]
    assert same(x.to(device) * y.to(device), x * y)


def test_in_place(device: torch.device) -> None:
    x = torch.arange(10)
    on = x.to(device)
    on[2:5] += 7
    on *= 3
    x[2:5] += 7
    x *= 3
    assert same(on, x)
    mask = torch.ones(2, device=device) > 0
    with pytest.warns(UserWarning), pytest.raises(RuntimeError, match="not supported"):
        mask - mask


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("to", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_as_floats(dtype: torch.dtype, to: torch.dtype, device: torch.device) -> None:
    x = torch.cat([ends(dtype)[0], torch.arange(2**24 - 5, 2**24 + 9).to(dtype)])
    assert same(x.to(device).to(to), x.to(to))


@pytest.mark.parametrize("shape", [(0,), (5,), (3, 70)], ids=str)
def test_all_and_any(shape: tuple[int, ...], device: torch.device) -> None:
    for x in (torch.ones(shape) > 0, torch.zeros(shape) > 0, torch.rand(shape) > 0.1):
        on = x.to(device)
        assert on.all().item() == x.all().item()
        assert on.any().item() == x.any().item()
        assert same(on.all(-1), x.all(-1))
        assert same(on.any(0, keepdim=True), x.any(0, keepdim=True))


def test_indices(device: torch.device) -> None:
    x = torch.randn(5, 6, 7)
    on = x.to(device)
    i, j = torch.tensor([[0], [-1]]), torch.tensor([[3, 2, -6]])
    assert same(on[i.to(device), j.to(device)], x[i, j])
    assert same(on[:, j.to(device)], x[:, j])
    assert same(on[i], x[i])
    assert same(on[..., torch.tensor([1, 1], dtype=torch.int32)], x[..., torch.tensor([1, 1])])
    with pytest.raises(IndexError, match="are out of range for 5 rows"):
        on[torch.tensor([5]).to(device)]
