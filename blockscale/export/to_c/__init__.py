# SPDX-License-Identifier: BSD-3-Clause
"""C99: one file with an integer model, for microcontrollers and whoever has a C compiler."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram

from blockscale.core.torch_private import pytree
from blockscale.export.to_c.graph_walk import CGraph, Door, walk
from blockscale.export.to_c.text import Array, helpers, indent, initializer_lines
from blockscale.export.to_c.writer import CStep
from blockscale.export.to_program import Example, arguments, run_example
from blockscale.files.whole import check_new, check_place, written_whole
from blockscale.graph.integer_model import IntegerModel
from blockscale.graph.lowering.lowering import lower
from blockscale.graph.pickled import State

_ARENA = {8: "int64_t", 4: "int32_t", 2: "int16_t", 1: "int8_t"}


# The text of the file: head, tables, arena, steps, and the function that runs them.


class CFile(NamedTuple):
    """A file's text, its bytes of tables and of arena, and the nodes that most of them are of."""

    text: str
    tables: int
    arena: int
    fullest: str
    largest: str


def c_file(graph: CGraph, name: str) -> CFile:
    """The C file of a graph, whose names begin with `name`."""
    w = graph.writer
    kinds: dict[str, list[Array]] = {"constant": [], "arena": [], "input": [], "output": []}
    for each in w.arrays.values():
        is_used = each.kind in ("input", "output") or each.last >= 0
        if is_used:
            kinds[each.kind].append(each)
    sizes = plan(kinds["arena"])
    steps = [_step(step) for step in w.steps]
    tables = sum(each.nbytes for each in kinds["constant"])
    arena = sum(width * n for width, n in sizes.items())
    body = [
        *(_table(each, w.tables[each.number]) for each in kinds["constant"]),
        *(f"static {_ARENA[n]} arena{8 * n}[{count}];" for n, count in sizes.items()),
        *steps,
        _run(graph, w.steps, name),
    ]
    blocks = [
        _head(graph, name, sizes, tables, arena),
        "#include <stdint.h>",
        _macros(graph, name, tables, arena),
        f"{_signature(graph, name)};",
        *helpers("\n".join(steps)),
        *body,
    ]
    text = "\n\n".join(blocks) + "\n"
    fullest = _fullest(w.steps, kinds["arena"])
    return CFile(text, tables, arena, fullest, _reader(w.steps, kinds["constant"]))


def _fullest(steps: Sequence[CStep], arrays: Sequence[Array]) -> str:
    """The node during whose step most bytes are alive."""
    alive = [sum(a.nbytes for a in arrays if a.first <= at <= a.last) for at in range(len(steps))]
    return steps[alive.index(max(alive))].node


def _reader(steps: Sequence[CStep], constants: Sequence[Array]) -> str:
    """The node that reads the largest table."""
    largest = max(constants, key=lambda a: a.nbytes, default=None)
    return next((s.node for s in steps if largest in [a for _, a, _ in s.takes]), "none")


def _doors(graph: CGraph) -> list[tuple[str, Door]]:
    return [*(("input", d) for d in graph.inputs), *(("output", d) for d in graph.outputs)]


def _head(graph: CGraph, name: str, sizes: dict[int, int], tables: int, arena: int) -> str:
    """What the file says of itself."""
    lines = [
        f"/* An integer model in C99, written by blockscale. Call {name}_run: it returns 0, or",
        " * -1 for an index outside of a table. It computes with integers alone, needs no library,",
        " * and is not reentrant. Elements lie in the order of a shape, the last index fastest.",
        " * Where an exponent stands, a code means (code - zero) * 2^exponent.",
        " *",
    ]
    for kind, door in _doors(graph):
        lines.append(f" * {kind} {_door_comment(door)}")
    parts = ", ".join(f"{n} of {8 * width} bits" for width, n in sizes.items()) or "nothing"
    lines += [" *", f" * static memory: {arena} bytes ({parts})", f" * constants: {tables} bytes"]
    return "\n".join([*lines, " */"])


