# SPDX-License-Identifier: BSD-3-Clause
"""From a traced quantized model to the graph of its integer steps, one node after the other."""

from typing import Any

from torch import Tensor, fx, nn

from blockscale.graph.integer import steps
from blockscale.graph.integer.builder import Builder, Value
from blockscale.graph.integer.layers import NotIntegerError, integer_layer, of_quantizer
from blockscale.graph.integer.rules import as_module, rule_for
from blockscale.layers.layer import QLayer
from blockscale.layers.store import QInput


def translate(traced: fx.Graph, model: nn.Module, example: list[Tensor]) -> Builder:
    """The graph of a quantized model -> the integer graph, finished.

    traced: the model's graph, in which quantized layers are single calls; example: its inputs,
    float32.

    Raises NotIntegerError, which names it, for the first node that integers cannot take over, and
    TypeError where an input has no example.
    """
    builder, examples = Builder(model), list(example)
    for node in traced.nodes:
        if node.op == "placeholder":
            if not examples:
                raise TypeError(f"the model has an input {node.target!r}: pass an example of it")
            builder.add_input(node, examples.pop(0))
        elif node.op == "output":
            builder.graph.output(fx.node.map_arg(node.args[0], lambda n: _to_float(builder, n)))
        else:
            builder.remember(node, _integer_value(builder, node))
    return builder


def _integer_value(builder: Builder, node: fx.Node) -> Value:
    """What a call of the traced model is on integers."""
    if node.op == "get_attr":
        raise NotIntegerError(f"{builder.name(node)} is a float tensor in the middle of the model")
    if node.args and not any(isinstance(v.example, Tensor) for v in builder.inputs(node)):
        return builder.add_same(node, None)  # arithmetic of sizes
    module = builder.module(node)
    if isinstance(module, QLayer):
        return _layer(builder, node, module)
    if module is None:
        module = as_module(node)
    what: Any = node.target if module is None else type(module)
    rule = rule_for(what)
    if rule is None:
        raise NotIntegerError(f"{builder.name(node)} has no integer form here")
    return rule(builder, node, module)


def _layer(builder: Builder, node: fx.Node, layer: QLayer) -> Value:
    """A quantized layer: the codes of its input, its sums, and the codes of a formatted output."""
    name = str(node.target)
    if getattr(layer, "own_forward", False):
        raise NotIntegerError(f"{name} is a {type(layer).__name__}, which has its own forward")
    taken = builder.inputs(node)[0]
    codes = _quantize(builder, node, taken, layer.input, f"the input of {name!r}")
    step, fixed = integer_layer(layer, name)
    sums = builder.add_step(node, step, [codes], fixed)
    builder.add_sums(node, fixed)
    if layer.output is None:
        return sums
    return _quantize(builder, node, sums, layer.output, f"the output of {name!r}")


def _quantize(
    builder: Builder, node: fx.Node, x: Value, quantizer: QInput | None, what: str
) -> Value:
    """x in a quantizer's format: by a shift, or from floats if they still are floats."""
    fixed = of_quantizer(quantizer, what)
    assert quantizer is not None
    if x.fixed is None:
        scale, zero_point, _ = quantizer.parts
        assert scale is not None
        step: nn.Module = steps.Quantize(quantizer.format, scale, zero_point)
    else:
        points = (x.fixed.zero_point, fixed.zero_point)
        shift = fixed.exponent - x.fixed.exponent
        step = steps.Requantize(shift, quantizer.format, points)
    return builder.add_step(node, step, [x], fixed)


def _to_float(builder: Builder, node: fx.Node) -> fx.Node:
    """The node of the integer graph that gives a result of the model, in float32."""
    value = builder.value(node)
    if value.fixed is None:
        return value.node
    step = steps.Dequantize(value.fixed.exponent, value.fixed.zero_point)
    return builder.add_step(node, step, [value], None).node
