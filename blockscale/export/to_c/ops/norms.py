# SPDX-License-Identifier: BSD-3-Clause
"""Softmax, attention, layer norm, RMS norm: the algorithms of blockscale/ops/integer in loops."""

from typing import Any

import torch
from torch import fx

from blockscale.export.to_c.text import Access, Array, head, loops, number
from blockscale.export.to_c.writer import CWriter, SumEnd, less
from blockscale.ops.integer.norms import FRACTION as _UNIT
from blockscale.ops.integer.softmax import FRACTION

_INVERSE = 31  # bits of what the sum of powers divides
_ROOT = 62  # bits of what a root is taken of


def _room(w: CWriter, node: fx.Node, dtype: torch.dtype, n: int) -> Array:
    """Memory for one step."""
    return w.result(dtype, (n,), node).array


def _powers(n: int, g: dict[str, Any], score: str, condition: str) -> list[str]:
    """Lines that make of n scores their powers in `power`, and the largest share in `inverse`."""
    fraction = 2**FRACTION - 1
    see, blind = (f"if ({condition}) {{", ["}"]) if condition else ("", [])
    return [
        "int64_t top = INT64_MIN, total = 0, inverse;",
        head("j", n), *([see] if see else []), f"int64_t each = {score};",
        "top = each > top ? each : top;", *blind, "}",
        head("j", n), "power[j] = 0;", *([see] if see else []),
        f"int64_t below = within(top - {score}, 0, 1073741824);",
        f"int64_t exponent = (below * {g['factor']}) >> {g['right']};",
        f"int64_t whole = exponent >> {FRACTION};",
        f"power[j] = table[exponent & {fraction}] >> (whole > 31 ? 31 : whole);",
        *blind, "total += power[j];", "}",
        f"inverse = ((int64_t)1 << {_INVERSE}) / (total < 1 ? 1 : total);",
    ]  # fmt: skip


def _share(at: str, bits: int) -> str:
    """The share of a power of the sum."""
    right = _INVERSE - bits
    return f"(power[{at}] * inverse + ((int64_t)1 << {right - 1})) >> {right}"


def softmax(w: CWriter, node: fx.Node, g: dict[str, Any]) -> Access:
    """Shares of powers over the last dimension."""
    x, table = w.read(g["x"]), w.read(g["table"], whole=True)
    end = SumEnd(w, node, g | {"shift": torch.zeros(1, dtype=torch.int32)}, True)
    y = w.result(end.dtype, x.shape, node)
    power = _room(w, node, torch.int32, x.shape[-1])
    names, heads, ends = loops(x.shape[:-1])
    score = f"x[{x.at([*names, 'j'])}]"
    lines = [*heads, "{", *_powers(x.shape[-1], g, score, ""), head("j", x.shape[-1]),
             f"int64_t acc = {_share('j', g['bits'])};",
             f"y[{y.at([*names, 'j'])}] = {end.of('acc', 'j')};", "}", "}", *ends]  # fmt: skip
    w.step(node, "softmax", {"x": x, "table": table}, y, lines, {"power": power})
    return y


def attention(w: CWriter, node: fx.Node, g: dict[str, Any]) -> Access:
    """Scores, their shares in 8 bits, the shares' product with the values."""
    q, k, v = (w.read(g[name]) for name in ("query", "key", "value"))
    table = w.read(g["table"], whole=True)
    end = SumEnd(w, node, g, False)
    width, (n, wide) = q.shape[-1], v.shape[-2:]
    y = w.result(end.dtype, (*q.shape[:-1], wide), node)
    score, power = (_room(w, node, torch.int32, n) for _ in range(2))
    names, heads, ends = loops(q.shape[:-1])
    lead, row = names[:-1], names[-1]
    if len(k.shape) > 2 and k.shape[-3] != q.shape[-3]:
        lead = [*lead[:-1], f"{lead[-1]} / {q.shape[-3] // k.shape[-3]}"]
    takes: dict[str, Any] = {"q": q, "k": k, "v": v, "table": table, **end.takes}
    condition = f"j <= {row}" if g["causal"] else ""
    if g["seen"] is not None and not g["causal"]:
        mask = w.access(w.places[g["seen"]].expand(*q.shape[:-1], n), g["seen"])
        takes["seen"], condition = mask, f"seen[{mask.at([*names, 'j'])}]"
    x = [less(f"{c}[{at}]", zero, "int32_t") for c, at, zero in zip("qkv", (
        q.at([*names, "i"]), k.at([*lead, "j", "i"]), v.at([*lead, "j", "o"])),
        g["zeros"], strict=True)]  # fmt: skip
    lines = [
        *heads, "{", head("j", n), "score[j] = 0;", head("i", width),
        f"score[j] += {x[0]} * {x[1]};", "}", "}", *_powers(n, g, "score[j]", condition),
        head("j", n), f"score[j] = (int32_t)within({_share('j', 8)}, 0, 255);", "}",
        head("o", wide), "int32_t acc = 0;", head("j", n), f"acc += score[j] * {x[2]};", "}",
        f"y[{y.at([*names, 'o'])}] = {end.of('acc', 'o')};", "}", "}", *ends,
    ]  # fmt: skip
    w.step(node, "attention", takes, y, lines, {"score": score, "power": power})
    return y


def layer_norm(w: CWriter, node: fx.Node, g: dict[str, Any]) -> Access:
    """An exact variance, an integer root, one division a row."""
    x = w.read(g["x"])
    end = SumEnd(w, node, g, True)
    n = x.shape[-1]
    y = w.result(end.dtype, x.shape, node)
    takes: dict[str, Any] = {"x": x, **end.takes}
    scaled, more = "acc", ""
    if g["weight"] is not None:
        takes["weight"], scaled = w.read(g["weight"], whole=True), "acc * weight[o]"
    if g["bias"] is not None:
        takes["bias"], more = w.read(g["bias"], whole=True), " + bias[o]"
    names, heads, ends = loops(x.shape[:-1])
    each = less(f"x[{x.at([*names, 'o'])}]", g["x_zero"], "int64_t")
    total = ["total += each;"] if g["centered"] else []
    lines = [
        *heads, "{", "int64_t total = 0, squares = 0, variance, inverse;", "int32_t half, right;",
        head("o", n), f"int64_t each = {each};", *total, "squares += each * each;", "}",
        f"variance = {n} * squares - total * total + {number(g['epsilon'])};",
        "variance = variance < 1 ? 1 : variance;",
        f"half = ({_ROOT} - bit_length(variance)) >> 1;",
        f"inverse = ((int64_t)1 << {_ROOT - 1})"
        " / square_root(variance * ((int64_t)1 << (2 * half)));",
        f"right = {_ROOT - 1 - _UNIT} - half;",
        head("o", n), f"int64_t acc = floor_shift(({n} * {each} - total) * inverse"
        " + ((int64_t)1 << (right - 1)), right);",
        f"acc = {scaled}{more};",
        f"y[{y.at([*names, 'o'])}] = {end.of('acc', 'o')};", "}", "}", *ends,
    ]  # fmt: skip
    w.step(node, "layer_norm", takes, y, lines)
    return y


OPS = {"softmax": softmax, "attention": attention, "layer_norm": layer_norm}
