"""Nets that the tests of passes export, and how graphs are compared."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

import blockscale as bs

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
