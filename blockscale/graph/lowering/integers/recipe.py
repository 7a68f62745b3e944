# SPDX-License-Identifier: BSD-3-Clause
"""A recipe that gives every edge of a program codes with one power of two for a scale."""

from collections.abc import Iterator
from typing import Any

import torch

from blockscale.core.recipe import Recipe
from blockscale.graph.nodes import aten, calls, op_name
from blockscale.graph.program import Program, import_graph

_WIDE = ("add", "sub", "layer_norm", "rms_norm")  # residuals, which go through the whole network
_SAME = (  # ops whose inputs and results get the formats of layers' inputs
    *("matmul", "bmm", "scaled_dot_product_attention", "gelu", "silu", "sigmoid", "tanh", "mul"),
    *("hardswish", "hardsigmoid", "leaky_relu", "elu", "mish", "softplus", "mean", "cat", "stack"),
    *("avg_pool1d", "avg_pool2d", "avg_pool3d", "adaptive_avg_pool1d", "adaptive_avg_pool2d"),
)


def integer_recipe(
    program: Program,
    *,
    weight: str = "int8:channel0:pow2/nearest",
    input: str = "uint8:tensor:pow2/nearest:asym",
    wide: str = "int16:tensor:pow2/ceil",
    gelu: str = "int16:tensor:pow2/ceil",
    attention: str = "uint8:tensor:pow2/nearest:asym",
    rules: dict[str, Any] | None = None,
) -> Recipe:
    """A recipe under which `bs.graph.lower(graph, "integer")` finds a format at every op.

    program: of torch.export, of the float model
    weight: of layers; embeddings get 16 bits, a scale for each row
    input: of layers, activations and products of two tensors: codes of 8 bits; with those of 16,
        such as `wide`, deep networks are nearer to float, and slower
    wide: of residual sums and norms, 16 bits: errors there add up over all blocks
    gelu: of GELU's input, which is flat below -3: 8 bits are a smaller table and less exact
    attention: of queries, keys and values, which have at most 8 bits
    rules: further ones, which come before these

    Raises TypeError for what is no program.
    """
    both = {name: wide if name in _WIDE else input for name in (*_WIDE, *_SAME)}
    own = {"gelu": gelu, "scaled_dot_product_attention": attention}
    own_rules: dict[str, Any] = {}
    for node in _float_calls(program):
        name = op_name(node)
        if name in both:
            input_format = own.get(name, both[name])
            own_rules[f"op:{name}"] = {"input": input_format, "output": both[name]}
        elif name == "softmax":
            own_rules["op:softmax"] = {"input": wide, "output": "uint8:tensor:pow2/nearest"}
        elif calls(node, aten.embedding):
            layer = str(node.args[0].target).rpartition(".")[0]
            own_rules[layer] = {"weight": "int16:channel0:pow2/ceil"}
    first = rules or {}
    own_rules = {pattern: each for pattern, each in own_rules.items() if pattern not in first}
    return Recipe(weight, input, bias="int32", rules=first | own_rules)


def _float_calls(program: Program) -> Iterator[Any]:
    """The nodes that call what gives a tensor of floats."""
    for node in import_graph(program).graph.nodes:
        if node.op == "call_function" and _is_float(node.meta.get("val")):
            yield node


def _is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()
