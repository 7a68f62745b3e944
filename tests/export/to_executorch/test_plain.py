# SPDX-License-Identifier: BSD-3-Clause
"""Graphs of core ops alone: the reference's bits, and no op that ExecuTorch lacks."""

import pytest
import torch
from torch import nn

import blockscale as bs
from blockscale.export.to_executorch import core_ops
from blockscale.export.to_executorch.plain import drop_copies, integer, per_tensor, write_out
from blockscale.graph.program import import_graph
from tests.support.to_executorch_integers import converted

IDS = torch.arange(6).reshape(2, 3)


def written(fmt, given=None):
    torch.manual_seed(0)
    layers = [nn.Embedding(16, 64), nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 8)]
    model = nn.Sequential(*layers).eval()
    program = torch.export.export(model, (IDS,))
    spec = "mean" if bs.parse(fmt).element.name in ("binary", "ternary") else "min_max"
    graph = bs.graph.prepare(program, bs.Recipe(fmt, given), observer=spec)
    bs.calibrate(graph, [(IDS,)], progress=False)
    converted = bs.graph.convert(graph)
    with bs.use("reference"), torch.no_grad():
        expected = converted(IDS)
    made = import_graph(converted)
    write_out(made)
    return made, expected


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fmt", "given"),
    [("mxfp4", None), ("int8_channel", "int8_token"), ("uint4", "uint8"), ("nvfp4", "int8")],
)
def test_the_same_bits(fmt, given):
    made, expected = written(fmt, given)
    with torch.no_grad():
        assert torch.equal(made(IDS), expected)
    targets = {node.target for node in made.graph.nodes if node.op == "call_function"}
    assert not targets & set(core_ops.TABLE)
    assert not [t for t in targets if "blockscale" in str(t)]


@pytest.mark.slow
@pytest.mark.parametrize("fmt", sorted(bs.formats()))
def test_every_format(fmt):
    made, expected = written(fmt)
    with torch.no_grad():
        assert torch.equal(made(IDS), expected)


def test_weights_stay_packed():
    made, _ = written("int4:group32:fp32")
    held = {name: tensor.dtype for name, tensor in made.named_buffers()}
    assert held["1.weight.codes"] == torch.uint8
    assert not [n for n, p in made.named_parameters() if p.ndim > 1]


# Permutes that nothing needs are dropped, and only those.


def test_copies_are_dropped_where_a_quantizer_sees_no_order():
    x = torch.randn(2, 8, 6, 6)
    graph, _ = converted(bs.Recipe("int8_channel", "int8"), nn.Conv2d(8, 4, 3), x=x)
    before = [node for node in graph.graph.nodes if "permute" in str(node.target)]
    drop_copies(graph)
    graph.graph.eliminate_dead_code()
    after = [node for node in graph.graph.nodes if "permute" in str(node.target)]
    assert len(after) < len(before)


@pytest.mark.slow
def test_values_stay():
    x = torch.randn(2, 8, 6, 6)
    recipe = bs.Recipe("int8_channel", "int8", "int8")
    graph, _ = converted(recipe, nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3), x=x)
    with torch.no_grad(), bs.use("reference"):
        expected = graph(x)
    drop_copies(graph)
    graph.recompile()
    assert not [n for n in graph.graph.nodes if "movedim" in str(n.target)]
    with torch.no_grad(), bs.use("reference"):
        torch.testing.assert_close(graph(x), expected, rtol=0, atol=0)


def test_scales_that_see_an_order_keep_theirs():
    x = torch.randn(2, 8, 6, 6)
    recipe = bs.Recipe("int8_channel", "int8:group4:fp32")
    graph, _ = converted(recipe, nn.Conv2d(8, 4, 3), x=x)
    before = [node for node in graph.graph.nodes if "permute" in str(node.target)]
    drop_copies(graph)
    after = [node for node in graph.graph.nodes if "permute" in str(node.target)]
    assert len(after) == len(before)


@pytest.mark.parametrize(
    ("fmt", "is_integer", "is_per_tensor"),
    [
        ("int8", True, True),
        ("uint8", True, True),
        ("int8_token", True, False),
        ("bfp8", False, False),
        ("fp8", False, False),
        ("int16", False, False),
        ("int8:tensor:pow2/nearest", True, True),
        ("int8:tensor:fp32:stochastic", False, False),
    ],
)
def test_formats(fmt, is_integer, is_per_tensor):
    assert integer(bs.parse(fmt), 8) is is_integer
    assert per_tensor(bs.parse(fmt)) is is_per_tensor
