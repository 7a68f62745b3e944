# SPDX-License-Identifier: BSD-3-Clause
"""The nodes of ours that stand for a `QuantizerCall` of another library."""

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from blockscale.core.block import WHOLE
from blockscale.core.operand import Operand, Quantizer
from blockscale.core.pack import packed_dtype
from blockscale.core.parse import parse
from blockscale.graph import constants
from blockscale.graph.adoption.parts import (
    NoFormatError,
    QuantizerCall,
    ScaleNodes,
    block_name,
    constant,
    element,
    in_whole,
    parts_of,
    rank_of,
)
from blockscale.graph.adoption.weights import WANTED, reader_of
from blockscale.graph.nodes import arguments, aten, call, ours, replace, shape
from blockscale.ops import primitives

# torch's `quantized_decomposed` ops, as prepare_pt2e's standard observers leave them.
#
# Source: torch 2.13.0, torch/ao/quantization/fx/_decomposed.py. `per_token` and `per_channel_group`
# add the zero point before they round, `per_tensor` and `per_channel` afterwards.


def _codes(inputs: dict[str, Any]) -> dict[str, Any]:
    low, high = inputs["quant_min"], inputs["quant_max"]
    if isinstance(low, fx.Node) or isinstance(high, fx.Node):
        raise NoFormatError("its smallest and largest codes are tensors")
    if inputs["dtype"].is_floating_point:
        raise NoFormatError(f"it rounds to integers that it stores as {inputs['dtype']}")
    return {"low": int(low), "high": int(high), "dtype": inputs["dtype"]}


def _per_tensor(kind: str) -> Callable[[fx.Node], QuantizerCall]:
    def read(node: fx.Node) -> QuantizerCall:
        inputs = arguments(node)
        x = inputs["input"]
        sizes = (WHOLE,) * rank_of(x)
        out = inputs.get("out_dtype") or torch.float32
        return QuantizerCall(
            kind, x, sizes, inputs["scale"], inputs["zero_point"], **_codes(inputs), out=out
        )

    return read


def _per_channel(kind: str) -> Callable[[fx.Node], QuantizerCall]:
    def read(node: fx.Node) -> QuantizerCall:
        inputs = arguments(node)
        x = inputs["input"]
        rank, axis = rank_of(x), inputs["axis"]
        sizes = tuple(1 if dim == axis % rank else WHOLE for dim in range(rank))
        out = inputs.get("out_dtype") or torch.float32
        return QuantizerCall(
            kind, x, sizes, inputs["scales"], inputs["zero_points"], **_codes(inputs), out=out
        )

    return read


def _per_token(kind: str) -> Callable[[fx.Node], QuantizerCall]:
    def read(node: fx.Node) -> QuantizerCall:
        inputs = arguments(node)
        x = inputs["input"]
        sizes = (1,) * (rank_of(x) - 1) + (WHOLE,)
        out = inputs.get("output_dtype") or torch.float32
        scale, zero = inputs["scales"], inputs["zero_points"]
        return QuantizerCall(kind, x, sizes, scale, zero, **_codes(inputs), inside=True, out=out)

    return read


def _per_group(kind: str) -> Callable[[fx.Node], QuantizerCall]:
    def read(node: fx.Node) -> QuantizerCall:
        inputs = arguments(node)
        x = (
            inputs["input"]
            if kind == "quantize"
            else inputs["w_int8"]
            if "w_int8" in inputs
            else inputs["input"]
        )
        size, of = inputs["group_size"], shape(x)
        if of is None or len(of) != 2:
            raise NoFormatError(f"expected a matrix, found {of}")
        scales = shape(inputs["scales"])
        one = scales is not None and scales[-1] == 1
        if isinstance(of[-1], int) and size > of[-1] and one:
            size = of[-1]
        out = inputs.get("output_dtype") or torch.float32
        sizes = in_whole((1, size), of)
        scale, zero = inputs["scales"], inputs["zero_points"]
        return QuantizerCall(kind, x, sizes, scale, zero, **_codes(inputs), inside=True, out=out)

    return read


