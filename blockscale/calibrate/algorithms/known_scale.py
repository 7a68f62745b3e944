"""Scales beside an outer scale that is known, and scales of a step that is wanted.

`blockscale.core.reference` chooses the scale of a block from its range, and the outer scale from
all blocks. Whoever searches for a better scale of one block leaves the outer scale as it is. The
rules are the same; here they start from what is known already.
"""

from torch import Tensor

from blockscale.core import reference
from blockscale.core.arithmetic.bits import FLT_MAX, divide
from blockscale.core.format import Format
from blockscale.core.reference import QParams, Ranges
from blockscale.core.scale import PowerOfTwo
from blockscale.core.scales.two_level import TwoLevel


def qparams_beside(ranges: Ranges, outer: Tensor | None, fmt: Format) -> QParams:
    """Each block's range [scale's shape] -> its scale and zero point, beside a known outer scale.

    outer: float32, in the layout of the inner format's blocks, None for a format with one level.
    From the outer scale that `reference.qparams_from_range` chooses, its bits (section 3.5).
    """
    if outer is None:
        return reference.qparams_from_range(*ranges, fmt)
    assert isinstance(fmt.scale, TwoLevel)
    quotient = divide(reference.numerator(ranges.low, ranges.high, fmt), fmt.levels.value)
    scale = fmt.scale.poison(_inner_codes(quotient, outer, fmt.scale), ranges.poisoned)
    return reference.with_zero(ranges.low, QParams(scale, outer), fmt)


def nearest_scale(step: Tensor, outer: Tensor | None, fmt: Format) -> Tensor:
    """Wanted steps [scale's shape] float32 -> the stored scales whose steps are nearest.

    outer: as for `qparams_beside`. Powers of two are chosen by their logarithm, whatever the
    format's rule: that rule says how far a largest magnitude may reach, and here the step itself is
    known.
    """
    if isinstance(fmt.scale, TwoLevel):
        assert outer is not None
        return _inner_codes(step, outer, fmt.scale)
    if isinstance(fmt.scale, PowerOfTwo):
        nearest = PowerOfTwo("nearest", fmt.scale.byte)
        numerator = (step * fmt.levels.value).clamp(max=FLT_MAX)
        return nearest.store(numerator, fmt.levels, fmt.fraction_bits)
    return (fmt.scale.store_signed if fmt.span == "signed" else fmt.scale.store)(step)


def _inner_codes(step: Tensor, outer: Tensor, scale: TwoLevel[Format]) -> Tensor:
    """Wanted steps and their outer scales -> inner codes."""
    return scale.encode(scale.in_outer(step, outer))
