# SPDX-License-Identifier: BSD-3-Clause
"""What nodes are told, in torchao's terms."""

import pytest
import torch
from torch import nn

import blockscale as bs
from blockscale.graph.pt2e import pt2e_quantizer
from tests.graph.pt2e.flow import Net, batches, exported

pytest.importorskip("torchao")
pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


def annotated(model: nn.Module, example, recipe: bs.Recipe):
    graph = exported(model.eval(), example, free=False)
    quantizer = pt2e_quantizer(recipe)
    quantizer.annotate(quantizer.transform_for_annotation(graph))
    told = {
        n: n.meta["quantization_annotation"]
        for n in graph.graph.nodes
        if "quantization_annotation" in n.meta
    }
    return graph, told


def place(spec) -> object:
    return spec.observer_or_fake_quant_ctr.p.keywords["place"]


def test_edges_of_layers() -> None:
    from torchao.quantization.pt2e.quantizer import SharedQuantizationSpec

    recipe = bs.Recipe("int4", "uint8", output="int8", bias="mxint8")
    _, told = annotated(Net(), batches()[0], recipe)
    assert all(not each.allow_implicit_sharing for each in told.values())
    linear = [n for n in told if "aten.linear" in str(n.target)]
    first, second, last = linear
    parts = [place(spec).part for spec in told[first].input_qspec_map.values()]
    assert sorted(parts) == ["bias", "input", "weight"]
    assert place(told[first].output_qspec).name == "fc.output"
    # the second call of a layer shares what sees its input and its output
    shared = told[second].input_qspec_map[second.args[0]]
    assert isinstance(shared, SharedQuantizationSpec)
    assert shared.edge_or_node == (first.args[0], first)
    assert told[second].output_qspec.edge_or_node is first
    assert place(told[last].input_qspec_map[last.args[0]]).where == "the input of last"
    conv = next(n for n in told if "conv2d" in str(n.target))
    weight = place(told[conv].input_qspec_map[conv.args[1]])
    assert (weight.layout, weight.rank) == ("channels_last", 4)
    embedding = next(n for n in told if "embedding" in str(n.target))
    assert [place(s).part for s in told[embedding].input_qspec_map.values()] == ["weight"]


@pytest.mark.slow
def test_a_products_rows_are_quantized_before_they_are_viewed() -> None:
    """Conv1D views its input as rows: blocks over two dimensions would cross them."""
    _, told = annotated(Net(), batches()[0], bs.Recipe("int4", "int8:tile4x10:fp32", skip=["fc"]))
    product = next(n for n in told if "addmm" in str(n.target))
    assert [place(s).part for s in told[product].input_qspec_map.values()] == ["weight"]
    view = product.args[1]
    (spec,) = told[view].input_qspec_map.values()
    assert place(spec).part == "input" and place(spec).name == "turned.input"


class Twice(nn.Module):
    def forward(self, x, mask):
        y = torch.nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=mask)
        return x * x + y


def test_one_tensor_given_twice_and_named_tensors() -> None:
    x, mask = torch.randn(2, 2, 4, 8), torch.randn(4, 4)
    rules = {"op:mul": {"input": "int8"}, "op:scaled_dot_product_attention": {"output": "int8"}}
    graph, told = annotated(Twice(), (x, mask), bs.Recipe(rules=rules))
    product = next(n for n in told if "aten.mul" in str(n.target))
    assert len(told[product].input_qspec_map) == 1
    attention = next(n for n in told if "attention" in str(n.target))
    assert not any(isinstance(v, torch.fx.Node) for v in attention.kwargs.values())
    with torch.no_grad():
        graph.recompile()
        expected = Twice()(x, mask)
        assert torch.equal(graph(x, mask), expected)


@pytest.mark.slow
def test_a_recipe_for_nothing_says_nothing() -> None:
    _, told = annotated(Net(), batches()[0], bs.Recipe())
    assert not told
