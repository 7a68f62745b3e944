# SPDX-License-Identifier: BSD-3-Clause
"""What an evaluation has measured so far, a line a batch: a run that was stopped goes on there."""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from blockscale.calibration.block_calls import digest
from blockscale.core.torch_private import pytree
from blockscale.core.untrusted import quote
from blockscale.evaluation.figures import Parts
from blockscale.evaluation.kinds import Measurement
from blockscale.files.whole import check_place

_SCHEMA = 1
_SAMPLED = 4096  # elements of each tensor that tell models apart


class JournalError(ValueError):
    """A file holds what another evaluation measured, or none at all."""


def fingerprint(*models: nn.Module | None) -> str:
    """What tells models apart: names, shapes, dtypes and 4,096 elements of every tensor of each."""
    run = hashlib.blake2b(digest_size=16)
    for model in models:
        run.update(b"none" if model is None else type(model).__qualname__.encode())
        for name, value in {} if model is None else model.state_dict().items():
            if isinstance(value, Tensor):
                flat = value.detach().reshape(-1)
                sample = flat[:: max(1, -(-flat.numel() // _SAMPLED))].cpu()
                run.update(f"{name} {tuple(value.shape)} {digest(sample)}".encode())
    return run.hexdigest()


def batch_digest(batch: Any) -> str:
    """Of all numbers of a batch, in its order."""
    run = hashlib.blake2b(digest_size=16)
    content = dict(batch) if isinstance(batch, Mapping) else batch  # also a tokenizer's
    for leaf in pytree.tree_leaves(content):
        run.update(repr(digest(leaf.cpu()) if isinstance(leaf, Tensor) else leaf).encode())
    return run.hexdigest()


class BatchJournal:
    """Lines of JSON: a head that says which run it is, then what each batch gave.

    path: None keeps nothing. A line that was cut off by a kill is measured again.
    Raises JournalError for a file of another run, and ValueError for a place that is none.
    """

    def __init__(self, path: str | Path | None, run: str):
        self.path = None if path is None else check_place(path, "evaluation.jsonl")
        self._head = {"schema": _SCHEMA, "evaluation": run}
        self._lines: list[dict[str, Any]] = []
        if self.path is not None and self.path.exists() and self.path.stat().st_size:
            self._lines = self._read(self.path)

    def __len__(self) -> int:
        return len(self._lines)

    def at(self, index: int, digest: str) -> Measurement | None:
        """What batch `index` gave in an earlier run; None where it is still to be measured.

        Raises JournalError where that run had another batch there.
        """
        if index >= len(self._lines):
            return None
        line = self._lines[index]
        if line.get("batch") != digest:
            raise JournalError(
                f"{self.path} was measured with another batch {index}: give the same batches in "
                f"the same order, name another file, or delete it"
            )
        kind = line.get("kind")
        if not isinstance(kind, str):
            raise JournalError(f"{self.path}: a line has no kind: delete the file")
        return Measurement(self._parts(line, "parts"), self._parts(line, "positions"), kind)

    def add(self, digest: str, measurement: Measurement) -> None:
        """Keep what a batch gave: it is on the disk when this returns."""
        line = {
            "batch": digest,
            "kind": measurement.kind,
            **{k: _plain(getattr(measurement, k)) for k in ("parts", "positions")},
        }
        self._lines.append(line)
        if self.path is None:
            return
        first = not self.path.exists() or not self.path.stat().st_size
        with self.path.open("a") as file:
            if first:
                file.write(json.dumps(self._head) + "\n")
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def _read(self, path: Path) -> list[dict[str, Any]]:
        whole, end = [], 0
        with path.open("rb") as file:
            for line in file:
                if not line.endswith(b"\n"):
                    break
                whole.append(line)
                end += len(line)
        try:
            lines = [json.loads(line) for line in whole]
        except ValueError:
            raise self._other(path) from None
        if not lines or lines[0] != self._head or not all(isinstance(e, dict) for e in lines):
            raise self._other(path)
        if end < path.stat().st_size:  # a kill in the middle of a line
            with path.open("rb+") as file:
                file.truncate(end)
        return lines[1:]

    @staticmethod
    def _other(path: Path) -> JournalError:
        return JournalError(
            f"{path} is no journal of this evaluation (another model, reference or kind, or no "
            f"journal at all): name another file, or delete it"
        )

    def _parts(self, line: dict[str, Any], key: str) -> Parts:
        data = line.get(key)
        if not isinstance(data, dict):
            raise JournalError(f"{self.path}: a line has no {key}: delete the file")
        try:
            return {
                name: (torch.tensor(s, dtype=torch.float64), torch.tensor(w, dtype=torch.float64))
                for name, (s, w) in data.items()
            }
        except (TypeError, ValueError):
            raise JournalError(f"{self.path}: {key} is {quote(data)}: delete the file") from None


def _plain(parts: Parts) -> dict[str, list[list[float]]]:
    return {name: [s.tolist(), w.tolist()] for name, (s, w) in parts.items()}
