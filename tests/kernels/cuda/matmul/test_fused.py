# SPDX-License-Identifier: BSD-3-Clause
"""What surrounds the fused kernel, which only a Hopper runs (tests/gpu/test_linear_fused.py)."""

from collections import Counter

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from blockscale.core.parse import parse
from blockscale.kernels.cuda.matmul.fused import (
    FusedSettings,
    add_tail,
    fits,
    share_out,
    steps_together,
    takes,
    to_measure,
    usual,
    work,
)
from blockscale.kernels.cuda.matmul.operands import ProductCall
from blockscale.kernels.cuda.matmul.reading import reading
from tests.support.cuda_equal import DEVICE


@pytest.mark.parametrize("bias", [False, True])
def test_what_is_left_of_the_last_wave(bias):
    rows, n, whole, tail = 150, 300, 4, 2
    parts = torch.randn(3, tail, 64, 128, device=DEVICE)
    x_row = torch.rand(rows, device=DEVICE)
    added = torch.randn(n, device=DEVICE) if bias else None
    out = torch.full((rows, n), 7.0, device=DEVICE)
    add_tail[(tail, 4)](
        parts, x_row, added, out, rows, n, whole, tail, COUNT=3, BM=64, BN=128, LINES=16,
        enable_fp_fusion=False,  # a product and a sum by two roundings, as torch's here
    )  # fmt: skip
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


def test_as_many_rows_as_registers_hold() -> None:
    call = ProductCall("weight", "", 512, 8192, 8192, True)
    for name, rows in (("mxfp4", 256), ("int4", 128), ("int4:group32:fp32", 128), ("binary", 64)):
        settings = usual(call, reading(str(parse(name)), 8192))
        assert settings == FusedSettings(rows, 128), name
    few_tiles = call._replace(rows=64, n=1024)
    assert usual(few_tiles, reading(str(parse("mxfp4")), 8192)) == FusedSettings(64, 64)


@pytest.mark.parametrize("name", ["mxfp4", "int4", "int4:group32:fp32", "mxfp6"])
def test_what_is_measured(name: str) -> None:
    r = reading(str(parse(name)), 8192)
    for rows in (16, 33, 128, 512, 4096):
        call = ProductCall("weight", "", rows, 8192, 8192, True)
        each = to_measure(call, r)
        assert each
        assert len(set(each)) == len(each)
        assert all(fits(call, r, settings) for settings in each)
        assert not any(fits(call._replace(fused=False), r, settings) for settings in each)
        top = 1 << (rows - 1).bit_length()
        assert all(settings.rows <= top for settings in each)
        if rows == 512 and name == "int4:group32:fp32":
            assert {settings.unroll for settings in each} == {1, 2}


@pytest.mark.pairs
@pytest.mark.some(4)
@pytest.mark.parametrize("tiles", [1, 64, 131, 132, 133, 448])
@pytest.mark.parametrize(("total", "unit"), [(64, 1), (64, 2), (9, 2), (37, 4), (3, 8)])
@pytest.mark.parametrize(("chunks", "tail"), [(1, 1), (3, 1), (1, 2), (1, 4)])
@pytest.mark.parametrize("parts", [1, 3])
def test_every_step_of_every_tile_is_summed_once(tiles, total, unit, chunks, tail, parts):
    c = share_out(tiles, total, unit, FusedSettings(128, 128, 0, chunks, tail), parts, 132)
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


def test_which_weights():
    """Which blocks, at how many rows."""
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
        assert r is None or takes(r, FusedSettings(rows, 128)) == expected, name


def test_shared_memory():
    """Three steps at least, which is what hides the way to memory, in what a program may have."""
    for name in ("mxfp4", "mxfp8"):
        r = reading(str(parse(name)), 1024)
        for rows in (64, 128, 256):
            for outputs in (64, 128):
                t = work(r, FusedSettings(rows, outputs), 0, 0)
                step = rows * r.planes * 32 + outputs * 64
                assert t.stages >= 3
                assert t.stages * step <= 227 * 1024


def test_two_steps_fit():
    """A step is opened before the one before it is done with: alone it would wait for ever."""
    for name in ("int4", "mxfp4", "mxfp8", "mxfp6", "int2", "ternary", "binary"):
        r = reading(str(parse(name)), 1024)
        for rows in (16, 64, 128, 192, 256):
            for shared in range(6):
                settings = FusedSettings(rows, 64, shared)
                if takes(r, settings):
                    assert work(r, settings, 0, 0).stages >= 2
    assert not takes(reading(str(parse("ternary")), 1024), FusedSettings(128, 64, 2))


def test_a_table_has_four_warps_for_each_step() -> None:
    settings = FusedSettings(192, 128, 2, 3, 4, 2)
    assert settings.entry() == (192, 128, 16, 8, 2, 3, 4)
    assert FusedSettings.read(settings.entry()) == settings
    assert FusedSettings.read([64, 64, 16, 4, 0]) == FusedSettings(64, 64)


def test_only_blocks_of_a_step_are_unrolled() -> None:
    for block, count in ((0, 1), (1, 2), (4, 1)):
        assert steps_together(FusedSettings(128, 128, unroll=2), block) == count
