# SPDX-License-Identifier: BSD-3-Clause
"""Products that XNNPACK computes in integers: their quantize and dequantize in torch's own words.

    static    int8 or uint8 per tensor, weight int8 per channel, and an output that is quantized
    dynamic   8 bits per token, whose scales XNNPACK chooses itself, by its own rule (asymmetric);
              weight int8 per channel, int4 per channel, or int4 in groups of multiples of 32, whose
              scales it rounds to bfloat16

Source: executorch 1.4.1, backends/xnnpack/partition/config/gemm_configs.py, operators/quant_params.
"""

from operator import getitem
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from blockscale.core.format import Format
from blockscale.core.operand import Operand
from blockscale.core.pack import unpack
from blockscale.core.torch_private import register_decomposed
from blockscale.export.to_executorch.plain import drop_copies, integer, per_tensor
from blockscale.graph.constants import get, is_constant, put_constant
from blockscale.graph.nodes import (
    aten,
    call,
    calls,
    dequantize_of,
    each_call,
    ours,
    quantize_of,
    replace,
    value,
)

_ACTIVATIONS = (aten.relu, aten.relu_, aten.hardtanh)
_CONVOLUTIONS = (aten.conv1d, aten.conv2d)
_GROUP = 32


class XnnpackProduct(NamedTuple):
    """A node that XNNPACK can compute: its input's and its weight's dequantize nodes."""

    node: fx.Node
    x: fx.Node
    weight: fx.Node
    dynamic: bool


def to_integers(graph: fx.GraphModule) -> list[str]:
    """Rewrite what XNNPACK can compute in integers, in place; the names of these nodes."""
    register_decomposed()
    drop_copies(graph)
    results = [p for node in products(graph) if (p := product(node)) is not None]
    for each in results:
        _rewrite_weight(graph, each)
        if each.dynamic:
            _rewrite_dynamic(graph, each)
    if any(not each.dynamic for each in results):
        _rewrite_static(graph)
    graph.graph.eliminate_dead_code()
    return [each.node.name for each in results]


def products(graph: fx.GraphModule) -> list[fx.Node]:
    """The nodes that could be computed in integers."""
    return list(each_call(graph, aten.linear, *_CONVOLUTIONS))


def product(node: fx.Node) -> XnnpackProduct | None:
    """What XNNPACK can compute of this linear or convolution node, or None."""
    x, weight, *rest = node.args
    operand, source = dequantize_of(x), dequantize_of(_weight_of(weight))
    if operand is None or source is None or not is_constant(source.operand.codes):
        return None
    if any(bias is not None and not is_constant(bias) for bias in rest[:1]):
        return None
    fmt, inputs = source.operand.format, operand.operand.format
    linear = calls(node, aten.linear)
    item: Any = operand.operand.codes
    assert isinstance(x, fx.Node)
    weight_node: Any = _weight_of(weight)
    if per_tensor(inputs) and quantize_of(item) and is_constant(_origin(operand.operand.scale)):
        ok = _per_channel(fmt, 8) and _quantized_output(node)
        return XnnpackProduct(node, x, weight_node, False) if ok else None
    dynamic = calls(item, getitem) and calls(item.args[0], ours.choose_quantize)
    if linear and dynamic and _per_token(inputs):
        ok = _per_channel(fmt, 8) or _per_channel(fmt, 4) or _grouped(fmt, value(weight).shape[-1])
        return XnnpackProduct(node, x, weight_node, True) if ok else None
    return None


def _weight_of(node: Any) -> Any:
    """The dequantize node of a weight: a convolution's is then laid out (graph/expand.py)."""
    while calls(node, aten.permute, aten.view):
        node = node.args[0]
    return node


def _per_token(fmt: Format) -> bool:
    return integer(fmt, 8) and str(fmt.block) == "token"


def _per_channel(fmt: Format, bits: int) -> bool:
    plain = integer(fmt, bits) and fmt.element.signed and not fmt.asym
    return plain and str(fmt.block) in ("channel0", "token", "tensor")


def _grouped(fmt: Format, size: Any) -> bool:
    plain = integer(fmt, 4) and fmt.element.signed and not fmt.asym
    if not plain or fmt.block.rest != 1 or [dim for dim, _ in fmt.block.sizes] != [-1]:
        return False
    group = fmt.block.sizes[0][1]
    return group > 0 and group % _GROUP == 0 and int(size) % group == 0


def _quantized_output(node: fx.Node) -> bool:
    """Whether the result is quantized per tensor with a given scale, and used for nothing else."""
    users = list(node.users)
    if len(users) == 1 and calls(users[0], *_ACTIVATIONS):
        users = list(users[0].users)
    result = quantize_of(users[0]) if len(users) == 1 else None
    return result is not None and result.by.scale is not None and per_tensor(result.by.format)


