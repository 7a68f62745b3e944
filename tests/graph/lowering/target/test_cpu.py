# SPDX-License-Identifier: BSD-3-Clause
"""The target `cpu`: our kernels beside the reference, and the ways of linear layers."""

import pytest
import torch
import torch.nn.functional as F

import blockscale as bs
from blockscale.graph.lowering import lower, onednn, targets, ways
from blockscale.graph.lowering.products import choose
from tests.graph.lowering.programs import FORMATS, layers, network
from tests.graph.lowering.steps import Beside, close

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),
    pytest.mark.skipif(targets()["cpu"] is not None, reason=str(targets()["cpu"])),
]


def by_kernel(node, args, kwargs):
    return node.target(*args, **kwargs)


@pytest.mark.slow
@pytest.mark.some(12)
@pytest.mark.parametrize("kind", FORMATS)
def test_each_node_beside_the_reference(kind):
    """Integers are equal; floats, and codes of them, as far off as sums in another order."""
    for graph, x in (layers(kind), network(kind)[1:]):
        lowered = lower(graph, "cpu")
        beside = Beside(lowered, by_kernel)
        beside.run(x)
        assert beside.compared
        for node, expected, found in beside.compared:
            step = 1 if "linear" in node.name else None  # codes of float sums
            assert close(expected, found, step), node.format_node()


@pytest.mark.slow
@pytest.mark.some(3)
@pytest.mark.parametrize("kind", FORMATS)
def test_end_to_end(kind):
    graph, x = layers(kind)
    model, program, images = network(kind)
    with bs.use("reference"):
        pairs = [(graph(x), lower(graph, "cpu")(x)), (model(images), lower(program, "cpu")(images))]
    for expected, found in pairs:
        assert F.cosine_similarity(expected, found).min() > 0.998


@pytest.mark.some(3)
@pytest.mark.parametrize("kind", FORMATS)
def test_every_way_is_said(kind):
    for each in ways(lower(layers(kind)[0], "cpu")):
        assert each.way in ("kernel", "inside", "onednn", "composed") and not each.on_reference
        assert each.why or each.way == "kernel"


def fixed(monkeypatch, times):
    """Let all products have been measured so."""
    monkeypatch.setattr(choose, "looked_up", lambda product: (times, "measured"))


@pytest.mark.skipif(onednn.unavailable() is not None, reason=str(onednn.unavailable()))
@pytest.mark.parametrize("way", ["kernel", "onednn", "inside"])
@pytest.mark.parametrize("kind", ["int8 static", "uint8 asym static"])
def test_the_fastest_way_runs(way, kind, monkeypatch):
    """Each way gives the same, up to the order of sums; codes have the step of one."""
    graph, x = layers(kind)
    fixed(monkeypatch, {"kernel": 2.0, "onednn": 2.0, "inside": 2.0, way: 1.0})
    lowered = lower(graph, "cpu")
    products = [each for each in ways(lowered) if each.op == "fused_linear"]
    other = "onednn" if way == "onednn" else "kernel"  # its codes have other readers
    assert [each.way for each in products] == [other, other]
    with bs.use("reference"):
        expected = graph(x)
    assert F.cosine_similarity(expected, lowered(x)).min() > 0.999
    names = {str(node.target) for node in lowered.graph.nodes}
    assert ("blockscale.onednn_linear.default" in names) == (way == "onednn")


@pytest.mark.some(4)
@pytest.mark.parametrize("activation", ["", "relu", "gelu"])
@pytest.mark.parametrize("result", ["", "int8", "mxfp8"])
@pytest.mark.parametrize("kind", ["int8_token", "uint8:tensor:fp32:asym"])
def test_quantized_inside(kind, result, activation, monkeypatch):
    """Floats go in, the product's kernel quantizes them: the same bits as under the reference."""
    from tests.support.products_ways import one

    graph, x = one(kind, result, activation)
    fixed(monkeypatch, {"kernel": 2.0, "inside": 1.0})
    lowered = lower(graph, "cpu")
    assert [w.way for w in ways(lowered) if w.op == "fused_linear"] == ["inside"]
    assert any(str(n.target) == "blockscale.linear.default" for n in lowered.graph.nodes)
    with bs.use("reference"):
        assert torch.equal(lowered(x), graph(x))


@pytest.mark.slow
def test_measured_live():
    lowered = lower(layers("uint8 asym static")[0], "cpu", measure=True)
    products = [each for each in ways(lowered) if each.op == "fused_linear"]
    assert all("measured here: " in each.why and " ms" in each.why for each in products)
