"""`blockscale inspect`: what is in a file or directory."""

import json
from pathlib import Path
from typing import Annotated

import typer

from blockscale.files.inspect import Contents, TensorSummary
from blockscale.files.inspect import inspect as look
from blockscale.report.table import aligned
from blockscale.report.wording import family, shape, size


def inspect(
    path: Annotated[Path, typer.Argument(help="A .safetensors file, or a directory of them.")],
    every: Annotated[
        bool,
        typer.Option(
            "--all", help="One line a tensor, also for layers that differ only in number."
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what is in a file or directory: formats, bits, sizes."""
    contents = look(path)
    print(json.dumps(contents.to_dict(), indent=2) if as_json else _text(contents, every))


def _text(contents: Contents, every: bool) -> str:
    groups: dict[tuple[object, ...], list[TensorSummary]] = {}
    for row in contents.rows:
        name = row.name if every else family(row.name)
        key = (name, row.format, row.shape, row.input, row.output, row.before)
        groups.setdefault(key, []).append(row)
    tensors = [_line(rows) for rows in groups.values()]
    formats = [
        (row.format, str(row.tensors), f"{row.elements:,}", size(row.nbytes), f"{row.bits:.2f}")
        for row in (*contents.totals, contents.total)
    ]
    files = ", ".join(f"{name} {size(nbytes)}" for name, nbytes in contents.files.items())
    return "\n".join(
        [
            aligned(("tensor", "count", "shape", "format", "size", "bits"), tensors, " r  rr"),
            "",
            aligned(("format", "tensors", "elements", "size", "bits"), formats, " rrrr"),
            "",
            f"{len(contents.files)} file{'s' * (len(contents.files) != 1)}: {files}",
        ]
    )


def _line(rows: list[TensorSummary]) -> tuple[str, ...]:
    """All tensors of one family, shape and format."""
    first = rows[0]
    name = first.name if len(rows) == 1 else family(first.name)
    parts = {"input": first.input, "output": first.output, "before": first.before}
    extra = [f"{part} {text}" for part, text in parts.items() if text]
    layout = [] if first.layout in ("", "plain") else [first.layout]
    what = ", ".join([first.format, *layout, *extra])
    nbytes = sum(row.nbytes for row in rows)
    return name, str(len(rows)), shape(first.shape), what, size(nbytes), f"{first.bits:.2f}"
