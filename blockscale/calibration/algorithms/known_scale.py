# SPDX-License-Identifier: BSD-3-Clause
"""Scales of a step that is wanted, beside an outer scale that is known.

`blockscale.core.reference` chooses the scale of a block from its range. Whoever searches for a
better scale of one block may know its step instead, and leaves the outer scale as it is.
"""

from torch import Tensor

from blockscale.core.arithmetic.bits import FLT_MAX
from blockscale.core.format import Format
from blockscale.core.scale import PowerOfTwo
from blockscale.core.scales.two_level import TwoLevel


def nearest_scale(step: Tensor, outer: Tensor | None, fmt: Format) -> Tensor:
    """Wanted steps [scale's shape] float32 -> the stored scales whose steps are nearest.

    outer: float32, in the layout of the inner format's blocks, None for a format with one level.
    Powers of two are chosen by their logarithm, whatever the format's rule: that rule says how far
    a largest magnitude may reach, and here the step itself is known.
    """
    if isinstance(fmt.scale, TwoLevel):
        assert outer is not None
        return fmt.scale.encode(fmt.scale.in_outer(step, outer))
    if isinstance(fmt.scale, PowerOfTwo):
        nearest = PowerOfTwo("nearest", fmt.scale.byte)
        numerator = (step * fmt.levels.value).clamp(max=FLT_MAX)
        return nearest.store(numerator, fmt.levels, fmt.fraction_bits)
    return (fmt.scale.store_signed if fmt.span == "signed" else fmt.scale.store)(step)
