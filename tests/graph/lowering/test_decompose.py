# SPDX-License-Identifier: BSD-3-Clause
"""References in the place of ops."""

import copy
import operator

import pytest
import torch

import blockscale as bs
from blockscale.core.operand import operand
from blockscale.core.parse import CATALOG, parse
from blockscale.graph.lowering.decompose import Decomposer, bodies
from blockscale.graph.lowering.way import of_ours
from blockscale.ops.primitives import choose_quantize, dequantize, from_list
from tests.graph.lowering.programs import layers
from tests.support.some import crossed

pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")


class RoundTrip(torch.nn.Module):
    def __init__(self, fmt):
        super().__init__()
        self.fmt = fmt

    def forward(self, x):
        codes, *parts = choose_quantize(x, self.fmt, None)
        coded = operand(codes, from_list(parts, parse(self.fmt)), self.fmt, x.shape[-1])
        return dequantize(coded, torch.float32)


@pytest.mark.slow
@pytest.mark.parametrize("fmt", crossed(3, sorted(CATALOG)))
def test_torchs_own_decomposition(fmt):
    """References can be traced below autograd, in every named format, with a partial last block."""
    x = torch.randn(3, 4, 72)
    x[0, 0, :4] = torch.tensor([0.0, -0.0, 1e-40, 3e38])
    program = torch.export.export(RoundTrip(fmt), (x,))
    made = program.run_decompositions(bodies())
    assert not [n for n in made.graph.nodes if str(n.target).startswith("blockscale")]
    with bs.use("reference"):
        expected = RoundTrip(fmt)(x)
    found = made.module()(x)
    assert torch.equal(found.view(torch.int32), expected.view(torch.int32))


@pytest.mark.slow
def test_nodes_that_are_alike_are_traced_once():
    graph = torch.export.export(Twice(), (torch.randn(3, 64),)).module(check_guards=False)
    decomposer = Decomposer(graph)
    nodes = [n for n in graph.graph.nodes if of_ours(n)]
    for node in nodes:
        decomposer.replace(node)
    assert len(nodes) == 4 and len(decomposer._traced) == 2
    assert not any(map(of_ours, graph.graph.nodes))


class Twice(torch.nn.Module):
    def forward(self, x):
        trip = RoundTrip("mxfp8")
        return trip(trip(x))


@pytest.mark.slow
def test_results_taken_as_one_list():
    class Whole(torch.nn.Module):
        def forward(self, x):
            return choose_quantize(x, "mxfp8", None)

    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = (
        torch.export.export(Whole(), (torch.randn(2, 64),)).graph_signature
        and (layers("mxfp8")[0].graph.find_nodes(op="placeholder")[0].meta["val"])
    )
    node = graph.call_function(choose_quantize.overload, (x, "mxfp8", None))
    graph.output(node)
    made = torch.fx.GraphModule({}, graph)
    assert Decomposer(made).reason(node) == "output reads its list of results as a whole"


@pytest.mark.slow
def test_new_nodes_come_from_where_the_op_came():
    graph, _ = layers("mxfp8")
    made = torch.fx.GraphModule(graph, copy.deepcopy(graph.graph))
    decomposer = Decomposer(made)
    node = next(n for n in made.graph.nodes if of_ours(n))
    trace, before = node.meta["stack_trace"], set(made.graph.nodes)
    decomposer.replace(node)
    new = [n for n in made.graph.nodes if n not in before and n.op == "call_function"]
    assert new and all(n.meta["stack_trace"] == trace for n in new)
    assert all("val" in n.meta for n in new if n.target is not operator.getitem)