_OPS = {
    "per_tensor": _per_tensor,
    "per_tensor.tensor": _per_tensor,
    "per_tensor.tensor2": _per_tensor,
    "per_channel": _per_channel,
    "per_token": _per_token,
    "per_channel_group": _per_group,
}
READERS: dict[str, Callable[[fx.Node], QuantizerCall]] = {
    f"quantized_decomposed::{kind}_{which}": read(kind)
    for which, read in _OPS.items()
    for kind in ("quantize", "dequantize")
}


@dataclass(frozen=True)
class Packed:
    """Codes of ours, and what they were in the other library's terms."""

    codes: fx.Node
    fmt: str
    parts: ScaleNodes
    scale: Any
    zero_point: Any


Known = dict[fx.Node, Packed]


def quantize(
    graph: fx.GraphModule, node: fx.Node, quantizer_call: QuantizerCall, packed: Known
) -> None:
    """Write blockscale's quantize in the place of the node."""
    parts = parts_of(graph, node, quantizer_call)
    fmt = _format(graph, quantizer_call, parts)
    by = Quantizer(parts.scale, parts.zero_point, None, fmt)  # type: ignore[arg-type]
    args = primitives.quantize.flatten(quantizer_call.x, by)
    codes = call(graph, ours.quantize.default, args, like=node)
    _give(
        graph,
        node,
        Packed(codes, fmt, parts, quantizer_call.scale, quantizer_call.zero_point),
        quantizer_call,
        packed,
    )


def choose_quantize(
    graph: fx.GraphModule, node: fx.Node, quantizer_call: QuantizerCall, packed: Known
) -> None:
    """Write choose_quantize in the place of a quantize whose scale is chosen from its input."""
    low_only, _ = element(quantizer_call.low, quantizer_call.high, quantizer_call.mapping == "asym")
    options = [quantizer_call.mapping] if quantizer_call.mapping else []
    fmt = str(
        parse(":".join([low_only, block_name(quantizer_call.sizes), "fp32", *options, "recip"]))
    )
    choice = call(graph, ours.choose_quantize.default, (quantizer_call.x, fmt, None), like=node)
    count = 1 + len(parse(fmt).parts)
    items = [call(graph, operator.getitem, (choice, place), like=node) for place in range(count)]
    parts = ScaleNodes(items[1], items[2] if count > 2 else None, "fp32")
    result = Packed(items[0], fmt, parts, quantizer_call.scale, quantizer_call.zero_point)
    _give(graph, node, result, quantizer_call, packed)


def dequantize(
    graph: fx.GraphModule, node: fx.Node, quantizer_call: QuantizerCall, packed: Known
) -> None:
    """Write blockscale's dequantize in the place of the node."""
    bits = int(quantizer_call.high + 1).bit_length() - (quantizer_call.low == 0)
    if bits > 8 and quantizer_call.out != torch.float32:
        raise NoFormatError(
            f"codes of {bits} bits minus a zero point are rounded to {quantizer_call.out}"
        )
    if quantizer_call.dtype == torch.int32:
        return _write_sums(graph, node, quantizer_call)
    there = packed.get(quantizer_call.x)
    same = there is not None and (there.scale, there.zero_point) == (
        quantizer_call.scale,
        quantizer_call.zero_point,
    )
    if there is not None and same:
        codes, fmt, parts = there.codes, there.fmt, there.parts
    else:
        parts = parts_of(graph, node, quantizer_call)
        fmt = _format(graph, quantizer_call, parts)
        if constants.is_constant(quantizer_call.x):
            quantizer_call.x.meta.setdefault(WANTED, f"{reader_of(node)}.codes")
        codes = _packed(graph, node, quantizer_call, fmt)
    size = _size(graph, quantizer_call.x, node)
    operand = Operand(codes, parts.scale, parts.zero_point, None, fmt, size)  # type: ignore[arg-type]
    args = primitives.dequantize.flatten(operand, quantizer_call.out)
    replace(node, call(graph, ours.dequantize.default, args, like=node))
    return None


