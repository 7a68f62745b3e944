"""Pools of largest values work on codes, as what stands before them then gives codes.

    q(max_pool(relu(x)))  ->  q(max_pool(dq(q(relu(x)))))

Rounding keeps the order of numbers, and what was rounded stays as it is: the largest code is that
of the largest number. (A NaN, which a pool passes on, has no code of its own.)
"""

from torch import fx

from blockscale.core.operand import Operand, Quantizer
from blockscale.core.parse import parse
from blockscale.graph.constants import get
from blockscale.graph.nodes import call, each_call, ours, quantize_of, shape
from blockscale.graph.passes.absorb import ends_in_op
from blockscale.graph.passes.cancel import stable
from blockscale.graph.passes.fused import dtype_of, matched, only_user
from blockscale.ops import primitives

_POOLS = ("max_pool1d", "max_pool2d", "max_pool3d")


def run(graph: fx.GraphModule) -> int:
    """Quantize before each pool whose result is quantized under one scale. Equal to the bit for
    numbers."""
    count = 0
    for node in each_call(graph, ours.quantize):
        found = quantize_of(node)
        if found is not None and isinstance(found.x, fx.Node):
            count += _before(graph, node, found.x, found.by)
    return count


def _before(graph: fx.GraphModule, node: fx.Node, x: fx.Node, by: Quantizer) -> bool:
    """Quantize what goes into the pool that gives x, if an op makes it that can give codes."""
    pool = matched(x)
    if pool is None or pool.fused.name not in _POOLS or only_user(x) is not node:
        return False
    source, fmt = pool.operands[0], parse(by.fmt)
    dtype, sizes = dtype_of(source), shape(source)
    plain = fmt.block.name == "tensor" and fmt.element.integer and by.outer is None
    if not plain or by.more or dtype is None or not sizes or not ends_in_op(source):
        return False
    if not isinstance(sizes[-1], int):
        return False
    coded = Operand(x, by.scale, by.zero_point, None, by.fmt, sizes[-1])  # type: ignore[arg-type]
    if not stable(graph, coded, dtype) or not bool((get(graph, by.scale) > 0).all()):  # type: ignore[arg-type]
        return False
    args = (source, *node.args[1:])
    coded = coded._replace(codes=call(graph, ours.quantize.default, args, like=x))  # type: ignore[arg-type]
    values = call(
        graph, ours.dequantize.default, primitives.dequantize.flatten(coded, dtype), like=x
    )
    x.replace_input_with(source, values)
    return True
