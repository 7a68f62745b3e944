# SPDX-License-Identifier: BSD-3-Clause
"""Which way a product is computed: by tables, by the rule, and what is measured for the tables."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

from blockscale.core.parse import parse
from blockscale.kernels import rates
from blockscale.kernels.cuda import tables
from blockscale.kernels.cuda.matmul.choice import (
    WAYS,
    WayChoice,
    choose,
    fits,
    read,
    rule,
    to_measure,
)
from blockscale.kernels.cuda.matmul.dense import DenseSettings
from blockscale.kernels.cuda.matmul.fused import FusedSettings
from blockscale.kernels.cuda.matmul.operands import ProductCall
from blockscale.kernels.cuda.matmul.reading import reading
from blockscale.kernels.cuda.matmul.tile import TileSettings

FMT = "e2m1:group32:e8m0/floor"


@pytest.fixture(autouse=True)
def mine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A table of this machine, empty at first."""
    path = tmp_path / "some" / "tune.json"
    monkeypatch.setenv("BLOCKSCALE_TUNE_CACHE", str(path))
    tables.forget()
    yield path
    tables.forget()


def test_choices():
    r, blocks = reading(str(parse("mxfp4")), 8192), reading(str(parse("int4")), 8192)
    yes, no = (ProductCall("weight", "", 512, 8192, 8192, fused) for fused in (True, False))
    whole = WayChoice("fused", FusedSettings(256, 128))
    assert fits(whole, yes, r)
    assert not fits(whole, no, r)
    assert not fits(whole, yes, blocks)
    assert rule(yes, r) == whole
    assert rule(yes, blocks) == WayChoice("fused", FusedSettings(128, 128))
    assert rule(no, r).way != "fused"
    assert rule(yes._replace(rows=8192), r).way == "dense"
    assert rule(yes._replace(rows=8192), blocks).way == "fused"
    assert rule(yes._replace(rows=20), r).way != "fused"
    assert rule(yes._replace(rows=64, n=1024), r) == WayChoice("fused", FusedSettings(64, 64))
    assert any(c.way == "fused" for c in to_measure(yes, r))
    assert not any(c.way == "fused" for c in to_measure(no, r))


def test_what_runs_as_what() -> None:
    """Where nothing was measured, with and without a Hopper."""
    call = ProductCall("weight", "int4:group128:fp32", 4096, 512, 512)
    r = reading(call.fmt, 512)
    assert rule(call, r).way == "blocks"
    assert rule(call._replace(rows=1, fused=True), r).way == "few"
    for fmt, few, way in (("mxfp6", True, "dense"), ("int3:group64:fp32", False, "blocks"),
                          ("e3m2:group16:e8m0/floor", False, "dense"),
                          ("int4:group32:fp32", True, "blocks"), ("ternary", True, "tile"),
                          ("uint4:group32:e8m0/floor:asym", False, "dense")):  # fmt: skip
        ask, its = call._replace(fmt=fmt, rows=16), reading(str(parse(fmt)), 4096)
        assert rule(ask, its).way == way, fmt
        taken = rule(ask._replace(fused=True), its).way
        assert taken == ("few" if few else way), fmt
    wrong = WayChoice("tile", TileSettings(16, 64, 32, 4, 3))
    assert not fits(wrong, call, r)
    assert all(fits(c, call, r) for c in to_measure(call, r))
    assert rule(call._replace(what="fp8"), None).way == "library"
    assert rule(call._replace(what="int8"), None).way == "codes"
    assert [c.way for c in to_measure(call._replace(what="fp8"), None)][:2] == ["library", "codes"]


@pytest.mark.parametrize(
    "name", ["mxfp4", "int4", "ternary", "mxfp6", "int3:group64:fp32", "uint8"]
)
def test_a_table_keeps_what_was_measured(name: str) -> None:
    """Written and read again, every candidate is itself."""
    r = reading(str(parse(name)), 4096)
    for rows in (1, 16, 64, 2048):
        for fused in (True, False):
            call = ProductCall("weight", "", rows, 4096, 4096, fused)
            each = to_measure(call, r)
            assert each
            assert all(read(json.loads(json.dumps(choice.entry()))) == choice for choice in each)


def test_an_entry_that_says_nothing() -> None:
    with pytest.raises(
        ValueError, match=r"names the way 'path'.*expected one of few, fused.*delete"
    ):
        read(["path", 1, 2, 3, 4, 5])
    for numbers in ([8, 32, 32, 2], [8, 32, 32, 2, 0, 1, 1, 1], []):
        with pytest.raises(ValueError, match="5 to 7 were expected: delete the table"):
            read(["few", *numbers])


def test_what_is_recorded_is_found(mine: Path) -> None:
    at = tables.key("weight", FMT, "a GPU")
    assert tables.lookup("weight", FMT, (16, 512, 512), "a GPU") is None
    tables.record({at: {"16,512,512": ["tile", 16, 64, 64, 4, 3]}})
    assert tables.lookup("weight", FMT, (10, 512, 600), "a GPU") == ["tile", 16, 64, 64, 4, 3]
    assert tables.lookup("weight", FMT, (10, 512, 600), "another GPU") is None
    r = reading(FMT, 512)
    chosen = choose(ProductCall("weight", FMT, 16, 512, 512), r, "a GPU")
    assert chosen == WayChoice("tile", TileSettings(16, 64, 64, 4, 3))
    tables.record({at: {"1,512,512": ["dense"]}})
    assert set(json.loads(mine.read_text())[at]) == {"16,512,512", "1,512,512"}
    assert choose(ProductCall("weight", FMT, 1, 512, 512), r, "a GPU") == WayChoice(
        "dense", DenseSettings()
    )
    assert [p.name for p in mine.parent.iterdir() if p.suffix != ".lock"] == ["tune.json"]


def test_a_choice_that_does_not_fit_is_not_taken(mine: Path) -> None:
    fmt = "int4:group128:fp32"
    at = tables.key("weight", fmt, "a GPU")
    tables.record({at: {"16,512,512": ["tile", 16, 64, 64, 4, 3]}})  # 64 words are four blocks
    r, call = reading(fmt, 512), ProductCall("weight", fmt, 16, 512, 512)
    chosen = choose(call, r, "a GPU")
    assert chosen.way == "tile"
    assert chosen.settings.words == 16
    assert fits(chosen, call, r)


def test_the_shipped_table_fits_what_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every entry is a way with settings that its weight allows, and is what `choose` takes; the
    settings are the entry's numbers, no more and no fewer."""
    table = rates.read(tables.SHIPPED)
    assert table
    for at, entries in table.items():
        what, fmt, device, version = at.split("|")
        assert (str(parse(fmt)), device) == (fmt, "NVIDIA H200")
        monkeypatch.setattr(tables.triton, "__version__", f"{version}.0")
        for shape, entry in entries.items():
            m, n, k = map(int, shape.split(","))
            r = reading(fmt, k) if what == "weight" else None
            choice, call = read(entry), ProductCall(what, fmt, m, n, k, True)
            assert choice.entry() == entry, (at, shape)
            assert type(choice.settings) is WAYS[choice.way].settings
            assert fits(choice, call, r), (at, shape)
            assert choose(call, r, device) == choice, (at, shape)
