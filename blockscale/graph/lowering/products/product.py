# SPDX-License-Identifier: BSD-3-Clause
"""One linear layer of a graph: its nodes, its formats and its sizes."""

import operator
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from blockscale.core.operand import UNQUANTIZED, Quantizer, Value
from blockscale.core.parse import parse
from blockscale.graph.lowering.way import of_ours
from blockscale.graph.nodes import arguments, bound, calls, quantize_of

OPEN = 2048  # rows where their number is open: many, since those calls take the time


class Product(NamedTuple):
    """What the time of a product depends on; all spellings are those of formats' own `spelling`.

    x, weight, y: formats; of floats empty
    given: whether the result's scale is there beforehand
    rows, n, k: of x [rows, k] and the weight [n, k]; OPEN rows where their number is open
    """

    x: str
    weight: str
    y: str
    activation: str
    given: bool
    rows: int
    n: int
    k: int


@dataclass(frozen=True)
class Parts:
    """The nodes of a product.

    fused: whether it came as `fused_linear`
    x: floats, or codes with what stands beside them
    input: how floats x are quantized inside; UNQUANTIZED where x is codes or stays as it is
    """

    node: fx.Node
    fused: bool
    x: Value
    input: Quantizer
    weight: Value
    bias: fx.Node | None
    activation: str
    dtype: torch.dtype
    y: Quantizer


def parts_of(node: fx.Node) -> Parts | None:
    """The parts of a node that is a linear layer in a quantized weight; None for others."""
    op = of_ours(node)
    if op is None or op.name not in ("fused_linear", "linear"):
        return None
    if op.name == "fused_linear":
        x, weight, bias, activation, dtype, y = bound(node, op)
        if not weight.fmt:
            return None
        return Parts(node, True, x, UNQUANTIZED, weight, bias, activation, dtype, y)
    a = arguments(node)
    sizes = _sizes(a["x"])
    if sizes is None:
        return None
    by = (a[f"input_{name}"] for name in Quantizer._fields)
    coded = Value(
        a["weight"], a["scale"], a["zero_point"], a["outer"], a["fmt"], sizes[-1], a["more"]
    )
    dtype = node.meta["val"].dtype
    return Parts(
        node, False, Value(a["x"]), Quantizer(*by), coded, a["bias"], "", dtype, UNQUANTIZED
    )


def product_of(parts: Parts) -> Product | None:
    """What its time depends on; None where its sizes are not known."""
    x, weight = _sizes(parts.x.data), _sizes(parts.weight.data)
    if x is None or weight is None:
        return None
    k = parts.weight.size
    if not isinstance(k, int):
        return None
    rows = prod(x[:-1]) if _fixed(parts.x.data) else OPEN
    fmt = parts.x.fmt or parts.input.fmt
    given = parts.y.scale is not None
    return Product(
        spelled(fmt), spelled(parts.weight.fmt), spelled(parts.y.fmt), parts.activation, given,
        rows, weight[0], k,
    )  # fmt: skip


def spelled(fmt: str) -> str:
    """The one spelling of a format that may have several; empty stays."""
    return parse(fmt).spelling if fmt else ""


def floats_of(parts: Parts) -> tuple[fx.Node, Quantizer] | None:
    """The floats that x is the codes of, and how; None where nobody can tell."""
    source: Any = parts.x.data  # a node
    if not parts.x.fmt:
        return source, parts.input
    if calls(source, operator.getitem) and source.args[1] == 0:
        source = source.args[0]  # codes are the first result of choose_quantize
    found = quantize_of(source)
    if found is None or found.by.fmt != parts.x.fmt:
        return None
    given = found.by.scale is not None and found.by.scale is not parts.x.scale
    return None if given else (found.x, found.by)


def _fixed(node: Any) -> bool:
    """Whether no size of its tensor is open."""
    return all(isinstance(size, int) for size in node.meta["val"].shape)


def _sizes(node: Any) -> list[int] | None:
    """The sizes of a node's tensor: of symbols, those that they were traced with."""
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    if not isinstance(value, Tensor):
        return None
    return [_hint(size) for size in value.shape]


def _hint(size: Any) -> int:
    if isinstance(size, int):
        return size
    hint = size.node.hint if size.node.has_hint() else None
    return 64 if hint is None else int(hint)
