"""Pools of largest values that work on codes."""

import pytest
import torch
from torch import Tensor, nn

import blockscale as bs
from blockscale.graph.passes import pool_codes
from tests.graph.passes.nets import exported, names, same_after

X = torch.randn(3, 4, 9, 10)
UINT8 = "uint8:tensor:fp32"


class Pooled(nn.Module):
    """x -> an op -> a pool -> codes -> floats."""

    def __init__(self, op, fmt: str = UINT8, scale: float = 0.013) -> None:
        super().__init__()
        self.op, self.fmt = op, fmt
        self.register_buffer("scale", torch.full((1, 1, 1, 1), scale))

    def forward(self, x: Tensor) -> Tensor:
        y = nn.functional.max_pool2d(self.op(x), 3, 2, 1)
        return bs.fake_quantize(y, self.fmt, scale=self.scale) if self.fmt else y


@pytest.mark.parametrize(
    ("op", "fmt", "scale", "count"),
    [
        (torch.relu, UINT8, 0.013, 1),
        (lambda x: x + 1, "int8:tensor:fp32", 0.013, 1),
        (lambda x: x * 2, "int8:tensor:pow2/nearest", 2.0**-6, 1),
        (lambda x: x, UINT8, 0.013, 0),  # nothing there that could give codes
        (torch.relu, "e4m3:tensor:fp32", 0.013, 0),
        (torch.relu, "int8:tensor:fp32", -0.013, 0),
    ],
)
def test_what_goes_in_is_quantized(op, fmt, scale, count) -> None:
    from blockscale.graph.expand import expand

    graph = exported(Pooled(op, fmt, scale), X)
    expand(graph)
    assert same_after(graph, (pool_codes,), X, X[:1] * 30) == {"pool_codes": count}
    assert names(graph).count("blockscale.quantize.default") == 1 + count


def test_fused_it_is_a_pool_of_codes() -> None:
    conv = nn.Conv2d(4, 8, 3, padding=1)
    net = nn.Sequential(conv, nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 4, 3)).eval()
    prepared = bs.graph.prepare(
        torch.export.export(net, (X,)), bs.Recipe("int8_channel", f"{UINT8}:asym")
    )
    prepared(X)
    converted = bs.graph.convert(prepared)
    fused = bs.graph.fuse(converted)
    assert names(fused).count("blockscale.fused_max_pool2d.default") == 1
    floats = [
        n
        for n in fused.graph.nodes
        if n.op == "call_function" and getattr(n.meta.get("val"), "dtype", None) == torch.float32
    ]
    shapes = {tuple(n.meta["val"].shape) for n in floats}
    assert shapes == {(3, 9, 10, 4), (3, 2, 3, 4), (3, 4, 2, 3)}, shapes  # x, and the result
    assert "aten.relu" not in str(fused.graph) and "fused_relu" not in str(fused.graph)
    with torch.no_grad():
        for x in (X, X * 3):
            torch.testing.assert_close(fused(x), converted(x))
