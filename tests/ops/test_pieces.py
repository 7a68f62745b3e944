# SPDX-License-Identifier: BSD-3-Clause
"""Rows and elements of quantized tensors, against those of the dequantized ones."""

import gc
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import blockscale as bs
from blockscale.core.joined_weights import of_stack
from blockscale.core.operand import Operand
from blockscale.core.parse import CATALOG, parse
from blockscale.ops import pieces as cut
from blockscale.ops import pieces as stack
from blockscale.ops.linear import linear
from blockscale.ops.primitives import dequantize

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
        one = stack.matrix(q.operand, i)
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
    assert stack.matrix(q.operand, 1) is None  # a vector of codes has no rows
    partial = bs.quantize(torch.randn(7, 64), "e4m3:tile4x32:fp32")
    last = cut.rows_of(partial.operand, 4, 7)
    assert last is not None
    assert torch.equal(dequantize(last, torch.float32), partial.dequantize()[4:7])


# A stack's matrices are cut as they are; products read those that rows go to.

SPELLINGS = [
    "mxfp4", "nvfp4", "int8_channel", "int4:group32:fp32", "nf4:group64:fp32", "int8:tensor:fp32",
    "int4:group7:fp32:asym", "nf4:flat64:fp32", "uint4:tile3x16:fp32:asym",
    "uint4:group16:(uint8:group2:fp16):offset(uint8:tensor:fp16)", "int8:tensor:fp32:offset",
    "e2m1:group16:e4m3/inv", "ternary:tensor:fp32",
]  # fmt: skip


