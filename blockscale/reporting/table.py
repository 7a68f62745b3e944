# SPDX-License-Identifier: BSD-3-Clause
"""Tables of text: aligned for a terminal or a pipe, or in Markdown for a page."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from blockscale.core.untrusted import TEXT, shown

# How sizes, shapes and families of names are written, everywhere the same.


def size(nbytes: float) -> str:
    """Bytes in the unit that suits: `90.9 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if nbytes < 1000:
            return f"{nbytes:.0f} B" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1000
    return f"{nbytes:.1f} TB"


def shape(sizes: Sequence[int]) -> str:
    """A shape: `384 x 1536`, `scalar`."""
    return " x ".join(str(each) for each in sizes) or "scalar"


def family(name: str) -> str:
    """A name without its numbers, so that the layers of a stack share one: `layer.*.weight`."""
    return re.sub(r"\d+", "*", name)


@dataclass(frozen=True)
class Table:
    """Cells of text; all columns but the first `left_columns` hold numbers."""

    title: str
    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    left_columns: int = 1
    note: str = ""


def markdown(table: Table) -> str:
    """The table in Markdown, without its title and its note."""
    sides = ["---" if i < table.left_columns else "--:" for i in range(len(table.header))]
    lines = [table.header, sides, *table.rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def aligned(header: Sequence[str], rows: Sequence[Sequence[str]], right: str = "") -> str:
    """Rows under a header, in columns that a terminal, a pipe and a file can hold.

    rows: cells that may come from files, and are printed as names are (`shown`)
    right: has an `r` in the place of each column of numbers, which ends on the right
    """
    lines = [header, *([shown(cell, TEXT) for cell in row] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    sides = right.ljust(len(header))
    cells = [
        [
            cell.rjust(w) if side == "r" else cell.ljust(w)
            for cell, w, side in zip(line, widths, sides, strict=True)
        ]
        for line in lines
    ]
    return "\n".join("  ".join(line).rstrip() for line in cells)
