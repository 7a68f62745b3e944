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
    match_fused,
    narrow_end,
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
        if not node._erased and (result := match_fused(node)) is not None:
            count += fuse(graph, node, result)
        elif not node._erased and (output := read(node)) is not None:
            count += _read_codes(graph, node, output)
        elif not node._erased and calls(node, ours.dequantize):
            count += _requantized(graph, node)
    return count


def _requantized(graph: fx.GraphModule, node: fx.Node) -> bool:
    """Let codes that are dequantized for one quantize alone become its codes in one step."""
    quantizes, by = quantized_by(node) or (None, None)
    result = dequantize_of(node)
    if quantizes is None or by is None or result is None or is_constant(result.operand.codes):
        return False
    call = Call(FUSED["requantize"], [Value(*result.operand)], {}, result.dtype, Quantizer(*by))
    put_back(graph, call, node, quantizes)
    return True


def _read_codes(graph: fx.GraphModule, node: fx.Node, call: Call) -> bool:
    """Let a fused op read the codes of what is dequantized for it; whether there were any."""
    dtype = torch.float32 if call.fused.wide else call.dtype
    operands = [each if each.fmt else as_value(each.data, dtype) or each for each in call.operands]  # type: ignore[arg-type]
    if operands == call.operands:
        return False
    call.operands = operands
    node.replace_all_uses_with(call.write(graph, node))
    graph.graph.erase_node(node)
    return True


def fuse(graph: fx.GraphModule, node: fx.Node, match: Match) -> bool:
    """Write `found` in the place of the op that ends in `node`; whether it could be done."""
    last, dtype = narrow_end(node) if match.fused.wide else (node, dtype_of(node))
    quantizes, by = quantized_by(last) or (None, None)
    if match.fused.indices:
        quantizes = None
        dtype = _dtype_inside(match)
    compute = torch.float32 if match.fused.wide else dtype
    if compute is None:
        return False
    operands = [as_value(each, compute) for each in match.operands]
    if None in operands or not (quantizes or any(each.fmt for each in operands if each)):
        return False
    members = [_wide(each) if match.fused.wide else each for each in operands if each]
    call = Call(match.fused, members, match.settings, dtype or compute)
    if quantizes is not None and by is not None:
        call.y = Quantizer(*by)
    put_back(graph, call, last, quantizes)
    if last is not node:
        graph.graph.erase_node(node)
    return True


def _wide(operand: Value) -> Value:
    """Floats before they were widened, which a wide op does by itself."""
    return operand if operand.fmt else Value(widened(operand.data))  # type: ignore[arg-type]


def _dtype_inside(match: Match) -> torch.dtype | None:
    """What an op that gives indices computes in."""
    dtypes = {dtype_of(each) for each in match.operands}
    return dtypes.pop() if len(dtypes) == 1 else None
