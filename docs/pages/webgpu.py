# SPDX-License-Identifier: BSD-3-Clause
"""The ops of docs/webgpu.md, and which of them have a kernel of ours for WebGPU."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import blockscale
from blockscale.ops.fused import FUSED
from blockscale.ops.integer import INTEGER_OPS
from blockscale.ops.op import OPS
from docs.pages import DOCS

KERNELS = Path(blockscale.__file__).parent / "kernels/webgpu"
TABLE = re.compile(r"(?P<head><!-- generated: ops -->\n\n).*?(?=\n\n(?!\|))", re.DOTALL)
NONE = (
    "no kernel: the reference computes on the CPU, with one warning, and its result goes back to "
    "the device"
)
COMPOSED = (
    "no kernel of its own: quantized operands are decoded by the kernels above, torch's ops on the "
    "device compute, and the result is quantized by the kernels above"
)
WITH_FLOATS = "no kernel of its own: torch's ops on the device compute"
SILENT = ("cached_attention", "choose_beside")  # composed: nothing is said of them
OTHERS = ("round_columns",)  # that are no torch ops


def webgpu() -> str:
    """docs/webgpu.md with the table of today."""
    return TABLE.sub(lambda found: found["head"] + table(), (DOCS / "webgpu.md").read_text())


def table() -> str:
    """A row for each op, and one for fused ops and one for ops on integers."""
    files = kernels()
    named = [*OPS, *OTHERS]
    rows = [(f"`{name}`", _of(name, files)) for name in named if name in files]
    rows += [(f"`{name}`", _of(name, files)) for name in named if name not in files]
    for names, of, how in (
        ([f"fused_{name}" for name in FUSED], "fused ops (`bs.graph.fuse`)", COMPOSED),
        ([*INTEGER_OPS], "ops on integers (`bs.graph.lower`)", WITH_FLOATS),
    ):
        own = [name for name in names if name in files]
        rows += [(f"`{name}`", _of(name, files)) for name in own]
        rows.append((f"{len(names) - len(own)} {of}", how))
    lines = ["| op of ours | on the device |", "|---|---|"]
    return "\n".join([*lines, *(f"| {op} | {how} |" for op, how in rows)])


def _of(name: str, files: dict[str, str]) -> str:
    if name in files:
        return f"a kernel: `{files[name]}`"
    return NONE.replace(", with one warning,", ",") if name in SILENT else NONE


def kernels() -> dict[str, str]:
    """{op: the file whose kernel registers for it}, read from the sources: no GPU is needed."""
    found: dict[str, str] = {}
    for path in sorted(KERNELS.rglob("*.py")):
        for name in registered(ast.parse(path.read_text())):
            found[name] = path.relative_to(KERNELS.parents[1]).as_posix()
    return found


def registered(tree: ast.Module) -> Iterator[str]:
    """The ops that functions of a module register for, by @kernel(op, …)."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef):
            continue
        for each in node.decorator_list:
            if isinstance(each, ast.Call) and ast.unparse(each.func) == "kernel":
                yield ast.literal_eval(each.args[0])
