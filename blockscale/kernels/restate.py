# SPDX-License-Identifier: BSD-3-Clause
"""Formats that no kernel knows, written as formats that kernels know: the same values to the bit.

A scale of two levels is, for whoever reads it, its float32 step (docs/numerics.md, 1.3); an offset
that is quantized is the float32 that it means; blocks over the flattened tensor are groups of its
rows. Scales and offsets, which are few, are computed with torch; codes, which are many, by the
kernels of the format that is left:

    uint4:group32:(uint6:group8:fp16):offset(uint6:group8:fp16)    uint4:group32:fp32:offset(fp32)
    nf4:flat64:fp32, rows of 96                                    nf4:group32:fp32
    int4:group32:fp16:signed                                       int4:group32:fp16:full
    int8:group32:e8m0/given                                        int8:group32:e8m0/floor
    e2m1:group16:ue5m3                                             e2m1:group16:fp32
    e2m1:group16:e4m3/four_six                                     e2m1:group16:e4m3
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from math import gcd, prod

import torch
from torch import Tensor

from blockscale.core import reference
from blockscale.core.arithmetic.precision import FLT_MAX, FLT_MIN, subnormals_kept
from blockscale.core.block import WHOLE, Block, read_block
from blockscale.core.element import Element
from blockscale.core.format import Format
from blockscale.core.operand import Operand, Quantizer, operand, quantizer
from blockscale.core.parse import parse
from blockscale.core.reference import QParams
from blockscale.core.scale import FLOAT_SCALES, GIVEN, FloatScale, PowerOfTwo
from blockscale.core.scales import CodeScale, Offset, TwoLevel
from blockscale.kernels.numbers import plain_levels

_FLOAT32 = FLOAT_SCALES["fp32"]
_RAISED = 2.0**100  # times a subnormal number: exact, and far above FLT_MIN
_NAN_BYTE = 255  # of e8m0


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
    ruleless = isinstance(scale, PowerOfTwo) and scale.rule == GIVEN
    other = isinstance(scale, TwoLevel) and not plain_levels(scale)
    is_code = other or isinstance(scale, CodeScale)
    shared = offset is not None and (offset.inner is not None or offset.block is not None)
    if not (ruleless or shared or fmt.span == "signed" or fmt.block.flat or is_code):
        return None if fmt == fmt.plain else fmt.plain
    if shared and not _even(fmt):
        return None
    if encode and fmt.recip and _own_reciprocal(fmt):
        return None
    plain = fmt
    if isinstance(scale, PowerOfTwo) and ruleless:  # a float may be no power of two, a byte is one
        plain = replace(plain, scale=PowerOfTwo("floor", byte=True) if scale.byte else _FLOAT32)
    if levels or is_code:
        plain = replace(plain, scale=_FLOAT32)
    if shared:
        plain = replace(plain, offset=Offset(_FLOAT32))
    return replace(plain, span="full") if fmt.span == "signed" else plain


def _own_reciprocal(fmt: Format) -> bool:
    """Whether its reciprocals are made of two levels, each by itself."""
    scale = fmt.scale
    return isinstance(scale, TwoLevel) and scale.inner.offset is None and not scale.reciprocal


def _even(fmt: Format) -> bool:
    """Whether all elements of a block have one offset: its blocks are made of whole ones."""
    own = None if fmt.offset is None else fmt.offset.block
    if own is None or own == fmt.block or own.name == "tensor":
        return True
    if own.flat or fmt.block.flat:
        both = own.flat and fmt.block.flat and not (own.strided or fmt.block.strided)
        return bool(both) and own.flat % fmt.block.flat == 0
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
    if isinstance(plain.scale, TwoLevel):  # without its rule
        parts["outer"] = qparams.outer
    elif plain.scale != fmt.scale and not isinstance(fmt.scale, PowerOfTwo):
        parts["scale"] = _steps(qparams, fmt)
    if fmt.offset is not None and qparams.offset is not None:
        parts["offset"] = qparams.offset
        if plain.offset != fmt.offset:
            parts["offset"] = _per_block(_offsets(qparams, fmt), fmt, qparams.scale.shape)
    if fmt.block.flat:
        parts = {
            name: _regroup(part, fmt.block, plain.block, shape) for name, part in parts.items()
        }
    return QParams(**parts)  # type: ignore[arg-type]


def _per_block(values: Tensor, fmt: Format, blocks: Sequence[int]) -> Tensor:
    """Offsets, which blocks may share -> one for each block [scale's shape]."""
    own = None if fmt.offset is None else fmt.offset.block
    if own is None or own == fmt.block:
        return values
    if own.name == "tensor":
        return values.reshape(()).expand(tuple(blocks)).contiguous()
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


def _regroup(part: Tensor | None, flat: Block, block: Block, shape: Sequence[int]) -> Tensor | None:
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


def _steps(qparams: QParams, fmt: Format) -> Tensor:
    """As reference.step_of; of scales that are codes by a table of values, in fewer passes."""
    scale = fmt.scale
    if isinstance(scale, FloatScale):
        return reference.step_of(qparams, fmt)
    if isinstance(scale, CodeScale):
        return _values(qparams.scale, scale.element).reshape(qparams.scale.shape)
    assert isinstance(scale, TwoLevel) and qparams.outer is not None
    offset, inner = qparams.scale_offset, scale.inner
    plain = offset is None or (offset.numel() == 1 and isinstance(_offset_type(inner), FloatScale))
    split = in_blocks(qparams.scale.shape, inner.block)
    capturing = qparams.scale.is_cuda and torch.cuda.is_current_stream_capturing()  # no waiting
    if split is None or not plain or not qparams.scale.numel() or capturing:
        return reference.step_of(qparams, fmt)
    values = _values(qparams.scale, inner.element).reshape(split)
    outer = qparams.outer.to(torch.float32).reshape(_one_each(split))
    steps = values / outer if scale.reciprocal else outer * values
    low, high = torch.aminmax(steps.abs())
    if not bool((low > 0) & (high <= FLT_MAX)):  # what is clamped, 0 or NaN
        return reference.step_of(qparams, fmt)
    if offset is not None:
        steps = steps + offset.to(torch.float32).reshape(())
    return steps.reshape(qparams.scale.shape)


def _offset_type(inner: Format) -> object:
    return None if inner.offset is None else inner.offset.type


def _offsets(qparams: QParams, fmt: Format) -> Tensor:
    """The offsets [as stored] float32, as Offset.value, in fewer passes."""
    assert fmt.offset is not None and qparams.offset is not None
    inner, outer, codes = fmt.offset.inner, qparams.offset_outer, qparams.offset
    split = None if inner is None else in_blocks(codes.shape, inner.block)
    if inner is None or outer is None or split is None:
        return fmt.offset.value(codes, outer)
    values = _values(codes, inner.element).reshape(split)
    offsets = values * outer.to(torch.float32).reshape(_one_each(split))
    return offsets.clamp_(-FLT_MAX, FLT_MAX).reshape(codes.shape)


def _values(codes: Tensor, element: Element) -> Tensor:
    """Codes, one a byte -> their values float32, all in one dimension."""
    every = torch.arange(2**element.bits, dtype=torch.uint8, device=codes.device)
    table = element.decode(element.from_bits(every))
    return table.index_select(0, codes.reshape(-1).to(torch.int32))


def in_blocks(shape: Sequence[int], block: Block) -> list[int] | None:
    """How a tensor of `shape` is seen in blocks, [count, size, count, size, ...]; None where the
    last ones are partial."""
    if block.strided:
        return [1, block.flat, prod(shape) // block.flat, 1]
    if block.flat:
        count, rest = divmod(prod(shape), block.flat)
        return None if rest else [count, block.flat]
    split: list[int] = []
    for n, size in zip(shape, block.sizes_for(len(shape)), strict=True):
        if size != WHOLE and n % size:
            return None
        split += [1, n] if size == WHOLE else [n // size, size]
    return split


def _one_each(split: Sequence[int]) -> list[int]:
    """The shape of one number for each block, to broadcast with what `in_blocks` gave."""
    return [n if i % 2 == 0 else 1 for i, n in enumerate(split)]


Extremes = Callable[[Tensor, Format], Tensor]  # as `choose_scales` takes it


def choose_scales(
    x: Tensor, fmt: Format, scale_of: Extremes, errors: reference.Errors = reference.block_errors
) -> QParams:
    """x [...] -> the scales that the reference chooses, from ranges that kernels find.

    scale_of: gives the scale of x in a format, by a kernel; errors: as `reference.settled` takes it
    """
    with subnormals_kept(x.numel()):
        if fmt.element.learned or not x.numel():
            return reference.choose_qparams(x, fmt)
        ranges = _ranges(x, fmt, scale_of)
        if ranges is None:
            ranges = reference.ranges(x, fmt)
        qparams = reference.qparams_from_range(*ranges, fmt)
        return reference.settle(x, ranges, qparams, fmt, errors)


def _ranges(x: Tensor, fmt: Format, scale_of: Extremes) -> reference.Ranges | None:
    """As reference.ranges, where kernels can tell; else None.

    The fp32 scale of a format whose largest value is 1 is the largest magnitude of a block (int2)
    or its largest number (uint1), but where that is below 2^-126, which is the least they tell.
    """
    shape = fmt.block.scale_shape(x.shape)  # raises if the block does not fit
    if x.dtype not in reference.FLOATS or not fmt.element.uses_range:
        return None
    block = fmt.block
    if block.strided:
        x, block = x.reshape(block.flat, -1), read_block("channel1")
    elif block.flat:
        x, block = x.reshape(1, -1), read_block(f"group{block.flat}")
    unsigned, magnitude = parse(f"uint1:{block}:fp32"), parse(f"int2:{block}:fp32")
    if fmt.offset is not None:
        ends = _bare_ends(x, unsigned, scale_of)
    elif fmt.element.signed and not (fmt.asym or fmt.wide or fmt.two_sided):
        high = _largest(x, magnitude, scale_of)
        ends = -high, high
    else:
        high = _largest(x, unsigned, scale_of)
        both = fmt.asym or fmt.element.signed
        ends = (-_largest(-x, unsigned, scale_of) if both else torch.zeros_like(high)), high
    if ends is None:
        return None
    low, high = ends
    has_nan = torch.zeros_like(low, dtype=torch.bool)
    if fmt.scale.poisons and not bool(torch.stack(torch.aminmax(x)).isfinite().all()):
        has_nan = scale_of(x, parse(f"int2:{block}:e8m0")) == _NAN_BYTE
    return reference.Ranges(low.reshape(shape), high.reshape(shape), has_nan.reshape(shape))


def _bare_ends(x: Tensor, unsigned: Format, scale_of: Extremes) -> tuple[Tensor, Tensor] | None:
    """The ends of ranges that are not widened to 0; None where some block has one sign or zeros."""
    high, low = scale_of(x, unsigned), -scale_of(-x, unsigned)
    return (low, high) if bool(((high > FLT_MIN) & (low < -FLT_MIN)).all()) else None


def _largest(x: Tensor, plain: Format, scale_of: Extremes) -> Tensor:
    """The largest number or magnitude of each block, 0 and subnormal ones told by a second look."""
    result = scale_of(x, plain)
    if bool((result > FLT_MIN).all()):
        return result
    lifted_max = scale_of(reference.widen(x) * _RAISED, plain)  # infinities are left out
    small = torch.where(lifted_max > FLT_MIN, lifted_max / _RAISED, 0.0)
    return torch.where(result > FLT_MIN, result, small)
