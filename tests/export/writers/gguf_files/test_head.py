# SPDX-License-Identifier: BSD-3-Clause
"""Heads: what is written is read again, and is what gguf's own writer makes of it."""

import itertools
from pathlib import Path

import pytest

from blockscale.export.checkpoints.gguf.container import read_container
from blockscale.export.writers.gguf_files.head import Place, Value, encoded, lay_out

SMALL = Path(__file__).parents[3] / "recorded" / "small.gguf"
VALUES = {
    "general.architecture": Value("text", "llama"), "a.u": Value("u32", 7), "a.i": Value("i32", -7),
    "a.f": Value("f32", 0.5), "a.b": Value("bool", True), "a.q": Value("u64", 2**40),
    "a.texts": Value("text", ["<s>", "é", "\udcff"]), "a.numbers": Value("i32", [1, -2]),
    "a.none": Value("f32", []),
}  # fmt: skip


@pytest.mark.parametrize("step", [32, 64])
def test_there_and_back(step: int, tmp_path: Path) -> None:
    metadata = {key: encoded(value) for key, value in VALUES.items()}
    metadata["general.alignment"] = encoded(Value("u32", step))
    tensors = {"x": Place((3, 32), 8, 102), "y": Place((5,), 0, 20)}
    head, placed = lay_out(metadata, tensors, step)
    path = tmp_path / "m.gguf"
    path.write_bytes(head + bytes(2 * 128))
    found = read_container(path)
    assert {k: v for k, v in found.values.items() if k != "general.alignment"} == {
        key: value.value for key, value in VALUES.items()
    }
    assert found.raw == metadata
    for name, place in placed.items():
        entry = found.entries[name]
        assert (entry.shape, entry.kind, entry.start) == (place.shape, place.number, place.start)
        assert entry.start % step == 0


def test_as_gguf_writes_it() -> None:
    """The head of a file that gguf 0.19.0 wrote, from what was read of it."""
    found = read_container(SMALL)
    sizes = {e.start: n for n, e in found.entries.items()}
    ends = [*sorted(sizes), found.size]
    places = {
        sizes[start]: Place(found.entries[sizes[start]].shape, found.entries[sizes[start]].kind,
                            end - start)
        for start, end in itertools.pairwise(ends)
    }  # fmt: skip
    head, _ = lay_out(found.raw, places)
    assert head == SMALL.read_bytes()[: len(head)] and len(head) == ends[0]
