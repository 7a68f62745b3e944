# SPDX-License-Identifier: BSD-3-Clause
"""C99: one file with an integer model, for microcontrollers and whoever has a C compiler."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram

from blockscale.core.torch_private import pytree
from blockscale.export.to_c.file import Sized, identifier, written
from blockscale.export.to_c.graph_walk import walk
from blockscale.export.to_program import Example, arguments, tried
from blockscale.files.whole import check_new, check_place, written_whole
from blockscale.graph.integer_model import IntegerModel
from blockscale.graph.lowering.lowering import lower
from blockscale.graph.pickled import State


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
    found = written(walk(lowered, _given(lowered, example)), name)
    _check_size(found, max_bytes)
    with written_whole(path) as temporary:
        temporary.write_text(found.text, encoding="ascii")


def _integer(graph: Any) -> fx.GraphModule:
    """The integer graph of any graph. Raises ValueError for one of another target."""
    if isinstance(graph, IntegerModel):
        return graph.steps
    known = graph.meta.get("blockscale") if isinstance(graph, fx.GraphModule) else None
    if isinstance(known, State) and known.stage == "lowered" and known.target == "integer":
        return graph
    return lower(graph, "integer")


def _given(graph: fx.GraphModule, example: Example | None) -> list[Any]:
    """The example's arguments, flat; zeros of the graph's own sizes without one."""
    nodes = [node for node in graph.graph.nodes if node.op == "placeholder"]
    if example is not None:
        args, kwargs = arguments(example)
        tried(graph, args, kwargs)
        leaves = pytree.tree_leaves((args, dict(kwargs)))
        if len(leaves) != len(nodes):
            raise ValueError(
                f"the graph has {len(nodes)} inputs, and the example has {len(leaves)} tensors"
            )
        return leaves
    made = []
    for node in nodes:
        value = node.meta.get("val")
        free = isinstance(value, Tensor) and not all(isinstance(n, int) for n in value.shape)
        if not isinstance(value, Tensor) or free:
            raise ValueError(
                f"the sizes of the input {node.name} are not known: pass an example of the "
                "sizes that the file is for"
            )
        made.append(torch.zeros(tuple(value.shape), dtype=value.dtype))
    return made


def _check_size(found: Sized, most: int | None) -> None:
    """Raise ValueError where the target cannot hold it."""
    if most is not None and found.tables + found.arena > most:
        raise ValueError(
            f"the model takes {found.tables} bytes of constants (the largest is "
            f"{found.largest}) and {found.arena} bytes of memory (at its peak in "
            f"{found.fullest}), together more than max_bytes={most}: use fewer bits, or "
            "smaller sizes"
        )
