# SPDX-License-Identifier: BSD-3-Clause
"""Tables of launch choices: the nearest shape, writers at once, what is broken."""

import json
import multiprocessing
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import triton

from blockscale.kernels import rates
from blockscale.kernels.cuda import tables

FMT = "e2m1:group32:e8m0/floor"


@pytest.fixture
def mine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "some" / "tune.json"
    monkeypatch.setenv("BLOCKSCALE_TUNE_CACHE", str(path))
    tables.forget()
    yield path
    tables.forget()


def test_the_nearest_shape_of_the_same_rows() -> None:
    entries = {
        "1,4096,4096": ["a"],
        "16,4096,4096": ["b"],
        "16,28672,8192": ["c"],
        "64,64,64": ["d"],
    }
    found = {
        (1, 4096, 4096): "a", (2, 4096, 4096): "b", (16, 4000, 4100): "b", (9, 20000, 8192): "c",
        (33, 64, 128): "d", (5000, 64, 64): "d",
    }  # fmt: skip
    assert {shape: tables.nearest(entries, shape)[0] for shape in found} == found
    assert tables.nearest(entries, (32, 4096, 4096)) is None  # no such rows
    assert tables.nearest(entries, (1, 64, 64)) is None  # too far away
    assert tables.nearest({}, (1, 1, 1)) is None


def _write(path: str, number: int) -> None:
    read = rates.read

    def slowly(file: Path) -> rates.Table:
        table = read(file)
        time.sleep(0.02)  # another writer's moment
        return table

    rates.read = slowly
    tables.record({f"kernel {number % 3}": {f"{number},1,1": ["dense"]}}, Path(path))


@pytest.mark.slow
def test_processes_write_at_once(mine: Path) -> None:
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_write, args=(str(mine), i)) for i in range(12)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    table = json.loads(mine.read_text())
    assert sum(len(entries) for entries in table.values()) == 12


GARBAGE = (
    "{", "[]", "", "[" * 10_000, "\xff", "NaN", '{"a": 5}', '{"a": {"1,2": ["tile"]}}',
    '{"a": {"1,2,x": ["tile"]}}', '{"a": {"1,2,3": []}}', '{"a": {"1,2,3": "tile"}}',
    '{"a": {"1,2,3": [5]}}', '{"a": {"1,2,3": ["tile", 1.5]}}', '{"a": {"1,2,3": ["tile", null]}}',
    '{"a": {"1,2,3": ["tile", true]}}', '{"a": {}, "a": {}}', '{"a": {"-1,2,3": ["tile"]}}',
)  # fmt: skip


@pytest.mark.parametrize("text", GARBAGE)
def test_a_broken_table_says_so(mine: Path, text: str) -> None:
    mine.parent.mkdir()
    mine.write_text(text)
    with pytest.raises(ValueError, match=r"tune\.json is not a table of launch choices.*delete it"):
        tables.lookup("weight", FMT, (1, 1, 1), "a GPU")
    with pytest.raises(ValueError, match=r"tune\.json is not a table"):
        tables.record({"a": {"1,1,1": ["dense"]}})


def test_pipes_and_devices_are_no_tables(mine: Path) -> None:
    mine.parent.mkdir()
    mine.symlink_to("/dev/zero")
    with pytest.raises(ValueError, match="not a regular file"):
        rates.read(mine)


def test_a_lock_that_is_a_link_is_not_followed(mine: Path) -> None:
    """Its target was emptied."""
    mine.parent.mkdir()
    victim, lock = mine.parent / "victim", mine.with_suffix(".lock")
    victim.write_text("mine")
    lock.symlink_to(victim)
    with pytest.raises(ValueError, match=r"tune\.lock cannot be locked"):
        tables.record({"a": {"1,1,1": ["dense"]}})
    assert victim.read_text() == "mine" and not mine.exists()
    lock.unlink()
    os.link(victim, lock)  # nor is a file emptied that the name is another one of
    tables.record({"a": {"1,1,1": ["dense"]}})
    assert victim.read_text() == "mine" and mine.exists()
    lock.unlink()
    os.mkfifo(lock)
    with pytest.raises(ValueError, match=r"tune\.lock cannot be locked"):
        tables.record({"a": {"1,1,1": ["dense"]}})


def test_the_fastest_is_kept() -> None:
    from triton.runtime.errors import OutOfResources

    def run(candidate: int) -> None:
        if candidate == 0:
            raise OutOfResources(1, 0, "shared memory")

    seconds = iter([3.0, 1.0, 2.0])
    assert tables.fastest([5, 0, 6, 7], run, lambda call: call() or next(seconds)) == (6, 1.0)
    with pytest.raises(ValueError, match="none of 1 candidates fits"):
        tables.fastest([0], run, lambda call: call() or 1.0)


def test_what_is_recorded_wins_over_what_is_shipped(mine: Path) -> None:
    """And over what was recorded before; other shapes of the same key stay."""
    at, entries = next(iter(rates.read(tables.SHIPPED).items()))
    kernel, fmt, device, version = at.split("|")
    if version != ".".join(triton.__version__.split(".")[:2]):
        pytest.skip(f"the shipped table was measured with Triton {version}")
    shape, entry = next(iter(entries.items()))
    m, n, k = map(int, shape.split(","))
    assert tables.lookup(kernel, fmt, (m, n, k), device) == entry
    for mark in ("first", "second"):
        tables.record({at: {shape: [mark]}})
        assert tables.lookup(kernel, fmt, (m, n, k), device) == [mark]
    assert set(json.loads(mine.read_text())[at]) == {shape}
    assert [each.name for each in mine.parent.iterdir() if each.suffix != ".lock"] == ["tune.json"]
