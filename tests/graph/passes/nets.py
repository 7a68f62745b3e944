# SPDX-License-Identifier: BSD-3-Clause
"""Nets that the tests of passes export, and how graphs are compared."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

import blockscale as bs
from blockscale.graph.nodes import ours
from blockscale.graph.passes import apply

BATCH = torch.export.Dim("batch", min=1, max=64)


def exported(net: nn.Module, *inputs: Tensor, dynamic: bool = True) -> fx.GraphModule:
    """The graph of a net in evaluation; the first dimension of every input is symbolic."""
    net.eval()
    shapes = tuple({0: BATCH} for _ in inputs) if dynamic else None
    with torch.no_grad():
        program = torch.export.export(net, inputs, dynamic_shapes=shapes)
    return program.module(check_guards=False)


def names(graph: fx.GraphModule) -> list[str]:
    """What the nodes of the graph call, in order."""
    return [str(n.target) for n in graph.graph.nodes if n.op in ("call_function", "call_module")]


def run(graph: nn.Module, *inputs: Tensor) -> list[Tensor]:
    """What the graph computes under the reference."""
    with bs.use("reference"), torch.no_grad():
        y = graph(*inputs)
    return list(y) if isinstance(y, tuple | list) else [y]


def equal(a: Sequence[Tensor], b: Sequence[Tensor]) -> bool:
    """Equal to the bit, NaN included."""
    return len(a) == len(b) and all(
        x.dtype == y.dtype
        and x.shape == y.shape
        and torch.equal(
            x.contiguous().reshape(-1).view(torch.uint8),
            y.contiguous().reshape(-1).view(torch.uint8),
        )
        for x, y in zip(a, b, strict=True)
    )


def values_hold(graph: fx.GraphModule, *inputs: Tensor) -> None:
    """Assert that meta["val"] of each node has the dtype and the rank of what it gives."""

    class Watch(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:
            y = super().run_node(n)
            if isinstance(y, Tensor) and n.op != "placeholder":
                fake = n.meta["val"]
                assert (fake.dtype, fake.ndim) == (y.dtype, y.ndim), n.format_node()
                for size, real in zip(fake.shape, y.shape, strict=True):
                    assert not isinstance(size, int) or size == real, n.format_node()
            return y

    with bs.use("reference"), torch.no_grad():
        Watch(graph).run(*inputs)


PARTS = ("scale", "outer", "zero_point")


def round_trip(x: Tensor, fmt: str, scale: Tensor | None = None, zero: Any = None) -> Tensor:
    """x quantized and dequantized, by a given scale or its own: what graphs have on their edges."""
    if scale is not None:
        codes = ours.quantize(x, scale, zero, None, fmt)
        return ours.dequantize(codes, scale, zero, None, fmt, x.shape[-1], x.dtype)
    codes, *parts = ours.choose_quantize(x, fmt, None)
    named = dict(zip(bs.parse(fmt).parts, parts, strict=True))
    more = [part for name, part in named.items() if name not in PARTS]
    found = (named.get("scale"), named.get("zero_point"), named.get("outer"))
    return ours.dequantize(codes, *found, fmt, x.shape[-1], x.dtype, more or None)


class Coded(nn.Module):
    """A constant as codes: a weight that graphs dequantize."""

    def __init__(self, x: Tensor, fmt: str) -> None:
        super().__init__()
        self.fmt, self.size = fmt, x.shape[-1]
        codes, *parts = ours.choose_quantize(x, fmt, None)
        self.register_buffer("codes", codes)
        for name, part in zip(bs.parse(fmt).parts, parts, strict=True):
            self.register_buffer(name, part)

    def forward(self) -> Tensor:
        parts = [getattr(self, n, None) for n in ("scale", "zero_point", "outer")]
        return ours.dequantize(self.codes, *parts, self.fmt, self.size, torch.float32)


class Function(nn.Module):
    """A function of one tensor as a net, with constants by name."""

    def __init__(self, function: Any, **constants: Any) -> None:
        super().__init__()
        self.function = function
        for name, each in constants.items():
            if isinstance(each, nn.Module):
                self.add_module(name, each)
            else:
                self.register_buffer(name, each)  # None too

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)


def graph_of(function: Any, x: Tensor, **constants: Any) -> fx.GraphModule:
    """The graph of `function(net, x)`, whose first dimension is symbolic."""
    return exported(Function(function, **constants), x)


def same_after(graph: fx.GraphModule, passes: Sequence[Any], *batches: Tensor) -> dict[str, int]:
    """Apply passes; assert that results are equal to the bit, and that values are still known."""
    before = [run(graph, x) for x in batches]
    changes = apply(graph, passes)
    for x, expected in zip(batches, before, strict=True):
        assert equal(run(graph, x), expected)
        values_hold(graph, x)
    return changes
