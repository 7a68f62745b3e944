# SPDX-License-Identifier: BSD-3-Clause
"""Quantizing what was just dequantized, by the same scale, gives the codes back.

    q(dq(codes, s), s)  ->  codes

Whether it does is not taken for granted: every code that can be there is tried.
"""

from dataclasses import replace as replace_fields
from operator import getitem

import torch
from torch import Tensor, fx

from blockscale.core import reference
from blockscale.core.block import read_block
from blockscale.core.format import Format
from blockscale.core.operand import Operand, Quantizer
from blockscale.core.parse import parse
from blockscale.core.reference import QParams
from blockscale.graph.constants import get, is_constant, same
from blockscale.graph.nodes import (
    aten,
    calls,
    dequantize_of,
    each_call,
    ours,
    quantize_of,
    replace,
    value,
)
from blockscale.graph.passes.fused import read

_MOST = 1 << 20  # codes to be tried
_PICKS = (aten.index_select, aten.index, aten._unsafe_index)  # by other tensors, which say where


def run(graph: fx.GraphModule) -> int:
    """Cancel quantize with the dequantize before it. Equal to the bit."""
    count = 0
    for node in each_call(graph, ours.quantize):
        result = quantize_of(node)
        before = dequantize_of(result.x) if result is not None else None
        if result is None or before is None or not _alike(graph, before.operand, result.by):
            continue
        if _quantized(before.operand.codes) and stable(graph, before.operand, before.dtype):
            replace(node, before.operand.codes)  # type: ignore[arg-type]
            count += 1
    return count


def _alike(graph: fx.GraphModule, operand: Operand, by: Quantizer) -> bool:
    if operand.fmt != by.fmt or by.seed is not None or operand.more or by.more:
        return False
    pairs = (
        (operand.scale, by.scale),
        (operand.zero_point, by.zero_point),
        (operand.outer, by.outer),
    )
    return all(same(graph, a, b) for a, b in pairs)  # type: ignore[arg-type]


def _quantized(codes: object) -> bool:
    """Whether the codes are of quantized floats, perhaps moved, so that none is one that
    quantizing never gives."""
    if not isinstance(codes, fx.Node) or codes.op != "call_function":
        return False
    if calls(codes, ours.quantize):
        return True
    if calls(codes, getitem):
        return read(codes.args[0]) is not None
    schema = getattr(codes.target, "_schema", None)
    sources = codes.args[:1] if calls(codes, *_PICKS) else codes.all_input_nodes
    tensors = [each for each in sources if isinstance(value(each), Tensor)]
    moves = schema is not None and schema.name.startswith("aten::") and bool(tensors)
    return moves and all(_quantized(each) for each in tensors)


def stable(graph: fx.GraphModule, operand: Operand, dtype: torch.dtype) -> bool:
    """Whether each code that quantizing can give is that of its own value, under each scale."""
    fmt = parse(operand.fmt)
    parts = (operand.scale, operand.outer, operand.zero_point)
    if fmt.rounding == "stochastic" or fmt.element.learned or fmt.offset is not None:
        return False
    if not all(part is None or is_constant(part) for part in parts):
        return False
    scale, outer, zero = (None if p is None else get(graph, p) for p in parts)  # type: ignore[arg-type]
    if outer is not None or scale is None or scale.numel() * 2**fmt.bits > _MOST:
        return False
    return all_stable(*one_row(scale, zero, fmt), dtype)


def one_row(scale: Tensor, zero: Tensor | None, fmt: Format) -> tuple[QParams, Format]:
    """Scales and zero points of a row each, and the format that means these rows."""
    rows = QParams(scale.reshape(-1, 1), None, None if zero is None else zero.reshape(-1, 1))
    return rows, replace_fields(fmt, block=read_block("channel0"))


def all_stable(rows: QParams, fmt: Format, dtype: torch.dtype) -> bool:
    """Whether quantizing gives back each code that it gives, through values of `dtype`.

    rows: scales [n, 1] and what else there is; fmt: of the block channel0, so that each code is
    tried under each scale. Codes that stand for no number, or are out of the format's range, are
    none that it gives for numbers; what it gives for NaN and infinities is tried too.
    """
    count, element = rows.scale.shape[0], fmt.element
    codes = element.from_bits(torch.arange(2**fmt.bits)).expand(count, -1)
    is_number = ~element.decode(codes).isnan()
    if element.integer:
        low, high = (int(each) for each in element.limits(fmt.wide))
        is_number &= (codes.to(torch.int32) >= low) & (codes.to(torch.int32) <= high)
    values = reference.dequantize(codes, rows, fmt, dtype)
    ends = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0]).to(dtype)
    codes_again = reference.quantize(torch.cat([values, ends.expand(count, -1)], 1), rows, fmt)
    again = reference.quantize(reference.dequantize(codes_again, rows, fmt, dtype), rows, fmt)
    there = codes_again[:, : codes.shape[1]]
    return torch.equal(codes_again, again) and torch.equal(there[is_number], codes[is_number])
