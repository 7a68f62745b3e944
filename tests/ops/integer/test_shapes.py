# SPDX-License-Identifier: BSD-3-Clause
"""What integer ops say of their results' shapes, strides and dtypes before they run, beside what
they give, by the kernels and by the reference."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import blockscale as bs
from blockscale.ops.integer import INTEGER_OPS
from tests.support.integer_oracle import INT8, INT16, shifts, whole

TABLE = torch.arange(256, dtype=torch.int32)


def codes(*shape: int) -> Tensor:
    return whole(-100, 100, *shape, dtype=torch.int8)


def calls(fmt: str) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Ops with arguments; of sums where there is no format."""
    many = (shifts(*[2] * 5) if fmt else shifts(-2), 0, -127, 127, fmt)
    end = (shifts(2) if fmt else shifts(-2), 0, -127, 127, fmt)
    bias, small, large = torch.zeros(5, dtype=torch.int32), 2**20, 2**40
    for size in ((3, 4), (2, 3, 4)):
        x = codes(*size)
        yield "rescale", (x, 0, *end)
        yield "rescale", (x.to(torch.int64), 0, *end)
        yield "linear", (x, codes(5, 4), bias, 1, small, *many)
        yield "linear", (x, codes(5, 4), None, 1, large, *end)
        yield "layer_norm", (x, None, None, 0, True, 5, *end)
        yield (
            "layer_norm",
            (x, whole(1, 9, 4), whole(1, 9, 4, dtype=torch.int64), 0, False, 5, *end),
        )
        yield "softmax", (x, 7, 2, TABLE, 8, *end[1:])
        yield "add", (x, codes(*size), 0, 0, 1, 0, -1, small, *end)
        yield "add", (codes(4), x, 0, 0, 1, 0, 1, large, *end)
        yield "mul", (x, codes(1, 1), 0, 0, small, *end)
        yield "dequantize", (x, 0, -3)
        yield "quantize", (x.float(), -3, 0, INT8)
        yield "look_up", (x, codes(256))
    for a, b in (((3, 4), (4, 5)), ((2, 3, 4), (2, 4, 5)), ((2, 1, 3, 4), (6, 4, 5))):
        yield "matmul", (codes(*a), codes(*b), 0, 0, small, *end)
    for heads in (4, 2, 1):  # of key and value
        kv = (codes(2, heads, 6, 8), codes(2, heads, 6, 5))
        yield "attention", (codes(2, 4, 3, 8), *kv, None, False, [0, 0, 0], 7, 2, TABLE, *end)
    alone = (codes(6, 8), codes(6, 8), codes(6, 5))
    yield "attention", (*alone, None, True, [0, 0, 0], 7, 2, TABLE, *end)
    window = ([1, 1], [1, 1], [1, 1], 1)
    yield "conv", (codes(2, 6, 6, 4), codes(3, 36), None, [3, 4, 3, 3], *window, False, [0, 0], 0,
                   small, *end)  # fmt: skip


def permuted(x: Tensor) -> Tensor:
    """The same values, with the strides of a transposed matrix."""
    return x.mT.contiguous().mT if x.ndim > 1 and x.shape[0] < 100 else x


def outline(x: Tensor) -> tuple[Any, ...]:
    return tuple(x.shape), x.stride(), x.dtype


@pytest.mark.parametrize("fmt", ["", INT8, INT16])
@pytest.mark.parametrize("strides", [lambda x: x, permuted], ids=["contiguous", "permuted"])
def test_what_is_said_is_what_comes(fmt: str, strides: Any):
    for name, arguments in calls(fmt):
        op = INTEGER_OPS[f"integer_{name}"]
        args = [strides(a) if isinstance(a, Tensor) else a for a in arguments]
        with FakeTensorMode() as mode:
            fakes = [mode.from_tensor(a) if isinstance(a, Tensor) else a for a in args]
            said = outline(op.overload(*fakes))
        assert outline(op(*args)) == said, name
        with bs.use("reference"):
            assert outline(op(*args)) == said, name


def test_features_that_do_not_fit():
    op = INTEGER_OPS["integer_linear"]
    with FakeTensorMode() as mode, pytest.raises(ValueError, match=r"x \(3, 4\) has not the 6"):
        x, weight, shift = map(mode.from_tensor, (codes(3, 4), codes(5, 6), shifts(1)))
        op(x, weight, None, 0, 9, shift, 0, -1, 1, INT8)
