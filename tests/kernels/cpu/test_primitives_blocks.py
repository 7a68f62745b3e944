# SPDX-License-Identifier: BSD-3-Clause
"""Blocks and tensors around the sizes at which kernels cut their work (isa/primitives/plan.h)."""

import pytest
import torch

from tests.kernels.cpu.equal import wrong
from tests.support.cpu_primitives import rough

# 2048: a chunk, and a piece of a unit; 16384: threads pay; 65536: a unit; 524288: the largest block
# that one unit holds.
CASES = [
    ("int4:tile1000x48:fp32:asym", (1001, 204)),
    ("int3:group1000@0:fp32", (1001, 4104)),
    ("int5:tile100x48:e8m0/floor:asym", (101, 4104)),
    ("int4:tile100x7:fp32", (130, 2064)),
    ("int8:tensor:fp32:asym", (524289,)),
    ("ternary:tensor:bf16", (524289,)),
    ("int4:channel1:fp32:full", (3, 2, 180000)),
    ("ternary:channel1:fp32", (3, 2, 180000)),
    ("e2m1:tensor:e4m3", (524297,)),
    ("int8:channel1:e8m0/nearest:asym", (3, 3, 180000)),
    ("int3:group524287:fp32", (524296,)),
    ("binary:group524289:fp32", (2, 524296)),
    ("uint6:tile2x262145:fp32:asym", (2, 262152)),
    ("e2m1:channel1:e4m3:recip", (3, 2, 180000)),
    ("int4:token:fp32", (3, 2048)),
    ("int4:group48:e8m0/floor:asym", (3, 2050)),
    ("int3:group7:fp32", (2, 4104)),
    ("e4m3:group2047:fp16", (2, 4095)),
    ("uint5:group2049:(uint8:token:fp32)", (2, 4104)),
    ("int8:group32:fp32:stochastic", (16383,)),
    ("int8:group32:fp32:stochastic", (16384,)),
    ("int6:group5:pow2/rceil", (5, 16388)),
    ("int4:group65535:fp32:asym", (131073,)),
    ("int4:group65536:fp32", (131072,)),
    ("int5:group65537:e8m0/ceil", (2, 65544)),
    ("int8:tensor:fp32", (131072,)),
    ("ternary:tensor:fp32", (131073,)),
    ("binary:group131073:fp32", (131080,)),
    ("int8:channel1:e8m0/nearest:asym", (3, 4, 50000)),
    ("ternary:channel1:fp32", (3, 3, 50000)),
    ("binary:channel1:fp16", (70, 2, 2048)),
    ("int4:channel1:fp32:stochastic", (64, 4, 2048)),
    ("int8:channel1:fp32", (70000, 3)),
    ("int8:channel-1:e8m0/floor:asym", (2049, 65)),
    ("ternary:channel1:fp32", (2049, 65)),
    ("int4:group1000@0:fp16:asym", (2500, 64)),
    ("ternary:group2100@0:fp32", (2200, 64)),
    ("int6:tile2048x64:e4m3", (2100, 72)),
    ("int4:tile2049x7:fp32", (2100, 64)),
    ("e3m2:tile1x2048:fp32", (9, 4104)),
    ("uint6:tile2x65537:fp32:asym", (2, 131080)),
    ("uint16:group1000:fp32:asym", (3, 7, 1003)),
    ("int12:group100@1:bf16", (3, 250, 33)),
    ("e2m1:group32:e8m0/floor", (5, 5000)),
    ("int8:group48:e8m0/floor", (2, 16500)),
]


@pytest.mark.some(8)
@pytest.mark.parametrize(("fmt", "shape"), CASES[::2], ids=str)
def test_cuts(fmt: str, shape: tuple[int, ...]) -> None:
    assert wrong(rough(shape, 1), fmt, threads=(1, 3)) == []


@pytest.mark.slow
@pytest.mark.parametrize(("fmt", "shape"), CASES[1::2], ids=str)
def test_more_cuts(fmt: str, shape: tuple[int, ...]) -> None:
    assert wrong(rough(shape, 1), fmt, threads=(1, 2, 3)) == []


@pytest.mark.slow
@pytest.mark.parametrize(("fmt", "shape"), CASES[1::6], ids=str)
def test_cuts_with_nan_and_infinity(fmt: str, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    flat = x.view(-1)
    flat[7], flat[flat.shape[0] // 2], flat[-1] = torch.nan, torch.inf, -torch.inf
    assert wrong(x.bfloat16(), fmt, threads=(2,)) == []


STREAMED = [
    ("int4:group32:e8m0/floor", (2200, 2048), torch.float32),
    ("int8:token:fp32:stochastic", (2200, 2048), torch.float32),
    ("int3:group16:e4m3", (6710889,), torch.bfloat16),
    ("int6:group48:fp16:asym", (3001, 1500), torch.float32),
    ("e4m3:tile128x128:fp32", (3001, 3000), torch.float16),
    ("int16:token:fp32", (3001, 3000), torch.bfloat16),
    ("int8:group48:fp32", (2101, 4080), torch.bfloat16),
    ("e2m1:group32:e8m0/floor", (2101, 4096), torch.float16),
    ("uint5:channel1:fp32:asym", (2101, 4080), torch.bfloat16),
    ("int12:group33:fp32", (3001, 3000), torch.float32),
    ("ternary:tensor:fp32", (9000001,), torch.float16),
]


@pytest.mark.slow
@pytest.mark.parametrize(("fmt", "shape", "dtype"), STREAMED, ids=str)
def test_outputs_that_go_around_the_caches(fmt: str, shape, dtype: torch.dtype) -> None:
    """32 MiB and more in and out."""
    x = torch.randn(shape).to(dtype)
    assert wrong(x, fmt, threads=(2,)) == []