def stacked(spelling: str, experts: int = 3, n: int = 12, k: int = 64, parts: int = 1) -> Operand:
    torch.manual_seed(2)
    x = torch.randn(experts, n, k) * torch.linspace(1, 40, experts).reshape(-1, 1, 1)
    x[:, : n // 2] *= 3
    made: Operand = bs.quantize(x, of_stack(parse(spelling), x.shape, parts)).operand
    return made


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_matrix_is_cut_as_it_is(spelling: str, parts: int) -> None:
    """The same memory and values; its parts together are the matrix, of formats kernels know."""
    whole = stacked(spelling, parts=parts)
    values = dequantize(whole, torch.float32)
    for index in range(3):
        one = stack.matrix(whole, index)
        assert one is not None
        assert one.codes.data_ptr() == whole.codes[index].data_ptr()
        assert torch.equal(dequantize(one, torch.float32), values[index])
        pieces = stack.parts(one)
        together = torch.cat([dequantize(piece, torch.float32) for piece in pieces])
        assert torch.equal(together, values[index])
    split = "block6x*" in whole.fmt and "offset(" not in whole.fmt  # which kernels take restated
    assert len(pieces) == (parts if split else 1)
    assert "offset(" in whole.fmt or not any("block" in piece.fmt for piece in pieces)


def test_usual_formats_come_back() -> None:
    """So that kernels of `tensor`, `channel0` and nvfp4 serve experts."""
    names = {text: stacked(text) for text in ("int8:tensor:fp32", "int8_channel", "nvfp4")}
    for text, whole in names.items():
        one = stack.matrix(whole, 1)
        assert one is not None
        assert one.fmt == str(parse(text))
        assert one.fmt != whole.fmt


def test_no_matrix_where_several_share_numbers() -> None:
    """One scale for two of four matrices is no scale of one of them."""
    spelling = "int8:block2x12x64:fp32"
    whole: Operand = bs.quantize(torch.randn(4, 12, 64), spelling).operand
    assert stack.matrix(whole, 1) is None
    assert stack.grouped(torch.randn(2, 64), whole, [2, 2, 2, 2]) is None
    assert stack.values(whole, torch.tensor([1]), torch.float32) is None
    assert stack.each(torch.randn(1, 2, 64), whole, torch.tensor([1])) is None
    alone: Operand = bs.quantize(torch.randn(1, 12, 64), spelling).operand
    assert stack.matrix(alone, 0) is not None


@pytest.mark.parametrize("spelling", ["int8:tensor:fp32", "int8:channel2:fp32", "nvfp4", "int8"])
def test_numbers_of_all_matrices_are_those_of_each(spelling: str) -> None:
    """One scale for the whole stack is the scale of each of its matrices."""
    q = bs.quantize(torch.randn(4, 12, 64), spelling)
    for index in range(4):
        one = stack.matrix(q.operand, index)
        assert one is not None
        assert torch.equal(dequantize(one, torch.float32), q.dequantize()[index])


def test_cuts_are_kept_while_the_stack_lives() -> None:
    """Kernels keep what they make of a matrix beside its tensors, which are the same next time."""
    whole = stacked("nvfp4", parts=2)
    one, again = stack.matrix(whole, 1), stack.matrix(whole._replace(), 1)
    assert one is not None
    assert again is not None
    assert one.codes is again.codes
    assert stack.parts(one)[0].codes is stack.parts(again)[0].codes
    other = stack.matrix(whole._replace(scale=whole.scale.clone()), 1)
    assert other is not None
    assert other.codes is not one.codes
    codes = weakref.ref(whole.codes)
    del whole, one, again, other
    gc.collect()
    assert codes() is None


def test_a_change_in_place_is_seen() -> None:
    """As load_state_dict does it: what kernels made of a matrix before is not used any more."""
    whole, x = stacked("int8_channel"), torch.randn(2, 64)
    before = stack.grouped(x, whole, [0, 2, 2])
    whole.scale.mul_(2)
    after = stack.grouped(x, whole, [0, 2, 2])
    assert before is not None
    assert after is not None
    assert torch.equal(after, before * 2)
    whole.codes.zero_()
    zero = stack.grouped(x, whole, [0, 2, 2])
    assert zero is not None
    assert not zero.any()


@pytest.mark.some(4)
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("counts", [(2, 0, 3), (0, 0, 5), (0, 0, 0)])
def test_rows_meet_their_matrix(spelling: str, parts: int, counts: tuple[int, ...]) -> None:
    """Each group equals `linear` with the matrix alone, to the bit; rows of nobody are 0."""
    whole, x = stacked(spelling, parts=parts), torch.randn(6, 64)
    ends = [sum(counts[: i + 1]) for i in range(3)]
    got = stack.grouped(x, whole, ends)
    assert got is not None
    assert not got[ends[-1] :].any()
    dense, start = dequantize(whole, torch.float32), 0
    with bs.use("reference"):
        exact = stack.grouped(x, whole, ends)
    for index, end in enumerate(ends):
        one = stack.matrix(whole, index)
        assert one is not None
        if end == start:
            continue
        rows = x[start:end]
        assert torch.equal(
            got[start:end], torch.cat([linear(rows, p) for p in stack.parts(one)], -1)
        )
        bound = 64 * 2.0**-24 * (rows.abs() @ dense[index].abs().T)
        assert bool(((got[start:end] - F.linear(rows, dense[index])).abs() <= bound).all())
        assert exact is not None
        assert bool(((exact[start:end] - F.linear(rows, dense[index])).abs() <= bound).all())
        start = end


def test_only_matrices_with_rows_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither cut nor multiplied: an expert without tokens costs nothing."""
    asked: list[int] = []
    real = stack.matrix

    def seen(whole: Operand, index: int) -> Operand | None:
        asked.append(index)
        return real(whole, index)

    monkeypatch.setattr(stack, "matrix", seen)
    whole = stacked("mxfp4", experts=5)
    stack.grouped(torch.randn(3, 64), whole, [0, 2, 2, 2, 3])
    assert asked == [1, 4]
    asked.clear()
    stack.each(torch.randn(3, 1, 64), whole, torch.tensor([3, 3, 0]))
    assert asked == [0, 3]
    asked.clear()
    stack.values(whole, torch.tensor([2, 2, 2]), torch.float32)
    assert asked == [2]


def test_each_row_with_the_matrix_it_chose() -> None:
    whole, x = stacked("nvfp4", parts=2), torch.randn(5, 2, 64)
    chosen = torch.tensor([2, 0, 2, 1, 0])
    got = stack.each(x, whole, chosen)
    dense = dequantize(whole, torch.float32)
    assert got is not None
    assert got.shape == (5, 2, 12)
    expected = torch.bmm(x, dense[chosen].mT)
    assert bool(
        ((got - expected).abs() <= 64 * 2.0**-24 * torch.bmm(x.abs(), dense[chosen].mT.abs())).all()
    )
    values = stack.values(whole, chosen.reshape(5, 1), torch.bfloat16)
    assert values is not None
    assert torch.equal(values, dense[chosen.reshape(5, 1)].to(torch.bfloat16))
    none = stack.values(whole, chosen[:0], torch.float32)
    assert none is not None
    assert none.shape == (0, 12, 64)


def test_a_bias_goes_to_its_part() -> None:
    whole, x, bias = stacked("nvfp4", parts=2), torch.randn(2, 64), torch.randn(12)
    one = stack.matrix(whole, 0)
    assert one is not None
    assert torch.equal(stack.product(x, one, bias), stack.product(x, one) + bias)


@pytest.mark.parametrize("spelling", ["mxfp4", "nvfp4", "int8_channel", "int8:tensor:fp32"])
def test_rows_of_a_matrix_as_a_stack(spelling: str) -> None:
    """DBRX has its experts below each other, in one matrix, and looks at them as a stack."""
    x = torch.randn(3 * 12, 64) * torch.arange(1.0, 37).reshape(-1, 1)
    joined: Operand = bs.quantize(x, of_stack(parse(spelling), x.shape, 3)).operand
    whole = cut.stacked(joined, 3)
    assert whole is not None
    for index in range(3):
        one = stack.matrix(whole, index)
        alone: Operand = bs.quantize(x[12 * index : 12 * index + 12], spelling).operand
        assert one is not None
        assert torch.equal(one.codes, alone.codes)
        assert one.fmt == alone.fmt
        assert torch.equal(one.scale, alone.scale)
    assert cut.stacked(joined, 5) is None
    if "tensor" in spelling or "nvfp4" in spelling:
        one_scale: Operand = bs.quantize(x, spelling).operand
        assert cut.stacked(one_scale, 3) is None


def test_inference_tensors() -> None:
    """Their changes are not counted, so nothing is kept of them."""
    with torch.inference_mode():
        whole, x = stacked("int8_channel"), torch.randn(1, 64)
        before = stack.grouped(x, whole, [1, 1, 1])
        whole.codes.zero_()
        after = stack.grouped(x, whole, [1, 1, 1])
    assert before is not None
    assert after is not None
    assert before.any()
    assert not after.any()


def test_gradients_pass_through_the_dequantized_matrix() -> None:
    whole = stacked("nvfp4", parts=2)
    x: Tensor = torch.randn(4, 64, requires_grad=True)
    y = stack.grouped(x, whole, [1, 1, 4])
    assert y is not None
    y.sum().backward()
    dense = dequantize(whole, torch.float32)
    expected = torch.stack([dense[0].sum(0), *[dense[2].sum(0)] * 3])
    torch.testing.assert_close(x.grad, expected, rtol=1e-5, atol=1e-4)
