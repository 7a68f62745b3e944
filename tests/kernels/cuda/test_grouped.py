# SPDX-License-Identifier: BSD-3-Clause
"""The op grouped_linear on CUDA: which stacks one kernel takes, their bits, tiles of any size."""

from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

import blockscale as bs
from blockscale.core.operand import UNQUANTIZED, Operand, Quantizer
from blockscale.core.parse import parse
from blockscale.core.stacks import matrix, parts_of
from blockscale.kernels.cuda.grouped import (
    StackSettings,
    _supports,
    beside,
    factors_of,
    grouped,
    most_tiles,
    takes,
    tile_table,
    tile_tables,
    usual,
    with_fused,
)
from blockscale.kernels.cuda.matmul import fused, hopper
from blockscale.kernels.cuda.matmul.fused import FusedSettings
from blockscale.kernels.cuda.matmul.reading import reading
from blockscale.ops.grouped_linear import grouped_linear
from tests.support.cuda_equal import DEVICE
from tests.support.some import crossed
from tests.support.stacked import stacked

ENDS = torch.tensor([1, 1, 4])


def quantizer(fmt: str) -> Quantizer:
    return Quantizer(None, None, None, str(parse(fmt)))


@pytest.mark.some(6)
@pytest.mark.parametrize(
    ("spelling", "by", "dtype"),
    crossed(
        4,
        ["mxfp4", "nvfp4", "int8_channel", "int4:group32:fp32", "fp8", "e4m3:tile3x64:fp32"],
        ["", "mxfp8", "int8_token"],
        [torch.bfloat16, torch.float32],
    ),
)
def test_the_bits_of_each_matrix_alone(spelling: str, by: str, dtype: torch.dtype) -> None:
    """Where `linear` keeps to one order of sums; a matrix's halves have their own outer scale.

    Triton's interpreter multiplies by numpy, which with AVX2 adds the last column of a float32
    matrix in another order: on a GPU all are equal (tests/gpu/test_grouped.py).
    """
    whole = stacked(spelling, parts=2, n=12)
    whole = Operand(*(None if part is None else part.to(DEVICE) for part in whole[:4]), *whole[4:])
    x = torch.randn(6, 64, device=DEVICE).to(dtype)
    arguments = (x, whole, ENDS.to(DEVICE), torch.randn(3, 12, device=DEVICE),
                 quantizer(by) if by else UNQUANTIZED)  # fmt: skip
    assert _supports((), arguments)
    with bs.use("cuda", batch_invariant=True):
        y = grouped_linear(*arguments)
        alone = grouped_linear.reference(*arguments)
    if DEVICE == "cpu" and dtype is torch.float32:
        torch.testing.assert_close(y, alone, rtol=1e-6, atol=1e-4)
    else:
        assert torch.equal(y, alone)
    assert not y[4:].any()


def test_what_goes_matrix_by_matrix() -> None:
    """Codes that do not lie in words, tables in parts, inputs whose rows share a scale."""
    x = torch.randn(6, 64, device=DEVICE)
    plain = stacked("mxfp4")
    for whole, by in (
        (stacked("int3:group32:fp32"), UNQUANTIZED), (stacked("nf4:group64:fp32"), UNQUANTIZED),
        (stacked("int4:group32:fp32:offset"), UNQUANTIZED),
        (bs.quantize(torch.randn(4, 12, 64), "int8:block2x12x64:fp32").operand, UNQUANTIZED),
        (plain, quantizer("nvfp4")),
        (plain, quantizer("int8:tensor:fp32")),
        (plain._replace(codes=plain.codes[::2]), UNQUANTIZED),
    ):  # fmt: skip
        assert not _supports((), (x, whole, ENDS, None, by)), (whole.fmt, by.fmt)
    assert not _supports((), (torch.randn(6, 32), plain, ENDS, None, UNQUANTIZED))
    assert _supports((), (x, plain, ENDS, None, UNQUANTIZED))


def test_nothing_to_do() -> None:
    with bs.use("cuda"):
        y = grouped_linear(torch.randn(0, 64, device=DEVICE), stacked("mxfp4"), ENDS * 0)
    assert y.shape == (0, 12)


