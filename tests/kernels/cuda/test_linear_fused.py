"""What surrounds the kernel of linear_fused, which only a Hopper runs (tests/gpu)."""

from collections import Counter

import pytest
import torch

from blockscale.core.parse import parse
from blockscale.kernels.cuda.matmul import linear_fused
from blockscale.kernels.cuda.matmul.linear_choice import Call, Choice, candidates, fits, rule
from blockscale.kernels.cuda.matmul.linear_fused import finish_tail, readable
from blockscale.kernels.cuda.matmul.linear_launch import Tile
from blockscale.kernels.cuda.matmul.linear_reading import reading
from blockscale.kernels.cuda.matmul.linear_work import cut, ordered, takes, work
from tests.kernels.cuda.equal import DEVICE


@pytest.mark.parametrize("planes", [4, 8])
@pytest.mark.parametrize("k", [640, 1152, 1160])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_order(planes, k, dtype):
    """A permutation of each row, zeros after it; its parts add up to what it was."""
    x = torch.randn(5, k, device=DEVICE).to(dtype)
    out = ordered(x, planes).float()
    width = -(-k // (16 * planes)) * 16 * planes
    out = out.reshape(-1, 5, width).sum(0)
    padded = torch.zeros(5, width, device=DEVICE)
    padded[:, :k] = x.float()
    groups = padded.reshape(5, -1, 16, planes).transpose(2, 3)
    assert torch.equal(out, groups.reshape(5, width))


@pytest.mark.parametrize(("planes", "slots"), [(8, 4), (8, 1), (4, 2), (4, 1), (16, 8), (32, 16)])
def test_order_by_slots(planes, slots):
    """Of four words at a time two pairs of codes of each are 16 neighbours, as hardware reads."""
    x = torch.randn(3, 1184, device=DEVICE).bfloat16()
    out = ordered(x, planes, slots).float()
    padded = torch.zeros(3, out.shape[1], device=DEVICE)
    padded[:, :1184] = x.float()
    pairs = [(i, slots + i) if slots > 1 else (2 * i, 2 * i + 1) for i in range(planes // 2)]
    places = [
        word * planes + code
        for four in range(0, out.shape[1] // planes, 4)
        for product in range(planes // 4)
        for pair in pairs[2 * product : 2 * product + 2]
        for word in range(four, four + 4)
        for code in pair
    ]
    assert torch.equal(out, padded[:, places])


def test_order_keeps_what_is_not_finite():
    x = torch.zeros(3, 128, device=DEVICE)
    x[0, 5], x[1, 9] = float("nan"), float("inf")
    out = ordered(x, 8).float().reshape(3, 3, 128)
    assert out[:, 0].isnan().any()
    assert not out[:, 1].isnan().any()
    assert out[:, 1].sum() == float("inf")


@pytest.mark.parametrize("tiles", [1, 64, 131, 132, 133, 448])
@pytest.mark.parametrize(("total", "unit"), [(64, 1), (64, 2), (9, 2), (37, 4), (3, 8)])
@pytest.mark.parametrize(("chunks", "tail"), [(1, 1), (3, 1), (1, 2), (1, 4)])
@pytest.mark.parametrize("parts", [1, 3])
def test_every_step_of_every_tile_is_summed_once(tiles, total, unit, chunks, tail, parts):
    c = cut(tiles, total, unit, Tile(128, 128, 16, 4, 0, chunks, tail), parts, 132)
    met: Counter[tuple[int, int]] = Counter()
    for pid in range(c.grid[0]):
        for part in range(c.grid[1]):
            tile, first, steps = pid, part * c.steps, c.steps
            if c.mode == 2 and pid < c.whole:
                steps = c.all_steps
            elif c.mode == 2:
                tile, first = c.whole + (pid - c.whole) % c.tail, (pid - c.whole) // c.tail * steps
            assert steps % unit == 0
            met.update((tile, step) for step in range(first, first + steps) if step < total)
    assert met == {(tile, step): 1 for tile in range(tiles) for step in range(total)}
    assert c.mode > 0 or parts * c.pieces == 1
    assert (c.pieces - 1) * c.steps < total  # no program without a step


@pytest.mark.parametrize("bias", [False, True])
def test_what_is_left_of_the_last_wave(bias):
    rows, n, whole, tail = 150, 300, 4, 2
    parts = torch.randn(3, tail, 64, 128, device=DEVICE)
    x_row = torch.rand(rows, device=DEVICE)
    added = torch.randn(n, device=DEVICE) if bias else None
    out = torch.full((rows, n), 7.0, device=DEVICE)
    finish_tail[(tail, 4)](
        parts, x_row, added, out, rows, n, whole, tail, COUNT=3, BM=64, BN=128, LINES=16
    )
    expected = torch.full((rows, n), 7.0, device=DEVICE)
    sums = parts[0] + parts[1] + parts[2]
    for i in range(tail):  # 3 by 3 tiles, walked down first
        down, across = (whole + i) % 3 * 64, (whole + i) // 3 * 128
        high, wide = min(64, rows - down), min(128, n - across)
        values = sums[i, :high, :wide] * x_row[down : down + high, None]
        if added is not None:
            values += added[across : across + wide]
        expected[down : down + high, across : across + wide] = values
    assert torch.equal(out, expected)


def test_which_weights():
    """Which blocks, at how many rows; and rows of codes that begin at multiples of 16 bytes."""
    for name, rows, expected in (
        ("mxfp4", 256, True), ("int8_channel", 256, True), ("nvfp4", 256, True),
        ("int4", 128, True), ("int4", 192, False), ("mxfp4", 192, False),
        ("int4:group64:fp32", 192, True),
        ("int4:group32:fp32", 128, True), ("int8:group32:fp32", 128, True),
        ("int4:group16:fp32", 128, False), ("int4:group32:fp32", 8, False),
        ("ternary", 128, True), ("ternary", 256, False), ("binary", 128, False),
        ("mxfp6", 256, True), ("int6:group32:fp32", 128, False),
    ):  # fmt: skip
        r = reading(str(parse(name)), 1024)
        assert r is None or takes(r, Tile(rows, 128, 16, 4, 0)) == expected, name
    assert readable(torch.zeros(4, 64, dtype=torch.uint8))
    assert not readable(torch.zeros(4, 72, dtype=torch.uint8))
    assert not readable(torch.zeros(4, 80, dtype=torch.uint8)[:, 4:68])
    assert not linear_fused.can(torch.zeros(4, 64, dtype=torch.uint8))  # no Hopper here


@pytest.mark.parametrize(
    ("capability", "version", "wish", "found", "warns"),
    [
        ((9, 0), "3.6.0", "", "", False),
        ((9, 0), "3.6.1", "0", "BLOCKSCALE_GLUON", False),
        ((9, 0), "3.99.0", "", "Triton 3.99", True),
        ((9, 0), "3.99.0", "1", "", False),
        ((9, 0), "3.99.0", "0", "BLOCKSCALE_GLUON", False),
        ((8, 0), "3.99.0", "1", "capability 8.0", False),
    ],
)
def test_where_it_runs(capability, version, wish, found, warns, monkeypatch):
    """An unknown Triton is named once, with what to do; nothing else says a word."""
    monkeypatch.setattr(linear_fused, "interpreting", lambda: False)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(linear_fused.triton, "__version__", version)
    monkeypatch.setenv("BLOCKSCALE_GLUON", wish)
    linear_fused.unusable.cache_clear()
    try:
        if warns:
            with pytest.warns(UserWarning, match="BLOCKSCALE_GLUON=1"):
                reason = linear_fused.unusable(0)
        else:
            reason = linear_fused.unusable(0)
        assert (reason is None) == (not found)
        assert reason is None or found in reason
        linear_fused.unusable(0)  # says nothing again
    finally:
        linear_fused.unusable.cache_clear()


def test_shared_memory():
    """Three steps at least, which is what hides the way to memory, in what a program may have."""
    for name in ("mxfp4", "mxfp8"):
        r = reading(str(parse(name)), 1024)
        for rows in (64, 128, 256):
            for outputs in (64, 128):
                t = work(r, Tile(rows, outputs, 16, 4, 0), 0, 0)
                step = rows * r.planes * 32 + outputs * 64
                assert t.stages >= 3
                assert t.stages * step <= 227 * 1024


def test_two_steps_fit():
    """A step is opened before the one before it is done with: alone it would wait for ever."""
    for name in ("int4", "mxfp4", "mxfp8", "mxfp6", "int2", "ternary", "binary"):
        r = reading(str(parse(name)), 1024)
        for rows in (16, 64, 128, 192, 256):
            for shared in range(6):
                tile = Tile(rows, 64, 16, 4, shared)
                if takes(r, tile):
                    assert work(r, tile, 0, 0).stages >= 2
    assert not takes(reading(str(parse("ternary")), 1024), Tile(128, 64, 16, 4, 2))


def test_choices():
    r, blocks = reading(str(parse("mxfp4")), 8192), reading(str(parse("int4")), 8192)
    yes, no = (Call("weight", "", 512, 8192, 8192, fused) for fused in (True, False))
    tile = Choice("fused", Tile(256, 128, 16, 4, 0))
    assert fits(tile, yes, r)
    assert not fits(tile, no, r)
    assert not fits(tile, yes, blocks)
    assert rule(yes, r) == tile
    assert rule(yes, blocks) == Choice("fused", Tile(128, 128, 16, 4, 0))
    assert rule(no, r).path != "fused"
    assert rule(yes._replace(rows=8192), r).path == "dense"
    assert rule(yes._replace(rows=8192), blocks).path == "fused"
    assert rule(yes._replace(rows=20), r).path != "fused"
    assert rule(yes._replace(rows=64, n=1024), r) == Choice("fused", Tile(64, 64, 16, 4, 0))
    assert any(c.path == "fused" for c in candidates(yes, r))
    assert not any(c.path == "fused" for c in candidates(no, r))


@pytest.mark.parametrize("wish", ["2", "yes", "true", " 1", "00"])
def test_a_wish_that_says_nothing(wish, monkeypatch):
    """Neither taken for a yes nor for a no, each time, on any GPU."""
    monkeypatch.setenv("BLOCKSCALE_GLUON", wish)
    linear_fused.unusable.cache_clear()
    for _ in range(2):
        with pytest.raises(
            ValueError, match=f"BLOCKSCALE_GLUON is '{wish}': 1 runs .*, 0 with none"
        ):
            linear_fused.unusable(0)