def _rewrite_weight(graph: fx.GraphModule, each: XnnpackProduct) -> None:
    """A dequantize_per_channel(_group) node of codes one a byte, laid out as they are used."""
    source = dequantize_of(each.weight)
    assert source is not None
    operand, fmt = source.operand, source.operand.format
    view: Any = each.node.args[1]
    bits, name = fmt.bits, str(operand.codes.target).rpartition(".")[0]  # type: ignore[attr-defined]
    codes = _laid_out(graph, operand, view, each.weight)
    scale = get(graph, operand.scale).to(torch.float32)  # type: ignore[arg-type]
    grouped = scale.shape[-1] > 1
    scale = scale if grouped else scale.reshape(-1).expand(codes.shape[0]).contiguous()
    if grouped:
        scale = scale.to(torch.bfloat16).to(torch.float32)
    like = each.node
    integers = put_constant(graph, f"{name}.integers", codes, like=like)
    steps = put_constant(graph, f"{name}.steps", scale, like=like)
    zeros = torch.zeros(scale.shape, dtype=torch.int32 if grouped else torch.int64)
    zero = put_constant(graph, f"{name}.zeros", zeros, like=like)
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    theirs: Any = torch.ops.quantized_decomposed
    if grouped:
        size = codes.shape[-1] // scale.shape[-1]
        args = (integers, steps, zero, low, high, torch.int8, size, torch.float32)
        result = call(graph, theirs.dequantize_per_channel_group.default, args, like=like)
    else:
        args = (integers, steps, zero, 0, low, high, torch.int8)  # type: ignore[assignment]
        result = call(graph, theirs.dequantize_per_channel.default, args, like=like)
    each.node.replace_input_with(view, result)


def _laid_out(graph: fx.GraphModule, operand: Operand, view: fx.Node, source: fx.Node) -> Tensor:
    """The codes int8 in the layout of the weight: the views and permutes of it, done now."""
    packed = get(graph, operand.codes)  # type: ignore[arg-type]
    codes = unpack(packed, operand.format.element, tuple(value(source).shape)).to(torch.int8)
    steps = []
    while view is not source:
        steps.append(view)
        view = view.args[0]  # type: ignore[assignment]
    for step in reversed(steps):
        sizes: Any = step.args[1]
        codes = codes.permute(sizes) if calls(step, aten.permute) else codes.reshape(sizes)
    return codes.contiguous()


def _rewrite_dynamic(graph: fx.GraphModule, each: XnnpackProduct) -> None:
    operand = dequantize_of(each.x)
    assert operand is not None
    value: Any = operand.operand.codes
    source = quantize_of(value.args[0])
    assert source is not None
    theirs: Any = torch.ops.quantized_decomposed
    like, limits = each.node, (-128, 127, torch.int8)
    choose = theirs.choose_qparams_per_token_asymmetric.default
    both = call(graph, choose, (source.x, torch.int8), like=like)
    scale, zero = (call(graph, getitem, (both, i), like=like) for i in (0, 1))
    args = (source.x, scale, zero, *limits)
    q = call(graph, theirs.quantize_per_token.default, args, like=like)
    back = (q, scale, zero, *limits, torch.float32)
    result = call(graph, theirs.dequantize_per_token.default, back, like=like)
    each.node.replace_input_with(each.x, result)


def _rewrite_static(graph: fx.GraphModule) -> None:
    """Every quantizer of 8 bits per tensor with a given scale: XNNPACK computes those, too."""
    theirs: Any = torch.ops.quantized_decomposed
    for node in each_call(graph, ours.quantize):
        result = quantize_of(node)
        if result is None or not _has_constant_scale(result.by):
            continue
        users = [dequantize_of(user) for user in node.users]
        if any(user is None or user.dtype != torch.float32 for user in users):
            continue
        parameters = (*_parameters(graph, result.by), -128, 127, torch.int8)
        q = call(graph, theirs.quantize_per_tensor.default, (result.x, *parameters), like=node)
        for user in list(node.users):
            back = call(graph, theirs.dequantize_per_tensor.default, (q, *parameters), like=user)
            replace(user, back)
        graph.graph.erase_node(node)


def _has_constant_scale(by: Any) -> bool:
    return by.scale is not None and is_constant(_origin(by.scale)) and per_tensor(by.format)


def _origin(node: Any) -> Any:
    """A scale's constant, through the views that give it a tensor's rank."""
    while calls(node, aten.view, aten.reshape):
        node = node.args[0]
    return node


def _parameters(graph: fx.GraphModule, by: Any) -> tuple[float, int]:
    """Scale and zero point of int8 codes; unsigned ones are moved by 128."""
    scale = float(get(graph, _origin(by.scale)).reshape(()))
    zero = 0 if by.zero_point is None else int(get(graph, _origin(by.zero_point)).reshape(()))
    return scale, zero - (0 if by.format.element.signed else 128)
