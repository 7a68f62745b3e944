"""QuantizationParams: a format, and a scale where one was chosen beforehand."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TypeAlias

import torch
from torch import Tensor

from blockscale.core.format import Format
from blockscale.core.parse import parse
from blockscale.ops.quantize import quantize
from blockscale.ops.tensor import QTensor


@dataclass(frozen=True, eq=False)
class QuantizationParams:
    """A format, and a stored scale and zero point; without them each tensor chooses its own."""

    format: Format
    scale: "Tensor | QTensor | None" = None
    zero_point: Tensor | None = None

    @classmethod
    def of(cls, given: "ParamsLike") -> "QuantizationParams":
        """From itself, a format, its name or its spelling. Raises ValueError as `bs.parse`."""
        return given if isinstance(given, QuantizationParams) else cls(parse(given))

    @classmethod
    def int8_symmetric(cls) -> "QuantizationParams":
        """8-bit integers under one scale: `int8`."""
        return cls(parse("int8"))

    @classmethod
    def uint8_asymmetric(cls) -> "QuantizationParams":
        """8-bit integers from 0, a scale and a zero point: `uint8`."""
        return cls(parse("uint8"))

    @classmethod
    def int4_symmetric(cls) -> "QuantizationParams":
        """4-bit integers under one scale."""
        return cls(parse("int4:tensor:fp32"))

    @classmethod
    def int8_channel_wise(cls, axis: int = 0) -> "QuantizationParams":
        """8-bit integers, a scale for each index along `axis`."""
        return cls(parse(f"int8:channel{axis}:fp32"))

    @classmethod
    def int4_block_wise(cls, block: int = 128) -> "QuantizationParams":
        """4-bit integers, a scale for each `block` elements along the last dimension."""
        return cls(parse(f"int4:group{block}:fp32"))

    def quantize(self, x: Tensor) -> QTensor:
        """x [...] in the format. Raises as `bs.quantize`."""
        return quantize(x, self.format, self.scale, self.zero_point)

    def layout(self, shape: Sequence[int]) -> "QuantizedMemoryLayout":
        """What a tensor of `shape` is stored as. Raises ValueError where blocks do not fit it."""
        return QuantizedMemoryLayout.of(self.format, shape)


ParamsLike: TypeAlias = str | Format | QuantizationParams


@dataclass(frozen=True)
class QuantizedMemoryLayout:
    """The tensors that a quantized one is stored as, and their bytes (docs/numerics.md, 6).

    parts: {"codes", "scale", …: (dtype, shape)}; bytes: of all; bits: an element, with everything
    """

    parts: dict[str, tuple[torch.dtype, tuple[int, ...]]]
    bytes: int
    bits: float

    @classmethod
    def of(cls, fmt: Format, shape: Sequence[int]) -> "QuantizedMemoryLayout":
        """Of a tensor of `shape`."""
        own, nbytes = tuple(shape), fmt.nbytes(shape)
        parts = {"codes": fmt.packed(own), **fmt.stored(own)}
        return cls(parts, nbytes, 8 * nbytes / max(prod(own), 1))


def create_optimal_params(
    sample: Tensor, bits: int = 8, accuracy_priority: bool = True
) -> QuantizationParams:
    """The format of at most about `bits` bits that a sample is best kept in.

    accuracy_priority: of the formats of FORMATS with as many bits, the one with the least rounding
        error on the sample; otherwise the one whose scale spans most: a scale for each tensor
    Raises ValueError for a number of bits that FORMATS has none of.
    """
    if bits not in FORMATS:
        raise ValueError(f"no formats of {bits} bits here; there are {sorted(FORMATS)}")
    names = FORMATS[bits]
    if not accuracy_priority:
        return QuantizationParams(parse(names[0]))
    x = sample.detach().float()
    errors = {name: float((quantize(x, name).dequantize() - x).square().sum()) for name in names}
    return QuantizationParams(parse(min(names, key=lambda name: errors[name])))


# {bits of a code: formats, the one with the fewest scales first}
FORMATS = {
    2: ("int2:tensor:fp32", "int2:group64:fp16"),
    3: ("int3:tensor:fp32", "int3:group64:fp16"),
    4: ("int4:tensor:fp32", "mxfp4", "nf4:group64:fp16", "int4:group64:fp16"),
    6: ("int6:tensor:fp32", "mxfp6", "mxfp6_e2m3", "int6:group64:fp16"),
    8: ("int8", "mxfp8", "uint8", "int8_channel", "int8:group64:fp16"),
    16: ("int16", "bfp16"),
}
