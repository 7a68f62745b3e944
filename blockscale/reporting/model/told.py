# SPDX-License-Identifier: BSD-3-Clause
"""What a directory's ledger says of it: a file that may be anybody's, so every field is checked."""

import json
import shlex
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, cast

from blockscale.core.ledger import Entry, Ledger, Status
from blockscale.core.untrusted.json_text import LARGEST, json_object, read_json
from blockscale.core.untrusted.names import TEXT, quoted, shown
from blockscale.files.directory.model_files import LEDGER
from blockscale.files.metadata import FileError
from blockscale.reporting.ledger import grouped, ledger_notes

GROUPS = 2_000  # lines of a ledger that a page shows: a model's layers are a few dozen families
NOTES = 500
_STATUS = ("quantized", "kept", "skipped")
_TEXTS = ("name", "kind", "status", "weight", "input", "output", "reason", "details", "bias")
_NUMBERS = ("elements", "bytes_before", "bytes_after")


def told_ledger(path: Path) -> dict[str, Any] | None:
    """The ledger of a directory that blockscale quantized, as plain data; None without one.

    Raises FileError for a ledger that is not what blockscale writes.
    """
    place = path / LEDGER
    if not path.is_dir() or not place.exists():
        return None
    found = json_object(read_json(place, most=LARGEST), place)
    ledger = _ledger(found, place)
    groups = grouped(ledger)
    notes = ledger_notes(ledger)
    return {
        "file": LEDGER,
        "counts": {each: len(ledger.of(cast("Status", each))) for each in _STATUS},
        "bytes_before": ledger.bytes_before,
        "bytes_after": ledger.bytes_after,
        "groups": [
            {
                "status": each.status, "name": shown(each.name), "count": each.count,
                "kind": shown(each.kind), "before": each.before, "after": each.after,
                "what": shown(each.what, TEXT),
            }
            for each in groups[:GROUPS]
        ],
        "unlisted": max(len(groups) - GROUPS, 0),
        "notes": [shown(note, TEXT) for note in notes[:NOTES]],
        "unlisted_notes": max(len(notes) - NOTES, 0),
        **_made(found, path),
    }  # fmt: skip


def _ledger(found: Mapping[str, Any], place: Path) -> Ledger:
    entries, unmatched = found.get("entries"), found.get("unmatched", [])
    if not isinstance(entries, list) or not isinstance(unmatched, list):
        raise FileError(f"{place} lists no entries: blockscale did not write this ledger")
    return Ledger(
        [_entry(each, place) for each in entries], tuple(str(pattern) for pattern in unmatched)
    )


def _entry(given: Any, place: Path) -> Entry:
    told = json_object(given, f"an entry of {place}")
    name = quoted(told.get("name"))
    known = {each.name for each in fields(Entry)}
    for key in _TEXTS:
        if not isinstance(told.get(key, ""), str):
            raise FileError(f"{place}: the {key} of {name} is not text")
    for key in _NUMBERS:
        if type(told.get(key, 0)) is not int or told.get(key, 0) < 0:
            raise FileError(f"{place}: the {key} of {name} is not a count")
    if told.get("status") not in _STATUS or "name" not in told:
        raise FileError(f"{place}: {name} is {quoted(told.get('status'))}, none of {_STATUS}")
    notes = told.get("notes", [])
    if not isinstance(notes, list):
        raise FileError(f"{place}: the notes of {name} are not a list")
    taken = {key: value for key, value in told.items() if key in known}
    return Entry(**({"kind": ""} | taken | {"notes": tuple(map(str, notes))}))


def _made(found: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """With what command and releases the directory was written, as far as the ledger says."""
    recipe, source = found.get("recipe"), found.get("source")
    versions = {key: shown(found[key]) for key in ("blockscale", "torch") if key in found}
    told: dict[str, Any] = {"versions": versions}
    if isinstance(recipe, dict) and isinstance(source, str):
        words = ["blockscale", "quantize", source, str(path), "--recipe", json.dumps(recipe)]
        if found.get("seed"):
            words += ["--seed", str(found["seed"])]
        told |= {"source": shown(source, TEXT), "command": shown(shlex.join(words), 10 * TEXT)}
    return told
