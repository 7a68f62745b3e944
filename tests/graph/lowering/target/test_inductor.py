# SPDX-License-Identifier: BSD-3-Clause
"""The target `inductor`: no op of ours is left, and the reference's bits."""

import pytest
import torch

import blockscale as bs
from blockscale.graph.lowering import lower
from tests.graph.lowering.programs import FORMATS, layers, network

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of what Inductor imports
]
FEW = ("uint8 asym static", "bfp8")  # bfp8 has partial last blocks here


def of_ours(graph):
    return [n.name for n in graph.graph.nodes if str(n.target).startswith("blockscale.")]


SLOW = ("mxfp8", "nvfp4")  # long references: 10 seconds and more


@pytest.mark.slow
@pytest.mark.some(6)
@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=pytest.mark.slow) if k in SLOW else k for k in FORMATS]
)
def test_no_op_of_ours_is_left(kind):
    graph, x = layers(kind)
    model, program, images = network(kind)
    lowered, whole = lower(graph, "inductor"), lower(program, "inductor")
    assert not of_ours(lowered) and not of_ours(whole)
    for rows in (4, 2, 7):
        x, images = torch.randn(rows, 64), torch.randn(rows, 3, 8, 8)
        with bs.use("reference"):
            assert torch.equal(lowered(x), graph(x))
            assert torch.equal(whole(images), model(images))


@pytest.mark.slow  # seconds of torch's; what it compiles has the bits above
@pytest.mark.parametrize("kind", FORMATS)
def test_compiled_layers(kind):
    graph, _ = layers(kind)
    compiled = torch.compile(lower(graph, "inductor"), dynamic=True)
    for rows in (4, 7):
        x = torch.randn(rows, 64)
        with bs.use("reference"):
            assert torch.equal(compiled(x), graph(x))


@pytest.mark.slow
@pytest.mark.parametrize("kind", FORMATS)
def test_a_compiled_network(kind):
    model, program, x = network(kind)
    with bs.use("reference"):
        y = model(x)
    assert torch.equal(torch.compile(lower(program, "inductor"))(x), y)


@pytest.mark.slow
def test_it_does_not_matter_what_was_compiled_before():
    """torch's own table of decompositions is read once in a process; the graph needs none."""
    torch.compile(torch.nn.ReLU())(torch.randn(3))
    graph, x = layers("mxfp8")
    with bs.use("reference"):
        assert torch.equal(torch.compile(lower(graph, "inductor"))(x), graph(x))
