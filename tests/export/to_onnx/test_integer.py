# SPDX-License-Identifier: BSD-3-Clause
"""Steps of integer models in onnxruntime give the steps' own integers: every shift and rounding."""

import pytest
import torch
from torch import nn

from blockscale.core.parse import parse
from blockscale.export.to_onnx.integer import is_step, step
from blockscale.graph.integer import steps
from tests.export.to_onnx.running import EDGES, run, same

SUMS = torch.tensor(
    [0, 1, -1, 2, 3, -3, 5, -5, 6, -6, 7, 8, 12, -12, 1000, -1001, 2**31 - 1, -(2**31)]
)


def check(module, *given):
    def build(scope, names):
        return step(scope, module, names, [x.dtype for x in given])

    assert is_step(module)
    assert same(run(build, *given), module(*given))


FORMATS = ["int8:tensor:pow2/nearest", "uint8:tensor:pow2/floor:asym", "int4:tensor:e8m0",
           "int16:tensor:pow2/floor:down", "uint5:tensor:pow2/floor:toward_zero"]  # fmt: skip


@pytest.mark.parametrize("spelling", FORMATS)
def test_into_codes_and_out_of_them(spelling):
    fmt = parse(spelling)
    scale = torch.tensor([125], dtype=torch.uint8) if fmt.scale.byte else torch.tensor([0.25])
    zero = torch.tensor([17], dtype=torch.int32) if fmt.asym else None
    odd = torch.tensor([torch.nan, torch.inf, -torch.inf])
    values = torch.cat([EDGES, torch.arange(-9, 9, 0.125), odd])
    check(steps.Quantize(fmt, scale, zero), values)
    codes = torch.arange(16).to(fmt.element.code_dtype)
    check(steps.Dequantize(torch.tensor(-3, dtype=torch.int32), 17 if fmt.asym else 0), codes)
    points = (0, 17 if fmt.asym else 0)
    check(steps.Requantize(torch.tensor(4, dtype=torch.int32), fmt, points), SUMS.to(torch.int32))


def test_bounds_and_sums():
    codes, other = (torch.randint(-128, 128, (2, 3, 4), dtype=torch.int8) for _ in range(2))
    low, high = torch.tensor(-5, dtype=torch.int32), torch.tensor([[60], [70], [80]])
    check(steps.Clamp(low, high.int()), codes)
    check(steps.Clamp(low, high.int()), codes.int() * 1000)
    shifts = torch.tensor(3, dtype=torch.int32), torch.tensor(0, dtype=torch.int32)
    check(steps.Add(shifts, (0, -7)), codes, other)
    check(steps.Add(shifts[::-1], (1, 0)), codes.int() << 20, other)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32])
def test_windows(dtype):
    x = torch.randint(-128, 128, (2, 3, 8, 9)).to(dtype)
    check(steps.SumPool(0, steps.Windows([2, 4], [2, 1], [1, 2]), None), x)
    check(steps.SumPool(3, steps.Windows([8, 9], [8, 9], [0, 0]), (8, 9)), x)
    check(nn.MaxPool2d(3, 2, 1), x)


def test_windows_that_only_codes_have():
    pool = nn.MaxPool2d(3, 2, 1, dilation=2, ceil_mode=True)
    check(pool, torch.randint(-128, 128, (2, 3, 9, 9)).to(torch.int8))
    with pytest.raises(ValueError, match="no ceil_mode and no dilation in ONNX"):
        check(pool, torch.zeros(2, 3, 9, 9, dtype=torch.int32))
    assert not is_step(nn.Flatten())
