# SPDX-License-Identifier: BSD-3-Clause
"""The shapes of the primitives' outputs, for graphs with symbolic sizes.

torch.library.opcheck compares each with what its reference gives.
"""

import torch
from torch import Tensor

from blockscale.core.format import Format
from blockscale.core.operand import Operand, Quantizer
from blockscale.core.pack import packed_dtype, packed_size
from blockscale.core.parse import parse


def packed(x: Tensor, fmt: Format) -> Tensor:
    """x [..., k] -> an empty tensor as its packed codes are."""
    rows = x.shape or (1,)
    shape = (*rows[:-1], packed_size(fmt.element, rows[-1]))
    return x.new_empty(shape, dtype=packed_dtype(fmt.element))


def choose_qparams(x: Tensor, fmt: str) -> list[Tensor]:
    """[scale, and what else the format has], empty."""
    form = parse(fmt)
    return [x.new_empty(shape, dtype=dtype) for dtype, shape in form.stored(x.shape).values()]


def choose_beside(x: Tensor, outer: Tensor, fmt: str) -> list[Tensor]:
    """[scale, and what else the format has but for the outer scale], empty."""
    del outer
    kinds = parse(fmt).stored(x.shape)
    return [x.new_empty(shape, dtype=d) for name, (d, shape) in kinds.items() if name != "outer"]


def quantize(x: Tensor, by: Quantizer) -> Tensor:
    """Packed codes, empty."""
    return packed(x, by.format)


def choose_quantize(x: Tensor, fmt: str, seed: Tensor | None) -> list[Tensor]:
    """Packed codes and what choose_qparams gives, empty."""
    del seed
    return [packed(x, parse(fmt)), *choose_qparams(x, fmt)]


def pack(codes: Tensor, fmt: str) -> Tensor:
    """Packed codes, empty."""
    return packed(codes, parse(fmt))


def unpack(packed: Tensor, fmt: str, size: int) -> Tensor:
    """Codes, empty."""
    dtype = parse(fmt).element.code_dtype
    return packed.new_empty((*packed.shape[:-1], size), dtype=dtype)


def dequantize(packed: Operand, dtype: torch.dtype) -> Tensor:
    """Values, empty."""
    return packed.codes.new_empty(packed.shape, dtype=dtype)


def like_first(x: Tensor, *_: object) -> Tensor:
    """An empty tensor with the shape, dtype and strides of the first argument."""
    return torch.empty_like(x)
