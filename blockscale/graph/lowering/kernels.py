# SPDX-License-Identifier: BSD-3-Clause
"""What runs a node of ours on one backend, as the registry would choose when it is called."""

import operator
from functools import cache
from typing import Any

import torch
from torch import Tensor, fx

from blockscale.core.torch_private import FakeTensorMode, pytree
from blockscale.graph.lowering.lone import around
from blockscale.graph.lowering.way import Way, by_overload, of_ours, way
from blockscale.kernels.registry import Choice, as_chosen, supporting
from blockscale.ops.fused import FUSED
from blockscale.ops.op import LIBRARY, Op

# Ops that run on the reference whatever `bs.use` says: `blockscale::reference_linear` of `linear`.
#
# A graph that calls them keeps the reference's bits, also after copies and torch.export.

PREFIX = "reference_"
REFERENCE = Choice("reference", must=False)
_pinned: dict[Any, Any] = {}  # torch op -> the one that keeps to the reference


def pinned(overload: Any) -> Any:
    """The torch op that computes what `overload`, one of ours, does on the reference."""
    if overload not in _pinned:
        pin_all()
    return _pinned[overload]


def pin_all() -> None:
    """Make them for all ops there are. At import: a saved program needs them when it is loaded."""
    for op in by_overload().values():
        if op.overload not in _pinned:
            _pinned[op.overload] = _pin(op)


def _pin(op: Op) -> Any:
    name = PREFIX + op.name
    schema = str(op.overload._schema).removeprefix("blockscale::")

    def run(*flat: Any) -> Any:
        with as_chosen(REFERENCE):
            return op.run(*op.signature.bind(*flat))

    def shape(*flat: Any, **by_name: Any) -> Any:
        return op.overload(*flat, **by_name)

    LIBRARY.define(PREFIX + schema, tags=(torch.Tag.pt2_compliant_tag,))
    LIBRARY.impl(name, run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"blockscale::{name}", shape, lib=LIBRARY)
    return getattr(torch.ops.blockscale, name).default


pin_all()

_PRIMITIVES = ("dequantize", "quantize")


def kernel_way(node: fx.Node, backend: str) -> Way:
    """How a node of ours runs on the backend: by its kernel, or composed of others.

    A node that can do neither is pinned to the reference.
    """
    op = of_ours(node)
    assert op is not None
    if has_kernel(node, backend):
        return way(
            node,
            "kernel",
            _conv_text(op, own_arguments(node, op), around(node)) if backend == "cpu" else "",
        )
    reason = misses(node, backend)
    if reason is None:
        text = f"no {backend} kernel: dequantized, computed by torch, quantized again"
        return way(node, "composed", "; ".join(filter(None, (text, around(node)))))
    result = way(node, "reference", reason, on_reference=True)
    node.target = pinned(node.target)
    return result


def _conv_text(op: Op, own: tuple[Any, ...], copies: str) -> str:
    """How a convolution runs on the CPU, whether that is slow, and what is copied beside it; empty
    for other ops."""
    if op.name not in ("conv", "fused_conv"):
        return ""
    from blockscale.kernels.cpu import _native  # there is one: it has this kernel
    from blockscale.kernels.cpu.conv_way import describe_conv

    x, weight, _, shape, *_ = own
    fused = op.name == "fused_conv"
    groups, fmt = own[7], x.fmt if fused else own[8].fmt
    texts = describe_conv(shape, groups, fmt, weight.fmt, _native.isa(), channels_last=fused)
    return "; ".join(filter(None, (*texts, copies)))


def has_kernel(node: fx.Node, backend: str) -> bool:
    """Whether a kernel of the backend runs the whole node."""
    op = of_ours(node)
    assert op is not None
    own = own_arguments(node, op)
    spellings = tuple(each for each in op.signature.spellings(*own) if each)
    return supporting(op.name, backend, spellings, own) is not None


def misses(node: fx.Node, backend: str) -> str | None:
    """Why neither a kernel of the backend nor its primitives run a node of ours, or None."""
    op = of_ours(node)
    assert op is not None
    if has_kernel(node, backend):
        return None
    spellings = [each for each in op.signature.spellings(*own_arguments(node, op)) if each]
    if op.name.removeprefix("fused_") not in FUSED or not op.name.startswith("fused_"):
        formats = " and ".join(spellings)
        return f"no {backend} kernel of {op.name}" + (f" takes {formats}" if formats else "")
    for fmt in spellings:
        for primitive in _PRIMITIVES:
            if supporting(primitive, backend, (fmt,), ()) is None:
                return f"no {backend} kernel of {primitive} takes {fmt}"
    return None


def own_arguments(node: fx.Node, op: Op) -> tuple[Any, ...]:
    """The op's own arguments, with fake tensors for nodes and the sizes that they were traced with.

    Raises ValueError where a node's value is not known.
    """

    def value(each: fx.Node) -> Any:
        example = each.meta.get("val")
        if example is None and each.op == "get_attr":
            example = operator.attrgetter(str(each.target))(each.graph.owning_module)
        if example is None:
            raise ValueError(
                f"{node.name}: the value of {each.name} is not known: lower a graph that "
                "torch.export.export or bs.graph returned, unchanged"
            )
        return pytree.tree_map(_with_hints, example)

    args = fx.node.map_arg(node.args, value)
    by_name = fx.node.map_arg(dict(node.kwargs), value)
    names = op.signature.names[len(args) :]
    defaults = {each.name: each.default for each in op.signature.flat}
    return op.signature.bind(*args, *(by_name.get(name, defaults[name]) for name in names))


def _with_hints(value: Any) -> Any:
    """A symbolic size as the number that it was traced with, in a tensor's sizes too."""
    if isinstance(value, Tensor):
        sizes, strides = (
            [_with_hints(each) for each in of] for of in (value.shape, value.stride())
        )
        with _mode_of_sizes():
            return torch.empty_strided(sizes, strides, dtype=value.dtype, device=value.device)
    node = getattr(value, "node", None)
    return int(node.hint) if node is not None and node.has_hint() else value


@cache
def _mode_of_sizes() -> FakeTensorMode:
    """A mode of tensors with plain sizes, which kernels use as keys. It imports torch._dynamo."""
    return FakeTensorMode()
