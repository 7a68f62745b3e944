# SPDX-License-Identifier: BSD-3-Clause
"""Codebooks: elements whose values are a table, `nf4`, `fp4`, `iq4_nl`, `book(-1,0,1)`.

`nf4` is NormalFloat of QLoRA (Dettmers et al., 2023, appendix E) and `fp4` the four-bit float of
bitsandbytes, with its order of codes; `iq4_nl` is the table of ggml's IQ4_NL and IQ4_XS, `dynamic8`
that of bitsandbytes' eight-bit dynamic quantization, which stores the scales of its double one.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache, cached_property
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from blockscale.core.element import Element, ElementNumbers
from blockscale.core.rounding import Round
from blockscale.core.scale import Levels
from blockscale.core.torch_private import dispatch_modes
from blockscale.core.untrusted import quote

# Tables of Python numbers as tensors, also where a graph is being traced.


def table(values: Sequence[float], dtype: torch.dtype, like: Tensor) -> Tensor:
    """The values as a tensor [len(values)] of `dtype` on the device of `like`.

    A graph that is traced below autograd takes no constant tensors (torch 2.13: "expected to have
    an entirely functional graph"). There it holds the numbers themselves, one by one; so does a
    CUDA graph that is being recorded, which copies nothing from this machine's memory.
    """
    if dispatch_modes() or (like.is_cuda and torch.cuda.is_current_stream_capturing()):
        return torch.stack([like.new_full((), value, dtype=dtype) for value in values])
    return torch.tensor(values, dtype=dtype, device=like.device)


SPELLINGS = (
    "nf4, fp4 and dynamic8 (of bitsandbytes), iq4_nl, book(VALUE,VALUE,…) of 2 to 256 values"
)
EXAMPLES = (
    "nf4",
    "fp4",
    "iq4_nl",
    "book(-1,-0.5,0,0.5,1)",
    "book(0,1)",
    "book(0.25,-3,1e-05,7)",
    "book(0,0.5,1,2,-0,-0.5,-1,-2)",
    f"book({','.join(str(k) for k in range(-100, 101, 2))})",
)
TIES = ("zero", "down", "up")


@dataclass(frozen=True)
class Codebook(Element):
    """A table of values by code; a number becomes the code of the nearest value.

    table: float32 numbers, of which none is there twice; 0 and -0 are two, and a number with a
        minus sign that is nearest to both becomes -0. Codes from len(table) on mean NaN and are
        not written.
    ties: what a number halfway between two values becomes: "down" the smaller, "up" the larger,
        "zero" the one nearer to 0, and of v and -v the positive one

    Raises ValueError for a table with NaN or infinity in it, or of fewer than 2 or more than 256
    values, and for other ties.
    """

    spelling: str
    table: tuple[float, ...] = field(repr=False)
    ties: str = "zero"

    def __post_init__(self) -> None:
        if not 2 <= len(self.table) <= 256:
            raise ValueError(
                f"{self.spelling}: a table must have 2 to 256 values, got {len(self.table)}"
            )
        odd = next((i for i, value in enumerate(self.table) if not math.isfinite(value)), None)
        if odd is not None:
            raise ValueError(
                f"{self.spelling}: code {odd} of its table is {self.table[odd]}, expected a "
                "finite number. Leave it out: codes after the last value of the table mean "
                "NaN, and are never written"
            )
        if self.ties not in TIES:
            raise ValueError(
                f"{self.spelling}: unknown ties {self.ties!r}; choose from {', '.join(TIES)}"
            )

    @property
    def name(self) -> str:
        return self.spelling

    @property
    def bits(self) -> int:
        return max(1, (len(self.table) - 1).bit_length())

    @property
    def signed(self) -> bool:
        return min(self.table) < 0

    @property
    def max(self) -> float:
        """The largest value of that sign of which the largest is smaller."""
        low, high = self.limits(False)
        return min(-low, high) if self.signed else high

    @property
    def smallest(self) -> float:
        return min(value for value in self.table if value > 0)

    @property
    def mbits(self) -> int:
        return Levels.of(self.max).mbits

    @property
    def roundings_matter(self) -> bool:
        return False

    def limits(self, wide: bool) -> tuple[float, float]:
        del wide
        return min(0.0, *self.table), max(self.table)

    @cached_property
    def order(self) -> tuple[int, ...]:
        """The codes by value, -0 before 0."""
        by_value = [(value, math.copysign(1, value)) for value in self.table]
        return tuple(sorted(range(len(self.table)), key=by_value.__getitem__))

    @cached_property
    def thresholds(self) -> tuple[float, ...]:
        """Between each two neighbours of `order`: the largest float32 that becomes the smaller."""
        sorted_values = [self.table[code] for code in self.order]
        return tuple(_threshold(low, high, self.ties) for low, high in pairwise(sorted_values))

    @property
    def values(self) -> tuple[float, ...]:
        """The value of every code of `bits` bits."""
        unused = 2**self.bits - len(self.table)
        return (*self.table, *([math.nan] * unused))

    def encode(self, y: Tensor, rounding: Round, zero_point: Tensor | None, wide: bool) -> Tensor:
        del rounding, zero_point, wide
        thresholds = table(self.thresholds, torch.float32, y)
        order = table(self.order, torch.uint8, y)
        y = torch.where(y.isnan(), 0.0, y).contiguous()
        return order[torch.searchsorted(_in_order(thresholds), _in_order(y))]

    def decode(self, codes: Tensor) -> Tensor:
        return table(self.values, torch.float32, codes)[codes.to(torch.int32)]

    def in_range(self, y: Tensor, rounding: Round, zero_point: Tensor | None, wide: bool) -> Tensor:
        del rounding, zero_point
        low, high = min(self.table), self.limits(wide)[1]
        return (y >= low) & (y <= high)

    def numbers(self, wide: bool) -> ElementNumbers:
        low, high = self.limits(wide)
        return ElementNumbers(
            family="codebook",
            bits=self.bits,
            signed=self.signed,
            low=low,
            high=high,
            smallest_normal=self.smallest_normal,
            statistic="magnitude" if self.signed else "high",
            values=self.values,
            thresholds=self.thresholds,
            order=self.order,
        )


def _in_order(x: Tensor) -> Tensor:
    """x [...] float32 -> int32 in the same order, in which -0 is below 0."""
    bits = x.view(torch.int32)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


def _threshold(low: float, high: float, ties: str) -> float:
    """The largest float32 that is nearer to `low` than to `high`; `ties` decides about a tie."""
    if low == high == 0:
        return low  # -0 between -0 and 0
    middle = (Fraction(low) + Fraction(high)) / 2
    down = np.float32(float(middle))
    if Fraction(float(down)) > middle:
        down = np.nextafter(down, np.float32(-np.inf))
    tie_to_low = ties == "down" or (ties == "zero" and abs(low) < abs(high))
    if Fraction(float(down)) == middle and not tie_to_low:
        down = np.nextafter(down, np.float32(-np.inf))
    return float(down)


def shortest_decimal(value: float) -> str:
    """The shortest decimal number that float32 reads as this value."""
    text = str(np.float32(value))
    return text.removesuffix(".0")


def book(table: list[float], ties: str = "zero") -> Codebook:
    """The codebook of these values, rounded to float32 and named after them.

    Raises ValueError for values that are no finite float32, repeat, or are fewer than 2 or more
    than 256, and for a table without a positive value: a scale is positive.
    """
    with np.errstate(over="ignore"):
        values = tuple(float(np.float32(value)) for value in table)
    if not 2 <= len(values) <= 256:
        raise ValueError(f"a codebook must have 2 to 256 values, got {len(values)}")
    if not all(map(math.isfinite, values)):
        raise ValueError("the values of a codebook must be finite float32 numbers")
    names = [shortest_decimal(value) for value in values]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the codebook has {twice} twice: each value may have only one code")
    if max(values) <= 0:
        raise ValueError("a codebook needs a value above 0, because scales are positive")
    return Codebook(f"book({','.join(names)})", values, ties)


_NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
    -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
    0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
    0.7229568362236023, 1.0,
)  # fmt: skip
_FP4 = (0.0, 0.0625, 8.0, 12.0, 4.0, 6.0, 2.0, 3.0)  # magnitudes by code, in twelfths
_IQ4_NL = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


@cache
def named_codebooks() -> dict[str, Codebook]:
    """The codebooks that have a name of their own. Ties are those of their producers."""
    twelfths = [float(np.float32(value / 12)) for value in _FP4]
    return {
        "nf4": Codebook("nf4", _NF4, "down"),
        "fp4": Codebook("fp4", (*twelfths, *(-value for value in twelfths)), "zero"),
        "iq4_nl": Codebook("iq4_nl", tuple(map(float, _IQ4_NL)), "up"),
        "dynamic8": Codebook("dynamic8", _dynamic(), "zero"),
    }


def _dynamic() -> tuple[float, ...]:
    """bitsandbytes' create_dynamic_map(): for e = 0 to 6, the middles of 2^e equal parts of 0.1 to
    1, times 10^(e - 6), in float32 and of both signs; 0 and 1."""
    table = [0.0, 1.0]
    for e in range(7):
        edges = torch.linspace(0.1, 1, 2**e + 1, dtype=torch.float32)
        middles = (edges[:-1] + edges[1:]) / 2.0
        values = ((10 ** (e - 6)) * middles).tolist()
        table += values + [-value for value in values]
    return tuple(sorted(table))


def read(name: str) -> Element | None:
    """A codebook with a name of its own, or `book(…)`."""
    if name in named_codebooks():
        return named_codebooks()[name]
    match = re.fullmatch(r"book\(([^()]*)\)", name)
    if match is None:
        return None
    try:
        values = [float(text) for text in match[1].split(",")]
    except ValueError:
        raise ValueError(
            f"{quote(name)}: a codebook is written as numbers with commas between them, e.g. "
            "book(-1,-0.5,0,0.5,1)"
        ) from None
    return book(values)
