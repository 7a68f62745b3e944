# SPDX-License-Identifier: BSD-3-Clause
"""What is in a checkpoint, whoever wrote it: what it is, formats, bits per weight, layers."""

import re
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from blockscale.export.checkpoints.checkpoint import Checkpoint, Stored
from blockscale.export.checkpoints.opening import checkpoint
from blockscale.export.checkpoints.safetensors import Safetensors
from blockscale.files.inspect import Contents, TensorSummary
from blockscale.files.inspect import inspect as inspect_files

_LAYER = re.compile(r"(?:^|[./])(?:layers?|blk|blocks?|h|encoder|decoder)[./](\d+)(?=[./])")


@dataclass(frozen=True)
class ProducerContents(Contents):
    """Contents, and whose they are.

    producer, evidence: as a Checkpoint has them; warnings: what is odd about them
    layers: how many the names of tensors count; 0 where they count none
    unread: {name: why a tensor cannot be read}
    """

    producer: str = ""
    evidence: str = ""
    warnings: tuple[str, ...] = ()
    layers: int = 0
    unread: tuple[tuple[str, str], ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        data = {
            "producer": self.producer, "evidence": self.evidence, "layers": self.layers,
            "warnings": list(self.warnings), "unread": dict(self.unread),
        }  # fmt: skip
        return data | super().to_dict()


def inspect(path: str | Path) -> ProducerContents:
    """What a checkpoint's tensors are, float or quantized; only heads and small tensors are read.

    path: whatever `bs.checkpoint` takes. Raises FileError as it does: for what is of no known kind,
        damaged or incomplete, and, with the reason, for what is known and not read.
    """
    path = Path(path)
    with checkpoint(path) as result:
        if isinstance(result, Safetensors):
            rows, files = _of_safetensors(result)
        else:
            rows = [_row(result, each) for each in result.stored.values()]
            places = sorted({result.file_of(name) for name in result.stored})
            files = {place.name: place.stat().st_size for place in places}
        return ProducerContents(
            path, tuple(sorted(rows, key=lambda row: row.name)), files, result.producer,
            result.evidence, tuple(result.warnings), _layers(result),
            tuple((name, each.unread) for name, each in result.stored.items() if each.unread),
        )  # fmt: skip


def _of_safetensors(safetensors: Safetensors) -> tuple[list[TensorSummary], dict[str, int]]:
    """Ours as `files.inspect` tells of them, with what layers do; others' weights as one row."""
    whole = inspect_files(safetensors.path)
    table = {row.name: row for row in whole.rows}
    rows = []
    for name, each in safetensors.stored.items():
        same = name in table and (each.kind == "blockscale" or each.format is None)
        rows.append(table[name] if same and not each.unread else _row(safetensors, each))
    return rows, whole.files


def _row(checkpoint: Checkpoint, each: Stored) -> TensorSummary:
    quantized = each.format is not None or bool(each.unread)
    what = each.format or (f"{each.kind}, not read" if each.unread else each.kind)
    return TensorSummary(
        each.name, what, each.shape, prod(each.shape), each.nbytes, quantized,
        file=checkpoint.file_of(each.name).name,
    )  # fmt: skip


def _layers(checkpoint: Checkpoint) -> int:
    """The most numbers that one place in the names counts."""
    numbers: dict[str, set[str]] = {}
    for name in checkpoint.stored:
        if (match := _LAYER.search(name)) is not None:
            numbers.setdefault(name[: match.start(1)], set()).add(match[1])
    return max(map(len, numbers.values()), default=0)