@pytest.mark.some(3)
@pytest.mark.parametrize(
    "ends", [[0, 3, 3, 40], [17, 17, 17, 17], [0, 0, 0, 0], [40, 40, 40, 40], [16, 32, 33, 34]]
)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_every_row_has_one_tile(ends: list[int], dtype: torch.dtype) -> None:
    """Of its matrix, or of nobody; there is room for all, and tiles that are left have no rows."""
    rows, height = 40, 16
    table = tile_table(torch.tensor(ends, dtype=dtype, device=DEVICE), rows, height)
    assert table.shape == (most_tiles(rows, 4, height), 3)
    assert table.dtype is torch.int32
    owner = {}
    for owner_of, first, end in table.tolist():
        if owner_of <= 4:
            for row in range(first, min(first + height, end)):
                assert row not in owner
                owner[row] = owner_of
    expected = [sum(end <= row for end in ends) for row in range(rows)]
    assert [owner[row] for row in range(rows)] == expected


@pytest.mark.slow
@pytest.mark.parametrize("heights", [(16,), (16, 8), (32, 16, 8)])
@pytest.mark.parametrize(
    "ends", [[0, 3, 3, 40], [8, 24, 49, 70], [0, 0, 0, 0], [70, 70, 70, 70], [33, 45, 61, 62]]
)
def test_tiles_of_several_heights(ends: list[int], heights: tuple[int, ...]) -> None:
    """Every row has one, and what is left of a matrix's rows the least that holds it."""
    rows, owner = 70, {}
    tables = tile_tables(torch.tensor(ends, device=DEVICE), rows, heights)
    for height, table, lower in zip(heights, tables, (*heights[1:], 0), strict=True):
        for owner_of, first, end in table.tolist():
            if owner_of > 4 or (owner_of == 4 and height < heights[0]):
                continue
            held = range(first, min(first + height, end))
            assert owner_of == 4 or len(held) > lower
            for row in held:
                assert row not in owner
                owner[row] = owner_of
    expected = [sum(end <= row for end in ends) for row in range(rows)]
    assert [owner[row] for row in range(rows)] == expected


@pytest.mark.parametrize("ends", [[50, 60, 70, 80], [-3, 2**40, 5, 1]])
def test_ends_that_do_not_fit_are_cut_off(ends: list[int]) -> None:
    for owner_of, first, end in tile_table(torch.tensor(ends, device=DEVICE), 10, 16).tolist():
        assert owner_of > 4 or (0 <= first <= 10 and end <= 10)


def test_tiles_that_are_launched() -> None:
    """As many as rows can need, of few rows no more than rows; outputs that keep a GPU busy."""
    assert most_tiles(8, 128, 16) == 8
    assert most_tiles(4096, 8, 128) == 41
    assert usual(8, 1536, 128) == StackSettings(16, 32, 2, 4)
    assert usual(16, 1536, 128) == StackSettings(16, 64, 4, 3)
    assert usual(8192, 28672, 8) == StackSettings(128, 128, 8, 3)
    assert usual(2048, 1536, 64) == StackSettings(32, 128, 4, 3)


@pytest.mark.slow
@pytest.mark.parametrize("settings", [StackSettings(32, 16, 4, 1), StackSettings(16, 32, 4, 3)])
def test_any_tile_gives_the_same_bits(settings: StackSettings) -> None:
    whole, x = stacked("nvfp4", parts=2), torch.randn(24, 64, device=DEVICE).bfloat16()
    fmt = parts_of(whole).fmt
    r, ends = reading(fmt, 64), torch.tensor([0, 18, 22])
    arguments = (x, whole, ends, fmt, r, None, None, torch.bfloat16)
    y = grouped(*arguments, StackSettings(16, 16, 4, 1))
    assert torch.equal(grouped(*arguments, settings), y)


def test_factors_of_halves_rows_and_all() -> None:
    for spelling, count, height in (
        ("nvfp4", 2, 6), ("int8_channel", 12, 1), ("int8:tensor:fp32", 2, 6),
        ("e4m3:tile3x64:fp32", 4, 3), ("mxfp4", None, 1),
    ):  # fmt: skip
        whole = stacked(spelling, parts=2)
        fmt = parts_of(whole).fmt
        found = factors_of(whole, reading(fmt, 64), fmt)
        assert found.height == height
        assert (found.values is None) if count is None else found.values.shape == (3, count)


