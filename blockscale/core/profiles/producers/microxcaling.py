# SPDX-License-Identifier: BSD-3-Clause
"""Microsoft's microxcaling: `_quantize_mx` in Python, as it does without CUDA code of its own.

All is computed in the tensor's dtype, float32 or bfloat16. A block's exponent is a rounded
logarithm, which takes the last numbers below a power of two for that power; its CUDA code reads the
exponent instead, whose scales are those of e8m0/floor. float16, in which it loses scales, is
widened here. Sources, of 3b429a8 (2024): mx/mx_ops.py (`_shared_exponents`), mx/elemwise_ops.py
(`_quantize_elemwise_core`, `_round_mantissa`) and mx/formats.py.
"""

from collections.abc import Iterator
from functools import partial
from math import frexp

import torch
from torch import Tensor

from blockscale.core.arithmetic.precision import FLT_MIN, pow2
from blockscale.core.elements.minifloat import Minifloat
from blockscale.core.format import Format
from blockscale.core.parse import parse
from blockscale.core.profiles.encoders import Padded, in_blocks, put_back
from blockscale.core.profiles.knobs import Profile
from blockscale.core.reference import QParams, widen
from blockscale.core.rounding import nearest_even

_ELEMENTS = {
    "fp8_e4m3": "e4m3",
    "fp8_e5m2": "e5m2",
    "fp6_e3m2": "e3m2",
    "fp6_e2m3": "e2m3",
    "fp4_e2m1": "e2m1",
    "int8": "int8",
    "int4": "int4",
    "int2": "int2",
}


def _power(size: Tensor, of_zero: float) -> Tensor:
    """size [...] >= 0 -> floor(log2) as its dtype rounds the logarithm, of the same dtype."""
    magnitude = torch.where(size == 0, of_zero, size)
    return magnitude.double().log2().to(torch.float32).to(size.dtype).floor()


def _two_to(power: Tensor) -> Tensor:
    """2^power, NaN where that is NaN, of its dtype."""
    power_of_two = pow2(power.nan_to_num(nan=0.0).to(torch.int32))
    return torch.where(power.isnan(), torch.nan, power_of_two).to(power.dtype)


def _round(steps: Tensor, mode: str) -> Tensor:
    """Steps of a binade -> whole ones. Sums with 1/2 are rounded: the last number below it is 1."""
    size = steps.abs()
    whole = (size if mode == "floor" else size + 0.5).floor()
    if mode == "even":
        whole = whole - ((size - 0.5) % 2 == 0).to(whole.dtype)
    return whole.copysign(steps)


def _values(steps: Tensor, element: Minifloat, mode: str) -> Tensor:
    """Numbers in steps of a block -> values of the element; each has a rounded exponent, too."""
    power = _power(steps.abs(), 1.0).clamp(min=1 - element.bias)
    unit = 2.0**element.mantissa_bits
    whole = _round(steps / _two_to(power) * unit, mode)
    return (whole / unit * _two_to(power)).clamp(-element.max, element.max)


def _encoder(x: Tensor, fmt: Format, mode: str) -> tuple[Tensor, QParams]:
    """A scale beyond 2^127 is NaN, a smaller one than 2^-127 that."""
    element, fraction = fmt.element, fmt.fraction_bits
    blocks = in_blocks(widen(x) if x.dtype == torch.float16 else x, fmt)
    largest = frexp(element.max)[1] - 1 - fraction
    power = _power(blocks.abs().amax(-1, keepdim=True), FLT_MIN) - largest
    byte = torch.where(power > 127, 255, power.clamp(min=-127) + 127).float()
    power = torch.where(power > 127, torch.nan, power.clamp(min=-127))
    steps = blocks / _two_to(power) + 0.0  # the sign of 0 is 0: -0 is 0
    if isinstance(element, Minifloat):
        values = widen(_values(steps, element, mode))
        return put_back(x, fmt, element.encode(values, nearest_even, None, False), scale=byte)
    codes = _round(steps * 2.0**fraction, mode).clamp(-element.max, element.max)
    return put_back(x, fmt, codes.nan_to_num(nan=0.0), scale=byte)


def _profiles() -> Iterator[Profile]:
    for name, element in _ELEMENTS.items():
        for mode, ending in (("nearest", ""), ("even", "_even"), ("floor", "_floor")):
            yield Profile(
                name=f"microxcaling.{name}{ending}",
                version="3b429a8",
                format=parse(f"{element}:group32:e8m0/given"),
                blocks=("group",),
                encoder=Padded(partial(_encoder, mode=mode)),
            )


PROFILES = tuple(_profiles())
