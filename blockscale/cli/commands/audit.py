# SPDX-License-Identifier: BSD-3-Clause
"""`blockscale audit`: what in a file is really low-bit."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from blockscale.core.ledger import Entry, Ledger
from blockscale.core.untrusted import LARGEST, TEXT, json_object, quote, read_json, shown
from blockscale.export import audit as audit_file
from blockscale.reporting.ledger import ledger_notes, ledger_summary
from blockscale.reporting.table import aligned, family, size


def audit(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="A file (.onnx, .pt2, .safetensors, ...) or directory."
        ),
    ],
    ledger: Annotated[
        Path | None,
        typer.Option(help="The ledger that says what the file should hold."),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="One line per tensor.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what in a file is really low-bit, from its bytes alone.

    Stored types and bytes of every weight, what computes with it, what is float and why. Nothing
    in the file is executed. With --ledger (blockscale_ledger.json, for instance) the command fails
    where a weight is not what the ledger says.
    """
    ledger_of_file = audit_file(path, None if ledger is None else _read(ledger))
    print(
        json.dumps(ledger_of_file.to_dict(), indent=2)
        if as_json
        else audit_table(ledger_of_file, every)
    )
    if ledger_of_file.skipped:
        raise ValueError(
            "not what the ledger says:"
            + "".join(
                f"\n  {shown(entry.name)}: {shown(entry.reason, TEXT)}"
                for entry in ledger_of_file.skipped
            )
        )


def audit_table(ledger: Ledger, every: bool = False) -> str:
    """Weights with their stored formats, bytes and readers; totals last."""
    groups: dict[tuple[str, ...], list[Entry]] = {}
    for entry in ledger:
        vector = entry.status == "kept" and "a vector" in entry.reason
        name = entry.name if every else "…" if vector else family(entry.name)
        key = (entry.status, name, entry.formats or entry.reason, entry.details)
        groups.setdefault(key, []).append(entry)
    rows = []
    for (status, name, what, reader), entries in groups.items():
        nbytes = sum(entry.bytes_after for entry in entries)
        bits = 8 * nbytes / max(sum(entry.elements for entry in entries), 1)
        text = entries[0].name if len(entries) == 1 else name
        row = (status, text, str(len(entries)), size(nbytes), f"{bits:.2f}", what, reader)
        rows.append(row)
    head = ("", "tensor", "count", "stored", "bits", "as", "computed")
    table = aligned(head, rows, "  rrr  ")
    return "\n".join([table, "", *ledger_notes(ledger), ledger_summary(ledger)])


def _read(path: Path) -> Ledger:
    """A ledger from its JSON. Raises ValueError where it is none."""
    try:
        data = json_object(read_json(path, most=LARGEST), path)
        return Ledger([Entry(**_fields(each)) for each in data["entries"]])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is not a ledger: {error}") from None


def _fields(entry: dict[str, Any]) -> dict[str, Any]:
    fields = Entry.__dataclass_fields__
    values = {key: value for key, value in entry.items() if key in fields}
    for key, value in values.items():
        kind = {"notes": list, "elements": int, "bytes_before": int, "bytes_after": int}
        if type(value) is not kind.get(key, str):
            raise ValueError(f"{key} is {quote(value)}")
    name = str(values["name"]).removesuffix(".weight")
    return values | {"name": name, "notes": tuple(values.get("notes", ()))}
