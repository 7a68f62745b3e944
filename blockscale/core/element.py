"""What one stored number can be: the element of a number format.

Each family of elements is a file in `elements/`; it defines `read(name)`, which returns its element
of that name or None. An element turns numbers counted in steps into codes and back. It knows
nothing of blocks and scales.
"""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from blockscale.core.block import Blocks
from blockscale.core.rounding import Round


class Element(ABC):
    """A finite set of values with codes of `bits` bits. Subclasses are frozen dataclasses."""

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

    def to_bits(self, codes: Tensor) -> Tensor:
        """Codes [...] -> bit patterns [...] in the low `bits` bits of a uint8 or int32."""
        whole = codes.to(torch.uint8 if self.bits <= 8 else torch.int32)
        return whole.bitwise_and(2**self.bits - 1)

    def from_bits(self, patterns: Tensor) -> Tensor:
        """Bit patterns [...] as `to_bits` gives -> codes [...] of `code_dtype`."""
        return patterns.to(self.code_dtype)
