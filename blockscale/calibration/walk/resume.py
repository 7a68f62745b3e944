# SPDX-License-Identifier: BSD-3-Clause
"""Finished blocks on disk, so that a run that was stopped goes on where it was."""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from blockscale.calibration.block_calls import digest, tensors
from blockscale.calibration.places import Message, from_bytes, packed, share_messages, unpack
from blockscale.calibration.ranks import ALONE, Ranks
from blockscale.calibration.session import Session
from blockscale.core.untrusted import json_object, read_json
from blockscale.layers.plan import Plan

_RUN = "run.json"
_FIRST = 64  # elements of each weight that tell it from another


class ResumeError(ValueError):
    """A directory holds blocks of another run: of another recipe, algorithm or model."""


class FinishedBlocks:
    """Blocks that are done, one safetensors file each, written beside its place and renamed.

    In a group the first process alone reads and writes files, and sends the others what it read.

    run: what tells this run from others (`run_identity`)
    """

    def __init__(self, path: str | Path, run: str, ranks: Ranks = ALONE):
        self.path, self._ranks = Path(path), ranks
        self._there = ranks.by_first(lambda: self._begin(run))

    def _begin(self, run: str) -> set[str]:
        """The names of what is there. Raises ResumeError where that is of another run."""
        self.path.mkdir(parents=True, exist_ok=True)
        record_file = self.path / _RUN
        if record_file.exists():
            if json_object(read_json(record_file), record_file).get("run") != run:
                raise ResumeError(
                    f"{self.path} holds blocks of another run (another recipe, algorithm, "
                    "model, or other batches): choose another directory, or delete this one"
                )
        elif any(path for path in self.path.iterdir() if not self._was_begun(path)):
            raise ResumeError(
                f"{self.path} is not empty, and holds no earlier run: choose another directory"
            )
        else:
            self._write(record_file, json.dumps({"run": run}).encode())
        return {path.name for path in self.path.iterdir()}

    def __contains__(self, i: int) -> bool:
        return self._place(i).name in self._there

    def save(self, i: int, plans: Sequence[Plan], session: Session) -> None:
        """Keep all that was chosen for these layers of block i."""
        tensors: dict[str, Tensor] = {}
        data = {}
        for plan in plans:
            own, data[plan.name] = packed(plan, session)
            tensors |= own
        place = self._place(i)
        self._ranks.by_first(
            lambda: self._write(
                place, safetensors.torch.save(tensors, {"layers": json.dumps(data)})
            )
        )
        self._there.add(place.name)

    def load(self, i: int, plans: Sequence[Plan], session: Session) -> None:
        """Put what was chosen in its places."""
        place = self._place(i)
        tensors, details = from_bytes(self._read(place), "layers", place)
        for plan in plans:
            unpack(plan, session, tensors, details[plan.name])

    def _read(self, place: Path) -> bytes:
        """A file's bytes, in every process."""
        if self._ranks.alone:
            return place.read_bytes()

        def own() -> dict[str, Message]:
            if self._ranks.rank:
                return {}
            data = torch.frombuffer(bytearray(place.read_bytes()), dtype=torch.uint8)
            return {place.name: Message("", {place.name: data})}

        result = share_messages(self._ranks, own)[place.name].tensors[place.name]
        return result.cpu().numpy().tobytes()

    @staticmethod
    def _was_begun(path: Path) -> bool:
        """Whether a killed run was writing this file that says which run it is."""
        return path.name.startswith(f".{_RUN}.")

    def _place(self, i: int) -> Path:
        return self.path / f"block-{i:05d}.safetensors"

    def _write(self, place: Path, data: bytes) -> None:
        beside = place.with_name(f".{place.name}.{os.getpid()}")
        try:
            beside.write_bytes(data)
            beside.replace(place)
        finally:
            beside.unlink(missing_ok=True)


def run_identity(
    plans: Iterable[Plan], methods: Sequence[object], batches: Sequence[str], *more: object
) -> str:
    """What a run is: its layers, their formats and weights, its algorithms and batches.

    batches: `digests_of` them, in the order of one process
    """
    run = hashlib.blake2b(digest_size=16)
    for plan in plans:
        run.update(f"{plan.name} {plan.scheme} {plan.stored} {plan.parameter.dtype}".encode())
        if not plan.parameter.is_meta:
            run.update(f"{digest(plan.parameter.detach().flatten()[:_FIRST].cpu())}".encode())
    for method in methods:
        run.update(method_text(method).encode())
    for batch in batches:
        run.update(batch.encode())
    run.update(f"{len(batches)} {more}".encode())
    return run.hexdigest()


def digests_of(batches: Sequence[Any], ranks: Ranks = ALONE) -> list[str]:
    """A text for each batch of all processes, in the order of one process."""

    def text(batch: Any) -> str:
        content = dict(batch) if isinstance(batch, Mapping) else batch  # also a tokenizer's
        return "".join(f"{digest(tensor.cpu())}" for tensor in tensors(content))

    each = ranks.together(lambda: [text(batch) for batch in batches])
    return [each[i % ranks.size][i // ranks.size] for i in range(sum(map(len, each)))]


def method_text(method: object) -> str:
    """A method's name or class, and its settings."""
    settings = {k: v for k, v in sorted(getattr(method, "__dict__", {}).items()) if _plain(v)}
    kind = method if _plain(method) else getattr(method, "__qualname__", type(method).__name__)
    return f"{kind} {settings}"


def _plain(value: object) -> bool:
    return value is None or isinstance(value, bool | int | float | str)
