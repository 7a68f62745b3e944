# SPDX-License-Identifier: BSD-3-Clause
"""Rows and matrices of quantized tensors, against those of the dequantized ones."""

import gc
import weakref
from typing import TYPE_CHECKING

import pytest
import torch

import blockscale as bs
from blockscale.core import stacks as cut
from blockscale.core.joined_weights import of_stack
from blockscale.core.parse import CATALOG, parse
from blockscale.ops.primitives import dequantize
from tests.support.stacked import SPELLINGS, stacked

if TYPE_CHECKING:
    from blockscale.core.operand import Operand

MORE = (
    "int8:block*x*:fp32", "e2m1:group16:(e4m3:block*x*:fp32)", "e2m1:group16:(e4m3:block4x*:fp32)",
    "e4m3:tile2x32:fp32", "int4:group32:fp32:offset", "uint4:group32:fp16:asym",
    "int8:group2@1:fp32",
    "int8:flat64:fp32", "int8:block2x4x*:fp32", "int4:group7:fp32",
)  # fmt: skip


@pytest.mark.parametrize("fmt", [*CATALOG, *MORE])
def test_pieces_are_those_of_the_whole(fmt: str) -> None:
    x = torch.randn(6, 8, 64)
    q = bs.quantize(x, fmt)
    values, found = q.dequantize(), 0
    for start, stop in ((0, 6), (1, 4), (2, 4), (4, 6), (5, 6), (3, 3)):
        rows = cut.rows_of(q.operand, start, stop)
        if rows is not None:
            found += 1
            assert rows.shape == (stop - start, 8, 64)
            assert torch.equal(dequantize(rows, torch.float32), values[start:stop])
            assert rows.codes.untyped_storage().data_ptr() == q.packed.untyped_storage().data_ptr()
    for i in range(6):
        one = cut.matrix(q.operand, i)
        if one is not None:
            found += 1
            assert one.shape == (8, 64)
            assert torch.equal(dequantize(one, torch.float32), values[i])
    kinds = {"flat": 6, "block2x4": 3}
    expected = next((n for kind, n in kinds.items() if kind in str(bs.parse(fmt))), 12)
    assert found == expected


def test_rows_of_matrices_and_what_cannot_be_cut() -> None:
    q = bs.quantize(torch.randn(8, 64), "e4m3:tile4x32:fp32")
    assert cut.rows_of(q.operand, 0, 4) is not None
    assert cut.rows_of(q.operand, 4, 8) is not None
    assert cut.rows_of(q.operand, 1, 4) is None
    assert cut.rows_of(q.operand, 0, 5) is None
    assert cut.rows_of(q.operand, 4, 9) is None
    assert cut.matrix(q.operand, 1) is None  # a vector of codes has no rows
    partial = bs.quantize(torch.randn(7, 64), "e4m3:tile4x32:fp32")
    last = cut.rows_of(partial.operand, 4, 7)
    assert last is not None
    assert torch.equal(dequantize(last, torch.float32), partial.dequantize()[4:7])


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_matrix_is_cut_as_it_is(spelling: str, parts: int) -> None:
    """The same memory and values; its parts together are the matrix, of formats kernels know."""
    whole = stacked(spelling, parts=parts)
    values = dequantize(whole, torch.float32)
    for index in range(3):
        one = cut.matrix(whole, index)
        assert one is not None
        assert one.codes.data_ptr() == whole.codes[index].data_ptr()
        assert torch.equal(dequantize(one, torch.float32), values[index])
        pieces = cut.parts(one)
        together = torch.cat([dequantize(piece, torch.float32) for piece in pieces])
        assert torch.equal(together, values[index])
    split = "block6x*" in whole.fmt and "offset(" not in whole.fmt  # which kernels take restated
    assert len(pieces) == (parts if split else 1)
    assert "offset(" in whole.fmt or not any("block" in piece.fmt for piece in pieces)


def test_usual_formats_come_back() -> None:
    """So that kernels of `tensor`, `channel0` and nvfp4 serve experts."""
    names = {text: stacked(text) for text in ("int8:tensor:fp32", "int8_channel", "nvfp4")}
    for text, whole in names.items():
        one = cut.matrix(whole, 1)
        assert one is not None
        assert one.fmt == str(parse(text))
        assert one.fmt != whole.fmt


def test_no_matrix_where_several_share_numbers() -> None:
    """One scale for two of four matrices is no scale of one of them."""
    spelling = "int8:block2x12x64:fp32"
    whole: Operand = bs.quantize(torch.randn(4, 12, 64), spelling).operand
    assert cut.matrix(whole, 1) is None
    assert cut.parts_of(whole) is None
    alone: Operand = bs.quantize(torch.randn(1, 12, 64), spelling).operand
    assert cut.matrix(alone, 0) is not None


