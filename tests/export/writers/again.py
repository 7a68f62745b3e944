# SPDX-License-Identifier: BSD-3-Clause
"""What a producer stored, read and written again: the same bytes."""

from pathlib import Path

import torch

import blockscale as bs
from blockscale.export.writers import PlannedTensor, writer_of
from tests.export.checkpoints.layouts.recorded import cases, directory

KINDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


def written_again(producer: str, case: str, to: str, path: Path) -> dict:
    """{stored name: tensor} that the writer makes of a recorded case, with kinds as planned."""
    stored, _, config = cases(producer)[case]
    with bs.checkpoint(directory(path / "d", stored, config)) as found:
        q = found["a.weight"]
    writer = writer_of(to)
    assert writer.holds(q.format, q.shape) is None
    made = writer.store("a.weight", q)
    kinds = writer.parts("a.weight", q.format, tuple(q.shape))
    assert {n: (t.dtype, tuple(t.shape)) for n, t in made.items()} == kinds
    settings = writer.config([PlannedTensor("a.weight", tuple(q.shape), q.format)], {})
    assert settings.get("quantization_config") or settings.get("quantization")
    return made


def same_bytes(producer: str, case: str, made: dict, leave_out: tuple[str, ...] = ()) -> None:
    stored, _, _ = cases(producer)[case]
    kept = [name for name in stored if not name.endswith(leave_out) or not leave_out]
    assert kept
    for name in kept:
        one, other = stored[name], made[name]
        assert one.dtype == other.dtype or one.dtype in (torch.int32, torch.uint32), name
        kind = KINDS[one.itemsize]
        assert torch.equal(one.contiguous().view(kind), other.contiguous().view(kind)), name
