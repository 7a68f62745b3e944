# SPDX-License-Identifier: BSD-3-Clause
"""Ops that keep the order of numbers, such as pools of largest values, work on codes."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import blockscale as bs
from blockscale.graph.expand import expand
from blockscale.graph.passes import monotone
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
    graph = exported(Pooled(op, fmt, scale), X)
    expand(graph)
    assert same_after(graph, (monotone,), X, X[:1] * 30) == {"monotone": count}
    assert names(graph).count("blockscale.quantize.default") == 1 + count


@pytest.mark.slow
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


class Ended(nn.Module):
    """x -> a function -> codes by one scale and zero point -> floats."""

    def __init__(self, function, fmt: str, zero: int | None = None, scale: float = 0.013) -> None:
        super().__init__()
        self.function, self.fmt = function, fmt
        self.register_buffer("scale", torch.full((1, 1, 1, 1), scale))
        zeros = None if zero is None else torch.full((1, 1, 1, 1), zero, dtype=torch.int32)
        self.register_buffer("zero", zeros)

    def forward(self, x: Tensor) -> Tensor:
        return bs.fake_quantize(self.function(x), self.fmt, scale=self.scale, zero_point=self.zero)


ASYM = "uint8:tensor:fp32:asym"
ODD = torch.cat([X, torch.tensor([torch.nan, torch.inf, -torch.inf, -0.0]).expand(3, 4, 9, 4)], -1)


@pytest.mark.some(2)
@pytest.mark.parametrize(
    ("clamp", "fmt", "zero", "stays"),
    [
        (torch.relu, UINT8, None, False),
        (torch.relu, ASYM, 0, False),
        (torch.relu, ASYM, 7, True),
        (torch.relu, "int8:tensor:fp32", None, True),
        (F.relu6, UINT8, None, False),  # 255 steps of .013 end below 6
        (lambda x: F.hardtanh(x, -0.7, 1.3), ASYM, 128, True),
        (lambda x: x.clamp(min=-9.0), "int8:tensor:fp32", None, False),
        (lambda x: x.clamp(max=0.01), UINT8, None, True),
        (lambda x: x.clamp(-0.02, -0.01), ASYM, 100, None),  # NaN stays, its code would not
    ],
)
def test_clamps_of_sums(clamp, fmt, zero, stays) -> None:
    graph = exported(Ended(lambda x: clamp(x + x.flip(0) * 0.7), fmt, zero), ODD)
    expand(graph)
    done = int(stays is not None)
    assert same_after(graph, (monotone,), ODD, ODD * 0.1) == {"monotone": done}
    ops = [name.removeprefix("aten.").partition(".")[0] for name in names(graph)]
    clamps = [name for name in ops if name in ("relu", "relu6", "hardtanh", "clamp")]
    assert len(clamps) == int(stays is not False)
    quantizes = ops.index("add") + 1
    first = names(graph)[quantizes] if done else ""
    assert first.startswith("blockscale.quantize") == bool(done)


def test_a_clamp_that_a_product_takes_is_the_products() -> None:
    linear = nn.Linear(10, 6)
    graph = exported(Ended(lambda x: torch.relu(linear(x)), UINT8), X)
    expand(graph)
    assert same_after(graph, (monotone,), X) == {"monotone": 0}


def test_a_clamp_before_a_pool_and_behind_one() -> None:
    def function(x: Tensor) -> Tensor:
        return torch.relu(F.max_pool2d(torch.relu(x + 1) - 0.5, 2))

    graph = exported(Ended(function, UINT8), X)
    expand(graph)
    assert same_after(graph, (monotone,), X, X * 3)["monotone"] == 2
    order = [n for n in names(graph) if n.startswith(("aten.max", "aten.sub", "blockscale."))]
    assert order[:3] == ["aten.sub.Tensor", "blockscale.quantize.default",
                         "blockscale.dequantize.default"]  # fmt: skip


@pytest.mark.some(3)
@pytest.mark.parametrize("fmt", [UINT8, "int8:tensor:fp32", "int4:tensor:fp32"])
@pytest.mark.parametrize("dim", [1, -1])
def test_codes_are_joined(dim: int, fmt: str) -> None:
    def function(x: Tensor) -> Tensor:
        return torch.cat([torch.exp(x), x, F.max_pool2d(torch.relu(x), 3, 1, 1)], dim)

    graph = exported(Ended(function, fmt, scale=0.1), X)
    expand(graph)
    done = same_after(graph, (monotone,), X, X * 3)["monotone"]
    assert done == 2  # the cat, and the pool before it
    cat = next(n for n in graph.graph.nodes if str(n.target) == "aten.cat.default")
    assert not cat.meta["val"].is_floating_point()


def test_floats_that_no_op_makes_are_joined_as_they_are() -> None:
    graph = exported(Ended(lambda x: torch.cat([x, x.flip(0)], 1), UINT8), X)
    expand(graph)
    assert same_after(graph, (monotone,), X) == {"monotone": 0}
