# SPDX-License-Identifier: BSD-3-Clause
"""Nodes of exported programs find their fused op, and give the same bits as it; what the op does
not know, finds nothing."""

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

import blockscale as bs
from blockscale.core.operand import UNQUANTIZED, Value
from blockscale.ops.fused import FUSED, match
from blockscale.ops.fused.matching import Match, dtype_of
from tests.support.fused_cases import Case, cases_of
from tests.support.op_samples import bits

CASES = [
    pytest.param(name, case, id=f"{name}-{i}")
    for name, fused in sorted(FUSED.items())
    for i, case in enumerate(cases_of(name))
    if fused.patterns or fused.chain
]


class Calls(nn.Module):
    """A function of tensors as a module; settings that are tensors become its buffers."""

    def __init__(self, function: Callable[..., Any], settings: dict[str, Any]):
        super().__init__()
        self.function = function
        self.plain = {k: v for k, v in settings.items() if not isinstance(v, Tensor)}
        self.names = [k for k, v in settings.items() if isinstance(v, Tensor)]
        for name in self.names:
            self.register_buffer(name, settings[name])

    def forward(self, *tensors: Tensor) -> Any:
        return self.function(*tensors, **self.plain, **{n: getattr(self, n) for n in self.names})


def exported(function: Callable[..., Any], *tensors: Tensor, **settings: Any) -> fx.GraphModule:
    program = torch.export.export(Calls(function, settings), tensors)
    graph = program.module(check_guards=False)
    graph.graph.eliminate_dead_code()
    return graph


def matches(graph: fx.GraphModule) -> dict[fx.Node, Match]:
    found = {node: match(node) for node in graph.graph.nodes}
    return {node: each for node, each in found.items() if each is not None}


def replaced(graph: fx.GraphModule, node: fx.Node, found: Match) -> fx.GraphModule:
    """The graph with the fused op in the node's place, all floats."""
    op = found.fused.op
    dtype = dtype_of(found.operands[0] if found.fused.indices else node)
    with graph.graph.inserting_before(node):
        args = found.arguments(tuple(map(Value, found.operands)), dtype, UNQUANTIZED)
        every = graph.graph.call_function(op.overload, args)
        node.replace_all_uses_with(graph.graph.call_function(operator.getitem, (every, 0)))
    graph.graph.erase_node(node)
    graph.recompile()
    return graph


@pytest.mark.some(8)
@pytest.mark.parametrize(("name", "case"), CASES)
def test_a_node_is_its_fused_op(name: str, case: Case) -> None:
    tensors, settings = case.tensors(torch.float32), case.given(torch.float32)
    activation = settings.pop("activation", "")
    graph = exported(case.plain, *tensors, **settings)
    wanted = graph(*tensors)
    found = {node: each for node, each in matches(graph).items() if each.fused.name == name}
    assert len(found) == 1, (name, activation, graph.graph)
    ((node, each),) = found.items()
    assert each.settings.keys() == FUSED[name].settings.keys()
    with bs.use("reference"):
        assert bits(replaced(graph, node, each)(*tensors)) == bits(wanted)


X, Y = torch.randn(4, 6), torch.randn(4, 6)
SAME = [
    ("add", lambda x, y: torch.ops.aten.add_(x * 2, y)),
    ("add_scalar", lambda x, y: x + 2),
    ("add_scalar", lambda x, y: 2.5 + x),
    ("rsub_scalar", lambda x, y: 1 - x),
    ("sub", lambda x, y: torch.rsub(x, y)),
    ("mul_scalar", lambda x, y: x * 3),
    ("div_scalar", lambda x, y: x / 8),
    ("pow_scalar", lambda x, y: x**2),
    ("maximum", lambda x, y: torch.max(x, y)),
    ("amax", lambda x, y: torch.max(x)),
    ("amin", lambda x, y: torch.min(x)),
    ("matmul", lambda x, y: torch.mm(x, y.t())),
    ("clamp", lambda x, y: x.clamp_max(0.5)),
    ("clamp", lambda x, y: x.clamp_min(0.5)),
    ("softmax", lambda x, y: torch.ops.aten._softmax(x, -1, False)),
    ("softmax", lambda x, y: torch.softmax(x, -1, dtype=torch.float32)),
    ("log_softmax", lambda x, y: torch.ops.aten._log_softmax(x, -1, False)),
    ("layer_norm", lambda x, y: torch.native_layer_norm(x, [6], None, None, 1e-5)[0]),
    ("relu", lambda x, y: F.relu(x * 2, inplace=True)),
    ("hardtanh", lambda x, y: torch.ops.aten.hardtanh(x, -1, 2)),
    ("cat", lambda x, y: torch.concat([x, y], 1)),
    ("mean", lambda x, y: x.mean((0, 1))),
    ("max_pool2d", lambda x, y: F.max_pool2d(x[None], 2, return_indices=True)[0]),
    ("max_pool3d", lambda x, y: F.max_pool3d(x[None, None], (1, 2, 2), return_indices=True)[0]),
    ("where_scalar", lambda x, y: torch.where(x > 0, x, 0.5)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "function"), SAME, ids=[f"{i}-{n}" for i, (n, _) in enumerate(SAME)]
)
def test_other_spellings(name: str, function: Callable[..., Tensor]) -> None:
    graph = exported(function, X, Y)
    wanted = graph(X, Y)
    found = {node: each for node, each in matches(graph).items() if each.fused.name == name}
    assert len(found) == 1, graph.graph
    ((node, each),) = found.items()
    with bs.use("reference"):
        assert bits(replaced(graph, node, each)(X, Y)) == bits(wanted)


