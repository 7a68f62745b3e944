# SPDX-License-Identifier: BSD-3-Clause
"""The proof: what was written, read back, has the values of what was to be written, bit for bit."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from blockscale.core.untrusted import FileError, quote
from blockscale.export.conversion.directory import dequantized, rows_of_slab
from blockscale.export.conversion.same_numbers import meaning, same_bytes, same_numbers
from blockscale.ops.tensor import QTensor

# What a conversion did, tensor by tensor: plain data.


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


_NEAR = 2.0**-80  # of sums of squares: single ones that are lost in float32 do not count beside it


class Proof(NamedTuple):
    """What a comparison showed.

    basis: what was compared, "codes" (and what stands beside them, which is the same) or "values"
    zeros: how many zeros have another sign, which is no other value
    """

    basis: str
    zeros: int = 0


def prove(name: str, before: QTensor | Tensor, after: QTensor | Tensor) -> Proof:
    """Compare a tensor with what was read back. Raises FileError where a value differs."""
    if isinstance(before, QTensor) and isinstance(after, QTensor) and _same_codes(before, after):
        return Proof("codes")
    if tuple(before.shape) != tuple(after.shape):
        raise FileError(
            f"{quote(name)}: written with shape {list(before.shape)}, read back with "
            f"{list(after.shape)}: the output was deleted. This is a bug"
        )
    if isinstance(before, QTensor) and isinstance(after, QTensor):
        signs = same_numbers(before, after)
        if signs is not None:
            return Proof("codes", signs)
    zeros = wrong = 0
    for one, other in values(before, after):
        if not same_bytes(one, other):
            equal = (one == other) | (one.isnan() & other.isnan())
            wrong += int((~equal).sum())
            zeros += int((equal & (one == 0) & (one.signbit() != other.signbit())).sum())
    if wrong:
        raise FileError(
            f"{quote(name)}: {wrong} values differ from the source when read back: the "
            "output was deleted. This is a bug"
        )
    return Proof("values", zeros)


class Error(NamedTuple):
    """relative: norm of the difference over that of the values; sqnr: in dB, None without any."""

    relative: float
    sqnr: float | None


def error_of(before: QTensor | Tensor, after: QTensor | Tensor) -> Error:
    """How far the values are from those before."""
    power = noise = 0.0
    for one, other in values(before, after):
        power += _sum_of_squares(one)
        noise += _sum_of_squares(other - one)
    relative = (noise / power) ** 0.5 if power else (0.0 if not noise else float("inf"))
    return Error(relative, None if not noise or not power else 10 * _log10(power / noise))


def _sum_of_squares(x: Tensor) -> float:
    """In float32, whose sums in halves are seven digits good; in float64 where squares are far
    from 1, or the numbers are not finite."""
    result = float(x.square().sum())
    if _NEAR < result < 1 / _NEAR:
        return result
    return float(x.to(torch.float64).square().sum())


def _log10(ratio: float) -> float:
    return float(torch.tensor(ratio, dtype=torch.float64).log10())


def values(one: QTensor | Tensor, other: QTensor | Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """float32 values of two tensors of one shape, a few rows of both at a time."""
    rows = rows_of_slab(tuple(one.shape))
    yield from zip(dequantized(one, rows), dequantized(other, rows), strict=True)


def _same_codes(one: QTensor, other: QTensor) -> bool:
    if meaning(one.format) != meaning(other.format) or tuple(one.shape) != tuple(other.shape):
        return False
    parts = [(one.packed, other.packed), *zip(one.qparams, other.qparams, strict=True)]
    return all(
        a is b is None or (a is not None and b is not None and same_bytes(a, b)) for a, b in parts
    )
