# SPDX-License-Identifier: BSD-3-Clause
"""`blockscale inspect`: what is in a file or directory."""

import json
from pathlib import Path
from typing import Annotated

import typer

from blockscale.core.parse import display_name
from blockscale.core.untrusted import TEXT, shown
from blockscale.export.checkpoints.contents import ProducerContents
from blockscale.export.checkpoints.contents import inspect as look
from blockscale.files.inspect import TensorSummary
from blockscale.reporting.table import aligned, family, shape, size


def inspect(
    path: Annotated[Path, typer.Argument(help="A checkpoint: a file or a directory.")],
    every: Annotated[
        bool,
        typer.Option("--all", help="One line per tensor; do not group layers."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what a checkpoint holds: producer, formats, bits, sizes."""
    contents = look(path)
    print(json.dumps(contents.to_dict(), indent=2) if as_json else _text(contents, every))


def _text(contents: ProducerContents, every: bool) -> str:
    groups: dict[tuple[object, ...], list[TensorSummary]] = {}
    for row in contents.rows:
        name = row.name if every else family(row.name)
        key = (name, row.format, row.shape, row.input, row.output, row.before)
        groups.setdefault(key, []).append(row)
    tensors = [_line(rows) for rows in groups.values()]
    formats = [
        (
            display_name(row.format),
            str(row.tensors),
            f"{row.elements:,}",
            size(row.nbytes),
            f"{row.bits:.2f}",
        )
        for row in (*contents.totals, contents.total)
    ]
    files = ", ".join(f"{shown(name)} {size(nbytes)}" for name, nbytes in contents.files.items())
    layers = f"; {contents.layers} layers" if contents.layers > 1 else ""
    line = f"{contents.producer}: {shown(contents.evidence)}{layers}"
    return "\n".join(
        [
            line,
            *(f"warning: {shown(each, TEXT)}" for each in contents.warnings),
            "",
            aligned(("tensor", "count", "shape", "format", "size", "bits"), tensors, " r  rr"),
            "",
            aligned(("format", "tensors", "elements", "size", "bits"), formats, " rrrr"),
            *_reasons(contents),
            "",
            f"{len(contents.files)} file{'s' * (len(contents.files) != 1)}: {files}",
        ]
    )


def _reasons(contents: ProducerContents) -> list[str]:
    """Why tensors cannot be read, each reason once, with the first of them."""
    first: dict[str, list[str]] = {}
    for name, reason in contents.unread:
        first.setdefault(reason, []).append(name)
    lines = [
        f"not read: {shown(names[0])}" + f" and {len(names) - 1} more" * (len(names) > 1)
        + f": {shown(reason, TEXT)}"
        for reason, names in first.items()
    ]  # fmt: skip
    return ["", *lines] if lines else []


def _line(rows: list[TensorSummary]) -> tuple[str, ...]:
    """All tensors of one family, shape and format."""
    first = rows[0]
    name = first.name if len(rows) == 1 else family(first.name)
    parts = {"input": first.input, "output": first.output, "before": first.before}
    extra = [f"{part} {text}" for part, text in parts.items() if text]
    layout = [] if first.layout in ("", "plain") else [first.layout]
    what = display_name(", ".join([first.format, *layout, *extra]))
    nbytes = sum(row.nbytes for row in rows)
    return name, str(len(rows)), shape(first.shape), what, size(nbytes), f"{first.bits:.2f}"
