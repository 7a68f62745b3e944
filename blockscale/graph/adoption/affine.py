# SPDX-License-Identifier: BSD-3-Clause
"""torchao's affine ops. Source: torchao 0.18.0, quantization/quant_primitives.py.

`choose_qparams_affine` becomes part of choose_quantize where the quantize that reads it takes both
its results and a format chooses as it does; else it stays, and quantize takes what it gives.
"""

import operator
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx

from blockscale.graph.adoption.parts import NoFormatError, QuantizerCall, in_whole
from blockscale.graph.nodes import arguments, aten, call, calls, dequantize_of, ours, shape
from blockscale.graph.nodes import replace as nodes_replace
from blockscale.ops import primitives

# Products of bfloat16 and float16 models in float32, as layers of ours compute them.

LAYER = "blockscale_layer"  # in a node's meta: that it computes as a layer of ours does
_MOVING = (aten.view, aten.permute, aten.reshape, aten._unsafe_view, aten.t, aten.clone)


def widen(graph: fx.GraphModule) -> int:
    """Let marked nodes compute in float32, and round their results once. In place.

    torchao annotates edges, and leaves a layer's product in the model's own dtype; ours dequantize
    to float32 (docs/numerics.md, section 7). Returns the number of nodes.
    """
    count = 0
    for node in list(graph.graph.nodes):
        value = node.meta.get("val")
        if not node.meta.pop(LAYER, False) or value is None or value.dtype == torch.float32:
            continue
        args = fx.node.map_arg(node.args, partial(_float32, graph, like=node))
        y = call(graph, node.target, args, node.kwargs, like=node)
        nodes_replace(node, call(graph, aten.to.dtype, (y, value.dtype), like=node))
        count += 1
    return count


def _float32(graph: fx.GraphModule, node: fx.Node, like: fx.Node) -> fx.Node:
    """The same values before they were rounded to a narrower float, else widened."""
    value: Any = node.meta.get("val")
    narrow = isinstance(value, Tensor) and value.is_floating_point()
    if not narrow or value.dtype == torch.float32:
        return node
    result = dequantize_of(node)
    if result is not None:
        args = primitives.dequantize.flatten(result.operand, torch.float32)
        return call(graph, ours.dequantize.default, args, like=like)
    if calls(node, *_MOVING):
        first, *rest = node.args
        assert isinstance(first, fx.Node)
        wide = _float32(graph, first, like)
        return call(graph, node.target, (wide, *rest), node.kwargs, like=like)  # type: ignore[arg-type]
    source: Any = node.args[0] if calls(node, aten._to_copy) else None
    if source is not None and source.meta["val"].dtype == torch.float32:
        return source
    return call(graph, aten.to.dtype, (node, torch.float32), like=like)


_INTEGERS = {torch.uint8: 8, torch.int8: 8, torch.int16: 16, torch.uint16: 16, torch.int32: 32}


def _limits(dtype: torch.dtype, inputs: dict[str, Any]) -> tuple[int, int]:
    """The smallest and largest code: as given, or all that the dtype has."""
    bits = _INTEGERS.get(dtype)
    if bits is None:
        name = str(dtype).removeprefix("torch.")
        digits = name.lstrip("uint")
        if not digits.isdigit() or "int" not in name:
            raise NoFormatError(f"codes of {dtype} are not integers")
        bits = int(digits)
    unsigned = str(dtype).startswith("torch.u")
    low, high = (0, 2**bits - 1) if unsigned else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    request = inputs["quant_min"], inputs["quant_max"]
    results = [
        usual if each is None else each for each, usual in zip(request, (low, high), strict=True)
    ]
    if any(each != int(each) for each in results):
        raise NoFormatError(
            f"its codes end at {results[0]} and {results[1]}, which are not integers"
        )
    return int(results[0]), int(results[1])


def _sizes(x: fx.Node, block: Any) -> tuple[int, ...]:
    of = shape(x)
    if of is None:
        raise NoFormatError(f"the shape of {x.name} is not known")
    return in_whole(block, of)


def _affine(kind: str) -> Callable[[fx.Node], QuantizerCall]:
    def read(node: fx.Node) -> QuantizerCall:
        inputs = arguments(node)
        x, dtype = inputs["input"], inputs["output_dtype" if kind == "quantize" else "input_dtype"]
        low, high = _limits(dtype, inputs)
        zero = inputs["zero_point"]
        out = inputs["output_dtype"] if kind == "dequantize" else torch.float32
        if isinstance(out, int):  # a default as the schema has it: the number of float32
            out = torch.float32
        sizes = _sizes(x, inputs["block_size"])
        call = QuantizerCall(kind, x, sizes, inputs["scale"], zero, low, high, dtype, out=out)
        return _with_choice(call) if kind == "quantize" else call

    return read


def _with_choice(call: QuantizerCall) -> QuantizerCall:
    """A quantize whose scale is chosen from its own x, as one."""
    choice = _chosen_by(call)
    if choice is None:
        return call
    inputs = arguments(choice)
    smallest = torch.finfo(torch.float32).smallest_normal
    value = call.x.meta.get("val")
    if (
        value is None
        or value.dtype != torch.float32
        or inputs["scale_dtype"] not in (None, torch.float32)
    ):
        return call
    if inputs["eps"] is not None and inputs["eps"] > smallest:
        return call  # no format has another smallest scale
    codes = _limits(inputs["target_dtype"], inputs)
    same = codes == (call.low, call.high) and _sizes(call.x, inputs["block_size"]) == call.sizes
    if not same:
        return call
    mapping = _mapping(str(inputs["mapping_type"]), call.low, call.high)
    if mapping is None:
        return call
    return replace(call, kind="choose", mapping=mapping)


def _chosen_by(call: QuantizerCall) -> fx.Node | None:
    """The choose_qparams_affine of the same x that gives the scale and the zero point."""
    parts = (call.scale, call.zero_point)
    results = [
        part.args[0]
        for place, part in enumerate(parts)
        if isinstance(part, fx.Node) and part.target is operator.getitem and part.args[1] == place
    ]
    if len(results) != 2 or results[0] is not results[1]:
        return None
    choice = results[0]
    is_choice = calls(choice, getattr(torch.ops.torchao, "choose_qparams_affine", None))
    same = is_choice and isinstance(choice, fx.Node) and choice.args[0] is call.x
    return choice if same else None  # type: ignore[return-value]


def _mapping(name: str, low: int, high: int) -> str | None:
    """The option of a format that chooses as a mapping does; None where there is none."""
    if name == "ASYMMETRIC" and (low == 0 or low == -high - 1):
        return "asym"
    if low == -high and "SYMMETRIC" in name and name != "ASYMMETRIC":
        return ""
    if low != -high - 1:
        return None
    return {"SYMMETRIC": "half", "SYMMETRIC_NO_CLIPPING_ERR": "full"}.get(name)


READERS: dict[str, Callable[[fx.Node], QuantizerCall]] = {
    "torchao::quantize_affine": _affine("quantize"),
    "torchao::dequantize_affine": _affine("dequantize"),
}
