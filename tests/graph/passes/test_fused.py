# SPDX-License-Identifier: BSD-3-Clause
"""Calls of fused ops, read and written."""

import torch
import torch.nn.functional as F

from blockscale.core.operand import UNQUANTIZED, Value
from blockscale.graph.nodes import aten, each_call, ours
from blockscale.graph.passes.fused import (
    Call,
    as_value,
    match_fused,
    only_user,
    quantized_by,
    read,
    result,
    taken_out,
    widened,
)
from blockscale.ops.fused import FUSED
from tests.graph.passes.nets import graph_of, round_trip

X = torch.randn(3, 64)


def test_what_is_written_is_read_back() -> None:
    graph = graph_of(lambda _, x: torch.relu(x) * 2, X)
    (relu,) = each_call(graph, aten.relu)
    for name, settings in (("relu", {}), ("clamp", {"min": 0.0, "max": 3.0})):
        settings = FUSED[name].settings | settings
        made = Call(FUSED[name], [Value(relu.args[0])], settings, torch.float32)
        node = made.write(graph, relu)
        found = read(node)
        assert found is not None and found.fused is FUSED[name] and found.settings == settings
        assert found.operands[0].data is relu.args[0] and found.y == UNQUANTIZED
        y = result(graph, node, relu)
        assert y.meta["val"].shape == relu.meta["val"].shape
        assert taken_out(y).fused is FUSED[name]
    assert read(relu) is None and taken_out(relu) is None


def test_lists_of_operands() -> None:
    graph = graph_of(lambda _, x: torch.cat([x, x + 1], 1) * 2, X)
    (cat,) = each_call(graph, aten.cat)
    given = [Value(each) for each in cat.args[0]]
    node = Call(FUSED["cat"], given, {"dim": 1}, torch.float32).write(graph, cat)
    assert [each.data for each in read(node).operands] == list(cat.args[0])


def test_one_reader_reads_once() -> None:
    graph = graph_of(lambda _, x: ((x + 1) * (x + 2)).square(), X)
    first, second = each_call(graph, aten.add)
    assert only_user(first) is only_user(second) is not None
    graph = graph_of(lambda _, x: (lambda y: y * y)(x + 1), X)
    (both,) = each_call(graph, aten.add)
    assert only_user(both) is None


def test_codes_of_the_right_dtype_are_operands() -> None:
    graph = graph_of(lambda _, x: round_trip(x, "mxfp8") * 2, X)
    (node,) = each_call(graph, ours.dequantize)
    assert as_value(node, torch.float32).fmt == "mxfp8"
    assert as_value(node, torch.bfloat16) is None
    assert as_value(node.args[0], torch.float32) == Value(node.args[0])


def test_who_quantizes() -> None:
    graph = graph_of(lambda _, x: round_trip(x + 1, "mxfp8") * 2, X)
    (node,) = each_call(graph, aten.add)
    user, by = quantized_by(node)
    assert user.target is ours.choose_quantize.default and by.fmt == "mxfp8"
    assert quantized_by(next(each_call(graph, ours.dequantize))) is None


def test_wide_ops_match_float32_only() -> None:
    def net(_, x):
        low = x.to(torch.bfloat16)
        return F.linear(low, low).to(torch.float32) + F.linear(low.to(torch.float32), x)

    graph = graph_of(net, X)
    narrow, wide = each_call(graph, aten.linear)
    assert match_fused(narrow) is None and match_fused(wide).fused.name == "linear"
    assert widened(wide.args[0]).meta["val"].dtype == torch.bfloat16
    assert widened(wide.args[1]) is wide.args[1]