def _door_comment(door: Door) -> str:
    shape = " x ".join(map(str, door.shape)) or "one"
    means = "" if door.exponent is None else f", exponent {door.exponent}, zero {door.zero}"
    return f"{door.array.ctype} {door.array.name}[{door.array.size}]: {shape}{means}"


def _macros(graph: CGraph, name: str, tables: int, arena: int) -> str:
    upper = name.upper()
    lines = [f"#define {upper}_ARENA_BYTES {arena}", f"#define {upper}_CONSTANT_BYTES {tables}"]
    for _, door in _doors(graph):
        of = f"{upper}_{door.array.name.upper()}"
        lines.append(f"#define {of}_SIZE {door.array.size}")
        if door.exponent is not None:
            lines.append(f"#define {of}_EXPONENT ({door.exponent})")
            lines.append(f"#define {of}_ZERO ({door.zero})")
    return "\n".join(lines)


def _signature(graph: CGraph, name: str) -> str:
    members = [f"const {d.array.ctype} *{d.array.name}" for d in graph.inputs]
    results = [f"{d.array.ctype} *{d.array.name}" for d in graph.outputs]
    return f"int {name}_run({', '.join([*members, *results])})"


def _table(array: Array, values: object) -> str:
    rows = "\n".join(initializer_lines(values))  # type: ignore[arg-type]
    return f"static const {array.ctype} {array.name}[{array.size}] = {{\n{rows}\n}};"


def _step(step: CStep) -> str:
    """One step as a function; tables are parameters, too, so that its signature lists its reads."""
    takes = ", ".join(
        f"{'' if is_output else 'const '}{array.ctype} *{name}"
        for name, array, is_output in step.takes
    )
    lines = indent([*step.lines, "return 0;"])
    return f"/* {step.node} */\nstatic int {step.name}({takes})\n{{\n" + "\n".join(lines) + "\n}"


def _run(graph: CGraph, steps: Sequence[CStep], name: str) -> str:
    """The function that calls all steps."""
    lines = []
    unused = {d.array.name for d in graph.inputs if d.array.last < 0}
    lines += [f"(void){each};" for each in sorted(unused)]
    for step in steps:
        text = ", ".join(_pointer(array) for _, array, _ in step.takes)
        lines += [f"if ({step.name}({text}) != 0) {{", "return -1;", "}"]
    body = "\n".join(indent([*lines, "return 0;"]))
    return f"{_signature(graph, name)}\n{{\n{body}\n}}"


def _pointer(array: Array) -> str:
    if array.kind != "arena":
        return array.name
    width = array.dtype.itemsize
    at = f"arena{8 * width} + {array.offset}" if array.offset else f"arena{8 * width}"
    return f"(uint8_t *)({at})" if array.ctype == "uint8_t" else at


def identifier(name: str) -> bool:
    """Whether C takes it as the beginning of names."""
    return re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name) is not None


# A plan of memory: arrays whose lifetimes do not meet share their bytes.
#
# Elements of one width lie in one array of C, so that no object is read as another type, which
# C99 does not define.


WIDTHS = (8, 4, 2, 1)  # bytes of an element


def plan(arrays: Sequence[Array]) -> dict[int, int]:
    """Set `offset` of each array, in elements -> {width: how many elements there are}.

    The largest first, each at the lowest place that is free during its life (greedy by size:
    Pisarchyk and Lee 2020, arXiv:2001.03288, sec. 4.2).
    """
    sizes: dict[int, int] = {}
    for width in WIDTHS:
        others: list[Array] = []
        members = [each for each in arrays if each.dtype.itemsize == width]
        for each in sorted(members, key=lambda a: (-a.size, a.first, a.number)):
            each.offset = _lowest(each, others)
            others.append(each)
        if others:
            sizes[width] = max(each.offset + each.size for each in others)
    return sizes


