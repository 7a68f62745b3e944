# SPDX-License-Identifier: BSD-3-Clause
"""What integers of a graph mean, and what keeps a format or a scale from being integers."""

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from blockscale.core.arithmetic.precision import exponent, mantissa
from blockscale.core.elements.integer import Integer
from blockscale.core.format import Format
from blockscale.core.integer_scales import why_no_integers
from blockscale.core.reference import QParams, step_of
from blockscale.core.scale import PowerOfTwo
from blockscale.ops.integer.shifts import SHIFT_ROUNDINGS

INT64_MAX = 2**63 - 1
FLOAT32_EXACT = 2**24  # float32 holds every integer up to here, so float sums of them are exact
LOWEST, HIGHEST = -149, 103  # float32 holds 2^-149, and 2^24 steps of 2^103


class NotIntegerError(ValueError):
    """A part of the model that integer arithmetic cannot take over; the message names it."""


class Own(NamedTuple):
    """What sums of several channels are in the steps of their own channel.

    apart: by how many bits the step of each is above the common one, int64, broadcasts with the
    sums; largest: the largest magnitude of any of them, in its own steps
    """

    apart: Tensor
    largest: int


@dataclass(frozen=True)
class Fixed:
    """What integers mean: (code - zero) * 2^exponent.

    low, high: of the codes; fmt: the format that they are in, empty for sums
    own: of sums that were brought to one exponent, where their channels are still known
    """

    exponent: int
    zero: int
    low: int
    high: int
    fmt: str = ""
    own: Own | None = field(default=None, compare=False)

    @property
    def largest(self) -> int:
        """Of |code - zero|."""
        return max(abs(self.high - self.zero), abs(self.low - self.zero))

    @property
    def steps(self) -> int:
        """The largest magnitude in steps of its own channel: what a float's digits have to hold."""
        return self.largest if self.own is None else self.own.largest

    @property
    def bits(self) -> int:
        """Of a code as it lies in memory: 8, 16, 32 or 64."""
        for bits in (8, 16, 32):
            if -(2 ** (bits - 1)) <= self.low and self.high < 2 ** (bits - 1):
                return bits
            if bits == 8 and self.low >= 0 and self.high < 256:
                return 8
        return 64


def sums(exponent: int, largest: int, what: str) -> Fixed:
    """Sums under an exponent. Raises NotIntegerError where int64 or a float32 result cannot hold
    them."""
    if largest > INT64_MAX >> 1:
        raise NotIntegerError(
            f"sums of {what} can reach {largest}, more than int64 holds: use fewer bits or inputs"
        )
    if not LOWEST <= exponent <= HIGHEST:
        raise NotIntegerError(
            f"sums of {what} have the step 2^{exponent}, outside 2^{LOWEST} ... 2^{HIGHEST}: "
            "was a scale chosen from data of zeros?"
        )
    return Fixed(exponent, 0, -largest, largest)


def check_format(fmt: Format, what: str) -> None:
    """Raise NotIntegerError unless codes of this format are what shifts give."""
    if not isinstance(fmt.element, Integer) or fmt.rounding not in SHIFT_ROUNDINGS:
        raise NotIntegerError(
            f"{what} is {fmt}, which a shift cannot give: use integers without stochastic rounding"
        )
    if reason := why_no_integers(fmt):
        raise NotIntegerError(f"{what} is {fmt}, {reason}")
    check_scale(fmt, what)


def check_scale(fmt: Format, what: str) -> None:
    """Raise NotIntegerError unless scales of this format are powers of two with nothing added."""
    if not isinstance(fmt.scale, PowerOfTwo):
        raise NotIntegerError(
            f"{what} is {fmt}: requantizing by a shift needs a power-of-two scale, "
            f"pow2/RULE or e8m0/RULE, not {fmt.scale}"
        )
    if fmt.offset is not None or fmt.zero is not None:
        raise NotIntegerError(
            f"{what} is {fmt}: it adds a float offset to its codes, and integers cannot: use 'asym'"
        )


def steps(qparams: QParams, fmt: Format, what: str) -> Tensor:
    """The steps, powers of two. Raises NotIntegerError for others."""
    step = step_of(qparams, fmt)
    if not bool(step.isfinite().all()):
        raise NotIntegerError(
            f"{what} has a scale that is NaN, chosen from NaN or infinity: calibrate on finite data"
        )
    if not bool(((step > 0) & (mantissa(step) == 0)).all()):
        raise NotIntegerError(
            f"{what} has a scale that is not a power of two: use pow2/RULE or e8m0/RULE"
        )
    return step


def fixed_of(fmt: Format, scale: Tensor | None, zero_point: Tensor | None, what: str) -> Fixed:
    """What codes of a static format mean. Raises NotIntegerError where they are no integers with
    one power of two for a scale."""
    check_format(fmt, what)
    if scale is None:
        raise NotIntegerError(
            f"{what} chooses its scale at run time: use a static scale (bs.calibrate chooses it)"
        )
    if scale.numel() != 1:
        raise NotIntegerError(
            f"{what} is {fmt}: a sum needs one scale, and this has one for each channel: use "
            "'tensor'"
        )
    low, high = (int(limit) for limit in fmt.element.limits(fmt.wide))
    zero = 0 if zero_point is None else int(zero_point)
    step = steps(QParams(scale.reshape(1), None, None), fmt, what)
    return Fixed(int(exponent(step)), zero, low, high, str(fmt))


def int32(values: int | list[int] | Tensor) -> Tensor:
    """Shifts as a tensor [n] int32, as far as any shift goes."""
    return torch.as_tensor(values, dtype=torch.int64).reshape(-1).clamp(-62, 62).to(torch.int32)
