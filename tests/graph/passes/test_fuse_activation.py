# SPDX-License-Identifier: BSD-3-Clause
"""Activations as ends of products."""

import pytest
import torch
import torch.nn.functional as F

from blockscale.graph.passes import clean, fuse, fuse_activation
from tests.graph.passes.nets import Coded, graph_of, round_trip, same_after
from tests.support.passes_fuse import fused
from tests.support.some import crossed

X = torch.randn(3, 5, 64)
KINDS = {
    "relu": torch.relu,
    "relu6": F.relu6,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "hardswish": F.hardswish,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
}


def graph_with(activation, fmt: str = "", dtype: torch.dtype = torch.float32, readers: int = 1):
    def net(self, x):
        y = F.linear(round_trip(x, "int8:token:fp32"), self.weight(), self.bias).to(dtype)
        z = activation(y)
        z = round_trip(z, fmt) if fmt else z
        return z if readers == 1 else z + y

    weight = Coded(torch.randn(32, 64), "int8:channel0:fp32")
    return graph_of(net, X, weight=weight, bias=torch.randn(32))


@pytest.mark.some(4)
@pytest.mark.parametrize(
    ("kind", "fmt", "dtype"),
    crossed(3, KINDS, ["", "mxfp8", "uint8:tensor:fp32:asym"], [torch.float32, torch.bfloat16]),
)
def test_each(kind: str, fmt: str, dtype: torch.dtype) -> None:
    graph = graph_with(KINDS[kind], fmt, dtype)
    changes = same_after(graph, (clean, fuse, fuse_activation), X, X[:2])
    assert changes["fuse_activation"] == 1
    (call,) = fused(graph)
    assert (call.settings["activation"], call.y.fmt != "", call.dtype) == (kind, fmt != "", dtype)


@pytest.mark.some(3)
@pytest.mark.parametrize("other", [F.elu, F.mish, lambda x: F.hardtanh(x, -2, 2)])
def test_other_activations_stay(other) -> None:
    graph = graph_with(other, "mxfp8")
    assert same_after(graph, (clean, fuse, fuse_activation), X)["fuse_activation"] == 0


def test_a_product_that_others_read_stays() -> None:
    graph = graph_with(torch.relu, readers=2)
    assert same_after(graph, (clean, fuse, fuse_activation), X)["fuse_activation"] == 0


def test_a_product_has_one_activation() -> None:
    graph = graph_with(lambda x: torch.tanh(torch.relu(x)))
    assert same_after(graph, (clean, fuse, fuse_activation), X)["fuse_activation"] == 1
