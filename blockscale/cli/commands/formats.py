# SPDX-License-Identifier: BSD-3-Clause
"""`blockscale formats`: the catalogue, or everything about one format."""

import json
import math
from typing import Annotated, Any

import torch
import typer

from blockscale.core.elements.integer import Integer
from blockscale.core.format import Format
from blockscale.core.parse import formats as catalogue
from blockscale.core.parse import parse
from blockscale.reporting.table import aligned

_SHAPE = (4096, 4096)  # of the tensor whose bits are shown: a usual weight
_MOST = 256  # values that are listed
_COLUMNS = 8


def formats(
    name: Annotated[
        str | None,
        typer.Argument(metavar="FORMAT", help="Show this format: a name or spelling."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the named formats, or show one format and its values.

    Values are in units of the block's scale. Bits are those of one weight of a 4096 x 4096 matrix,
    scales and zero points included.
    """
    if name is not None:
        facts = _facts(name, parse(name)) | {"values": _values(parse(name))}
        print(json.dumps(facts, indent=2) if as_json else _one(facts))
        return
    rows = [_facts(each, fmt) for each, fmt in catalogue().items()]
    print(json.dumps(rows, indent=2) if as_json else _all(rows))


def _facts(name: str, fmt: Format) -> dict[str, Any]:
    """What the catalogue says of a format."""
    largest = max(abs(limit) for limit in fmt.element.limits(fmt.wide))
    unit = 2.0**-fmt.fraction_bits  # integers under e8m0 are fixed-point numbers below 2
    return {
        "name": name,
        "spelling": str(fmt),
        "largest": largest * unit,
        "smallest": fmt.element.smallest * unit,
        "range_db": 20 * math.log10(largest / fmt.element.smallest),
        "bits": fmt.bits_per_element(_SHAPE),
    }


def _values(fmt: Format) -> list[dict[str, float | int | None]] | None:
    """Each code's bit pattern and value, None for a NaN; None in all if there are too many."""
    if 2**fmt.bits > _MOST:
        return None
    patterns = torch.arange(2**fmt.bits, dtype=torch.int32)
    values = fmt.element.decode(fmt.element.from_bits(patterns)) * 2.0**-fmt.fraction_bits
    entries = [
        {"code": code, "value": value if math.isfinite(value) else None}
        for code, value in enumerate(values.tolist())
    ]
    if isinstance(fmt.element, Integer):  # -128 is a code, but a narrow format never produces it
        low, high = (limit * 2.0**-fmt.fraction_bits for limit in fmt.element.limits(fmt.wide))
        return [each for each in entries if low <= (each["value"] or 0.0) <= high]
    return entries


def _all(rows: list[dict[str, Any]]) -> str:
    header = ("name", "spelling", "largest", "smallest", "range dB", "bits")
    lines = [(row["name"], row["spelling"], *_numbers(row)) for row in rows]
    return (
        aligned(header, lines, "  rrrr")
        + "\n\nAny other format is spelled element:block:scale[:option...]"
    )


def _numbers(row: dict[str, Any]) -> tuple[str, str, str, str]:
    return (
        f"{row['largest']:g}",
        f"{row['smallest']:g}",
        f"{row['range_db']:.1f}",
        f"{row['bits']:.3f}",
    )


def _one(row: dict[str, Any]) -> str:
    largest, smallest, decibels, bits = _numbers(row)
    lines = [
        row["spelling"] if row["name"] == row["spelling"] else f"{row['name']}: {row['spelling']}",
        f"largest value   {largest} times the scale",
        f"smallest value  {smallest} times the scale",
        f"dynamic range   {decibels} dB",
        f"bits            {bits} a weight of a {_SHAPE[0]} x {_SHAPE[1]} matrix, scales included",
    ]
    if row["values"] is None:
        return "\n".join(lines)
    digits = len(f"{row['values'][-1]['code']:x}")
    cells = [f"{v['code']:0{digits}x} {_value(v['value'])}" for v in row["values"]]
    wide = max(len(cell) for cell in cells)
    grid = [
        "  ".join(cell.ljust(wide) for cell in cells[i : i + _COLUMNS]).rstrip()
        for i in range(0, len(cells), _COLUMNS)
    ]
    return "\n".join([*lines, "", "codes (hexadecimal) and values:", *grid])


def _value(value: float | None) -> str:
    return "NaN" if value is None else f"{value:g}"
