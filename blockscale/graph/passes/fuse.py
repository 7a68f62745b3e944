# SPDX-License-Identifier: BSD-3-Clause
"""dequantize - op - quantize becomes one fused op.

    q(op(dq(a), dq(b)))  ->  fused_op(a..., b..., y...)
    q(dq(a))             ->  fused_requantize(a..., y...)

Each operand and the result may be floats or codes, but one of them must be codes. A dequantize that
others read too stays for them; where others read the floats of the result, its quantize stays.
"""

import torch
from torch import fx

from blockscale.core.operand import Quantizer, Value
from blockscale.graph.constants import is_constant
from blockscale.graph.nodes import calls, dequantize_of, ours
from blockscale.graph.passes.fused import (
    Call,
    as_value,
    dtype_of,
    matched,
    narrowed,
    put_back,
    quantized_by,
    read,
    widened,
)
from blockscale.ops.fused import FUSED, Match


def run(graph: fx.GraphModule) -> int:
    """Write a fused op for each op that reads or gives codes. Equal to the bit."""
    count = 0
    for node in list(graph.graph.nodes):
        if not node._erased and (found := matched(node)) is not None:
            count += fuse(graph, node, found)
        elif not node._erased and (made := read(node)) is not None:
            count += _read_codes(graph, node, made)
        elif not node._erased and calls(node, ours.dequantize):
            count += _requantized(graph, node)
    return count


def _requantized(graph: fx.GraphModule, node: fx.Node) -> bool:
    """Let codes that are dequantized for one quantize alone become its codes in one step."""
    quantizes, by = quantized_by(node) or (None, None)
    found = dequantize_of(node)
    if quantizes is None or by is None or found is None or is_constant(found.coded.codes):
        return False
    made = Call(FUSED["requantize"], [Value(*found.coded)], {}, found.dtype, Quantizer(*by))
    put_back(graph, made, node, quantizes)
    return True


def _read_codes(graph: fx.GraphModule, node: fx.Node, made: Call) -> bool:
    """Let a fused op read the codes of what is dequantized for it; whether there were any."""
    dtype = torch.float32 if made.fused.wide else made.dtype
    operands = [each if each.fmt else as_value(each.data, dtype) or each for each in made.operands]  # type: ignore[arg-type]
    if operands == made.operands:
        return False
    made.operands = operands
    node.replace_all_uses_with(made.write(graph, node))
    graph.graph.erase_node(node)
    return True


def fuse(graph: fx.GraphModule, node: fx.Node, found: Match) -> bool:
    """Write `found` in the place of the op that ends in `node`; whether it could be done."""
    last, dtype = narrowed(node) if found.fused.wide else (node, dtype_of(node))
    quantizes, by = quantized_by(last) or (None, None)
    if found.fused.indices:
        quantizes = None
        dtype = _dtype_inside(found)
    compute = torch.float32 if found.fused.wide else dtype
    if compute is None:
        return False
    operands = [as_value(each, compute) for each in found.operands]
    if None in operands or not (quantizes or any(each.fmt for each in operands if each)):
        return False
    given = [_wide(each) if found.fused.wide else each for each in operands if each]
    made = Call(found.fused, given, found.settings, dtype or compute)
    if quantizes is not None and by is not None:
        made.y = Quantizer(*by)
    put_back(graph, made, last, quantizes)
    if last is not node:
        graph.graph.erase_node(node)
    return True


def _wide(operand: Value) -> Value:
    """Floats before they were widened, which a wide op does by itself."""
    return operand if operand.fmt else Value(widened(operand.data))  # type: ignore[arg-type]


def _dtype_inside(found: Match) -> torch.dtype | None:
    """What an op that gives indices computes in."""
    dtypes = {dtype_of(each) for each in found.operands}
    return dtypes.pop() if len(dtypes) == 1 else None
