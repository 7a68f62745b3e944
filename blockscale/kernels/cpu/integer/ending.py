# SPDX-License-Identifier: BSD-3-Clause
"""How kernels end sums that floats hold exactly: as blockscale.ops.integer.shifts has it.

For products that `shifted` does not take: of two tensors, in groups, transposed.

Below 2^24 an integer is a float32, its product with a power of two is exact, and quantizing that
under the scale 1 rounds once, as a rounding shift does. So the kernels of float-scaled codes serve.
Below 2^53 the same holds of float64. Where `largest` bounds the sum of all magnitudes, it bounds
every partial sum too, in any order: none of them rounds.
"""

from functools import lru_cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from blockscale.core.arithmetic.bits import pow2
from blockscale.core.arithmetic.sums import FARTHEST_LEFT, accumulator
from blockscale.core.operand import UNQUANTIZED, Quantizer
from blockscale.core.parse import parse
from blockscale.core.rounding import DETERMINISTIC
from blockscale.kernels.cpu.quantize import quantize

if TYPE_CHECKING:
    from blockscale.core.format import Format

EXACT, EXACT_WIDE = 2**24, 2**53  # of float32 and of float64


def unshifted(largest: int, shift: Tensor, fmt: str) -> int:
    """The bound of the sums themselves. Without a format `largest` is that of what comes out:
    sums shifted left, the same bound for all, by the farthest of the shifts."""
    return largest if fmt else largest >> max(0, -int(shift.min()))


def supports_sums(largest: int, shift: Tensor, fmt: str) -> bool:
    """Whether floats hold the sums, and codes of fmt lie one in an element."""
    if unshifted(largest, shift, fmt) > EXACT_WIDE:
        return False
    return not fmt or parse(fmt).bits in (8, 16)


def holds(largest: int) -> torch.dtype:
    """The floats that hold sums up to `largest`."""
    return torch.float32 if largest <= EXACT else torch.float64


@lru_cache(256)
def under_one(fmt: str) -> str:
    """The format of the same codes with one float scale, which will be 1."""
    form: Format = parse(fmt)
    options = ["asym"] if form.asym else ["full"] if form.span else []
    options += [form.rounding] if form.rounding != "nearest_even" else []
    return ":".join([form.element.name, "tensor", "fp32", *options])


@lru_cache(256)
def quantizer(fmt: str, zero: int, rank: int) -> Quantizer:
    """Under the scale 1 with this zero point; nothing for sums."""
    if not fmt:
        return UNQUANTIZED
    ones = (1,) * rank
    point = torch.full(ones, zero, dtype=torch.int32) if parse(fmt).asym else None
    return Quantizer(torch.ones(ones), point, None, under_one(fmt))


@lru_cache(256)
def limits(fmt: str) -> tuple[int, int]:
    """The smallest and the largest code of a format."""
    form = parse(fmt)
    low, high = form.element.limits(form.wide)
    return int(low), int(high)


def scales(shift: Tensor) -> Tensor:
    """shift [n] int32 -> 2^-shift [n] float32."""
    return pow2(-shift)


def ended(
    acc: Tensor, shift: Tensor, zero: int, low: int, high: int, fmt: str, largest: int
) -> Tensor:
    """Sums [...] of `holds(largest)`, whole -> codes [...], or sums int32, above 2^31 - 1 int64."""
    if acc.dtype == torch.float64:
        return _wide(acc, shift, zero, low, high, fmt, largest)
    values = acc * scales(shift)
    if not fmt:
        return whole(values, low, high, largest)
    return clamped(quantize(values, quantizer(fmt, zero, acc.ndim)), low, high, fmt)


def whole(values: Tensor, low: int, high: int, largest: int) -> Tensor:
    """Whole numbers [...] in floats, up to `largest` -> sums [...] int32 or int64."""
    y = values.to(accumulator(largest))
    return y if low == high else y.clamp_(low, high)


def _wide(
    acc: Tensor, shift: Tensor, zero: int, low: int, high: int, fmt: str, largest: int
) -> Tensor:
    """The same of float64: a product with a power of two from 2^-62 to 2^62 rounds nothing."""
    if not fmt:
        dtype = accumulator(largest)
        sums = acc.to(dtype) << (-shift).clamp(0, FARTHEST_LEFT).to(dtype)
        return sums if low == high else sums.clamp_(low, high)
    form = parse(fmt)
    steps = DETERMINISTIC[form.rounding](acc * scales(shift).double())
    return steps.add_(zero).clamp_(low, high).to(form.element.code_dtype)


def clamped(codes: Tensor, low: int, high: int, fmt: str) -> Tensor:
    """Codes within bounds that may be narrower than their format."""
    return codes if (low, high) == limits(fmt) else codes.clamp_(low, high)
