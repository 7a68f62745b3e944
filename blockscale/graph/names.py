# SPDX-License-Identifier: BSD-3-Clause
"""What nodes are called for people: the layer that they came from, and the line of their source."""

from typing import Any

from torch import fx


def scope(node: fx.Node) -> str:
    """The dotted name of the module whose forward made the node; "" for the model's own.

    A graph keeps it in `nn_module_stack`, outermost module first.
    """
    stack: Any = node.meta.get("nn_module_stack") or {}
    last = next(reversed(stack.values()), ("", None))[0]
    return str(last).removeprefix("L['self']").lstrip(".")


def op_name(node: fx.Node) -> str:
    """What the node computes, in one word: `softmax` of `aten.softmax.int`."""
    if node.op != "call_function":
        return node.op
    schema: Any = getattr(node.target, "_schema", None)
    if schema is not None:
        return str(schema.name).rpartition("::")[2].removesuffix("_")
    return str(getattr(node.target, "__name__", node.target))


def source_line(node: fx.Node) -> str:
    """`file.py:12: y = self.fc(x)`, the innermost line of the model's source; "" if unknown."""
    trace = str(node.meta.get("stack_trace") or "")
    lines = [line.strip() for line in trace.splitlines() if line.strip()]
    places = [i for i, line in enumerate(lines) if line.startswith('File "')]
    own = [i for i in places if "/torch/nn/modules/" not in lines[i]]
    if not (own or places):
        return ""
    at = (own or places)[-1]
    parts = lines[at].split(",")
    where = parts[0].removeprefix('File "').rstrip('"')
    number = parts[1].strip().removeprefix("line ") if len(parts) > 1 else ""
    code = lines[at + 1] if at + 1 < len(lines) and at + 1 not in places else ""
    return f"{where}:{number}" + (f": {code}" if code else "")


def described(node: fx.Node) -> str:
    """The node as errors and ledgers name it: `softmax of encoder.layer.0 (model.py:12: ...)`."""
    inside, line = scope(node), source_line(node)
    return op_name(node) + (f" of {inside}" if inside else "") + (f" ({line})" if line else "")
