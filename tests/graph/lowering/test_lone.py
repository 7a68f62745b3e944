# SPDX-License-Identifier: BSD-3-Clause
"""Convolutions between floats take and give channels first."""

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import blockscale as bs
from blockscale.kernels.registry import unavailable

pytestmark = pytest.mark.skipif(unavailable("cpu") is not None, reason="no native library")
CONV, FUSED_CONV = torch.ops.blockscale.conv.default, torch.ops.blockscale.fused_conv.default
X = torch.randn(2, 8, 9, 7, generator=torch.Generator().manual_seed(3))
STATIC = "uint8:tensor:fp32:asym"


def fused(model: nn.Module, x: Tensor, recipe: bs.Recipe) -> Any:
    program = torch.export.export(model.eval(), (x,))
    prepared = bs.graph.prepare(program, recipe)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        prepared(x)
    return bs.graph.fuse(bs.graph.convert(prepared))


def targets(graph: Any) -> list[Any]:
    return [node.target for node in graph.graph.nodes if node.op == "call_function"]


@pytest.mark.some(16)
@pytest.mark.parametrize("activation", [None, nn.ReLU(), nn.ReLU6()])
@pytest.mark.parametrize("groups", [1, 8])
@pytest.mark.parametrize("input", [STATIC, "int8:tensor:pow2/nearest"])
def test_floats_around_it(input, groups, activation):
    """No op but the layer's, and the fused graph's bits."""
    torch.manual_seed(0)
    layers = [
        nn.Conv2d(8, 16, 3, 2, 1, groups=groups),
        *([] if activation is None else [activation]),
    ]
    graph = fused(nn.Sequential(*layers), X, bs.Recipe("int8_channel", input))
    assert FUSED_CONV in targets(graph)
    lowered = bs.graph.lower(graph, "cpu")
    found = targets(lowered)
    assert found[0] is CONV and len(found) == 1 + (activation is not None)
    y = lowered(X)
    assert y.is_contiguous()
    with bs.use("reference"):
        assert torch.equal(lowered(X), graph(X))
    torch.testing.assert_close(y, graph(X), rtol=1e-6, atol=1e-6)
    assert "a copy" not in str(bs.graph.ledger(lowered))


class Two(nn.Module):
    """Codes that two convolutions read."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(8, 16, 1), nn.Conv2d(8, 16, 3, padding=1)

    def forward(self, x):
        return self.a(x) * self.b(x)


@pytest.mark.parametrize(
    ("model", "told"),
    [
        (nn.ConvTranspose2d(8, 16, 2), "moved before and behind it, a copy"),
        (nn.Sequential(nn.Conv2d(8, 16, 1), nn.GELU()), "moved before and behind it, a copy"),
    ],
    ids=["transposed", "gelu"],
)  # fmt: skip
def test_what_stays_channels_last_is_told(model, told):
    lowered = bs.graph.lower(fused(model, X, bs.Recipe("int8_channel", STATIC)), "cpu")
    assert CONV not in targets(lowered) and FUSED_CONV in targets(lowered)
    assert told in str(bs.graph.ledger(lowered))


@pytest.mark.slow
def test_channels_last_already():
    """Nothing is copied, and nothing is told."""
    x = X.contiguous(memory_format=torch.channels_last)
    graph = fused(nn.Conv2d(8, 16, 3), x, bs.Recipe("int8_channel", STATIC))
    lowered = bs.graph.lower(graph, "cpu")
    assert FUSED_CONV in targets(lowered)
    assert "before" not in str(bs.graph.ledger(lowered))
    with bs.use("reference"):
        assert torch.equal(lowered(x), graph(x))


@pytest.mark.slow
def test_codes_of_several_readers():
    graph = fused(Two(), X, bs.Recipe("int8_channel", STATIC))
    lowered = bs.graph.lower(graph, "cpu")
    with bs.use("reference"):
        assert torch.equal(lowered(X), graph(X))
