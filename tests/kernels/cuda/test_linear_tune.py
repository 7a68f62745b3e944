"""Tables of launch choices: the nearest shape, writers at once, what is broken."""

import json
import multiprocessing
import time
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

from blockscale.core.parse import parse
from blockscale.kernels.cuda import tables as tune

FMT = "e2m1:group32:e8m0/floor"


@pytest.fixture
def mine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    path = tmp_path / "some" / "tune.json"
    monkeypatch.setenv("BLOCKSCALE_TUNE_CACHE", str(path))
    tune.forget()
    yield path
    tune.forget()


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
    assert {shape: tune.nearest(entries, shape)[0] for shape in found} == found
    assert tune.nearest(entries, (32, 4096, 4096)) is None  # no such rows
    assert tune.nearest(entries, (1, 64, 64)) is None  # too far away
    assert tune.nearest({}, (1, 1, 1)) is None


def test_what_is_recorded_is_found(mine: Path) -> None:
    from blockscale.kernels.cuda.matmul.linear_choice import Call, Choice, choose
    from blockscale.kernels.cuda.matmul.linear_launch import Tile
    from blockscale.kernels.cuda.matmul.linear_reading import reading

    at = tune.key("weight", FMT, "a GPU")
    assert tune.lookup("weight", FMT, (16, 512, 512), "a GPU") is None
    tune.record({at: {"16,512,512": ["tile", 16, 64, 64, 4, 3]}})
    assert tune.lookup("weight", FMT, (10, 512, 600), "a GPU") == ["tile", 16, 64, 64, 4, 3]
    assert tune.lookup("weight", FMT, (10, 512, 600), "another GPU") is None
    r = reading(FMT, 512)
    chosen = choose(Call("weight", FMT, 16, 512, 512), r, "a GPU")
    assert chosen == Choice("tile", Tile(16, 64, 64, 4, 3))
    tune.record({at: {"1,512,512": ["dense"]}})
    assert set(json.loads(mine.read_text())[at]) == {"16,512,512", "1,512,512"}
    assert choose(Call("weight", FMT, 1, 512, 512), r, "a GPU") == Choice("dense")
    assert [p.name for p in mine.parent.iterdir() if p.suffix != ".lock"] == ["tune.json"]


def test_a_choice_that_does_not_fit_is_not_taken(mine: Path) -> None:
    from blockscale.kernels.cuda.matmul.linear_choice import Call, choose, fits
    from blockscale.kernels.cuda.matmul.linear_reading import reading

    fmt = "int4:group128:fp32"
    at = tune.key("weight", fmt, "a GPU")
    tune.record({at: {"16,512,512": ["tile", 16, 64, 64, 4, 3]}})  # 64 words are four blocks
    r, call = reading(fmt, 512), Call("weight", fmt, 16, 512, 512)
    chosen = choose(call, r, "a GPU")
    assert chosen.tile.words == 16
    assert fits(chosen, call, r)


def _write(path: str, number: int) -> None:
    read = tune.read

    def slowly(file: Path) -> tune.Table:
        table = read(file)
        time.sleep(0.02)  # another writer's moment
        return table

    tune.read = slowly
    tune.record({f"kernel {number % 3}": {f"{number},1,1": ["dense"]}}, Path(path))


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
        tune.lookup("weight", FMT, (1, 1, 1), "a GPU")


def test_the_shipped_table_fits_what_it_names() -> None:
    from blockscale.kernels.cuda.matmul.linear_choice import Call, Choice, fits
    from blockscale.kernels.cuda.matmul.linear_launch import Tile
    from blockscale.kernels.cuda.matmul.linear_reading import reading

    table = tune.read(tune.SHIPPED)
    assert table
    for at, entries in table.items():
        what, fmt, device, _ = at.split("|")
        assert (str(parse(fmt)), device) == (fmt, "NVIDIA H200")
        for shape, (path, *numbers) in entries.items():
            m, n, k = map(int, shape.split(","))
            r = reading(fmt, k) if what == "weight" else None
            choice = Choice(path, Tile(*numbers) if numbers else None)
            assert fits(choice, Call(what, fmt, m, n, k, True), r), (at, shape)


def test_the_fastest_is_kept() -> None:
    from triton.runtime.errors import OutOfResources

    def run(candidate: int) -> None:
        if candidate == 0:
            raise OutOfResources(1, 0, "shared memory")

    seconds = iter([3.0, 1.0, 2.0])
    assert tune.fastest([5, 0, 6, 7], run, lambda call: call() or next(seconds)) == (6, 1.0)
    with pytest.raises(ValueError, match="none of 1 candidates fits"):
        tune.fastest([0], run, lambda call: call() or 1.0)
