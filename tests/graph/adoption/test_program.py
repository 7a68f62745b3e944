# SPDX-License-Identifier: BSD-3-Clause
"""Programs and graph modules of other libraries, as every step of ours takes them."""

import pytest
import torch
from torch import nn

import blockscale as bs
from blockscale.graph.adoption.program import as_ours, is_graph_of_ops, quantized_elsewhere
from blockscale.graph.program import import_graph
from tests.graph.adoption.cases import A, Calls, left
from tests.support import adopt_producers as producers
from tests.support.op_samples import bits

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
X = producers.example()


@pytest.mark.some(5)
@pytest.mark.parametrize("kind", producers.MADE)
def test_a_program_has_codes_for_weights(kind):
    program = producers.program(producers.MADE[kind](producers.Small(), X), X)
    assert quantized_elsewhere(import_graph(program))
    graph = as_ours(program)
    assert not left(graph) and not quantized_elsewhere(graph)
    with torch.no_grad():
        assert bits(graph(*X)) == bits(program.module()(*X))
    quantized = {e.name.partition(".")[0] for e in bs.graph.ledger(graph).quantized}
    assert quantized == {"one", "two", "last"}


@pytest.mark.slow
@pytest.mark.some(5)
@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_fuse_and_lower_take_a_graph_module(target):
    graph = producers.pt2e(producers.Small(), X)
    expected = graph(*X).detach()
    for made in (bs.graph.lower(graph, target), bs.graph.lower(bs.graph.fuse(graph), target)):
        assert not left(made)
        names = {entry.name for entry in bs.graph.ledger(made).quantized}
        assert names == {"one", "two", "last"}
        torch.testing.assert_close(made(*X), expected, rtol=0, atol=0.02)


@pytest.mark.slow
def test_what_is_a_graph_of_ops():
    assert is_graph_of_ops(producers.pt2e(producers.Small(), X))
    assert is_graph_of_ops(torch.export.export(producers.Small().eval(), X).module())
    assert not is_graph_of_ops(producers.quantize_fx(producers.Small(), X))
    assert not is_graph_of_ops(torch.fx.symbolic_trace(producers.Small()))
    assert not is_graph_of_ops(nn.Linear(2, 2))


@pytest.mark.parametrize("step", [bs.graph.fuse, lambda g: bs.graph.lower(g, "reference")])
def test_graphs_of_layers_are_refused(step):
    graph = producers.quantize_fx(producers.Small(), X)
    with pytest.raises(
        ValueError, match=r"a graph of torch's own ops.*bs\.graph\.from_quantize_fx\(model"
    ):
        step(graph)


def test_prepare_refuses_what_is_quantized():
    program = producers.program(producers.pt2e(producers.Small(), X), X)
    with pytest.raises(ValueError, match=r"of a float model, found quantized_decomposed"):
        bs.graph.prepare(program, "int8_channel")


def odd(x, codes, scale):
    """Codes with a range that no element has."""
    values = A.dequantize_affine(codes, [1, 8], scale, None, torch.int8, -100, 100)
    return torch.nn.functional.linear(x, values)


def test_what_has_no_format_stands_in_the_ledger_and_in_a_warning():
    torch.manual_seed(0)
    codes = torch.randint(-100, 100, (4, 8), dtype=torch.int8)
    model = Calls(odd, codes=codes, scale=torch.rand(4, 1))
    program = torch.export.export(model, (torch.randn(2, 8),))
    with pytest.warns(
        UserWarning, match=r"no equal format here.*\n.*dequantize_affine.*-100 … 100"
    ):
        graph = as_ours(program, warn=True)
    assert len(left(graph)) == 1
    for made in (graph, bs.graph.fuse(program)):
        kept = [entry.reason for entry in bs.graph.ledger(made) if entry.kind == "node"]
        assert len(kept) == 1 and "codes -100 … 100" in kept[0]
