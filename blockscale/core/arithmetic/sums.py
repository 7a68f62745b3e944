# SPDX-License-Identifier: BSD-3-Clause
"""Integers that sums of products of codes can add: a layer's bias (docs/numerics.md, 7.1).

In integer hardware a layer adds up products of codes, each worth input step x weight step, and its
bias has to come in that unit (Jacob et al. 2018, arXiv 1712.05877, section 2.4, equation 11).
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from blockscale.core.arithmetic.precision import FLT_MAX, FLT_SMALLEST, exponent, pow2

# Means of magnitudes that no order of summation changes (docs/numerics.md, 3.2).
#
# Each magnitude becomes a whole number of units of 2^(e - 30), where 2^e is about the largest
# magnitude of its block. Sums of whole numbers are exact, so a block may be summed in pieces.


def unit_exponent(largest: Tensor) -> Tensor:
    """The largest finite magnitude of each block [...] float32 -> e [...] int32; 0 for a zero."""
    return exponent(torch.where(largest > 0, largest, 1.0)).clamp(min=-126)


def in_units(size: Tensor, power: Tensor) -> Tensor:
    """Finite magnitudes [...] float32 -> units of 2^(power - 30), rounded down [...] int64.

    power: `unit_exponent` of the block of each, broadcastable to `size`.
    """
    shift = 30 - power  # two factors: 2^156 is not a float32
    half = shift.div(2, rounding_mode="floor")
    return (size * pow2(half) * pow2(shift - half)).to(torch.int64)


def mean_of(total: Tensor, count: Tensor, power: Tensor) -> Tensor:
    """Sums of units [...] int64 of `count` elements each -> their mean [...] float32; 0 of none."""
    mean = total.to(torch.float32) / count.clamp(min=1).to(torch.float32)
    return mean * 2.0**-30 * pow2(power)


INT32_MAX = 2**31 - 1
FARTHEST_LEFT = 31  # bits by which sums are shifted to the left at most
_DEAD = 2.0**-7  # the step of weights that are all zero: that of int8 weights up to 1


@dataclass(frozen=True)
class SumInteger:
    """Integers in steps of a layer's sums: `SumInteger(32)` is `int32:sums`, or `int32` for short.

    The step of an output is the input's step times the weight's step of that output. Codes go from
    -(2^(bits-1) - 1) to 2^(bits-1) - 1. Raises ValueError for other than 2 to 32 bits.
    """

    bits: int = 32

    def __post_init__(self) -> None:
        if not 2 <= self.bits <= 32:
            raise ValueError(f"int{self.bits}:sums: a bias must have 2 to 32 bits")

    def __str__(self) -> str:
        return f"int{self.bits}:sums"

    @property
    def largest(self) -> int:
        """The largest code; the smallest is its negative."""
        return int(2 ** (self.bits - 1) - 1)

    @property
    def code_dtype(self) -> torch.dtype:
        """The dtype of its codes."""
        if self.bits > 16:
            return torch.int32
        return torch.int8 if self.bits <= 8 else torch.int16

    def parts(self, shape: tuple[int, ...]) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
        """{part: (dtype, shape)} of what a bias of `shape` is stored as. Raises ValueError for a
        tensor that is no vector.
        """
        if len(shape) != 1:
            raise ValueError(f"{self} is for a bias [n], found shape {shape}")
        return {"codes": (self.code_dtype, shape), "scale": (torch.float32, shape)}

    def encode(self, bias: Tensor, steps: Tensor) -> Tensor:
        """bias [n], steps [n] float32 -> codes [n]: clamp(round_half_even(fl64(bias / step))).

        bias: float32, bfloat16 or float16. NaN gives 0, infinity saturates.
        """
        rounded = _rounded(bias, steps)
        whole = torch.where(rounded.isnan(), 0.0, rounded).clamp(-self.largest, self.largest)
        return whole.to(self.code_dtype)

    def decode(self, codes: Tensor, steps: Tensor) -> Tensor:
        """codes [n], steps [n] -> values [n] float32: fl(fl(code) * step)."""
        return codes * steps  # torch makes float32 of the codes first; one op, at every call

    def in_range(self, bias: Tensor, steps: Tensor) -> Tensor:
        """Where `encode` neither saturates nor meets a NaN, so that a gradient passes: bool [n]."""
        return _rounded(bias, steps).abs() <= self.largest  # NaN is not


def live_steps(steps: Tensor, dead: Tensor) -> Tensor:
    """The steps [n] of a weight's outputs, with others in the place of those that say nothing.

    dead: bool [n], outputs whose weights are all 0. Their scale is the smallest there is, and no
    bias could be counted in it; any step serves the sums of zeros. They get the largest one of the
    others, and 2^-7 where there are no others.
    """
    if not steps.numel():
        return steps
    sizes = steps.abs()
    largest = torch.where(dead | ~sizes.isfinite(), 0.0, sizes).amax()
    return torch.where(dead, torch.where(largest > 0, largest, _DEAD), steps)


def sum_steps(input_step: Tensor, weight_steps: Tensor) -> Tensor:
    """The input's step [1] and the weight's [n] -> those of the sums [n]: fl(input · weight).

    What float32 cannot hold becomes its smallest or largest number.
    """
    steps = (input_step.reshape(()) * weight_steps).clamp(-FLT_MAX, FLT_MAX)
    return torch.where(steps == 0, FLT_SMALLEST, steps)


def _rounded(bias: Tensor, steps: Tensor) -> Tensor:
    """round_half_even(fl64(bias / step)), float64 as its quotient: float32 has no room for 32 bits,
    and would make ties of what is none.
    """
    return (bias.to(torch.float64) / steps.to(torch.float64)).round()


def accumulator(largest: int) -> torch.dtype:
    """What holds sums that reach `largest` in magnitude."""
    return torch.int32 if largest <= INT32_MAX else torch.int64


# Digests of bits, which are sums as well: quick on a GPU, where bits need not leave it.

_WORDS, _WORDS_ELSEWHERE = 1 << 15, 1 << 22  # mixed at once: what a core's cache holds; a launch
_PLACE = 0x9E3779B97F4A7C15
_MIXES = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))


def digest(x: Tensor) -> Tensor:
    """Any tensor -> [] int64 of its bits on its device, the same on every device: of each 8 bytes
    and their place, mixed (Steele, Lea, Flood: "Fast splittable pseudorandom number generators",
    OOPSLA 2014, figure 16, MIX64VARIANT13), the sum modulo 2^64. Bits that differ within 8 bytes
    always change it, others but for a chance of 2^-64. Shape and dtype do not count."""
    data = x.detach().contiguous().flatten().view(torch.uint8)
    words = F.pad(data, (0, -len(data) % 8 or 8 * (not len(data)))).view(torch.int64)  # a copy
    count = _WORDS if x.device.type == "cpu" else _WORDS_ELSEWHERE
    places = torch.arange(1, min(count, len(words)) + 1, device=x.device) * _int64(_PLACE)
    total = torch.zeros((), dtype=torch.int64, device=x.device)
    for start in range(0, len(words), count):  # of nothing one word of zeros
        some = words[start : start + count]
        mix = (places[: len(some)] + _int64(start * _PLACE)).bitwise_xor_(some)
        for shift, factor in _MIXES:
            mix.bitwise_xor_(_right(mix, shift)).mul_(_int64(factor))
        total += mix.bitwise_xor_(_right(mix, 31)).sum()
    return total


def _int64(word: int) -> int:
    """The int64 of these 64 bits."""
    return (word + 2**63) % 2**64 - 2**63


def _right(words: Tensor, by: int) -> Tensor:
    """Words shifted to the right, with zeros from the left."""
    return (words >> by).bitwise_and_((1 << (64 - by)) - 1)
