"""What ops and kernels compute with: a quantized tensor, and how a float tensor becomes one.

Plain tuples, because they are made at every call; a torch op sees their parts (blockscale.ops.op).
"""

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
    """

    codes: Tensor
    scale: Tensor
    zero_point: Tensor | None
    outer: Tensor | None
    fmt: str
    size: int

    @property
    def format(self) -> Format:
        """The format that `fmt` spells."""
        return parse(self.fmt)

    @property
    def qparams(self) -> QParams:
        """Scale, outer scale and zero point, as the reference takes them."""
        return QParams(self.scale, self.outer, self.zero_point)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the tensor that was quantized; () where the scale has no dimension."""
        return (*self.codes.shape[:-1], self.size) if self.scale.ndim else ()


class Quantizer(NamedTuple):
    """How a float tensor becomes codes.

    scale, zero_point, outer: as in Operand; without a scale, each tensor chooses its own
    fmt:  the spelling of the format; empty where the tensor stays as it is
    seed: int64 [] or [2] (seed, index of the first element), for stochastic rounding
    """

    scale: Tensor | None
    zero_point: Tensor | None
    outer: Tensor | None
    fmt: str
    seed: Tensor | None = None

    @property
    def format(self) -> Format:
        """The format that `fmt` spells."""
        return parse(self.fmt)

    @property
    def qparams(self) -> QParams | None:
        """Scale, outer scale and zero point, as the reference takes them; None without a scale."""
        if self.scale is None:
            return None
        return QParams(self.scale, self.outer, self.zero_point)


def quantizer(qparams: QParams | None, fmt: Format | str, seed: Tensor | None = None) -> Quantizer:
    """A format and, if given, the scale in it, as ops take them."""
    if qparams is None:
        return Quantizer(None, None, None, str(fmt), seed)
    return Quantizer(qparams.scale, qparams.zero_point, qparams.outer, str(fmt), seed)


UNQUANTIZED = Quantizer(None, None, None, "")