def _format(graph: fx.GraphModule, call: QuantizerCall, parts: ScaleNodes) -> str:
    """The spelling of the format with these codes, blocks, scales and kind of zero point."""
    name, own = element(call.low, call.high, parts.zero_point is not None)
    if parts.zero_type != "int32" and parts.zero_point is not None:
        own = [f"asym({parts.zero_type})"]
    scale = "fp32"
    if constants.is_constant(parts.scale) and _powers_of_two(constants.get(graph, parts.scale)):
        scale = "pow2/nearest"
    elif call.kind == "quantize":
        own = [*own, "recip"]  # which changes nothing under powers of two
    return str(parse(":".join([name, block_name(call.sizes), scale, *own])))


def _powers_of_two(scale: Tensor) -> bool:
    """Whether every scale is a power of two that float32 has without a subnormal number."""
    bits = scale.to(torch.float32).view(torch.int32)
    exponents = bits >> 23  # 0 of zero and subnormals, 255 of infinities; negative below zero
    normal = (exponents > 0) & (exponents < 255)
    return bool((normal & (bits & 0x7FFFFF == 0)).all())


def _give(
    graph: fx.GraphModule,
    node: fx.Node,
    result: Packed,
    quantizer_call: QuantizerCall,
    packed: Known,
) -> None:
    """Let who reads the node's codes read ours, unpacked if they are packed."""
    codes, form = result.codes, parse(result.fmt)
    if form.bits not in (8, 16) or packed_dtype(form.element) != quantizer_call.dtype:
        size = _size(graph, quantizer_call.x, node)
        codes = call(graph, ours.unpack.default, (codes, result.fmt, size), like=node)
        value = node.meta.get("val")
        if value is not None and codes.meta["val"].dtype != value.dtype:
            codes = call(graph, aten._to_copy.default, (codes,), {"dtype": value.dtype}, like=node)
    packed[codes] = result
    replace(node, codes)


def _packed(
    graph: fx.GraphModule, node: fx.Node, quantizer_call: QuantizerCall, fmt: str
) -> fx.Node:
    """The packed codes of a node that gives them one by one."""
    form = parse(fmt)
    values = constant(graph, quantizer_call.x)
    if values is not None and values.numel():
        low, high = (int(each) for each in values.aminmax())
        if low < quantizer_call.low or high > quantizer_call.high:
            raise NoFormatError(
                f"its codes are {low} … {high}, "
                f"expected {quantizer_call.low} … {quantizer_call.high}"
            )
    if form.bits in (8, 16) and packed_dtype(form.element) == quantizer_call.dtype:
        return quantizer_call.x
    codes, target = quantizer_call.x, form.element.code_dtype
    value = codes.meta.get("val")
    if value is not None and value.dtype != target:
        codes = call(graph, aten._to_copy.default, (codes,), {"dtype": target}, like=node)
    return call(graph, ours.pack.default, (codes, fmt), like=node)


def _write_sums(graph: fx.GraphModule, node: fx.Node, quantizer_call: QuantizerCall) -> None:
    """Integers of 32 bits, as biases have: code · scale, each rounded to float32 once."""
    zero = constant(graph, quantizer_call.zero_point)
    if quantizer_call.zero_point is not None and (zero is None or bool(zero.any())):
        raise NoFormatError("no element has integers of 32 bits with a zero point")
    if constant(graph, quantizer_call.x) is None or quantizer_call.out != torch.float32:
        raise NoFormatError("no element has integers of 32 bits")
    scale = parts_of(graph, node, quantizer_call).scale
    floats = call(
        graph, aten._to_copy.default, (quantizer_call.x,), {"dtype": torch.float32}, like=node
    )
    replace(node, call(graph, aten.mul.Tensor, (floats, scale), like=node))


def _size(graph: fx.GraphModule, x: fx.Node, like: fx.Node) -> Any:
    """The size of x's last dimension, as a node where it is a symbol."""
    sizes = shape(x)
    if not sizes:
        return 1
    last = sizes[-1]
    return last if isinstance(last, int) else call(graph, aten.sym_size.int, (x, -1), like=like)
