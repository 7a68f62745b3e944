# SPDX-License-Identifier: BSD-3-Clause
"""Numbers in steps become codes, and codes numbers, with the reference's bits."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

import blockscale as bs
from blockscale.core.parse import parse
from blockscale.core.reference import QParams
from blockscale.kernels.cuda.device.element import decode, encode, inside, round_trip
from blockscale.kernels.cuda.device.numerics import bits_of
from blockscale.kernels.cuda.spec import FAMILIES, spec
from tests.kernels.cuda.device.calls import refused
from tests.support.cuda_device_inputs import midpoints
from tests.support.cuda_equal import DEVICE, wrong
from tests.support.same import same

# numpy, in which the interpreter computes, tells of infinities and NaN
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.mark.some(12)
@pytest.mark.parametrize("fmt", ["int4", "e2m1", "e2m3", "e3m2", "e4m3", "e5m2", "log4", "uint2"])
def test_every_midpoint(fmt: str) -> None:
    for rounding in ("", ":nearest_away", ":stochastic"):
        x, one = midpoints(f"{fmt}:tensor:fp32"), QParams(torch.ones(1))
        assert wrong(x, f"{fmt}:tensor:fp32{rounding}", given=one) == [], rounding


@triton.jit
def _decoded(code, out, element: tl.constexpr, n: tl.constexpr):
    at = tl.arange(0, n)
    tl.store(out + at, decode(tl.load(code + at), element))


@pytest.mark.parametrize("name", ["int4", "uint3", "e2m1", "e4m3", "e5m2", "log4", "binary"])
def test_codes_have_their_values(name: str) -> None:
    """Whatever lies above their bits."""
    element = parse(f"{name}:tensor:fp32").element
    patterns = torch.arange(2**element.bits)
    expected = element.decode(element.from_bits(patterns.to(torch.uint8))).float()
    code = patterns.to(torch.int32) | (0x5A << element.bits)
    out = torch.empty(len(code), device=DEVICE)
    numbers = spec(f"{name}:tensor:fp32").element
    _decoded[(1,)](code.to(DEVICE), out, element=numbers, n=len(code))
    assert same(out.cpu(), expected)


@triton.jit
def _encoded(y, out, element: tl.constexpr):
    at = tl.arange(0, 4)
    x = tl.load(y + at)
    code = encode(x, bits_of(x), -1, 1, 0, x, element, "nearest_even", False, False)
    tl.store(out + at, code)


@triton.jit
def _tripped(y, out, element: tl.constexpr):
    at = tl.arange(0, 4)
    x = tl.load(y + at)
    value = round_trip(x, bits_of(x), -1, 1, x, element, "nearest_even", False, False, False)
    tl.store(out + at, value)


@triton.jit
def _within(y, out, element: tl.constexpr):
    at = tl.arange(0, 4)
    tl.store(out + at, inside(tl.load(y + at), -1, 1, element, "nearest_even").to(tl.int32))


@triton.jit
def _read(y, out, element: tl.constexpr):
    at = tl.arange(0, 4)
    tl.store(out + at, decode(tl.load(y + at).to(tl.int32), element))


@pytest.mark.parametrize("kernel", [_encoded, _tripped, _within, _read])
def test_a_family_that_nobody_knows_is_refused(kernel: Any) -> None:
    """It is never taken for another."""
    known = spec("int8:tensor:fp32").element
    y, out = torch.zeros(4, device=DEVICE), torch.zeros(4, device=DEVICE)
    assert known.family in FAMILIES
    kernel[(1,)](y, out, element=known)
    unknown = replace(known, family="unheard")
    assert unknown.family not in FAMILIES
    with refused("no CUDA kernel knows this family of elements"):
        kernel[(1,)](y, out, element=unknown)


def test_every_family_of_the_catalogue_is_known() -> None:
    families = {spec(str(fmt)).element.family for fmt in bs.formats().values()}
    assert families == {*FAMILIES}
