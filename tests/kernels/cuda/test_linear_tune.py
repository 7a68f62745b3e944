"""Choices from tables of launch choices, measured or shipped: what fits is taken."""

import json
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
