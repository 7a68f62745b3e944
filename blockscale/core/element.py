"""What one stored number can be: the element of a number format.

Each family of elements is a file in `elements/`; it defines `read(name)`, which returns its element
of that name or None. An element turns numbers counted in steps into codes and back. It knows
nothing of blocks and scales.
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
        code is the value), "minifloat" (sign, exponent, mantissa) or "binary" (the code is a sign)
    bits, signed: of one code
    low, high: the smallest and largest code of an integer, of other families the extreme values
    smallest_normal: the smallest positive value that has the element's full precision
    statistic: what a block's scale is chosen from where the format has no zero point and no
        `full` range: "magnitude" (the largest), "high" (the largest value), "mean" (of the
        magnitudes) or "mean_above" (of those above ternary's threshold); docs/numerics.md, 3.1, 3.2
    mbits, bias: of a minifloat, its mantissa bits and what is subtracted from its exponent
    max_code: of a minifloat, the largest magnitude code that is a number
    nan, infinity: the magnitude codes that mean NaN and infinity, or -1
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


class Element(ABC):
    """A finite set of values with codes of `bits` bits. Subclasses are frozen dataclasses."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "numbers" not in vars(cls):  # its codes may mean something else than its parent's
            cls.numbers = Element.numbers  # type: ignore[method-assign]

    @property
    @abstractmethod
    def name(self) -> str:
        """As it stands in a format's spelling."""

    @property
    @abstractmethod
    def bits(self) -> int:
        """Stored bits of one code."""

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
        """Mantissa bits of the largest value, without the leading one (docs/numerics.md, 1.1)."""
        return 0

    @property
    def signed(self) -> bool:
        """Whether it has negative values."""
        return True

    @property
    def fraction_bits(self) -> int:
        """The implicit exponent f under an e8m0 scale (docs/numerics.md, 1.3)."""
        return 0

    @property
    def nan_code(self) -> int | None:
        """The code that means NaN, if there is one."""
        return None

    @property
    def code_dtype(self) -> torch.dtype:
        """The dtype of unpacked codes."""
        return torch.uint8

    @property
    def roundings_matter(self) -> bool:
        """False if the element ignores the rounding mode."""
        return True

    @abstractmethod
    def encode(self, y: Tensor, rounding: Round, zero_point: Tensor | None, wide: bool) -> Tensor:
        """Y [...] float32 in steps -> codes [...] of `code_dtype`; `wide` admits -2^(bits-1)."""

    @abstractmethod
    def decode(self, codes: Tensor) -> Tensor:
        """Codes [...] -> values [...] float32."""

    @abstractmethod
    def in_range(self, y: Tensor, rounding: Round, zero_point: Tensor | None, wide: bool) -> Tensor:
        """Y [...] float32 in steps -> bool [...]: encoding it does not saturate."""

    def magnitude(self, blocks: Blocks) -> Tensor | None:
        """The numerator of a block's scale, one per block, or None: the largest magnitude."""
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
        """Codes [...] -> bit patterns [...] in the low `bits` bits of a uint8 or int32."""
        whole = codes.to(torch.uint8 if self.bits <= 8 else torch.int32)
        return whole.bitwise_and(2**self.bits - 1)

    def from_bits(self, patterns: Tensor) -> Tensor:
        """Bit patterns [...] as `to_bits` gives -> codes [...] of `code_dtype`."""
        return patterns.to(self.code_dtype)
