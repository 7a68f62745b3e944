# SPDX-License-Identifier: BSD-3-Clause
"""Rounding modes: which integer a number of steps becomes (docs/numerics.md, section 2)."""

from collections.abc import Callable

import torch
from torch import Tensor

Round = Callable[[Tensor], Tensor]


def nearest_even(t: Tensor) -> Tensor:
    """Nearest integer; a tie goes to the even one (IEEE 754 roundTiesToEven)."""
    return t.round()


def nearest_away(t: Tensor) -> Tensor:
    """Nearest integer; a tie goes away from zero (IEEE 754 roundTiesToAway)."""
    size = t.abs()
    whole = size.floor()
    return (whole + (size - whole >= 0.5)).copysign(t)  # not floor(t + 0.5): that sum can round


def toward_zero(t: Tensor) -> Tensor:
    """Drop the fraction (IEEE 754 roundTowardZero)."""
    return t.trunc()


def down(t: Tensor) -> Tensor:
    """Toward minus infinity (IEEE 754 roundTowardNegative)."""
    return t.floor()


def up(t: Tensor) -> Tensor:
    """Toward plus infinity (IEEE 754 roundTowardPositive)."""
    return t.ceil()


def stochastic(u: Tensor) -> Round:
    """Away from zero with the probability of the fraction, given u in [0, 1) for each element."""

    def round_by_chance(t: Tensor) -> Tensor:
        size = t.abs()
        whole = size.floor()
        return (whole + (u < size - whole)).copysign(t)

    return round_by_chance


DETERMINISTIC: dict[str, Round] = {
    f.__name__: f for f in (nearest_even, nearest_away, toward_zero, down, up)
}
ROUNDINGS: tuple[str, ...] = (*DETERMINISTIC, "stochastic")


def rounding(name: str, uniform: Callable[[], Tensor]) -> Round:
    """The rounding called `name`; `uniform` is asked for random numbers only if it needs them."""
    return stochastic(uniform()) if name == "stochastic" else DETERMINISTIC[name]


def finite(t: Tensor) -> Tensor:
    """Zero in place of NaN and infinities."""
    return torch.where(t.isfinite(), t, 0.0)
