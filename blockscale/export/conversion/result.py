# SPDX-License-Identifier: BSD-3-Clause
"""What a conversion did, tensor by tensor: plain data."""

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Converted:
    """One tensor.

    how: "exact" (the same values), "copied" (not quantized), "dequantized" (floats now, the same
        values) or "requantized" (other values: relative and sqnr say how far)
    kind: what the source's producer calls how it was stored; compared: what was found equal when
        it was read back, "codes" or "values"
    relative: norm of the error over that of the values; sqnr: in dB, None where there is no error
    notes: what is to be known of it
    """

    name: str
    source: str
    shape: tuple[int, ...]
    how: str
    kind: str
    found: str
    written: str
    compared: str
    elements: int
    bytes_before: int
    relative: float = 0.0
    sqnr: float | None = None
    notes: tuple[str, ...] = ()


@dataclass
class Conversion:
    """A whole model. lossless: whether every value is the source's own.

    computes: what readers of the result do otherwise; left_out: {name: why}; copied: other files
    """

    source: str
    target: str
    to: str
    tensors: list[Converted] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    copied: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    computes: str = ""
    bytes_before: int = 0
    bytes_after: int = 0

    @property
    def lossless(self) -> bool:
        """Whether every tensor has the same values, as found when it was read back."""
        return all(each.how != "requantized" for each in self.tensors)

    def of(self, how: str) -> list[Converted]:
        """The tensors of which that became."""
        return [each for each in self.tensors if each.how == how]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {"lossless": self.lossless} | asdict(self)
