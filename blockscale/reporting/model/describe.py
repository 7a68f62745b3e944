# SPDX-License-Identifier: BSD-3-Clause
"""Everything that a page about a model shows, as plain data: nothing on it is computed elsewhere.

One layer is in memory at a time: its codes, and what is computed of it slab by slab; of a source,
one float tensor.
"""

import hashlib
import json
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from blockscale.core.untrusted.names import TEXT, shown
from blockscale.core.work.progress import Progress
from blockscale.evaluation.evaluation import read as read_evaluation
from blockscale.files.metadata import FileError
from blockscale.kernels.hardware import hardware
from blockscale.ops.tensor import QTensor
from blockscale.reporting.model.measure import measure
from blockscale.reporting.model.search import read_search
from blockscale.reporting.model.stored import Row, Stored
from blockscale.reporting.model.told import told_ledger

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
        raise ValueError("a report needs a model or a search")
    if path is None and source is not None:
        raise ValueError("a source is compared with a model: name the model, too")
    progress = progress or Progress()
    figures = None if evaluation is None else read_evaluation(evaluation)
    found = _about(path, source, search)
    if search is not None:
        found["search"] = read_search(search) | {"sha256": _digest(Path(search), lambda _: None)}
    if figures is not None:
        found["evaluation"] = {name: figure.to_dict() for name, figure in figures.items()}
    if path is not None:
        found |= _of_model(Path(path), source, progress)
    return found


def _about(*given: str | Path | None) -> dict[str, Any]:
    path, source, search = (None if each is None else str(each) for each in given)
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
    with Stored(path) as model:
        rows = list(model.rows())
        if source is None:
            return _told(model, rows, None, progress)
        with Stored(source) as floats:
            return _told(model, rows, floats, progress)


def _told(
    model: Stored, rows: Sequence[Row], source: Stored | None, progress: Progress
) -> dict[str, Any]:
    sizes = {file: file.stat().st_size for each in (model, source) if each for file in each.files}
    progress.start(sum(row.nbytes for row in rows) + sum(sizes.values()), 0)
    listed = sorted(sorted(rows, key=lambda row: -row.nbytes)[:ROWS], key=lambda row: row.name)
    names = {row.name for row in listed}
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
        "unlisted": len(rows) - len(listed),
        "formats": formats,
        "ledger": told_ledger(model.path),
        **{name: _origin(each, progress) for name, each in origins.items()},
    }


def _line(
    row: Row, model: Stored, source: Stored | None, formats: dict[str, Any]
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
    found = measure(q, floats, None if floats is None else model.before(row))
    if row.format not in formats and not q.format.element.learned:
        formats[shown(row.format)] = _grid(found.grid.points)
    line |= found.to_dict() | {"histogram": found.histogram()}
    if q.format.element.learned:
        line["histogram"]["grid"] = _grid(found.grid.points)
    return line


def _grid(points: list[float]) -> list[float]:
    """The values of a grid, if they are so few that they can be drawn apart."""
    return points if len(points) <= 256 else []


def _keep_histograms(lines: list[dict[str, Any]]) -> None:
    """Drop the histograms of those that are least off, where there are too many."""
    drawn = [line for line in lines if "histogram" in line]

    def off(line: dict[str, Any]) -> tuple[float, int]:
        sqnr: float | None = line.get("sqnr")
        return (float("inf") if sqnr is None else sqnr, -int(line["bytes"]))

    for line in sorted(drawn, key=off)[HISTOGRAMS:]:
        del line["histogram"]


def _totals(rows: Sequence[Row]) -> dict[str, Any]:
    """Sums over all tensors that can be read, and over those of each format."""
    known = [row for row in rows if not row.unread]
    groups: dict[tuple[str, bool], list[Row]] = {}
    for row in known:
        groups.setdefault((row.format, row.quantized), []).append(row)
    formats: list[dict[str, Any]] = [
        {"format": shown(fmt), "quantized": quantized} | _sum(group)
        for (fmt, quantized), group in groups.items()
    ]
    formats.sort(key=lambda each: -each["bytes"])
    quantized = _sum([row for row in known if row.quantized])
    return _sum(known) | {
        "quantized": quantized, "formats": formats, "unread": len(rows) - len(known),
    }  # fmt: skip


def _sum(rows: Sequence[Row]) -> dict[str, Any]:
    elements, nbytes = sum(row.elements for row in rows), sum(row.nbytes for row in rows)
    return {
        "tensors": len(rows), "elements": elements, "bytes": nbytes,
        "bits": 8 * nbytes / max(elements, 1),
    }  # fmt: skip


def _origin(stored: Stored, progress: Progress) -> dict[str, Any]:
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
    with file.open("rb") as opened:
        while chunk := opened.read(_CHUNK):
            yield chunk
