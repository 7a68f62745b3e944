# SPDX-License-Identifier: BSD-3-Clause
"""Graphs that others quantized: their nodes become ours, to the bit, and their weights codes."""

import operator

from torch import Tensor, fx

from blockscale.core.torch_private import detect_fake_mode
from blockscale.graph.adoption.affine import widen
from blockscale.graph.adoption.observed import translate
from blockscale.graph.adoption.weights import fold
from blockscale.graph.nodes import set_value
from blockscale.graph.passes import duplicates, tidy


def adopt(graph: fx.GraphModule) -> int:
    """Make a quantized graph one of ours, in place; returns the number of changes.

    Nodes of `quantized_decomposed` and of torchao's `quantize_affine`, `dequantize_affine` and
    `choose_qparams_affine` become blockscale's quantize and dequantize of the format that gives the
    same bits; their scales and zero points, whatever their rank was, have the tensor's rank then.
    Where no format has these bits, the node stays, and the ledger says why. Weights become packed
    codes: quantize nodes of constants are computed and the float tensors dropped. So it takes what
    torchao's convert_pt2e gives, with any quantizer, pt2e_quantizer among them.
    """
    _set_values(graph)
    changes = widen(graph) + translate(graph)
    tidy(graph)
    changes += fold(graph)
    tidy(graph)
    changes += duplicates.run(graph)  # convert_pt2e dequantizes once for each reader
    tidy(graph)
    return changes


def _set_values(graph: fx.GraphModule) -> None:
    """Values for the nodes that have none, as those that convert_pt2e made."""
    mode = detect_fake_mode([node.meta.get("val") for node in graph.graph.nodes])
    for node in graph.graph.nodes:
        if "val" in node.meta:
            continue
        if node.op == "get_attr" and mode is not None:
            tensor = operator.attrgetter(str(node.target))(graph)
            if isinstance(tensor, Tensor):
                node.meta["val"] = mode.from_tensor(tensor.detach(), static_shapes=True)
        elif node.op == "call_function":
            set_value(node)
