# SPDX-License-Identifier: BSD-3-Clause
"""Everything that a page about a model shows, as plain data: nothing on it is computed elsewhere.

One layer is in memory at a time: its codes, and what is computed of it slab by slab; of a source,
one float tensor.
"""

import hashlib
import json
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import torch

from blockscale.core.ledger import Entry, Ledger, Status
from blockscale.core.untrusted import LARGEST, TEXT, json_object, quote, read_json, shown
from blockscale.core.work import Progress
from blockscale.evaluation.figures import read as read_evaluation
from blockscale.files.directory.model_files import LEDGER
from blockscale.files.metadata import FileError
from blockscale.kernels.hardware import hardware
from blockscale.ops.tensor import QTensor
from blockscale.reporting.ledger import grouped, ledger_notes
from blockscale.reporting.model.figures import read_search
from blockscale.reporting.model.measure import measure
from blockscale.reporting.model.stored import ReportedModel, Row

# What a directory's ledger says of it: a file that may be anybody's, so every field is checked.

GROUPS = 2_000  # lines of a ledger that a page shows: a model's layers are a few dozen families
NOTES = 500
_STATUS = ("quantized", "kept", "skipped")
_TEXTS = (
    "name",
    "kind",
    "status",
    "weight",
    "input",
    "output",
    "reason",
    "details",
    "bias",
    "here",
)
_NUMBERS = ("elements", "bytes_before", "bytes_after")


def ledger_data(path: Path) -> dict[str, Any] | None:
    """The ledger of a directory that blockscale quantized, as plain data; None without one.

    Raises FileError for a ledger that is not what blockscale writes.
    """
    place = path / LEDGER
    if not path.is_dir() or not place.exists():
        return None
    data = json_object(read_json(place, most=LARGEST), place)
    ledger = _ledger(data, place)
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
        **_production(data, path),
    }  # fmt: skip


def _ledger(data: Mapping[str, Any], place: Path) -> Ledger:
    entries, patterns = data.get("entries"), data.get("unmatched", [])
    if not isinstance(entries, list) or not isinstance(patterns, list):
        raise FileError(f"{place} lists no entries: blockscale did not write this ledger")
    notes = data.get("notes", [])
    whole = tuple(str(note) for note in notes) if isinstance(notes, list) else ()
    return Ledger(
        [_entry(each, place) for each in entries],
        tuple(str(pattern) for pattern in patterns), notes=whole,
    )  # fmt: skip


def _entry(item: Any, place: Path) -> Entry:
    data = json_object(item, f"an entry of {place}")
    name = quote(data.get("name"))
    names = {each.name for each in fields(Entry)}
    for key in _TEXTS:
        if not isinstance(data.get(key, ""), str):
            raise FileError(f"{place}: the {key} of {name} is not text")
    for key in _NUMBERS:
        if type(data.get(key, 0)) is not int or data.get(key, 0) < 0:
            raise FileError(f"{place}: the {key} of {name} is not a count")
    if data.get("status") not in _STATUS or "name" not in data:
        raise FileError(f"{place}: {name} is {quote(data.get('status'))}, none of {_STATUS}")
    notes = data.get("notes", [])
    if not isinstance(notes, list):
        raise FileError(f"{place}: the notes of {name} are not a list")
    values = {key: value for key, value in data.items() if key in names}
    return Entry(**({"kind": ""} | values | {"notes": tuple(map(str, notes))}))


