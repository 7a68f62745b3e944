# SPDX-License-Identifier: BSD-3-Clause
"""Single codes: sums, products, other exponents, tables, rows of a table."""

from typing import Any

import torch
from torch import fx

from blockscale.export.to_c.text import Access, head, loops
from blockscale.export.to_c.writer import CWriter, SumEnd, kind_of, less


def _two(w: CWriter, node: fx.Node, g: dict[str, Any], op: str) -> Access:
    kind = kind_of(g["largest"])
    end = SumEnd(w, node, g, kind == "int64_t")
    shape = torch.broadcast_shapes(w.places[g["a"]].shape, w.places[g["b"]].shape)
    a, b = (w.access(w.places[g[k]].expand(shape), g[k]) for k in "ab")
    names, heads, ends = loops(shape)
    rest = [less(f"{k}[{v.at(names)}]", g[f"{k}_zero"], kind) for k, v in (("a", a), ("b", b))]
    if op == "add":
        terms = [f"{x} * (({kind})1 << {g[f'{k}_shift']})" if g[f"{k}_shift"] else x
                 for k, x in zip("ab", rest, strict=True)]  # fmt: skip
        acc = f"{terms[0]} {'+' if g['b_sign'] > 0 else '-'} {terms[1]}"
    else:
        acc = f"{rest[0]} * {rest[1]}"
    y = w.result(end.dtype, shape, node)
    lines = [*heads, f"{kind} acc = {acc};",
             f"y[{y.at(names)}] = {end.of('acc', names[-1] if names else '0')};", *ends
    ]  # fmt: skip
    w.step(node, op, {"a": a, "b": b, **end.takes}, y, lines)
    return y


def add(w: CWriter, node: fx.Node, g: dict[str, Any]) -> Access:
    """(a << a_shift) ± (b << b_shift), by products: C does not define shifts of negatives."""
    return _two(w, node, g, "add")


def mul(w: CWriter, node: fx.Node, g: dict[str, Any]) -> Access:
    """a · b."""
    return _two(w, node, g, "mul")


def rescale(w: CWriter, node: fx.Node, g: dict[str, Any]) -> Access:
    """Another exponent, a narrower range."""
    x = w.read(g["x"])
    kind = "int64_t" if x.array.dtype == torch.int64 else "int32_t"
    end = SumEnd(w, node, g, kind == "int64_t")
    y = w.result(end.dtype, x.shape, node)
    names, heads, ends = loops(x.shape)
    acc = less(f"x[{x.at(names)}]", g["x_zero"], kind)
    lines = [*heads, f"{kind} acc = {acc};",
             f"y[{y.at(names)}] = {end.of('acc', names[-1] if names else '0')};", *ends
    ]  # fmt: skip
    w.step(node, "rescale", {"x": x, **end.takes}, y, lines)
    return y


def look_up(w: CWriter, node: fx.Node, g: dict[str, Any]) -> Access:
    """table[x by its bits]."""
    x, table = w.read(g["x"]), w.read(g["table"], whole=True)
    y = w.result(table.array.dtype, x.shape, node)
    names, heads, ends = loops(x.shape)
    bits = "uint8_t" if table.shape[0] == 256 else "uint16_t"
    lines = [*heads, f"y[{y.at(names)}] = table[({bits})x[{x.at(names)}]];", *ends]
    w.step(node, "look_up", {"x": x, "table": table}, y, lines)
    return y


def embedding(w: CWriter, node: fx.Node, g: dict[str, Any]) -> Access:
    """Rows of a table; an index that has no row ends the run with -1."""
    weight, x = w.read(g["weight"], whole=True), w.read(g["indices"])
    rows, n = weight.shape
    y = w.result(weight.array.dtype, (*x.shape, n), node)
    names, heads, ends = loops(x.shape)
    lines = [*heads, f"int64_t row = x[{x.at(names)}];", f"if (row < 0 || row >= {rows}) {{",
             "return -1;", "}", head("o", n),
             f"y[{y.at([*names, 'o'])}] = weight[row * {n} + o];", "}", *ends]  # fmt: skip
    w.step(node, "embedding", {"weight": weight, "x": x}, y, lines)
    return y


OPS = {"add": add, "mul": mul, "rescale": rescale, "look_up": look_up, "embedding": embedding}
