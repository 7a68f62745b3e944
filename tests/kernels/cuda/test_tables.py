"""Tables of launch choices: the nearest shape, writers at once, what is broken."""

import json
import multiprocessing
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import triton

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
    read = tables.read

    def slowly(file: Path) -> tables.Table:
        table = read(file)
        time.sleep(0.02)  # another writer's moment
        return table

    tables.read = slowly
    tables.record({f"kernel {number % 3}": {f"{number},1,1": ["dense"]}}, Path(path))


def test_processes_write_at_once(mine: Path) -> None:
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_write, args=(str(mine), i)) for i in range(12)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    table = json.loads(mine.read_text())
    assert sum(len(entries) for entries in table.values()) == 12


@pytest.mark.parametrize("text", ["{", "[]", ""])
def test_a_broken_table_says_so(mine: Path, text: str) -> None:
    mine.parent.mkdir()
    mine.write_text(text)
    with pytest.raises(ValueError, match=r"tune\.json is no table of launch choices.*delete it"):
        tables.lookup("weight", FMT, (1, 1, 1), "a GPU")


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
    at, entries = next(iter(tables.read(tables.SHIPPED).items()))
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