def test_stacks_that_it_takes() -> None:
    for spelling, expected in (
        ("mxfp4", True), ("int4:group32:fp32", True), ("int4:group64:fp32", True),
        ("int4:group16:fp32", True), ("int3:group32:fp32", False), ("ternary:group32:fp32", False),
    ):  # fmt: skip
        whole = stacked(spelling)
        of = parts_of(whole)
        assert takes(reading(of.fmt, 64), whole, of) == expected, spelling


def test_what_a_hopper_decodes_beside_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many rows of each matrix in bfloat16, whose bits may depend on how many there are."""
    monkeypatch.setattr(hopper, "can_run", lambda codes: True)
    whole, x = stacked("mxfp4"), torch.zeros(300, 64, dtype=torch.bfloat16)
    r = reading(parts_of(whole).fmt, 64)
    low, high, tall = FusedSettings(64, 64, 3), FusedSettings(128, 128), FusedSettings(256, 128)
    assert beside(x.repeat(2, 1), whole, r, x.dtype) == (tall, high, low)
    assert beside(x.repeat(2, 1)[:400], whole, r, x.dtype) == (high, low)
    assert beside(x[:180], whole, r, x.dtype) == (low,)
    assert beside(x[:30], whole, r, x.dtype) is None
    by_slots = stacked("int4:group32:fp32")  # whose sums do not fit in the registers of tall tiles
    each = reading(parts_of(by_slots).fmt, 64)
    assert beside(x.repeat(2, 1), by_slots, each, x.dtype) == (high, low)
    assert beside(x[:9], by_slots, each, x.dtype) == (low,)
    assert beside(x[:6], by_slots, each, x.dtype) is None
    assert beside(x, whole, r, torch.float32) is None
    assert beside(x.half(), whole, r, torch.float16) is None
    small = stacked("int4:group16:fp32")  # blocks that are less than a slot
    assert beside(x, small, reading(parts_of(small).fmt, 64), x.dtype) is None
    with bs.use(batch_invariant=True):
        assert beside(x, whole, r, x.dtype) is None


@pytest.mark.parametrize(
    ("spelling", "parts", "each", "factors", "height"),
    [
        ("mxfp4", 1, 24, None, 1), ("nvfp4", 2, 48, (3, 2), 6), ("int8_channel", 1, 12, (3, 12), 1),
        ("uint4:group32:fp32:asym", 1, 24, None, 1), ("int8:tensor:fp32", 2, 2, (3, 2), 6),
    ],
)  # fmt: skip
def test_what_the_kernel_for_hopper_gets(
    spelling: str, parts: int, each: int, factors: tuple[int, int] | None, height: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The codes, scales and factors of all matrices, one below the other, as they lie, and how far
    one matrix's are from the next one's."""
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr(fused, "fused_stack", lambda *every: calls.append(every))
    whole, fmt = stacked(spelling, parts=parts), parts_of(stacked(spelling, parts=parts)).fmt
    r, x = reading(fmt, 64), torch.randn(5, 64, device=DEVICE).bfloat16()
    row, bias = torch.ones(5), torch.zeros(3, 12)
    tiles = FusedSettings(128, 128), FusedSettings(64, 128)
    with_fused(x, whole, ENDS.to(DEVICE), fmt, r, row, bias, tiles)
    ((given, weight, by, stacks, reads, ends),) = calls
    assert (given is x, reads is r, ends.x_row is row, ends.bias is bias) == (True,) * 4
    assert tuple(settings for _, settings in stacks) == tiles
    (stack, _), (last, _) = stacks
    assert stack.table.shape == (most_tiles(5, 3, 128), 3)
    assert last.table.tolist() == [[0, 0, 1], [2, 1, 4], [4, 0, 0]]
    assert stack[1:] == last[1:]
    assert (stack.matrices, stack.scale_matrix, stack.factor_height) == (3, each, height)
    assert stack.factor_matrix == (factors[1] if factors else 0)
    assert (by.values is None) if factors is None else by.values.shape == factors
    for index in range(3):
        one, rows = matrix(whole, index), weight.scale.shape[0] // 3
        assert torch.equal(weight.codes[12 * index : 12 * index + 12], one.codes)
        assert torch.equal(weight.scale[rows * index : rows * index + rows], one.scale)
        assert weight.scale.data_ptr() == whole.scale.data_ptr()
        if one.zero_point is not None:
            assert torch.equal(weight.zero_point[rows * index :][:rows], one.zero_point)