NOT = [
    ("integers", lambda x, y: x + torch.arange(6)[None] // 2 - x.long(), set()),
    ("integer_index", lambda x, y: (x > 0).long() * 3, set()),
    ("rounded_quotient", lambda x, y: torch.div(x, y, rounding_mode="floor"), set()),
    ("softmax_in_another_dtype", lambda x, y: torch.softmax(x, -1, dtype=torch.float64), set()),
    ("mean_in_another_dtype", lambda x, y: torch.mean(x, -1, dtype=torch.float64), set()),
    ("training", lambda x, y: F.batch_norm(x, None, None, training=True), set()),
    ("dropout", lambda x, y: F.scaled_dot_product_attention(x, y, y, dropout_p=0.1), set()),
    ("clamp_of_tensors", lambda x, y: torch.clamp(x, y - 9, y + 9), {"sub_scalar", "add_scalar"}),
    ("both_of_max", lambda x, y: torch.max(x, 1)[0], set()),
    ("an_input_in_place", lambda x, y: F.relu_(x), set()),
    ("dropped_out_in_place", lambda x, y: F.relu_(F.dropout(x, training=False)), set()),
    ("a_view_in_place", lambda x, y: (z := x * 2, F.relu_(z[1:]), z)[2], {"mul_scalar"}),
    ("half_products", lambda x, y: x.half() @ y.half().t(), set()),
    ("statistics", lambda x, y: torch.native_layer_norm(x, [6], None, None, 1e-5)[1], set()),
]  # fmt: skip


@pytest.mark.parametrize(("function", "names"), [each[1:] for each in NOT], ids=[e[0] for e in NOT])
def test_what_is_no_fused_op(function: Callable[..., Any], names: set[str]) -> None:
    graph = exported(function, X, Y)
    assert {each.fused.name for each in matches(graph).values()} == names, graph.graph


def test_in_place_where_others_read_it() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    doubled = graph.call_function(torch.ops.aten.mul.Tensor, (x, 2))
    changed = graph.call_function(torch.ops.aten.relu_.default, (doubled,))
    for node in (x, doubled, changed):
        node.meta["val"] = X
    found = match(changed)
    assert found is not None and found.fused.name == "relu"
    graph.output(graph.call_function(torch.ops.aten.add.Tensor, (doubled, changed)))
    assert match(changed) is None


def test_a_node_of_unknown_dtype_finds_nothing() -> None:
    graph = exported(torch.add, X, Y)
    node = next(node for node in graph.graph.nodes if node.op == "call_function")
    assert match(node) is not None
    for each in graph.graph.nodes:
        each.meta.pop("val", None)
    assert match(node) is None


def test_a_size_is_no_number() -> None:
    """x * x.shape[0] with a size that is a symbol."""
    rows = torch.export.Dim("rows", min=2, max=9)
    shapes = ({0: rows},)
    program = torch.export.export(
        Calls(lambda x: x * x.shape[0], {}), (X,), dynamic_shapes=(shapes,)
    )
    assert not matches(program.module(check_guards=False))


def test_every_overload_is_there() -> None:
    """A name of a pattern that torch has not would be found at the first match only."""
    assert all(fused.aten for fused in FUSED.values() if fused.patterns)
    without = {name for name, fused in FUSED.items() if not fused.patterns and not fused.chain}
    assert without == {"conv", "add_layer_norm", "requantize"}


def test_words_are_names_of_the_op() -> None:
    for fused in FUSED.values():
        for pattern in fused.patterns:
            words = set(pattern.split()[1:]) - set("_*!@")
            assert words <= {*fused.operands, *fused.settings}, pattern
