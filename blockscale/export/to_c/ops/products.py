# SPDX-License-Identifier: BSD-3-Clause
"""Linear layers, convolutions, products of two tensors."""

from math import prod
from typing import Any

import torch
from torch import Tensor, fx

from blockscale.core.pack import from_stored, grouped_layout
from blockscale.export.to_c.text import Access, head, loops, numbers
from blockscale.export.to_c.writer import CWriter, SumEnd, kind_of, less


def linear(w: CWriter, node: fx.Node, g: dict[str, Any]) -> Access:
    """Rows of x with rows of the weight."""
    x, weight = w.read(g["x"]), w.read(g["weight"], whole=True)
    kind = kind_of(g["largest"])
    end = SumEnd(w, node, g, kind == "int64_t")
    n, k = weight.shape
    y = w.result(end.dtype, (*x.shape[:-1], n), node)
    takes: dict[str, Any] = {"x": x, "weight": weight, **end.takes}
    start = _start(w, g, takes, kind, "o")
    names, heads, ends = loops(x.shape[:-1])
    inputs = less(f"x[{x.at([*names, 'i'])}]", g["x_zero"], kind)
    lines = [*heads, head("o", n), start, head("i", k),
             f"acc += {inputs} * weight[o * {k} + i];", "}",
             f"y[{y.at([*names, 'o'])}] = {end.of('acc', 'o')};", "}", *ends]  # fmt: skip
    w.step(node, "linear", takes, y, lines)
    return y


def _start(w: CWriter, g: dict[str, Any], takes: dict[str, Any], kind: str, at: str) -> str:
    """The accumulator's first value: the bias."""
    if g["bias"] is None:
        return f"{kind} acc = 0;"
    takes["bias"] = w.read(g["bias"], whole=True)
    return f"{kind} acc = ({kind})bias[{at}];"


def _cells(w: CWriter, g: dict[str, Any]) -> Tensor:
    """A convolution's weight as the loops read it: [n, *kernel, c / groups]."""
    stored = w.tables[int(numbers(w.places[g["weight"]]).flatten()[0])]
    if not g["transposed"]:
        return from_stored(stored, "channels_last", g["shape"]).movedim(1, -1)
    dense = from_stored(stored, grouped_layout(g["groups"]), g["shape"])
    c, each, *kernel = dense.shape
    apart = dense.reshape(g["groups"], c // g["groups"], each, *kernel).transpose(1, 2)
    return apart.reshape(g["groups"] * each, c // g["groups"], *kernel).movedim(1, -1)


def conv(w: CWriter, node: fx.Node, g: dict[str, Any]) -> Access:
    """Convolutions, channels last; transposed ones as sums over what reaches a place."""
    x, cells = w.read(g["x"]), _cells(w, g)
    n, *kernel, c = cells.shape
    kind = kind_of(g["largest"])
    end = SumEnd(w, node, g, kind == "int64_t")
    takes: dict[str, Any] = {"x": x, "weight": w.constant("weight", cells, node.name), **end.takes}
    start = _start(w, g, takes, kind, "o")
    size = _size(x.shape[1:-1], kernel, g)
    y = w.result(end.dtype, (x.shape[0], *size, n), node)
    names, heads, ends = loops(y.shape[:-1])
    at, inner, inside = _window(x.shape[1:-1], kernel, names[1:], g)
    group = f"o / {n // g['groups']} * {c} + i" if g["groups"] > 1 else "i"
    cell = " + ".join(f"k{d} * {prod(kernel[d + 1 :]) * c}" for d in range(len(kernel)))
    inputs = less(f"x[{x.at([names[0], *at, group])}]", g["x_zero"], kind)
    lines = [
        *heads, head("o", n), start, *inner, f"if ({inside}) {{", head("i", c),
        f"acc += {inputs} * weight[o * {prod(kernel) * c} + {cell} + i];", "}", "}",
        *["}"] * len(kernel), f"y[{y.at([*names, 'o'])}] = {end.of('acc', 'o')};", "}", *ends,
    ]  # fmt: skip
    w.step(node, "conv", takes, y, lines)
    return y


def _size(x: tuple[int, ...], kernel: list[int], g: dict[str, Any]) -> list[int]:
    """The size of a convolution's result."""
    more = g["output_padding"] or [0] * len(kernel)
    of = zip(x, kernel, g["stride"], g["padding"], g["dilation"], more, strict=True)
    if g["transposed"]:
        return [(n - 1) * s - 2 * p + d * (k - 1) + 1 + extra for n, k, s, p, d, extra in of]
    return [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d, _ in of]


def _window(
    x: tuple[int, ...], kernel: list[int], names: list[str], g: dict[str, Any]
) -> tuple[list[str], list[str], str]:
    """Where a cell of the kernel lies in x, the loops over cells, and when it lies inside."""
    lines, inside, at = [], [], []
    for d, (n, k, name) in enumerate(zip(x, kernel, names, strict=True)):
        s, p, apart = g["stride"][d], g["padding"][d], g["dilation"][d]
        if g["transposed"]:
            where = f"{name} + {p} - k{d} * {apart}"
            inside.append(f"p{d} >= 0 && p{d} % {s} == 0 && p{d} / {s} < {n}")
            at.append(f"p{d} / {s}")
        else:
            where = f"{name} * {s} - {p} + k{d} * {apart}"
            inside.append(f"p{d} >= 0 && p{d} < {n}")
            at.append(f"p{d}")
        lines += [head(f"k{d}", k), f"int32_t p{d} = {where};"]
    return at, lines, " && ".join(inside)


def matmul(w: CWriter, node: fx.Node, g: dict[str, Any]) -> Access:
    """[..., m, k] @ [..., k, n]."""
    first, second = w.places[g["a"]], w.places[g["b"]]
    lead = torch.broadcast_shapes(first.shape[:-2], second.shape[:-2])
    a = w.access(first.expand(*lead, *first.shape[-2:]), g["a"])
    b = w.access(second.expand(*lead, *second.shape[-2:]), g["b"])
    kind = kind_of(g["largest"])
    end = SumEnd(w, node, g, kind == "int64_t")
    shape = (*lead, a.shape[-2], b.shape[-1])
    y = w.result(end.dtype, shape, node)
    names, heads, ends = loops(shape)
    row, column = names[-2:]
    x = [less(f"a[{a.at([*names[:-2], row, 'k'])}]", g["a_zero"], kind),
         less(f"b[{b.at([*names[:-2], 'k', column])}]", g["b_zero"], kind)]  # fmt: skip
    lines = [*heads, f"{kind} acc = 0;", head("k", a.shape[-1]), f"acc += {x[0]} * {x[1]};", "}",
             f"y[{y.at(names)}] = {end.of('acc', column)};", *ends]  # fmt: skip
    w.step(node, "matmul", {"a": a, "b": b, **end.takes}, y, lines)
    return y


OPS = {"linear": linear, "conv": conv, "matmul": matmul}