def meet(a: Array, b: Array) -> bool:
    """Whether both are alive during some step."""
    return a.first <= b.last and b.first <= a.last


def _lowest(array: Array, others: list[Array]) -> int:
    """The lowest offset without a neighbour that lives at the same time."""
    offset = 0
    for other in sorted((each for each in others if meet(each, array)), key=lambda a: a.offset):
        if offset + array.size <= other.offset:
            break
        offset = max(offset, other.offset + other.size)
    return offset


# From a graph to the file.


def c(
    graph: nn.Module | ExportedProgram,
    path: str | Path,
    example: Example | None = None,
    *,
    name: str = "model",
    max_bytes: int | None = None,
    overwrite: bool = False,
) -> None:
    """Write one self-contained C99 file of an integer model.

    graph: what bs.graph.lower(graph, "integer") or bs.graph.to_integer gave, or what lower takes
    example: what the graph is called with; the file is for its sizes. Without one they are the
        graph's own, where those are numbers.
    name: what the file's names begin with: `int <name>_run(const <codes> *in_..., <codes> *out_0)`
    max_bytes: the most that constants and static memory may take together
    overwrite: replace a file that is there

    The file includes <stdint.h> and nothing else, and computes with integers alone: codes go in and
    come out, whose exponents and zero points are in its head and its macros. Its memory is static:
    values whose lives do not meet share bytes, and the sum is stated. The same graph gives the same
    text.

    Raises, before anything is written: NotIntegerError, a ValueError that names the node, for what
    has no integer or no C form; ValueError for sizes that are not known, for more than max_bytes,
    for a name that is no C identifier, and if the path is a directory or lies in none;
    FileExistsError if a file is there.
    """
    path = check_place(path, "model.c")
    check_new(path, overwrite)
    if not identifier(name):
        raise ValueError(f"{name!r} is not a C identifier: use letters, digits and _")
    lowered = _integer(graph)
    result = c_file(walk(lowered, _arguments(lowered, example)), name)
    _check_size(result, max_bytes)
    with written_whole(path) as temporary:
        temporary.write_text(result.text, encoding="ascii")


def _integer(graph: Any) -> fx.GraphModule:
    """The integer graph of any graph. Raises ValueError for one of another target."""
    if isinstance(graph, IntegerModel):
        return graph.steps
    facts = graph.meta.get("blockscale") if isinstance(graph, fx.GraphModule) else None
    if isinstance(facts, State) and facts.stage == "lowered" and facts.target == "integer":
        return graph
    return lower(graph, "integer")


def _arguments(graph: fx.GraphModule, example: Example | None) -> list[Any]:
    """The example's arguments, flat; zeros of the graph's own sizes without one."""
    nodes = [node for node in graph.graph.nodes if node.op == "placeholder"]
    if example is not None:
        args, kwargs = arguments(example)
        run_example(graph, args, kwargs)
        leaves = pytree.tree_leaves((args, dict(kwargs)))
        if len(leaves) != len(nodes):
            raise ValueError(
                f"the graph has {len(nodes)} inputs, and the example has {len(leaves)} tensors"
            )
        return leaves
    results = []
    for node in nodes:
        value = node.meta.get("val")
        free = isinstance(value, Tensor) and not all(isinstance(n, int) for n in value.shape)
        if not isinstance(value, Tensor) or free:
            raise ValueError(
                f"the sizes of the input {node.name} are not known: pass an example of the "
                "sizes that the file is for"
            )
        results.append(torch.zeros(tuple(value.shape), dtype=value.dtype))
    return results


def _check_size(file: CFile, most: int | None) -> None:
    """Raise ValueError where the target cannot hold it."""
    if most is not None and file.tables + file.arena > most:
        raise ValueError(
            f"the model takes {file.tables} bytes of constants (the largest is "
            f"{file.largest}) and {file.arena} bytes of memory (at its peak in "
            f"{file.fullest}), together more than max_bytes={most}: use fewer bits, or "
            "smaller sizes"
        )
