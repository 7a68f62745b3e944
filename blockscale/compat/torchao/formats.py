# SPDX-License-Identifier: BSD-3-Clause
"""Which blockscale format gives the bits of a torchao configuration."""

from collections.abc import Sequence
from enum import Enum

import torch

from blockscale.compat.torchao.dtypes import MappingType, limits, read_member
from blockscale.compat.torchao.split import split_blocks
from blockscale.core.parse import parse

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
        cut = [dim for dim in range(rank) if sizes[dim] != shape[dim]]
    else:
        sizes = list(block_size)
        cut = [dim for dim in range(rank) if sizes[dim] != WHOLE]
    long = [dim for dim in range(rank) if sizes[dim] != 1]
    if not cut:
        return "tensor"
    if len(cut) == 1 and cut[0] not in long:
        return f"channel{cut[0]}"
    if long == [rank - 1] and long[0] not in cut:
        return "token"
    if len(long) <= 1 and WHOLE not in sizes:
        dim = long[0] if long else rank - 1
        return f"group{sizes[dim]}" + (f"@{dim}" if dim < rank - 1 else "")
    if long == [rank - 2, rank - 1] and WHOLE not in sizes:
        return f"tile{sizes[-2]}x{sizes[-1]}"
    named = ["*" if dim not in cut else str(n) for dim, n in enumerate(sizes)]
    return "block" + "x".join("1" if n == 1 else name for n, name in zip(sizes, named, strict=True))


def _no_format(found: str, there_are: str) -> ValueError:
    return ValueError(f"no format has {found}; supported: {there_are}")
