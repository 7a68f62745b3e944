# SPDX-License-Identifier: BSD-3-Clause
"""Inputs at which scales turn over, and blocks that are not finite."""

import math
import struct

import pytest
import torch
from torch import Tensor

from tests.kernels.cpu.equal import wrong
from tests.support.cpu_primitives import RULES


def around_powers() -> Tensor:
    """One number a row: mantissas at which rules turn over, in every binade of float32."""
    special = [0, 1, 2, 0x3504F2, 0x3504F3, 0x3504F4, 0x400000, 0x600000, 0x7FFFFE, 0x7FFFFF]
    for y in range(8):  # thresholds of `even`, `rceil` and `tosa`
        for at in (2**23 - 2 ** (22 - y), 2**23 - 2 ** (23 - y), 3 * 2**21):
            special += [at - 1, at, at + 1]
    fractions = torch.tensor([f for f in special if 0 <= f < 2**23], dtype=torch.int32).unique()
    exponents = torch.cat([torch.arange(0, 24), torch.arange(24, 232, 23), torch.arange(232, 255)])
    bits = (exponents[:, None].int() << 23 | fractions[None]).flatten()
    subnormal = torch.tensor([1 << k for k in range(23)], dtype=torch.int32)
    return torch.cat([bits, subnormal, subnormal - 1]).view(torch.float32)[:, None]


@pytest.mark.some(4)
@pytest.mark.parametrize("kind", ["e8m0", "pow2"])
@pytest.mark.parametrize("element", ["int8", "uint4", "e2m1", "e4m3", "int16", "e7m0", "log8"])
def test_rules_turn_over_in_every_binade(element: str, kind: str) -> None:
    x = around_powers()
    for rule in RULES:
        assert wrong(x, f"{element}:token:{kind}/{rule}") == [], rule


@pytest.mark.parametrize("scale", ["fp32", "fp16", "bf16", "e4m3", "(uint8:tensor:fp32)"])
def test_float_scales_in_every_binade(scale: str) -> None:
    for element in ("int8", "e2m1", "int5", "ternary", "binary"):
        assert wrong(around_powers(), f"{element}:token:{scale}") == [], element


NAN = struct.unpack("f", b"\1\0\x80\x7f")[0]  # signalling, the least payload


@pytest.mark.some(6)
@pytest.mark.parametrize("odd", [math.inf, -math.inf, math.nan, -math.nan, NAN, -NAN], ids=str)
def test_one_number_that_is_not_finite(odd: float) -> None:
    """At each end of a range it must be seen by itself."""
    for block in ("tensor", "group16", "group32", "channel1", "tile2x7"):
        for under in ("int8:{}:fp32:asym", "int4:{}:fp32:full", "uint4:{}:fp32", "int8:{}:fp32"):
            x = torch.randn(3, 300)
            x[1, 161] = odd
            assert wrong(x, under.format(block)) == [], (under, block)
        for under in ("int8:{}:e8m0/floor:asym", "ternary:{}:fp32", "binary:{}:e4m3"):
            assert wrong(x, under.format(block)) == [], (under, block)


@pytest.mark.parametrize("fmt", ["ternary:token:fp32", "binary:token:e8m0/nearest"])
@pytest.mark.parametrize("exponent", [-149, -127, -100, -97, -96, 0, 100, 127])
def test_means_in_every_range(fmt: str, exponent: int) -> None:
    """Where t_i takes two factors, and where sums pass 2^32."""
    g = torch.Generator().manual_seed(exponent % 7)
    x = (torch.rand(4, 3000, generator=g) + 0.5).mul_(2.0**exponent).clamp_max_(3e38)
    for dtype in (torch.float32, torch.bfloat16):
        assert wrong(x.to(dtype), fmt) == [], dtype
