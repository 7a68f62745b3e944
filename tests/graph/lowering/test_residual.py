# SPDX-License-Identifier: BSD-3-Clause
"""Sums, norms and codes at the ends of residual branches become one op."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

import blockscale as bs
from blockscale.graph.lowering import residual
from blockscale.graph.lowering import residual as attention
from blockscale.graph.passes import fuse
from blockscale.kernels.registry import unavailable
from tests.graph.passes.nets import equal, exported, names, round_trip, run, values_hold
from tests.graph.passes.nets import graph_of as nets_graph_of

pytestmark = pytest.mark.skipif(unavailable("cpu") is not None, reason="no native library")
X = torch.randn(3, 5, 64, generator=torch.Generator().manual_seed(4))
UINT8 = "uint8:tensor:fp32:asym"
SCALE, ZERO = torch.full((1, 1, 1), 0.03), torch.full((1, 1, 1), 120, dtype=torch.int32)
LAYER = "blockscale.fused_residual_layer_norm.default"
RMS = "blockscale.fused_residual_rms_norm.default"


def coded(net: Any, y: Tensor, fmt: str) -> Tensor:
    """Static where the format has one scale, else dynamic."""
    return round_trip(y, fmt, net.scale, net.zero) if fmt == UINT8 else round_trip(y, fmt)


def norm(net: Any, total: Tensor, rms: bool) -> Tensor:
    if rms:
        return F.rms_norm(total, (64,), net.weight)
    return F.layer_norm(total, (64,), net.weight, net.bias, 1e-3)


def graph_with(fmt: str, *, before: bool, rms: bool = False, spoiled: str = "") -> fx.GraphModule:
    """A norm behind the sum (as BERT), or before the branch (as GPT-2)."""

    def net(self: Any, x: Tensor) -> Any:
        other = x[:1] * 2 if spoiled == "broadcast" else x * x
        total = torch.add(x, other, alpha=2.0) if spoiled == "alpha" else x + other
        total = total.bfloat16() if spoiled == "bfloat16" else total
        y = norm(self, total.float(), rms) if spoiled == "bfloat16" else norm(self, total, rms)
        first = y - 1 if not before else total - 1  # reads floats, and stands before the scales
        z = coded(self, y, fmt) if fmt else y
        added = total if before or spoiled == "both" else y
        return first, torch.relu(z), added + z

    constants = {"weight": torch.rand(64), "bias": torch.randn(64), "scale": SCALE, "zero": ZERO}
    return nets_graph_of(net, X, **constants)


@pytest.mark.some(8)
@pytest.mark.parametrize("rms", [False, True], ids=["layer", "rms"])
@pytest.mark.parametrize("before", [False, True], ids=["behind", "before"])
@pytest.mark.parametrize("fmt", [UINT8, "int8:token:fp32", "uint8:token:fp32:asym"])
def test_it_computes_the_same(fmt: str, before: bool, rms: bool) -> None:
    """To the bit under the reference, for every batch."""
    graph = graph_with(fmt, before=before, rms=rms)
    if before:
        fuse.run(graph)
    batches = (X, X[:2])
    expected = [run(graph, x) for x in batches]
    assert residual.lower_residual_norms(graph, "cpu") == 1
    graph.graph.eliminate_dead_code()
    graph.graph.lint()
    graph.recompile()
    found = names(graph)
    assert found.count(RMS if rms else LAYER) == 1 and "aten.layer_norm.default" not in found
    assert not any(name.endswith("quantize.default") and "choose" in name for name in found)
    for x, before_it in zip(batches, expected, strict=True):
        assert equal(run(graph, x), before_it)
        values_hold(graph, x)
        with bs.use("cpu"):
            for y, e in zip(graph(x), before_it, strict=True):  # a code may be the next one
                assert (y - e).abs().max() <= 0.06


@pytest.mark.slow
def test_where_it_does_not_apply() -> None:
    """No codes, a factor, another dtype or shape, a sum and a norm that others read both."""
    for told in ("", "alpha", "bfloat16", "broadcast", "both"):
        graph = graph_with(UINT8 if told else "", before=False, spoiled=told)
        expected = run(graph, X)
        assert residual.lower_residual_norms(graph, "cpu") == 0, told
        graph.recompile()
        assert equal(run(graph, X), expected)


@pytest.mark.slow
def test_formats_that_no_kernel_writes_stay() -> None:
    for fmt in ("nvfp4", "int8:tensor:fp32", "int8:channel2:fp32"):  # two levels, all rows, columns
        graph = graph_with(fmt, before=False)
        expected = run(graph, X)
        assert residual.lower_residual_norms(graph, "cpu") == 0, fmt
        graph.recompile()
        assert equal(run(graph, X), expected)


# Attention of floats becomes the fused op where our kernel runs it.
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
def test_attention_it_computes_the_same(told: dict[str, bool]) -> None:
    """To the bit under the reference, for every batch; by the kernel within a float's precision."""
    graph, x = graph_of(Net(**told))
    batches = (x, x[:2])
    before = [run(graph, each) for each in batches]
    assert attention.lower_attention(graph, "cpu") == 1
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
        assert attention.lower_attention(graph, "cpu") == 0
        assert SDPA in names(graph) and FUSED not in names(graph)
        assert equal(run(graph, x), expected)
