# SPDX-License-Identifier: BSD-3-Clause
"""torchao's bits from blockscale's kernels, where a format has them: several times as fast.

Every function returns None where none has, and plain PyTorch then computes the result: while a
graph is traced, away from the CPU, for dtypes whose arithmetic is not float32, and for numbers at
which the arithmetic of formats differs (docs/torchao.md).
"""

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from blockscale.compat.torchao.dtypes import MappingType, Rule, ZeroPointDomain
from blockscale.compat.torchao.formats import element_of
from blockscale.compat.torchao.split import Split
from blockscale.core.block import block_of
from blockscale.core.operand import Operand, Quantizer
from blockscale.core.torch_private import dispatch_modes, transforms_active
from blockscale.ops import primitives

_SMALLEST = torch.finfo(torch.float32).smallest_normal
_LARGEST = 2.0**100  # scales below it come from ranges far from overflow
_STORED = {torch.int8: "int8", torch.uint8: "uint8", torch.int16: "int16"}


def chosen(
    x: Tensor, split: Split, rule: Rule, codes: tuple[float, float], eps: float | None
) -> tuple[Tensor, Tensor | None] | None:
    """The scale [split.counts] and, if asymmetric, the zero point of each block of x."""
    domains = (ZeroPointDomain.INT, ZeroPointDomain.NONE)
    if not _eager(x) or not rule.preserve_zero or rule.domain not in domains:
        return None
    if x.dtype != torch.float32 or x.numel() < 2 or not x.sum().isfinite():
        return None
    fmt = _choosing(rule.mapping, codes, tuple(x.shape), split.counts)
    if fmt is None:
        return None
    scale, *rest = primitives.choose_qparams(x, fmt)
    smallest, largest = (bound.item() for bound in scale.aminmax())
    eps = _SMALLEST if eps is None else eps
    if largest > _LARGEST or eps < _SMALLEST or (rest and smallest < eps):
        return None
    return scale.clamp(min=eps), rest[0] if rest else None


def quantized(
    x: Tensor, split: Split, scale: Tensor, zero_point: Tensor | None, codes: tuple[float, float]
) -> Tensor | None:
    """The codes of x, in any dtype that holds them; scale and zero_point are one a block."""
    if not _eager(x) or not _eager(scale) or scale.dtype != torch.float32:
        return None
    smallest, largest = (bound.item() for bound in scale.aminmax())
    if not (smallest >= _SMALLEST and largest <= torch.finfo(torch.float32).max):
        return None
    zero, known = _zero_point(zero_point, codes, split.counts)
    fmt = _coding(codes, zero is not None, tuple(x.shape), split.counts) if known else None
    if fmt is None:
        return None
    packed = primitives.quantize(x, Quantizer(scale.reshape(split.counts), zero, None, fmt))
    if packed.shape == x.shape and packed.element_size() * 8 == _bits(fmt):
        return packed
    return primitives.unpack(packed, fmt, x.shape[-1])


def dequantized(
    codes: Tensor, split: Split, scale: Tensor, zero_point: Tensor | None, dtype: torch.dtype
) -> Tensor | None:
    """The values of codes in `dtype`; scale and zero_point are one a block."""
    differentiated = scale.requires_grad and torch.is_grad_enabled()
    if not _eager(codes) or not _eager(scale) or differentiated or scale.dtype != torch.float32:
        return None
    if codes.dtype not in _STORED or (codes.dtype == torch.int16 and dtype != torch.float32):
        return None  # in 16 bits torchao's difference of code and zero point is rounded
    info = torch.iinfo(codes.dtype)
    zero, known = _zero_point(zero_point, (info.min, info.max), split.counts)
    if not known:
        return None
    fmt = _coding((info.min, info.max), zero is not None, tuple(codes.shape), split.counts)
    assert fmt is not None
    stored = Operand(codes, scale.reshape(split.counts), zero, None, fmt, codes.shape[-1])
    return primitives.dequantize(stored, dtype)


def _eager(x: Tensor) -> bool:
    """Whether x is a tensor of numbers on the CPU that may be looked at."""
    if torch.compiler.is_compiling() or type(x) not in (Tensor, torch.nn.Parameter):
        return False
    watched = dispatch_modes() or transforms_active()
    return not watched and x.is_cpu and x.ndim > 0 and x.numel() > 0


def _zero_point(
    zero_point: Tensor | None, codes: tuple[float, float], counts: tuple[int, ...]
) -> tuple[Tensor | None, bool]:
    """The zero point as formats have it, None if it is 0 everywhere; whether they have it."""
    if zero_point is None:
        return None, True
    if zero_point.dtype.is_floating_point or not _eager(zero_point):
        return None, False
    smallest, largest = (bound.item() for bound in zero_point.aminmax())
    if smallest == largest == 0:
        return None, True
    if not codes[0] <= smallest <= largest <= codes[1]:
        return None, False
    return zero_point.to(torch.int32).reshape(counts), True


@lru_cache(1024)
def _choosing(
    mapping: MappingType,
    codes: tuple[float, float],
    shape: tuple[int, ...],
    counts: tuple[int, ...],
) -> str | None:
    """The format that chooses as torchao does, or None."""
    try:
        element, options = element_of(mapping, *codes)
    except ValueError:
        return None
    return _spelled(element, shape, counts, (*options, "recip"))


@lru_cache(1024)
def _coding(
    codes: tuple[float, float], zero: bool, shape: tuple[int, ...], counts: tuple[int, ...]
) -> str | None:
    """The format with these codes for given scales, or None."""
    low, high = codes
    bits = int(high + 1).bit_length() - 1
    if high != 2**bits - 1 or not 1 <= bits <= (16 if low == 0 else 15):
        return None
    options = ("asym", "recip") if zero else ("recip",)
    if low == 0:
        return _spelled(f"uint{bits}", shape, counts, options)
    if low == -high - 1:
        return _spelled(f"int{bits + 1}", shape, counts, options if zero else ("full", "recip"))
    return _spelled(f"int{bits + 1}", shape, counts, options) if low == -high and not zero else None


def _spelled(
    element: str, shape: Sequence[int], counts: Sequence[int], options: Sequence[str]
) -> str:
    return ":".join([element, str(block_of(shape, counts)), "fp32", *options])


def _bits(fmt: str) -> int:
    return int("".join(filter(str.isdigit, fmt.partition(":")[0])))
