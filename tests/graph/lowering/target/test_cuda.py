# SPDX-License-Identifier: BSD-3-Clause
"""The target `cuda`, as far as it shows without a device; tests/gpu has the rest."""

import pytest
import torch

import blockscale as bs
from blockscale.graph.lowering.target import cuda
from tests.graph.lowering.programs import FORMATS, layers


@pytest.mark.skipif(torch.cuda.is_available(), reason="here it runs")
def test_why_it_does_not_run():
    assert cuda.unavailable() == "torch sees no CUDA device"


def test_everything_moves():
    """To the meta device here, which takes part in no arithmetic either."""
    program = torch.export.export(Constants(), (torch.randn(3),))
    graph = program.module(check_guards=False)
    kept = dict(graph.state_dict())
    cuda.move(graph, torch.device("meta"))
    assert {tensor.device.type for tensor in graph.state_dict().values()} == {"meta"}
    assert {tensor.device.type for tensor in kept.values()} == {"cpu"}
    made = [node for node in graph.graph.nodes if "device" in node.kwargs]
    assert made and all(node.kwargs["device"] == torch.device("meta") for node in made)
    values = [
        n.meta["val"] for n in graph.graph.nodes if isinstance(n.meta.get("val"), torch.Tensor)
    ]
    assert values and all(value.device.type == "meta" for value in values)


class Constants(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("a", torch.randn(3))
        self.b = torch.nn.Parameter(torch.randn(3))

    def forward(self, x):
        return x + self.a * self.b + torch.ones(3, device="cpu")


@pytest.mark.some(2)
@pytest.mark.skipif(
    cuda._unavailable("cuda") is not None, reason="neither a device nor Triton's interpreter"
)
@pytest.mark.parametrize("kind", FORMATS)
def test_linear_layers_go_through_the_kernel_that_there_is(kind):
    """On the CPU's tensors here: which ops are called, and that the reference of both is one."""
    graph, x = layers(kind)
    expected = layers(kind)[0]
    found = {way.way for way in cuda.choose(graph) if way.op == "fused_linear"}
    graph.recompile()
    targets = [str(node.target) for node in graph.graph.nodes]
    if "inside" in found:
        assert "blockscale.linear.default" in targets
    assert found <= {"inside", "composed", "kernel"}
    with bs.use("reference"):
        torch.testing.assert_close(graph(x), expected(x), rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(
    cuda._unavailable("cuda") is not None, reason="neither a device nor Triton's interpreter"
)
@pytest.mark.parametrize("kind", FORMATS)
def test_supports(kind):
    """Formats that CUDA kernels take are composed of them at least."""
    assert [cuda.supports(node) for node in layers(kind)[0].graph.nodes if node.op != "output"]
    assert not any(map(cuda.supports, layers(kind)[0].graph.nodes))
