"""Formats that no kernel knows, told as formats that kernels know: the same values to the bit.

A scale of two levels is, for whoever reads it, its float32 step (docs/numerics.md, 1.3); a quantized
offset is the float32 that it means; blocks over the flattened tensor are groups of its rows. The
scales and offsets, which are few, go through the reference; the codes, which are many, through the
kernels of the format that is left:

    uint4:group32:(uint6:group8:fp16):offset(uint6:group8:fp16)    uint4:group32:fp32:offset(fp32)
    nf4:flat64:fp32, rows of 96                                    nf4:group32:fp32
    int4:group32:fp16:signed                                       int4:group32:fp16:full
    int8:group32:e8m0/given                                        int8:group32:e8m0/floor
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from math import gcd, prod

import torch
from torch import Tensor

from blockscale.core import reference
from blockscale.core.block import WHOLE, Block, read_block
from blockscale.core.format import Format
from blockscale.core.operand import Operand, Quantizer, operand, quantizer
from blockscale.core.parse import parse
from blockscale.core.reference import QParams
from blockscale.core.scale import FLOAT_SCALES, GIVEN, PowerOfTwo
from blockscale.core.scales.offset import Offset
from blockscale.core.scales.two_level import TwoLevel
from blockscale.kernels.numbers import plain_levels

_FLOAT32 = FLOAT_SCALES["fp32"]


def for_decoding(fmt: Format) -> Format | None:
    """The format of kernels that dequantizes codes as `fmt` does; None where there is no other.

    Its blocks still run over the flattened tensor where those of `fmt` do: see `in_rows`.
    """
    return _restated(fmt.spelling, encode=False)


def for_encoding(fmt: Format) -> Format | None:
    """The same for quantizing with a given scale. None, too, for the reciprocals of scales of two
    levels, which are not those of their steps (docs/numerics.md, 4)."""
    return _restated(fmt.spelling, encode=True)


@cache
def _restated(spelling: str, *, encode: bool) -> Format | None:
    fmt = parse(spelling)
    scale, offset = fmt.scale, fmt.offset
    levels = isinstance(scale, TwoLevel)
    given = isinstance(scale, PowerOfTwo) and scale.rule == GIVEN
    known = isinstance(scale, TwoLevel) and plain_levels(scale)
    told = offset is not None and (offset.inner is not None or offset.block is not None)
    if not (given or told or fmt.span == "signed" or fmt.block.flat or (levels and not known)):
        return None
    if told and not _even(fmt):
        return None
    if encode and fmt.recip and _own_reciprocal(fmt):
        return None
    plain = fmt
    if isinstance(scale, PowerOfTwo) and given:  # a given float is no power of two, a byte is one
        plain = replace(plain, scale=PowerOfTwo("floor", byte=True) if scale.byte else _FLOAT32)
    if levels:
        plain = replace(plain, scale=_FLOAT32)
    if told:
        plain = replace(plain, offset=Offset(_FLOAT32))
    return replace(plain, span="full") if fmt.span == "signed" else plain


def _own_reciprocal(fmt: Format) -> bool:
    """Whether its reciprocals are made of two levels, each by itself."""
    scale = fmt.scale
    return isinstance(scale, TwoLevel) and scale.inner.offset is None and not scale.reciprocal


def _even(fmt: Format) -> bool:
    """Whether all elements of a block have one offset: its blocks are made of whole ones."""
    own = None if fmt.offset is None else fmt.offset.block
    if own is None or own == fmt.block:
        return True
    if own.flat or fmt.block.flat:
        return own.strided == fmt.block.strided is False and _divides(fmt.block.flat, own.flat)
    dims = {dim for dim, _ in (*own.sizes, *fmt.block.sizes)}
    if any(dim >= 0 for dim in dims) and any(dim < 0 for dim in dims):
        return False  # which of them are the same depends on the rank
    mine, wider = dict(fmt.block.sizes), dict(own.sizes)
    rests = _divides(fmt.block.rest, own.rest)
    return rests and all(
        _divides(mine.get(dim, fmt.block.rest), wider.get(dim, own.rest)) for dim in dims
    )


def _divides(size: int, wider: int) -> bool:
    """Whether blocks of size `wider` hold whole blocks of `size`, along one dimension."""
    return wider == WHOLE or (size != WHOLE and wider % size == 0)


def in_rows(block: Block, shape: Sequence[int]) -> Block:
    """Blocks over the flattened tensor of `shape` -> blocks within rows that each lie in one."""
    if not block.flat:
        return block
    row = shape[-1] if shape else 1
    if block.strided:
        whole = len(shape) == 2 and shape[0] == block.flat
        return read_block("channel1" if whole else "group1")
    return read_block(f"group{gcd(block.flat, row) or 1}")


def restated_parts(qparams: QParams, fmt: Format, plain: Format, shape: Sequence[int]) -> QParams:
    """What stands beside the codes of a tensor of `shape` in `fmt` -> the same for `plain`, whose
    blocks are those of `in_rows`."""
    parts = {"scale": qparams.scale, "zero_point": qparams.zero_point}
    if plain.scale != fmt.scale and not isinstance(fmt.scale, PowerOfTwo):
        parts["scale"] = reference.step_of(qparams, fmt)
    if fmt.offset is not None and qparams.offset is not None:
        parts["offset"] = qparams.offset
        if plain.offset != fmt.offset:
            values = fmt.offset.value(qparams.offset, qparams.offset_outer)
            parts["offset"] = _per_block(values, fmt, qparams.scale.shape)
    if fmt.block.flat:
        parts = {name: _regrouped(part, fmt.block, plain.block, shape) for name, part in parts.items()}
    return QParams(**parts)  # type: ignore[arg-type]


def _per_block(values: Tensor, fmt: Format, blocks: Sequence[int]) -> Tensor:
    """Offsets, which blocks may share -> one for each block [scale's shape]."""
    own = None if fmt.offset is None else fmt.offset.block
    if own is None or own == fmt.block:
        return values
    if own.flat:
        each = values.reshape(-1).repeat_interleave(own.flat // fmt.block.flat)
        return each[: prod(blocks)].reshape(tuple(blocks))
    rank = len(blocks)
    for dim, (size, wider) in enumerate(
        zip(fmt.block.sizes_for(rank), own.sizes_for(rank), strict=True)
    ):
        if wider != WHOLE and wider != size:
            values = values.repeat_interleave(wider // size, dim).narrow(dim, 0, blocks[dim])
    return values.expand(tuple(blocks)).contiguous()


def _regrouped(
    part: Tensor | None, flat: Block, block: Block, shape: Sequence[int]
) -> Tensor | None:
    """One number for each block over the flattened tensor -> one for each of the blocks in rows."""
    if part is None:
        return None
    own = block.scale_shape(shape)
    if flat.strided:
        each = part if block.name == "channel1" else flat.expand(part, shape)
        return each.reshape(own).contiguous()
    size = block.sizes_for(len(shape))[-1]
    each = part.reshape(-1)
    if flat.flat != size:
        each = each.repeat_interleave(flat.flat // size)[: prod(own)]
    return each.reshape(own)


def restated_operand(packed: Operand, plain: Format) -> Operand:
    """A quantized tensor -> the same codes in `plain`, what `for_decoding` gives for its format."""
    fmt, shape = packed.format, packed.shape
    plain = replace(plain, block=in_rows(plain.block, shape))
    parts = restated_parts(packed.qparams, fmt, plain, shape)
    return operand(packed.codes, parts, plain, packed.size)


def restated_quantizer(
    qparams: QParams, by: Quantizer, plain: Format, shape: Sequence[int]
) -> Quantizer:
    """A scale for a tensor of `shape` -> the same in `plain`, what `for_encoding` gives."""
    plain = replace(plain, block=in_rows(plain.block, shape))
    parts = restated_parts(qparams, by.format, plain, shape)
    return quantizer(parts, plain, by.seed)


def chosen(x: Tensor, fmt: Format) -> QParams:
    """x [...] -> the scales that the reference chooses, from ranges that are found faster."""
    ranges = _ranges(x, fmt)
    if ranges is None:
        return reference.choose_qparams(x, fmt)
    return reference.qparams_from_range(*ranges, fmt)


def _ranges(x: Tensor, fmt: Format) -> reference.Ranges | None:
    """As reference.ranges, of blocks that divide a tensor of finite numbers; else None."""
    shape = fmt.block.scale_shape(x.shape)  # raises if the block does not fit
    if x.dtype not in reference.FLOATS or not x.numel() or not fmt.element.ranged:
        return None
    offset = fmt.offset
    if offset is not None and (offset.inner is None or not offset.inner.element.integer):
        return None  # the sign of a smallest zero shows in it, which depends on the order
    block = fmt.block
    if block.strided:
        x, block = x.reshape(block.flat, -1), read_block("channel1")
    elif block.flat:
        x, block = x.reshape(1, -1), read_block(f"group{block.flat}")
    split: list[int] = []
    for n, size in zip(x.shape, block.sizes_for(x.ndim), strict=True):
        if size != WHOLE and n % size:
            return None
        split += [1, n] if size == WHOLE else [n // size, size]
    within = tuple(range(1, len(split), 2))
    blocks = x.reshape(split)
    low, high = (
        reduce(blocks, within).to(torch.float32).reshape(shape)
        for reduce in (torch.amin, torch.amax)
    )
    if not bool((low.isfinite() & high.isfinite()).all()):
        return None
    if offset is None:
        low, high = low.clamp(max=0.0), high.clamp(min=0.0)
    return reference.Ranges(low, high, torch.zeros_like(low, dtype=torch.bool))
