# SPDX-License-Identifier: BSD-3-Clause
"""Codes as a profile chooses them, once scales and zero points are chosen."""

from functools import cache

import torch
from torch import Tensor

from blockscale.core import integer_scales, reference
from blockscale.core.block import Blocks
from blockscale.core.element import Element
from blockscale.core.elements.codebook import Codebook
from blockscale.core.format import Format
from blockscale.core.profiles import scales
from blockscale.core.profiles.knobs import Encoder, Profile
from blockscale.core.profiles.scales import ChosenScales, rounder
from blockscale.core.reference import QParams
from blockscale.core.rounding import DETERMINISTIC
from blockscale.core.scales import TwoLevel


def encode(x: Tensor, chosen: ChosenScales, profile: Profile, fmt: Format) -> Tensor:
    """x [...] and its scales -> codes [...] of the element's code_dtype."""
    fl = rounder(profile.code_arithmetic, x.dtype)
    wide = reference.widen(x)
    divisor = fmt.block.expand(chosen.divisor, x.shape)
    y = fl(wide * divisor if profile.reciprocal else wide / divisor)
    zero = integer_scales.expand(chosen.qparams.zero_point, fmt, x.shape)
    element, search = fmt.element, profile.search
    if search == "half_up_add":
        codes = _half_up_add(y, zero, fmt)
    elif search == "first_nearest":
        table, kept = first_of_equals(element)
        codes = torch.tensor(kept, device=x.device)[table.encode(y, _ROUND, None, False).long()]
        codes = codes.to(element.code_dtype)
    else:
        rounding = DETERMINISTIC[fmt.rounding if search == "format" else search]
        codes = element.encode(y, rounding, zero, fmt.wide)
    if not profile.negative_zero and (minus := _negative_zero(element)) is not None:
        codes = torch.where(codes == minus, 0, codes).to(codes.dtype)
    return codes


_ROUND = DETERMINISTIC["nearest_even"]  # codebooks have no rounding


def _half_up_add(y: Tensor, zero: Tensor | None, fmt: Format) -> Tensor:
    """The integer part of fl(y + 1/2 - z), with z what makes it positive (ggml's quantizers)."""
    lowest, highest = fmt.element.limits(fmt.wide)
    shift = -lowest if zero is None else zero - lowest
    steps = (torch.where(y.isnan(), 0.0, y) + (shift + 0.5)).trunc() + lowest
    return steps.clamp(lowest, highest).to(fmt.element.code_dtype)


@cache
def first_of_equals(element: Element) -> tuple[Codebook, tuple[int, ...]]:
    """An element as a table in which no value is there twice, and the codes that its places are.

    -0 is 0, and where two values are as near, the one nearer to 0 is taken.
    """
    values = element.decode(element.from_bits(torch.arange(2**element.bits))).tolist()
    kept: dict[float, int] = {}
    for code, value in enumerate(values):
        if abs(value) < float("inf"):
            kept.setdefault(value, code)  # -0.0 == 0.0
    return Codebook(element.name, tuple(kept), "zero"), tuple(kept.values())


@cache
def _negative_zero(element: Element) -> int | None:
    """The code of -0, if there is one."""
    if element.integer:
        return None
    values = element.decode(element.from_bits(torch.arange(2**element.bits)))
    minus = ((values == 0) & values.signbit()).nonzero().flatten().tolist()
    return int(minus[0]) if minus else None


# Quantize as a producer does: plain PyTorch, the same bits on every device.


def quantize(x: Tensor, profile: Profile) -> tuple[Tensor, QParams, Format]:
    """x [...] -> codes [...], what stands beside them and the format that says what they mean.

    Raises TypeError for a dtype other than float32, bfloat16 and float16, ValueError for a block
    that does not fit x, or that the producer refuses.
    """
    reference.widen(x[:0] if x.ndim else x)
    fmt = profile.result(x.dtype)
    profile.check_blocks(x.shape)
    if profile.contract:
        qparams = reference.choose_qparams(x, fmt)
        return reference.quantize(x, qparams, fmt), qparams, fmt
    if profile.encoder is not None:
        return (*_encoded(x, profile.encoder, fmt), fmt)
    chosen = scales.choose(x, profile, fmt)
    return encode(x, chosen, profile, fmt), chosen.qparams, fmt


def _encoded(x: Tensor, encoder: Encoder, fmt: Format) -> tuple[Tensor, QParams]:
    """Codes and scales by an encoder, which sees finite numbers; what is not is the contract's."""
    wide = reference.widen(x)
    finite = wide.isfinite()
    if bool(finite.all()):
        return encoder(x, fmt)
    blocks = Blocks(wide, fmt.block)
    low, high = (fmt.block.expand(end, x.shape) for end in blocks.range(bare=True))
    known = torch.where(finite, wide, torch.where(wide > 0, high, low))
    codes, qparams = encoder(known.masked_fill(wide.isnan(), 0.0).to(x.dtype), fmt)
    if fmt.element.nan_code is not None:
        codes = torch.where(wide.isnan(), fmt.element.nan_code, codes).to(codes.dtype)
    if not fmt.scale.poisons:
        return codes, qparams
    nan = fmt.scale.inner.element.nan_code if isinstance(fmt.scale, TwoLevel) else 255
    stored = torch.where(blocks.poisoned(), nan or 0, qparams.scale)
    return codes, qparams._replace(scale=stored.to(qparams.scale.dtype))