@pytest.mark.parametrize("spelling", ["int8:tensor:fp32", "int8:channel2:fp32", "nvfp4", "int8"])
def test_numbers_of_all_matrices_are_those_of_each(spelling: str) -> None:
    """One scale for the whole stack is the scale of each of its matrices."""
    q = bs.quantize(torch.randn(4, 12, 64), spelling)
    for index in range(4):
        one = cut.matrix(q.operand, index)
        assert one is not None
        assert torch.equal(dequantize(one, torch.float32), q.dequantize()[index])


@pytest.mark.slow
def test_cuts_are_kept_while_the_stack_lives() -> None:
    """Kernels keep what they make of a matrix beside its tensors, which are the same next time."""
    whole = stacked("nvfp4", parts=2)
    one, again = cut.matrix(whole, 1), cut.matrix(whole._replace(), 1)
    assert one is not None
    assert again is not None
    assert one.codes is again.codes
    assert cut.parts(one)[0].codes is cut.parts(again)[0].codes
    other = cut.matrix(whole._replace(scale=whole.scale.clone()), 1)
    assert other is not None
    assert other.codes is not one.codes
    codes = weakref.ref(whole.codes)
    del whole, one, again, other
    gc.collect()
    assert codes() is None


@pytest.mark.parametrize("spelling", ["mxfp4", "nvfp4", "int8_channel", "int8:tensor:fp32"])
def test_rows_of_a_matrix_as_a_stack(spelling: str) -> None:
    """DBRX has its experts below each other, in one matrix, and looks at them as a stack."""
    x = torch.randn(3 * 12, 64) * torch.arange(1.0, 37).reshape(-1, 1)
    joined: Operand = bs.quantize(x, of_stack(parse(spelling), x.shape, 3)).operand
    whole = cut.stacked(joined, 3)
    assert whole is not None
    for index in range(3):
        one = cut.matrix(whole, index)
        alone: Operand = bs.quantize(x[12 * index : 12 * index + 12], spelling).operand
        assert one is not None
        assert torch.equal(one.codes, alone.codes)
        assert one.fmt == alone.fmt
        assert torch.equal(one.scale, alone.scale)
    assert cut.stacked(joined, 5) is None
    if "tensor" in spelling or "nvfp4" in spelling:
        one_scale: Operand = bs.quantize(x, spelling).operand
        assert cut.stacked(one_scale, 3) is None


def test_what_a_stack_is_cut_into() -> None:
    """Its format and shape say it: experts whose halves have outer scales of their own are two."""
    assert cut.parts_of(stacked("nvfp4", parts=2)) == (str(parse("nvfp4")), 2)
    assert cut.parts_of(stacked("mxfp4", parts=2)) == (str(parse("mxfp4")), 1)
    assert cut.parts_of(bs.quantize(torch.randn(12, 64), "mxfp4").operand) is None


@pytest.mark.parametrize(
    ("x", "ends", "error"),
    [
        ((4, 64), [1, 2], r"the ends of 3 matrices are int32 or int64 of shape \(3,\), found"),
        ((4, 64), [1.0, 2.0, 4.0], r"found torch.float32 of shape \(3,\)"),
        ((4, 64), [2, 1, 4], "the rows of matrix 1 would be 2 to 1 of 4: ends rise from 0"),
        ((4, 64), [-1, 1, 4], "the rows of matrix 0 would be 0 to -1 of 4"),
        ((4, 64), [1, 1, 5], "the rows of matrix 2 would be 1 to 5 of 4"),
        ((4, 32), [1, 1, 4], r"expected x of shape \[rows, 64\], found \(4, 32\)"),
        ((2, 2, 64), [1, 1, 4], r"found \(2, 2, 64\)"),
    ],
)
def test_ends_that_do_not_fit(x: tuple[int, ...], ends: list, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        cut.check_ends(torch.randn(x), stacked("mxfp4"), torch.tensor(ends))
    matrix: Operand = bs.quantize(torch.randn(12, 64), "mxfp4").operand
    with pytest.raises(ValueError, match=r"expected a stack \[E, n, k\], found"):
        cut.check_ends(torch.randn(4, 64), matrix, torch.tensor([4]))
    with pytest.raises(ValueError, match="x is on cpu, its ends on meta"):
        cut.check_ends(torch.randn(4, 64), stacked("mxfp4"), torch.tensor([1, 2, 4]).to("meta"))


def test_groups_are_those_with_rows() -> None:
    assert list(cut.groups(torch.tensor([0, 2, 2, 5]))) == [(1, 0, 2), (3, 2, 5)]
