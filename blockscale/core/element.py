# SPDX-License-Identifier: BSD-3-Clause
"""What one stored number can be: the element of a number format.

An element is a finite set of values, each with a code of a few bits. It turns a number that was
divided by its block's step into a code (`encode`), and a code into its value (`decode`). It knows
nothing of blocks and scales. Each family of elements is a file in `blockscale/core/elements/`.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from blockscale.core.block import Blocks
from blockscale.core.rounding import Round


@dataclass(frozen=True)
class ElementNumbers:
    """All that a kernel has to know of an element to encode and decode it.

    family: how codes are computed, a name that each backend knows or does not know: "integer" (the
        code is the value), "minifloat" (sign, exponent, mantissa), "binary" (the code is a sign)
        or "codebook" (the code is a place in a table)
    bits, signed: of one code
    low, high: the smallest and largest code of an integer, of other families the extreme values
    smallest_normal: the smallest positive value that has the element's full precision
    statistic: what a block's scale is chosen from where the format has no zero point and no
        `full` range: "magnitude" (the largest), "high" (the largest value), "mean" (of the
        magnitudes) or "mean_above" (of those above ternary's threshold); docs/numerics.md, 3.1, 3.2
    mbits, bias: of a minifloat, its mantissa bits and what is subtracted from its exponent
    max_code: of a minifloat, the largest magnitude code that is a number
    nan, infinity: the magnitude codes that mean NaN and infinity, or -1
    values: of a codebook, the value of each of the 2^bits codes; NaN where a code means nothing
    order: of a codebook, its codes by value
    thresholds: of a codebook, float32: y becomes order[how many of them are below y], where -0 is
        below 0
    """

    family: str
    bits: int
    signed: bool
    low: float
    high: float
    smallest_normal: float
    statistic: str
    mbits: int = 0
    bias: int = 0
    max_code: int = 0
    nan: int = -1
    infinity: int = -1
    values: tuple[float, ...] = ()
    order: tuple[int, ...] = ()
    thresholds: tuple[float, ...] = ()


class Element(ABC):
    """A finite set of values with codes of `bits` bits.

    Subclasses are frozen dataclasses: elements are compared, hashed and pickled by value.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "numbers" not in vars(cls):  # its codes may mean something else than its parent's
            cls.numbers = Element.numbers  # type: ignore[method-assign]

    @property
    @abstractmethod
    def name(self) -> str:
        """Its name in the spelling of a format, such as `e2m1`."""

    @property
    @abstractmethod
    def bits(self) -> int:
        """How many bits a stored code has."""

    @property
    @abstractmethod
    def max(self) -> float:
        """The largest value."""

    @property
    @abstractmethod
    def smallest(self) -> float:
        """The smallest positive value."""

    @property
    def smallest_normal(self) -> float:
        """The smallest positive value that has the element's full precision."""
        return self.smallest

    @property
    def mbits(self) -> int:
        """The mantissa bits of `max`, without the leading one (docs/numerics.md, 1.1)."""
        return 0

    @property
    def signed(self) -> bool:
        """Whether it has negative values."""
        return True

    @property
    def integer(self) -> bool:
        """Whether its values are all integers of a range, and a code is its value.

        Only then do the options `asym` (a zero point), `full` and `half` have a meaning.
        """
        return False

    @property
    def uses_range(self) -> bool:
        """Whether a block's scale is chosen from its range, and not from a mean (`magnitude`)."""
        return True

    @property
    def learned(self) -> bool:
        """Whether its values are learned from each tensor and stored beside the codes."""
        return False

    def with_book(self, book: Tensor | None) -> "Element":
        """The element of a tensor with this part `book`: itself, unless its values are learned.

        Raises ValueError for a learned one without a table, of another size, or with NaN or
        infinity.
        """
        del book
        return self

    @property
    def by_sign(self) -> bool:
        """Whether the sign of a block's scale says which of two grids its codes are of; then it has
        `bound`, which gives the element of a tensor (blockscale.core.elements.int_float)."""
        return False

    def limits(self, wide: bool) -> tuple[float, float]:
        """The smallest and the largest value.

        wide: with the value -2^(bits-1), which signed integers have only under the options `asym`,
            `full` and `half`.
        """
        del wide
        return (-self.max if self.signed else 0.0), self.max

    @property
    def fraction_bits(self) -> int:
        """The implicit exponent f under an e8m0 scale (docs/numerics.md, 1.3)."""
        return 0

    @property
    def grain(self) -> int | None:
        """Bits behind the point of its values, which are integers times 2^-grain; None where they
        are no integers times a power of two of at most 15 bits. Logarithms may go below 2^-14: a
        bias is counted in steps of 2^-grain all the same (docs/numerics.md, 7.1)."""
        return None

    @property
    def nan_code(self) -> int | None:
        """The code that means NaN; None where there is none."""
        return None

    @property
    def code_dtype(self) -> torch.dtype:
        """The dtype of codes that are not packed, one a tensor element."""
        return torch.uint8

    @property
    def roundings_matter(self) -> bool:
        """Whether the rounding mode changes codes: not where only the sign counts, for example."""
        return True

    @abstractmethod
    def encode(self, y: Tensor, rounding: Round, zero_point: Tensor | None, wide: bool) -> Tensor:
        """Y [...] float32, numbers divided by their block's step -> codes [...] of `code_dtype`.

        Numbers out of range saturate. NaN becomes `nan_code` or else the code of zero.

        rounding: which of two neighbouring values a number between them becomes.
        zero_point: float32 that broadcasts with y, added to the rounded number; None where the
            format has none. Only integers are given one.
        wide: as in `limits`.
        """

    @abstractmethod
    def decode(self, codes: Tensor) -> Tensor:
        """Codes [...] of `code_dtype` -> their values [...] float32."""

    @abstractmethod
    def in_range(self, y: Tensor, rounding: Round, zero_point: Tensor | None, wide: bool) -> Tensor:
        """Where `encode` of the same arguments does not saturate: bool [...], False for NaN."""

    def magnitude(self, blocks: Blocks) -> Tensor | None:
        """What each block's scale is chosen from, in place of its smallest and largest value.

        One float32 per block [scale's shape], which the scale times `max` is to reach; None, the
        default, where the range of the block decides.
        """
        del blocks
        return None

    def numbers(self, wide: bool) -> ElementNumbers | None:
        """What kernels need of it, or None: no kernel knows such elements, the reference runs.

        Never inherited: each class that a kernel may compute says so itself. `wide` admits
        -2^(bits-1), as in `encode`.
        """
        del wide
        return None

    def to_bits(self, codes: Tensor) -> Tensor:
        """Codes [...] -> bit patterns [...] in the low `bits` bits of uint8, int32 above 8 bits."""
        whole = codes.to(torch.uint8 if self.bits <= 8 else torch.int32)
        return whole.bitwise_and(2**self.bits - 1)

    def from_bits(self, patterns: Tensor) -> Tensor:
        """Bit patterns [...] as `to_bits` gives -> codes [...] of `code_dtype`."""
        return patterns.to(self.code_dtype)
