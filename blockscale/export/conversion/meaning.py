# SPDX-License-Identifier: BSD-3-Clause
"""What a format's codes and scales mean, without how they were chosen."""

from typing import Any

from blockscale.core.format import Format
from blockscale.core.scale import PowerOfTwo
from blockscale.core.scales.two_level import TwoLevel


def meaning(fmt: Format) -> tuple[Any, ...]:
    """Equal for two formats that give the same stored parts the same values, and only then.

    Left out is what says how scales and codes are chosen: the rule of a power of two, which codes
    are used, reciprocals and rounding.
    """
    zero = fmt.zero.name if fmt.zero is not None else ""
    return fmt.element.name, str(fmt.block), _scale(fmt.scale), fmt.asym, zero, _offset(fmt)


def _scale(scale: Any) -> Any:
    if isinstance(scale, PowerOfTwo):
        return "e8m0" if scale.byte else "pow2"
    if isinstance(scale, TwoLevel):
        return meaning(scale.inner), scale.reciprocal
    return scale.name


def _offset(fmt: Format) -> Any:
    offset = fmt.offset
    if offset is None:
        return None
    block = None if offset.block is None else str(offset.block)
    return block, str(offset.type) if offset.inner is None else meaning(offset.inner)
