# SPDX-License-Identifier: BSD-3-Clause
"""The target `x86`: oneDNN's products beside the reference."""

import pytest
import torch
import torch.nn.functional as F

import blockscale as bs
from blockscale.graph.lowering import lower, targets, ways
from tests.graph.lowering.programs import FORMATS, layers, network
from tests.graph.lowering.steps import Beside, close

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),
    pytest.mark.skipif(targets()["x86"] is not None, reason=str(targets()["x86"])),
]
TAKEN = ("int8 static", "uint8 asym static")


@pytest.mark.some(6)
@pytest.mark.parametrize("kind", FORMATS)
def test_onednn_where_it_can(kind):
    ops = {each.op: each for each in ways(lower(layers(kind)[0], "x86"))}
    assert (ops["fused_linear"].way == "onednn") == (kind in TAKEN)
    if kind not in TAKEN:
        assert "oneDNN needs" in ops["fused_linear"].why
    found = {e.scope: e.way for e in ways(lower(network(kind)[1], "x86")) if e.op == "linear"}
    assert found["up"] == ("onednn" if kind in TAKEN else "kernel")


@pytest.mark.some(5)
@pytest.mark.parametrize("kind", TAKEN)
def test_equal_codes_are_made_once(kind):
    """Queries, keys and values have inputs of one scale each; of equal ones, one is enough."""
    lowered = lower(network(kind)[1], "x86")
    quantizes = [n for n in lowered.graph.nodes if "blockscale.quantize" in str(n.target)]
    products = [n for n in lowered.graph.nodes if "onednn_linear" in str(n.target)]
    assert len(products) == 6 and len(quantizes) == 4


@pytest.mark.some(4)
@pytest.mark.parametrize("kind", FORMATS)
def test_end_to_end(kind):
    graph, x = layers(kind)
    model, program, images = network(kind)
    with bs.use("reference"):
        expected, whole = graph(x), model(images)
    assert F.cosine_similarity(expected, lower(graph, "x86")(x)).min() > 0.998
    assert F.cosine_similarity(whole, lower(program, "x86")(images)).min() > 0.998


@pytest.mark.parametrize("kind", TAKEN)
def test_each_node_beside_the_reference(kind):
    graph, x = layers(kind)
    onednn = torch.ops.blockscale.onednn_linear.default

    def run(node, args, kwargs):
        product = node.target is torch.ops.blockscale.fused_linear.default
        return (onednn if product else node.target)(*args, **kwargs)

    beside = Beside(graph, run)
    beside.run(x)
    assert sum("fused_linear" in node.name for node, *_ in beside.compared) == 2
    for node, expected, found in beside.compared:
        assert close(expected, found, step=1), node.format_node()
