# SPDX-License-Identifier: BSD-3-Clause
"""Permutes that nothing needs are dropped, and only those."""

import pytest
import torch
from torch import nn

import blockscale as bs
from blockscale.export.to_executorch.copies import drop_copies, integer, per_tensor
from tests.support.to_executorch_integers import converted


def test_copies_are_dropped_where_a_quantizer_sees_no_order():
    x = torch.randn(2, 8, 6, 6)
    graph, _ = converted(bs.Recipe("int8_channel", "int8"), nn.Conv2d(8, 4, 3), x=x)
    before = [node for node in graph.graph.nodes if "permute" in str(node.target)]
    drop_copies(graph)
    graph.graph.eliminate_dead_code()
    after = [node for node in graph.graph.nodes if "permute" in str(node.target)]
    assert len(after) < len(before)


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
