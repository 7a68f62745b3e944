# SPDX-License-Identifier: BSD-3-Clause
"""Device functions called on tensors, by a kernel of one program."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from tests.support.cuda_equal import DEVICE


@triton.jit
def _of_one(x, out, function: tl.constexpr, n: tl.constexpr, size: tl.constexpr):
    at = tl.arange(0, size)
    value = function(tl.load(x + at, mask=at < n, other=1))
    tl.store(out + at, value, mask=at < n)


@triton.jit
def _of_two(x, y, out, function: tl.constexpr, n: tl.constexpr, size: tl.constexpr):
    at = tl.arange(0, size)
    one, two = tl.load(x + at, mask=at < n, other=1), tl.load(y + at, mask=at < n, other=1)
    tl.store(out + at, function(one, two), mask=at < n)


def result(function: Any, *tensors: Tensor, dtype: torch.dtype) -> Tensor:
    """What a device function of one or two tensors [n] gives for them: [n], on the CPU."""
    given = [each.to(DEVICE) for each in tensors]
    n = given[0].numel()
    out = torch.empty(n, dtype=dtype, device=DEVICE)
    kernel = {1: _of_one, 2: _of_two}[len(given)]
    size = triton.next_power_of_2(n)
    kernel[(1,)](*given, out, function=function, n=n, size=size, enable_fp_fusion=False)
    return out.cpu()


@contextmanager
def refused(reason: str) -> Iterator[None]:
    """A kernel is not to be compiled, for this reason: the interpreter raises what the kernel does,
    the compiler one error for each call on the way, whose cause is the next."""
    with pytest.raises(Exception) as raised:
        yield
    error: BaseException | None = raised.value
    messages = []
    while error is not None:
        messages.append(str(error))
        error = error.__cause__ or error.__context__
    assert any(reason in each for each in messages), messages
