# SPDX-License-Identifier: BSD-3-Clause
"""A graph as text that a person can read: a line for each op, with formats and shapes."""

import operator
from typing import Any

from torch import Tensor, fx

_WIDE = {"float32": "f32", "bfloat16": "bf16", "float16": "f16", "int64": "i64", "uint8": "u8"}


def draw(graph: fx.GraphModule) -> str:
    """One line a node, in order: its name, what it computes from what, and what comes out.

    Tensors that the graph holds stand where they are read, by their names. Elements taken out of
    the list that an op gives are the op's name and a number.
    """
    names: dict[fx.Node, str] = {}
    lines: list[tuple[str, str, str]] = []
    counts: dict[str, int] = {}
    for node in graph.graph.nodes:
        if node.op == "get_attr":
            names[node] = str(node.target)
        elif node.target is operator.getitem:
            names[node] = f"{names[node.args[0]]}[{node.args[1]}]"
        elif node.op == "output":
            lines.append(("return", _text(node.args[0], names), ""))
        else:
            names[node] = node.name if node.op == "placeholder" else _short(node, counts)
            lines.append((names[node], _call(node, names), _result(node)))
    first = max((len(name) for name, _, _ in lines), default=0)
    second = max((len(call) for _, call, _ in lines), default=0)
    return "\n".join(f"{n:{first}}  {c:{second}}  {r}".rstrip() for n, c, r in lines) + "\n"


def _short(node: fx.Node, counts: dict[str, int]) -> str:
    """A name that says what the node gives: q, dq, or its op's."""
    base = {"quantize": "q", "choose_quantize": "q", "dequantize": "dq"}.get(_op(node), _op(node))
    base = base.removeprefix("fused_")
    counts[base] = counts.get(base, 0) + 1
    return base if counts[base] == 1 else f"{base}{counts[base]}"


def _op(node: fx.Node) -> str:
    if node.op == "call_module":
        return str(node.target)
    schema: Any = getattr(node.target, "_schema", None)
    if schema is None:
        return str(getattr(node.target, "__name__", node.target))
    return str(schema.name).rpartition("::")[2]


def _call(node: fx.Node, names: dict[fx.Node, str]) -> str:
    """`linear(q, fc.weight.codes, …)`: what it reads; codes of ours with their formats."""
    if node.op == "placeholder":
        return "input"
    schema: Any = getattr(node.target, "_schema", None)
    if schema is None or not str(schema.name).startswith("blockscale::"):
        texts = [_text(arg, names) for arg in node.args if arg is not None]
        return f"{_op(node)}({', '.join(texts)})"
    arguments = dict(zip([a.name for a in schema.arguments], node.args, strict=False)) | node.kwargs
    formats = {name: arg for name, arg in arguments.items() if name.endswith("fmt") and arg}
    parts: list[str] = []
    for name, arg in arguments.items():
        if arg is None or arg == "" or name in formats or _beside(name):
            continue
        fmt = formats.get(f"{name}_fmt", formats.get("fmt", "") if not parts else "")
        parts.append(f"{_text(arg, names)} {fmt}".strip())
    result = next((fmt for name, fmt in formats.items() if name in ("y_fmt", "input_fmt")), "")
    return f"{_op(node)}({', '.join(parts)})" + (f" -> {result}" if result else "")


_BESIDE = ("scale", "zero_point", "outer", "size", "seed", "more", "dtype")


def _beside(name: str) -> bool:
    """Whether an argument only says how codes are meant, or in which dtype they are read."""
    return name in _BESIDE or name.endswith(tuple(f"_{part}" for part in _BESIDE))


def _text(value: object, names: dict[fx.Node, str]) -> str:
    if isinstance(value, fx.Node):
        return names.get(value, value.name)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_text(each, names) for each in value) + "]"
    return str(value)


def _result(node: fx.Node) -> str:
    value = node.meta.get("val")
    values = value if isinstance(value, list | tuple) else [value]
    return ", ".join(_shape(each) for each in values if isinstance(each, Tensor))


def _shape(value: Tensor) -> str:
    name = str(value.dtype).removeprefix("torch.")
    sizes = ", ".join(str(size) for size in value.shape)
    return f"{_WIDE.get(name, name)}[{sizes}]"
