# SPDX-License-Identifier: BSD-3-Clause
"""Products as the nodes of a graph say them; test_ways.py has more."""

import torch

from blockscale.graph.lowering.products.product import (
    OPEN,
    floats_of,
    parts_of,
    product_of,
    spelled,
)
from tests.graph.lowering.programs import layers, network


def test_a_layer_of_the_module_flow():
    _, program, _ = network("uint8 asym static")
    graph = program.module(check_guards=False)
    found = list(filter(None, map(parts_of, graph.graph.nodes)))
    assert [each.fused for each in found] == [False] * 6
    up = product_of(found[0])
    assert up[:5] == ("uint8:tensor:fp32:asym", "int8:channel0:fp32", "", "", False)
    assert up[5:] == (OPEN, 96, 32)
    x, by = floats_of(found[0])
    assert x is found[0].x.data and by.scale is not None


def test_a_fused_product():
    graph, _ = layers("uint8 asym static")
    first, second = filter(None, map(parts_of, graph.graph.nodes))
    assert first.fused and first.activation == "relu" and first.y.fmt
    x, by = floats_of(first)
    assert x.op == "placeholder" and by.scale is first.x.scale
    assert floats_of(second) is None  # its codes come from a product
    assert product_of(first).given and not product_of(second).given


def test_a_dynamic_product():
    first, second = filter(None, map(parts_of, layers("int8 per token")[0].graph.nodes))
    x, by = floats_of(first)
    assert x.op == "placeholder" and by.scale is None
    assert floats_of(second) is None


def test_what_is_no_product():
    graph = torch.fx.symbolic_trace(torch.nn.ReLU())
    assert not any(map(parts_of, graph.graph.nodes))


def test_one_spelling():
    assert spelled("int8_token") == "int8:token:fp32"
    assert spelled("") == ""
