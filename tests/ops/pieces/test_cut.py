# SPDX-License-Identifier: BSD-3-Clause
"""Rows and elements of quantized tensors, against those of the dequantized ones."""

import pytest
import torch

import blockscale as bs
from blockscale.core.catalog import CATALOG
from blockscale.ops.pieces import cut, stack
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
        rows = cut.rows(q.operand, start, stop)
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
    assert cut.rows(q.operand, 0, 4) is not None
    assert cut.rows(q.operand, 4, 8) is not None
    assert cut.rows(q.operand, 1, 4) is None
    assert cut.rows(q.operand, 0, 5) is None
    assert cut.rows(q.operand, 4, 9) is None
    assert stack.matrix(q.operand, 1) is None  # a vector of codes has no rows
    partial = bs.quantize(torch.randn(7, 64), "e4m3:tile4x32:fp32")
    last = cut.rows(partial.operand, 4, 7)
    assert last is not None
    assert torch.equal(dequantize(last, torch.float32), partial.dequantize()[4:7])
