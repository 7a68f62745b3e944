# SPDX-License-Identifier: BSD-3-Clause
"""dmx-compressor 0.1.11: block floating point, MXINT and MXFP, on a CPU, always in float32.

A mantissa is rounded twice: the number is added to 6 * 2^E in float32, E the exponent of its block,
and that sum is rounded. What is `a` also has the code -2^(bits - 1). MXFP's elements use all their
codes for numbers, and exponents of blocks are rounded logarithms. Where dmx gives nonsense, this
does not: mantissas in blocks from 2^126 on, and scales below 2^-127, of which there are none here.
Sources: numerical/format.py (`BlockFloatingPoint`, `MXFP`) and quant/quant_cpu/quant_cpu.cpp
(`block_quantize_helper`, `float_quantize`).
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from blockscale.core.arithmetic.precision import FLT_MIN, exponent
from blockscale.core.elements.minifloat import Minifloat
from blockscale.core.format import Format
from blockscale.core.parse import parse
from blockscale.core.profiles.encoders import Padded, in_blocks, put_back
from blockscale.core.profiles.knobs import Encoder, Profile
from blockscale.core.reference import QParams, widen
from blockscale.core.rounding import nearest_even

_MXFP = {
    "mxfp8_e4m3": "e4m3r0",
    "mxfp8_e5m2": "e5m2r0",
    "mxfp6_e3m2": "e3m2",
    "mxfp6_e2m3": "e2m3",
    "mxfp4_e2m1": "e2m1",
}


def _mantissas(x: Tensor, fmt: Format) -> tuple[Tensor, QParams]:
    """The byte of a block is its exponent; what is below 2^-126 becomes 0."""
    blocks, high = in_blocks(widen(x), fmt), 2 ** (fmt.bits - 1) - 1
    size = blocks.abs().amax(-1, keepdim=True)
    power = torch.where(size < FLT_MIN, -127, exponent(torch.where(size == 0, 1.0, size)))
    whole = 2.0 ** (fmt.bits - 2)
    parts = torch.where(power == -127, 0.0, _scaled(blocks, power))  # below 2 in magnitude
    codes = (((parts + 6.0) - 6.0) * whole).round().clamp(-high, high)
    if fmt.wide:  # a tie goes to the even code, which is the lowest one
        lowest = (codes == -high) & (parts * whole <= -high - 0.5)
        codes = codes - lowest.to(codes.dtype)
    return put_back(x, fmt, codes, scale=power + 127)


def _scaled(x: Tensor, power: Tensor) -> Tensor:
    """x / 2^power in two steps, neither of which overflows."""
    half = power // 2
    return torch.ldexp(torch.ldexp(x, -half), half - power)


def _floats(x: Tensor, fmt: Format) -> tuple[Tensor, QParams]:
    """Subnormal numbers are rounded twice; blocks of zeros are -0, as 0 / 0 has a sign on x86."""
    element, blocks = fmt.element, in_blocks(widen(x), fmt)
    assert isinstance(element, Minifloat)
    size = blocks.abs().amax(-1, keepdim=True)
    power = torch.where(size > 0, size, 1.0).double().log2().to(torch.float32).floor()
    power = (power - 2 ** (element.exponent_bits - 1)).clamp(min=-127).to(torch.int32)
    steps, least = _scaled(blocks, power) + 0.0, element.smallest_normal
    twice = ((steps.abs() + least) - least).copysign(steps) + 0.0
    twice = torch.where(twice == 0, 0.0, twice)  # and -0 is 0
    steps = torch.where(steps.abs() < least, twice, steps)
    codes = element.encode(steps, nearest_even, None, False)
    codes = torch.where(codes == 2 ** (element.bits - 1), 0, codes)
    codes = torch.where(size > 0, codes, 2 ** (element.bits - 1))
    return put_back(x, fmt, codes, scale=torch.where(size > 0, power + 127, 0))


def _profiles() -> Iterator[Profile]:
    for bits in (16, 8, 6, 4):
        yield _profile(f"bfp{bits + 8}", f"int{bits}:group64:e8m0/given", _mantissas)
        if bits < 16:
            yield _profile(f"bfp{bits + 8}a", f"int{bits}:group64:e8m0/given:full", _mantissas)
            yield _profile(f"mxint{bits}", f"int{bits}:group32:e8m0/given", _mantissas)
    for name, element in _MXFP.items():
        yield _profile(name, f"{element}:group32:e8m0/given", _floats)


def _profile(name: str, spelling: str, encoder: Encoder) -> Profile:
    return Profile(
        name=f"dmx.{name}",
        version="0.1.11",
        format=parse(spelling),
        blocks=("group",),
        encoder=Padded(encoder),
    )


PROFILES = tuple(_profiles())
