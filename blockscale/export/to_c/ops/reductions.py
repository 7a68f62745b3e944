# SPDX-License-Identifier: BSD-3-Clause
"""Pools of windows, and sums over dimensions."""

from typing import Any

import torch
from torch import fx

from blockscale.export.to_c.text import C_TYPES, Access, head, loops, strides_of
from blockscale.export.to_c.writer import CWriter, SumEnd, less


def max_pool(w: CWriter, node: fx.Node, g: dict[str, Any]) -> Access:
    """The largest of each window."""
    x = w.read(g["x"])
    y = w.result(x.array.dtype, w.sizes[node], node)
    names, heads, ends = loops(y.shape)
    inner, inside, at = _window(x.shape[2:], names[2:], g)
    kind = "int64_t" if x.array.dtype == torch.int64 else "int32_t"
    least = "INT64_MIN" if kind == "int64_t" else "INT32_MIN"
    lines = [*heads, f"{kind} top = {least};", *inner, f"if ({inside}) {{",
             f"{kind} each = x[{x.at([*names[:2], *at])}];",
             "top = each > top ? each : top;", "}", *["}"] * len(at),
             f"y[{y.at(names)}] = ({y.array.ctype})top;", *ends]  # fmt: skip
    w.step(node, "max_pool", {"x": x}, y, lines)
    return y


def _window(
    size: tuple[int, ...], names: list[str], g: dict[str, Any]
) -> tuple[list[str], str, list[str]]:
    """Loops over a window, when a place is inside, and the place."""
    lines, inside = [], []
    for d, (n, name) in enumerate(zip(size, names, strict=True)):
        apart = g.get("dilation", [1] * len(size))[d]
        where = f"{name} * {g['stride'][d]} - {g['padding'][d]} + k{d} * {apart}"
        lines += [head(f"k{d}", g["kernel"][d]), f"int32_t p{d} = {where};"]
        inside.append(f"p{d} >= 0 && p{d} < {n}")
    return lines, " && ".join(inside), [f"p{d}" for d in range(len(size))]


def sum_pool(w: CWriter, node: fx.Node, g: dict[str, Any]) -> Access:
    """The sum of each window over the divisor."""
    x = w.read(g["x"])
    end = _Mean(w, node, g)
    y = w.result(end.dtype, w.sizes[node], node)
    names, heads, ends = loops(y.shape)
    inner, inside, at = _window(x.shape[2:], names[2:], g)
    inputs = less(f"x[{x.at([*names[:2], *at])}]", g["x_zero"], "int64_t")
    lines = [*heads, "int64_t acc = 0;", *inner, f"if ({inside}) {{", f"acc += {inputs};", "}",
             *["}"] * len(at), f"y[{y.at(names)}] = {end.of('acc', names[-1])};", *ends
    ]  # fmt: skip
    w.step(node, "sum_pool", {"x": x, **end.takes}, y, lines)
    return y


def sum_over(w: CWriter, node: fx.Node, g: dict[str, Any]) -> Access:
    """Sums over dimensions over the divisor."""
    x = w.read(g["x"])
    end = _Mean(w, node, g)
    rank = len(x.shape)
    over_dims = {d % rank for d in g["dims"]} or set(range(rank))
    rest = [1 if d in over_dims else n for d, n in enumerate(x.shape)]
    y = w.result(end.dtype, rest, node)
    names, heads, ends = loops(rest)
    inner, more, over = loops([n if d in over_dims else 1 for d, n in enumerate(x.shape)], "r")
    at = [inner[d] if d in over_dims else names[d] for d in range(rank)]
    axes = names if g["keepdim"] else [each for d, each in enumerate(names) if d not in over_dims]
    inputs = less(f"x[{x.at(at)}]", g["x_zero"], "int64_t")
    value = end.of("acc", axes[-1] if axes else "0")
    lines = [*heads, "int64_t acc = 0;", *more, f"acc += {inputs};", *over]
    lines += [f"y[{y.at(names)}] = {value};", *ends]
    w.step(node, "sum_over", {"x": x, **end.takes}, y, lines)
    shape = tuple(w.sizes[node])
    return Access(y.array, 0, shape, strides_of(shape))


class _Mean(SumEnd):
    """A sum over a divisor, rounded once."""

    def __init__(self, w: CWriter, node: fx.Node, g: dict[str, Any]):
        super().__init__(w, node, g, g["largest"] >= 2**31)
        self.divisor = g["divisor"]

    def of(self, acc: str, channel: str) -> str:
        if self.divisor == 1 or self.form is None:
            return super().of(acc, channel)
        shift = self.shift or f"shift[{channel}]"
        wide = f"shifted_left({acc}, {shift} > 0 ? 0 : {shift})"
        by = f"((int64_t)1 << within({shift}, 0, 40)) * {self.divisor}"
        text = f"divided_{self.form.rounding}({wide}, {by})"
        return f"({C_TYPES[self.dtype]})within({text} + {self.zero}, {self.low}, {self.high})"


OPS = {"max_pool": max_pool, "sum_pool": sum_pool, "sum_over": sum_over}
