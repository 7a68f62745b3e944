# SPDX-License-Identifier: BSD-3-Clause
"""torchao's bits from blockscale's kernels, where a format has them: several times as fast.

Formats say which configurations these are.
"""

from collections.abc import Sequence
from enum import Enum
from functools import lru_cache

import torch
from torch import Tensor

from blockscale.compat.torchao.dtypes import MappingType, Rule, ZeroPointDomain, limits, read_member
from blockscale.compat.torchao.split import Split, split_blocks
from blockscale.core.block import block_of
from blockscale.core.operand import Operand, Quantizer
from blockscale.core.parse import parse
from blockscale.core.torch_private import dispatch_modes, transforms_active
from blockscale.ops import primitives

WHOLE = -1  # in a block_size: all of this dimension


def to_format(
    mapping_type: Enum,
    block_size: Sequence[int],
    target_dtype: torch.dtype,
    quant_min: float | None = None,
    quant_max: float | None = None,
    *,
    shape: Sequence[int] | None = None,
) -> str:
    """The spelling of the format with the same scales, zero points, codes and values as torchao.

    This holds for finite float32 input with max - min below FLT_MAX and torchao's default eps and
    scale_dtype: in float16 and bfloat16 torchao computes in that type, blockscale in float32.
    mapping_type, target_dtype, quant_min and quant_max are those of torchao's functions.
    An entry of block_size that is -1, or the size in `shape` if given, means the whole dimension.

    Raises ValueError where no format has these bits.
    """
    mapping = read_member(MappingType, mapping_type)
    low, high = limits(target_dtype, quant_min, quant_max)
    element, options = element_of(mapping, low, high)
    return str(parse(":".join([element, _block(block_size, shape), "fp32", *options, "recip"])))


def element_of(mapping: MappingType, low: float, high: float) -> tuple[str, list[str]]:
    """The element with codes of low ... high and the options that choose as `mapping` does.

    Raises ValueError if no format has them.
    """
    bits = int(high + 1).bit_length() - 1
    if high != 2**bits - 1 or not 1 <= bits <= 16:
        raise _no_format(f"codes {low} ... {high}", "integers of 1 to 16 bits")
    if mapping is MappingType.ASYMMETRIC and low == 0:
        return f"uint{bits}", ["asym"]
    if mapping is MappingType.ASYMMETRIC and low == -high - 1:
        return f"int{bits + 1}", ["asym"]
    if mapping is not MappingType.ASYMMETRIC and low == -high - 1:
        return f"int{bits + 1}", ["half" if mapping is MappingType.SYMMETRIC else "full"]
    if mapping is not MappingType.ASYMMETRIC and low == -high:
        return f"int{bits + 1}", []
    raise _no_format(
        f"{mapping.name} with codes {low} ... {high}",
        "symmetric intB (-N ... N or -N - 1 ... N), or asymmetric intB and uintB",
    )


def _block(block_size: Sequence[int], shape: Sequence[int] | None) -> str:
    """The spelling of the block that covers what block_size covers."""
    rank = len(block_size)
    if shape is not None:
        split_blocks(shape, block_size)  # raises what quantize_affine would
        sizes = [shape[dim] if n == WHOLE else n for dim, n in enumerate(block_size)]
        split = [dim for dim in range(rank) if sizes[dim] != shape[dim]]
    else:
        sizes = list(block_size)
        split = [dim for dim in range(rank) if sizes[dim] != WHOLE]
    long = [dim for dim in range(rank) if sizes[dim] != 1]
    if not split:
        return "tensor"
    if len(split) == 1 and split[0] not in long:
        return f"channel{split[0]}"
    if long == [rank - 1] and long[0] not in split:
        return "token"
    if len(long) <= 1 and WHOLE not in sizes:
        dim = long[0] if long else rank - 1
        return f"group{sizes[dim]}" + (f"@{dim}" if dim < rank - 1 else "")
    if long == [rank - 2, rank - 1] and WHOLE not in sizes:
        return f"tile{sizes[-2]}x{sizes[-1]}"
    texts = ["*" if dim not in split else str(n) for dim, n in enumerate(sizes)]
    return "block" + "x".join("1" if n == 1 else name for n, name in zip(sizes, texts, strict=True))


def _no_format(text: str, there_are: str) -> ValueError:
    return ValueError(f"no format has {text}; supported: {there_are}")


# Every function returns None where none has, and plain PyTorch then computes the result: while a
# graph is traced, away from the CPU, for dtypes whose arithmetic is not float32, and for numbers at
# which the arithmetic of formats differs (docs/torchao.md).

_SMALLEST = torch.finfo(torch.float32).smallest_normal
_LARGEST = 2.0**100  # scales below it come from ranges far from overflow
_STORED = {torch.int8: "int8", torch.uint8: "uint8", torch.int16: "int16"}


def choose(
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
    zero, is_value = _zero_point(zero_point, codes, split.counts)
    fmt = _coding(codes, zero is not None, tuple(x.shape), split.counts) if is_value else None
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
    needs_gradient = scale.requires_grad and torch.is_grad_enabled()
    if not _eager(codes) or not _eager(scale) or needs_gradient or scale.dtype != torch.float32:
        return None
    if codes.dtype not in _STORED or (codes.dtype == torch.int16 and dtype != torch.float32):
        return None  # in 16 bits torchao's difference of code and zero point is rounded
    info = torch.iinfo(codes.dtype)
    zero, is_value = _zero_point(zero_point, (info.min, info.max), split.counts)
    if not is_value:
        return None
    fmt = _coding((info.min, info.max), zero is not None, tuple(codes.shape), split.counts)
    assert fmt is not None
    stored = Operand(codes, scale.reshape(split.counts), zero, None, fmt, codes.shape[-1])
    return primitives.dequantize(stored, dtype)


def _eager(x: Tensor) -> bool:
    """Whether x is a tensor of numbers on the CPU that may be looked at."""
    if torch.compiler.is_compiling() or type(x) not in (Tensor, torch.nn.Parameter):
        return False
    has_watchers = dispatch_modes() or transforms_active()
    return not has_watchers and x.is_cpu and x.ndim > 0 and x.numel() > 0


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
    return _spell(element, shape, counts, (*options, "recip"))


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
        return _spell(f"uint{bits}", shape, counts, options)
    if low == -high - 1:
        return _spell(f"int{bits + 1}", shape, counts, options if zero else ("full", "recip"))
    return _spell(f"int{bits + 1}", shape, counts, options) if low == -high and not zero else None


def _spell(
    element: str, shape: Sequence[int], counts: Sequence[int], options: Sequence[str]
) -> str:
    return ":".join([element, str(block_of(shape, counts)), "fp32", *options])


def _bits(fmt: str) -> int:
    return int("".join(filter(str.isdigit, fmt.partition(":")[0])))
