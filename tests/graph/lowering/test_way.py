# SPDX-License-Identifier: BSD-3-Clause
"""What is said of a node."""

import torch
from torch import nn

import blockscale as bs
from blockscale.graph.lowering.way import by_overload, of_ours, set_ways, way, ways
from blockscale.ops.fused import FUSED
from blockscale.ops.fused.plan import RESIDUAL
from blockscale.ops.op import OPS
from tests.graph.lowering.programs import layers


def test_a_way_says_where_its_node_comes_from():
    graph, _ = layers("int8 static")
    (node, *_) = [n for n in graph.graph.nodes if of_ours(n) is FUSED["linear"].op]
    found = way(node, "kernel", "because")
    assert (found.node, found.op, found.text) == (
        node.name, "fused_linear", "fused_linear: kernel (because)",
    )  # fmt: skip
    assert "programs.py" in found.summary and not found.on_reference
    assert way(node, "kernel").text == "fused_linear: kernel"


def test_ways_stay_with_the_graph():
    graph, _ = layers("mxfp8")
    assert ways(graph) == ()
    found = [way(n, "kernel") for n in graph.graph.nodes if of_ours(n)]
    before = dict(graph.meta)
    set_ways(graph, found)
    assert ways(graph) == tuple(found)
    graph.meta.clear()
    graph.meta.update(before)


def test_every_op_of_ours():
    assert {op.name for op in by_overload().values()} == {
        *OPS, *(fused.op.name for fused in FUSED.values()), *(op.name for op in RESIDUAL)
    }  # fmt: skip
    graph, _ = layers("mxfp8")
    others = [n for n in graph.graph.nodes if n.op != "call_function"]
    assert others and not any(map(of_ours, others))


def test_a_layer_that_became_one_with_its_activation_keeps_its_way():
    x = torch.randn(1, 4, 6, 6)
    program = torch.export.export(nn.Sequential(nn.Conv2d(4, 4, 3), nn.ReLU()).eval(), (x,))
    prepared = bs.graph.prepare(program, bs.Recipe("int8_channel"))
    lowered = bs.graph.lower(bs.graph.fuse(bs.graph.convert(prepared)), "cpu")
    (entry,) = [each for each in bs.graph.ledger(lowered).entries if each.name == "0"]
    assert "on cpu: fused_conv: " in entry.details
    assert [each.scope for each in bs.graph.ways(lowered)] == ["0"]
