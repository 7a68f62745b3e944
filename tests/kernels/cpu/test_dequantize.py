# SPDX-License-Identifier: BSD-3-Clause
"""Given scales, whatever bits they have, and every code: values are the reference's."""

import math

import pytest
import torch

from blockscale.core.operand import Operand
from blockscale.core.parse import parse
from blockscale.core.reference import QParams
from blockscale.ops import primitives as P
from tests.kernels.cpu.equal import wrong
from tests.support.cpu_primitives import ROUNDINGS
from tests.support.cpu_quantize import FLT_MAX, ODD, edges


@pytest.mark.parametrize("byte", [0, 1, 2, 126, 127, 128, 252, 253, 254, 255])
def test_given_bytes(byte: int) -> None:
    """Also integers whose step is subnormal, so that its inverse overflows."""
    for fmt in ("int16", "int8", "uint16", "int2", "e4m3", "log8", "binary"):
        spelled = f"{fmt}:tensor:e8m0/floor"
        x = torch.tensor([*ODD, 1.0, -1.5, 2.5]) * torch.tensor([[1.0], [2.0**-130], [2e-6]])
        given = QParams(torch.tensor([[byte]], dtype=torch.uint8))
        assert wrong(x, spelled, qparams=given) == [], fmt


GIVEN = [1.0, 3.0, -2.0, 0.0, -0.0, 2.0**-149, 2.0**-127, 1.5e-39, FLT_MAX, math.inf, -math.inf]
UNDER = ("int8", "int8:recip", "uint12:asym", "uint3:asym:stochastic", "e4m3", "e4m3:recip:down")
UNDER += ("e2m1", "e2m1:stochastic", "binary", "binary:recip")


@pytest.mark.some(4)
@pytest.mark.parametrize("scale", [*GIVEN, math.nan])
def test_given_float_scales(scale: float) -> None:
    x = torch.cat([torch.randn(50), torch.tensor(ODD)])
    for under in UNDER:
        element, _, option = under.partition(":")
        zero = torch.tensor([3], dtype=torch.int32) if "asym" in option else None
        fmt = ":".join([element, "tensor", "fp32", *filter(None, [option])])
        assert wrong(x, fmt, qparams=QParams(torch.tensor([scale]), None, zero)) == [], fmt


@pytest.mark.some(6)
@pytest.mark.parametrize("element", ["int8", "uint8", "int16", "uint16", "uint3", "uint1"])
def test_given_zero_points(element: str) -> None:
    low, high = parse(f"{element}:tensor:fp32:asym").element.limits(True)
    for rounding in ("", *(f":{r}" for r in ROUNDINGS)):
        for zero in (low, low + 1, 0, high - 1, high):
            x = edges("uint3") - torch.tensor([[zero], [low], [high], [0]])
            given = QParams(torch.ones(1, 1), None, torch.tensor([[zero]], dtype=torch.int32))
            assert wrong(x, f"{element}:tensor:fp32:asym{rounding}", qparams=given) == [], zero


SHAPES = [(e, m) for e in range(1, 8) for m in range(7) if 2 <= e + m < 8]


@pytest.mark.parametrize(("exponent", "mantissa"), SHAPES)
def test_every_code_of_every_minifloat(isa: str, exponent: int, mantissa: int) -> None:
    """A converter of float16 must not be asked for exponents that mean something else there."""
    del isa
    fmt = f"e{exponent}m{mantissa}:token:fp32"
    codes = torch.arange(2 ** (1 + exponent + mantissa), dtype=torch.uint8).repeat(2, 3)
    packed, scale = P.pack.reference(codes, fmt), torch.tensor([[1.0], [0.3]])
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        args = (Operand(packed, scale, None, None, fmt, codes.shape[1]), dtype)
        found, expected = P.dequantize(*args), P.dequantize.reference(*args)
        assert torch.equal(found.isnan(), expected.isnan())
        assert torch.equal(found.nan_to_num(7.0), expected.nan_to_num(7.0))