def _production(data: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """With what command and releases the directory was written, as far as the ledger says."""
    recipe, source = data.get("recipe"), data.get("source")
    versions = {key: shown(data[key]) for key in ("blockscale", "torch") if key in data}
    about: dict[str, Any] = {"versions": versions}
    if isinstance(recipe, dict) and isinstance(source, str):
        words = ["blockscale", "quantize", source, str(path), "--recipe", json.dumps(recipe)]
        if data.get("seed"):
            words += ["--seed", str(data["seed"])]
        about |= {"source": shown(source, TEXT), "command": shown(shlex.join(words), 10 * TEXT)}
    return about


SCHEMA = 1
ROWS = 20_000  # tensors that a page lists; of more, the largest
HISTOGRAMS = 2_000  # layers whose histograms it holds; of more, those that are furthest off
_CHUNK = 1 << 24  # bytes that are hashed between two looks at the progress


def describe(
    path: str | Path | None,
    *,
    source: str | Path | None = None,
    search: str | Path | None = None,
    evaluation: str | Path | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """What a quantized model, a search, or both are, as plain data for JSON.

    path: a file or directory that `bs.checkpoint` reads; None for a search alone
    source: the float model with the same names, for errors and saturation
    search: a file that `bs.search(…).save` wrote
    evaluation: a file that `bs.evaluate(…).save` wrote
    Raises FileError for what cannot be read, and ValueError without a path and a search.
    """
    if path is None and search is None:
        raise ValueError("a report needs a model or a search: pass a path, or search=")
    if path is None and source is not None:
        raise ValueError("a source is compared with a model: name the model, too")
    progress = progress or Progress()
    figures = None if evaluation is None else read_evaluation(evaluation)
    data = _about(path, source, search)
    if search is not None:
        data["search"] = read_search(search) | {"sha256": _digest(Path(search), lambda _: None)}
    if figures is not None:
        data["evaluation"] = {name: figure.to_dict() for name, figure in figures.items()}
    if path is not None:
        data |= _of_model(Path(path), source, progress)
    return data


def _about(*paths: str | Path | None) -> dict[str, Any]:
    path, source, search = (None if each is None else str(each) for each in paths)
    words = ["blockscale", "report", *([path or search] if path or search else [])]
    words += ["--source", source] if source else []
    words += ["--search", search] if search and path else []
    machine = json.loads(json.dumps(asdict(hardware())))  # as a file gives it back
    for large in ("openmp", "kernels"):
        machine.pop(large, None)
    return {
        "schema": SCHEMA,
        "title": shown(Path(path or search or "").resolve().name),
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shown(shlex.join(str(word) for word in words), TEXT),
        "hardware": machine,
        "versions": {
            "blockscale": sys.modules["blockscale"].__version__,
            "torch": torch.__version__,
            "python": sys.version.partition(" ")[0],
        },
    }


def _of_model(path: Path, source: str | Path | None, progress: Progress) -> dict[str, Any]:
    with ReportedModel(path) as model:
        rows = list(model.rows())
        if source is None:
            return _description(model, rows, None, progress)
        with ReportedModel(source) as floats:
            return _description(model, rows, floats, progress)


def _description(
    model: ReportedModel, rows: Sequence[Row], source: ReportedModel | None, progress: Progress
) -> dict[str, Any]:
    sizes = {file: file.stat().st_size for each in (model, source) if each for file in each.files}
    progress.start(sum(row.nbytes for row in rows) + sum(sizes.values()), 0)
    largest = sorted(sorted(rows, key=lambda row: -row.nbytes)[:ROWS], key=lambda row: row.name)
    names = {row.name for row in largest}
    formats: dict[str, Any] = {}
    lines = []
    for row in rows:
        if row.name in names:
            lines.append(_line(row, model, source, formats))
        progress.advance(row.name, row.nbytes)
    _keep_histograms(lines)
    origins = {"model": model} | ({} if source is None else {"source": source})
    return {
        "totals": _totals(rows),
        "tensors": lines,
        "unlisted": len(rows) - len(largest),
        "formats": formats,
        "ledger": ledger_data(model.path),
        **{name: _origin(each, progress) for name, each in origins.items()},
    }


def _line(
    row: Row, model: ReportedModel, source: ReportedModel | None, formats: dict[str, Any]
) -> dict[str, Any]:
    line: dict[str, Any] = {
        "name": shown(row.name), "kind": shown(row.kind), "format": shown(row.format),
        "quantized": row.quantized, "shape": list(row.shape), "bytes": row.nbytes,
        "bits": row.bits, "file": shown(row.file),
    }  # fmt: skip
    extra = {"input": row.input, "output": row.output, "before": row.before}
    line |= {part: shown(text) for part, text in extra.items() if text}
    line |= {"layout": row.layout} if row.layout != "plain" else {}
    if row.unread:
        return line | {"note": f"not read: {shown(row.unread, TEXT)}"}
    if not row.quantized or not row.elements:
        return line
    q = model.tensor(row.name)
    if not isinstance(q, QTensor):  # a bias in steps of its layer's sums
        return line | {"note": "codes of sums, which have no grid of their own"}
    floats = None
    if source is not None:
        try:
            floats = source.floats(row)
        except FileError as error:
            line["note"] = f"no error is measured: {shown(error, TEXT)}"
    measures = measure(q, floats, None if floats is None else model.before(row))
    if row.format not in formats and not q.format.element.learned:
        formats[shown(row.format)] = _grid(measures.grid.points)
    line |= measures.to_dict() | {"histogram": measures.histogram()}
    if q.format.element.learned:
        line["histogram"]["grid"] = _grid(measures.grid.points)
    return line


def _grid(points: list[float]) -> list[float]:
    """The values of a grid, if they are so few that they can be drawn apart."""
    return points if len(points) <= 256 else []


def _keep_histograms(lines: list[dict[str, Any]]) -> None:
    """Drop the histograms of those that are least off, where there are too many."""
    with_histograms = [line for line in lines if "histogram" in line]

    def off(line: dict[str, Any]) -> tuple[float, int]:
        sqnr: float | None = line.get("sqnr")
        return (float("inf") if sqnr is None else sqnr, -int(line["bytes"]))

    for line in sorted(with_histograms, key=off)[HISTOGRAMS:]:
        del line["histogram"]


def _totals(rows: Sequence[Row]) -> dict[str, Any]:
    """Sums over all tensors that can be read, and over those of each format."""
    measured_rows = [row for row in rows if not row.unread]
    groups: dict[tuple[str, bool], list[Row]] = {}
    for row in measured_rows:
        groups.setdefault((row.format, row.quantized), []).append(row)
    formats: list[dict[str, Any]] = [
        {"format": shown(fmt), "quantized": quantized} | _sum(group)
        for (fmt, quantized), group in groups.items()
    ]
    formats.sort(key=lambda each: -each["bytes"])
    quantized = _sum([row for row in measured_rows if row.quantized])
    return _sum(measured_rows) | {
        "quantized": quantized, "formats": formats, "unread": len(rows) - len(measured_rows),
    }  # fmt: skip


def _sum(rows: Sequence[Row]) -> dict[str, Any]:
    elements, nbytes = sum(row.elements for row in rows), sum(row.nbytes for row in rows)
    return {
        "tensors": len(rows), "elements": elements, "bytes": nbytes,
        "bits": 8 * nbytes / max(elements, 1),
    }  # fmt: skip


def _origin(stored: ReportedModel, progress: Progress) -> dict[str, Any]:
    """Which files these are: size and SHA-256 of each."""
    files = [
        {
            "name": shown(file.name), "bytes": file.stat().st_size,
            "sha256": _digest(file, lambda n: progress.advance("", n)),
        }
        for file in stored.files
    ]  # fmt: skip
    return {
        "path": shown(stored.path, TEXT), "producer": stored.producer,
        "evidence": shown(stored.evidence, TEXT), "files": files,
    }  # fmt: skip


def _digest(file: Path, heard: Callable[[int], None]) -> str:
    digest = hashlib.sha256()
    for chunk in _chunks(file):
        digest.update(chunk)
        heard(len(chunk))
    return digest.hexdigest()


def _chunks(file: Path) -> Iterator[bytes]:
    with file.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            yield chunk
