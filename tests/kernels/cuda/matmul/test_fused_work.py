# SPDX-License-Identifier: BSD-3-Clause
"""What the fused kernel is compiled for: which weights and tiles fit, and who sums which steps."""

from collections import Counter

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

from blockscale.core.parse import parse
from blockscale.kernels.cuda.matmul.fused_work import FusedSettings, cut, takes, unrolled, work
from blockscale.kernels.cuda.matmul.reading import reading


@pytest.mark.pairs
@pytest.mark.some(4)
@pytest.mark.parametrize("tiles", [1, 64, 131, 132, 133, 448])
@pytest.mark.parametrize(("total", "unit"), [(64, 1), (64, 2), (9, 2), (37, 4), (3, 8)])
@pytest.mark.parametrize(("chunks", "tail"), [(1, 1), (3, 1), (1, 2), (1, 4)])
@pytest.mark.parametrize("parts", [1, 3])
def test_every_step_of_every_tile_is_summed_once(tiles, total, unit, chunks, tail, parts):
    c = cut(tiles, total, unit, FusedSettings(128, 128, 0, chunks, tail), parts, 132)
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
        assert unrolled(FusedSettings(128, 128, unroll=2), block) == count
