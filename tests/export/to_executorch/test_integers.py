# SPDX-License-Identifier: BSD-3-Clause
"""Which products XNNPACK gets, and in which words."""

import pytest
import torch
from torch import nn

import blockscale as bs
from blockscale.export.to_executorch.integers import to_integers
from tests.support.to_executorch_integers import converted


def names(graph):
    targets = (str(node.target) for node in graph.graph.nodes if node.op == "call_function")
    return {name.split(".")[1] for name in targets if "quantized_decomposed" in name}


@pytest.mark.some(4)
@pytest.mark.parametrize(
    ("recipe", "taken"),
    [
        (bs.Recipe("int8_channel", "int8", "int8"), True),
        (bs.Recipe("int8_channel", "uint8", "uint8"), True),
        (bs.Recipe("int8_channel", "int8_token"), True),
        (bs.Recipe("int8", "int8", "int8"), True),
        (bs.Recipe("int8", "int8_token"), True),
        (bs.Recipe("int4:group32:bf16", "int8_token"), True),
        (bs.Recipe("int4:channel0:fp32", "int8_token"), True),
        (bs.Recipe("int8_channel", "int8"), False),  # the output is not quantized
        (bs.Recipe("int8_channel"), False),
        (bs.Recipe("int4:group16:fp32", "int8_token"), False),
        (bs.Recipe("mxfp4", "int8_token"), False),
        (bs.Recipe("int8:group32:fp32", "int8_token"), False),
        (bs.Recipe("uint8", "int8_token"), False),
    ],
)
def test_what_xnnpack_gets(recipe, taken):
    graph, _ = converted(recipe)
    assert bool(to_integers(graph)) is taken
    assert bool(names(graph)) is taken


def test_values_are_within_a_step_of_ours():
    """torch's own ops of these names compute what the graph did: codes differ at ties alone."""
    graph, x = converted(bs.Recipe("int8_channel", "uint8", "uint8"))
    with torch.no_grad(), bs.use("reference"):
        expected = graph(x)
    to_integers(graph)
    graph.recompile()
    with torch.no_grad():
        y = graph(x)
    step = (expected.max() - expected.min()) / 255
    assert (y - expected).abs().max() <= 1.01 * step
    assert torch.nn.functional.cosine_similarity(y, expected).min() > 0.9999


def test_convolutions_lie_as_torch_has_them():
    x = torch.randn(2, 8, 6, 6)
    layers = (nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 4, 3))
    graph, _ = converted(bs.Recipe("int8_channel", "int8", "int8"), *layers, x=x)
    with torch.no_grad(), bs.use("reference"):
        expected = graph(x)
    assert len(to_integers(graph)) == 2
    graph.recompile()
    held = dict(graph.named_buffers())
    assert held["0.weight.integers"].shape == (16, 8, 3, 3)
    with torch.no_grad():
        assert torch.nn.functional.cosine_similarity(graph(x), expected).min() > 0.999
