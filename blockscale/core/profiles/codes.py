"""Codes as a profile chooses them, once scales and zero points are chosen."""

from functools import cache

import torch
from torch import Tensor

from blockscale.core import reference, zero_point
from blockscale.core.element import Element
from blockscale.core.elements.codebook import Codebook
from blockscale.core.format import Format
from blockscale.core.profiles.knobs import Profile
from blockscale.core.profiles.scales import Chosen, rounder
from blockscale.core.rounding import DETERMINISTIC


def encode(x: Tensor, chosen: Chosen, profile: Profile, fmt: Format) -> Tensor:
    """x [...] and its scales -> codes [...] of the element's code_dtype."""
    fl = rounder(profile.code_arithmetic, x.dtype)
    wide = reference.widen(x)
    divisor = fmt.block.expand(chosen.divisor, x.shape)
    y = fl(wide * divisor if profile.reciprocal else wide / divisor)
    zero = zero_point.expand(chosen.qparams.zero_point, fmt, x.shape)
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
