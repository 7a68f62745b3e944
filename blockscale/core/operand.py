# SPDX-License-Identifier: BSD-3-Clause
"""What ops and kernels compute with: a quantized tensor, and how a float tensor becomes one.

Plain tuples, because they are made at every call; a torch op sees their parts (blockscale.ops.op).
"""

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from blockscale.core.format import Format
from blockscale.core.parse import parse
from blockscale.core.reference import QParams


class Operand(NamedTuple):
    """A quantized tensor as ops take it.

    codes:      packed codes [..., packed_size(size)] (docs/numerics.md, section 6)
    scale:      the stored scale, of the tensor's rank
    zero_point: int32 of the scale's shape, where the format is asym
    outer:      the scale's own scale, where the format has two levels
    fmt:        the spelling of the format that says what they mean
    size:       codes in a row of the last dimension, which packing hides
    more:       further parts that the format has, in the order of Format.parts; None without any
    """

    codes: Tensor
    scale: Tensor
    zero_point: Tensor | None
    outer: Tensor | None
    fmt: str
    size: int
    more: Sequence[Tensor] | None = None

    @property
    def format(self) -> Format:
        """The format that `fmt` spells."""
        return parse(self.fmt)

    @property
    def qparams(self) -> QParams:
        """All parts beside the codes, as the reference takes them."""
        if not self.more:
            return QParams(self.scale, self.outer, self.zero_point)
        return whole(self.scale, self.outer, self.zero_point, self.more, self.fmt)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the tensor that was quantized; () for one code whose scale is of rank 0."""
        if self.scale.ndim or self.codes.ndim > 1 or self.size != 1:
            return (*self.codes.shape[:-1], self.size)
        return ()


class Quantizer(NamedTuple):
    """How a float tensor becomes codes.

    scale, zero_point, outer, more: as in Operand; without a scale, each tensor chooses its own
    fmt:  the spelling of the format; empty where the tensor stays as it is
    seed: int64 [] or [2] (seed, index of the first element), for stochastic rounding
    """

    scale: Tensor | None
    zero_point: Tensor | None
    outer: Tensor | None
    fmt: str
    seed: Tensor | None = None
    more: Sequence[Tensor] | None = None

    @property
    def format(self) -> Format:
        """The format that `fmt` spells."""
        return parse(self.fmt)

    @property
    def qparams(self) -> QParams | None:
        """All parts beside the codes, as the reference takes them; None without a scale."""
        if self.scale is None:
            return None
        return whole(self.scale, self.outer, self.zero_point, self.more or (), self.fmt)


class Value(NamedTuple):
    """A tensor as fused ops take it: floats where `fmt` is empty, else packed codes.

    data: floats [...], of which nothing else is said; or codes, with all that an Operand has
    """

    data: Tensor
    scale: Tensor | None = None
    zero_point: Tensor | None = None
    outer: Tensor | None = None
    fmt: str = ""
    size: int = 0
    more: Sequence[Tensor] | None = None

    @property
    def operand(self) -> Operand:
        """The codes as an operand. Raises ValueError for floats."""
        if not self.fmt or self.scale is None:
            raise ValueError(
                "a scale was passed with floats: pass codes and the format they are in, or "
                "leave the scale out"
            )
        return Operand(self.data, *self[1:])  # type: ignore[arg-type]


def part_names(fmt: str) -> tuple[str, ...]:
    """Format.parts of a spelling. Not traced: a graph takes the names for constants."""
    return parse(fmt).parts


part_names._dynamo_marked_constant = True  # type: ignore[attr-defined]

FIRST = ("scale", "outer", "zero_point")  # what operands name themselves; the rest is `more`


def whole(
    scale: Tensor,
    outer: Tensor | None,
    zero_point: Tensor | None,
    more: Sequence[Tensor],
    fmt: str,
) -> QParams:
    """The parts of an operand as one. Raises ValueError if `more` is not what the format has."""
    names = [name for name in part_names(fmt) if name not in FIRST]
    if len(names) != len(more):
        raise ValueError(
            f"{fmt}: expected {len(names)} more tensors ({', '.join(names) or 'none'}), found "
            f"{len(more)}"
        )
    return QParams(scale, outer, zero_point, **dict(zip(names, more, strict=True)))


def further(qparams: QParams) -> list[Tensor] | None:
    """What an operand's `more` holds of these parts: None without any."""
    if qparams[3:] == _NONE:
        return None
    return [part for part in qparams[3:] if part is not None]


_NONE = (None,) * (len(QParams._fields) - 3)


def operand(codes: Tensor, qparams: QParams, fmt: Format | str, size: int) -> Operand:
    """Packed codes and what stands beside them, as ops take them."""
    scale, outer, zero_point = qparams[:3]
    return Operand(codes, scale, zero_point, outer, str(fmt), size, further(qparams))


def quantizer(qparams: QParams | None, fmt: Format | str, seed: Tensor | None = None) -> Quantizer:
    """A format and, if given, the scale in it, as ops take them."""
    if qparams is None:
        return Quantizer(None, None, None, str(fmt), seed)
    scale, outer, zero_point = qparams[:3]
    return Quantizer(scale, zero_point, outer, str(fmt), seed, further(qparams))


UNQUANTIZED = Quantizer(None, None, None, "")
