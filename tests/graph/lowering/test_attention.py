# SPDX-License-Identifier: BSD-3-Clause
"""Attention of floats becomes the fused op where our kernel runs it."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

import blockscale as bs
from blockscale.graph.lowering import attention
from blockscale.kernels.registry import unavailable
from tests.graph.passes.nets import equal, exported, names, run, values_hold

pytestmark = pytest.mark.skipif(unavailable("cpu") is not None, reason="no native library")
SDPA, FUSED = "aten.scaled_dot_product_attention.default", "blockscale.fused_sdpa.default"


class Net(nn.Module):
    def __init__(self, width: int = 16, masked: bool = False, causal: bool = False) -> None:
        super().__init__()
        self.width, self.masked, self.causal = width, masked, causal

    def forward(self, x: Tensor) -> Tensor:
        heads = x.unflatten(-1, (3, self.width)).transpose(1, 2)
        mask = (x[:, None, None, :, 0] > -1) if self.masked else None
        y = F.scaled_dot_product_attention(heads, heads, heads, mask, 0.0, self.causal)
        return y.transpose(1, 2).flatten(2)


def graph_of(net: Net, dtype: torch.dtype = torch.float32) -> tuple[fx.GraphModule, Tensor]:
    x = torch.randn(4, 20, 3 * net.width, generator=torch.Generator().manual_seed(2)).to(dtype)
    return exported(net, x), x


@pytest.mark.parametrize("told", [{}, {"masked": True}, {"causal": True}], ids=str)
def test_it_computes_the_same(told: dict[str, bool]) -> None:
    """To the bit under the reference, for every batch; by the kernel within a float's precision."""
    graph, x = graph_of(Net(**told))
    batches = (x, x[:2])
    before = [run(graph, each) for each in batches]
    assert attention.run(graph, "cpu") == 1
    graph.recompile()
    assert SDPA not in names(graph) and names(graph).count(FUSED) == 1
    for each, expected in zip(batches, before, strict=True):
        assert equal(run(graph, each), expected)
        values_hold(graph, each)
        with bs.use("cpu"):
            torch.testing.assert_close(graph(each), expected[0], rtol=1e-5, atol=1e-5)


def test_what_stays_torchs() -> None:
    for graph, x in (graph_of(Net(width=10)), graph_of(Net(), torch.bfloat16)):
        expected = run(graph, x)
        assert attention.run(graph, "cpu") == 0
        assert SDPA in names(graph) and FUSED not in names(graph)
        assert equal(run(graph, x), expected)
