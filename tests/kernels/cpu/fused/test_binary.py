# SPDX-License-Identifier: BSD-3-Clause
"""Two operands of codes or floats: the reference's bits, in every pair of formats."""

import math

import pytest
import torch

import blockscale as bs
from blockscale.core.operand import UNQUANTIZED, Quantizer, Value
from blockscale.core.parse import parse
from blockscale.kernels.cpu.fused import binary
from blockscale.ops.fused import FUSED
from tests.kernels.cpu.fused.given import UINT8, coded, fixed, rough
from tests.support.same import same

FORMATS = ("", "int8:tensor:fp32", UINT8, "int8:token:fp32", "mxfp8", "bfp8", "int4:group8:fp16")
SHAPES = ((1,), (3, 32), (2, 5, 96), (1, 4128), (40, 480))


@pytest.mark.some(4)
@pytest.mark.parametrize("op", sorted(binary.KINDS))
@pytest.mark.parametrize("shape", SHAPES)
def test_pairs_of_formats(isa: str, op: str, shape: tuple[int, ...]) -> None:
    x, z = rough(*shape), torch.randn(shape)
    y = Quantizer(None, None, None, "int8:token:fp32")
    results = (UNQUANTIZED, fixed(UINT8, len(shape)), fixed("e4m3:tensor:fp32", len(shape)), y)
    for i, left in enumerate(FORMATS):
        for j, right in enumerate(FORMATS[1:] if not left else FORMATS):
            a, b = coded(x, left), coded(z, right)
            by = results[(i + j) % len(results)]
            with bs.use("reference"):
                expected = FUSED[op](a, b, y=by)
            assert _supports(a, b, by) or shape == (1,)
            found = FUSED[op](a, b, y=by)
            told = (left, right, by.fmt)
            assert all(same(p, q) for p, q in zip(found, expected, strict=True)), told


def _supports(a: Value, b: Value, y: Quantizer, *settings: float) -> bool:
    formats = tuple(parse(each.fmt) for each in (a, b, y) if each.fmt)
    return binary.supports(formats, (a, b, *settings, torch.float32, y))


def test_threads() -> None:
    a, b = coded(torch.randn(70, 500), UINT8), coded(torch.randn(70, 500), "int8:token:fp32")
    found = []
    for count in (1, 3):
        torch.set_num_threads(count)
        with bs.use("cpu"):
            found.append(FUSED["add"](a, b, y=fixed(UINT8, 2))[0])
    assert torch.equal(*found)


def test_numbers_that_are_odd(isa: str) -> None:
    odd = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 1e-41, 3e38, 1.5]).repeat(9)
    a = Value(odd.repeat_interleave(72).reshape(72, 72))
    b = coded(odd.nan_to_num(0, 4, -4).clamp(-4, 4).repeat(72, 1), "int8:tensor:fp32")
    for op in binary.KINDS:
        for y in (UNQUANTIZED, fixed(UINT8, 2), fixed("e5m2:tensor:fp32", 2)):
            with bs.use("reference"):
                expected = FUSED[op](a, b, y=y)
            with bs.use("cpu"):
                found = FUSED[op](a, b, y=y)
            assert same(found[0], expected[0])


def test_what_is_composed() -> None:
    x = torch.randn(4, 8)
    a, b = coded(x, UINT8), Value(x)
    assert _supports(a, b, UNQUANTIZED, 1.0)
    assert not _supports(a, b, UNQUANTIZED, 0.5)  # torch may fuse the product into the sum
    assert not _supports(b, b, UNQUANTIZED, 1.0)  # torch's own
    assert not _supports(a, Value(x[:1]), UNQUANTIZED)
    assert not _supports(a, Value(x.double()), UNQUANTIZED)
    assert not _supports(coded(x, "nvfp4"), b, UNQUANTIZED)
    assert not _supports(coded(x, "int8:channel1:fp32"), b, UNQUANTIZED)
    with bs.use("reference"):
        expected = FUSED["add"](a, Value(x[:1]), alpha=0.5)
    assert same(FUSED["add"](a, Value(x[:1]), alpha=0.5)[0], expected[0])
