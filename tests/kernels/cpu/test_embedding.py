# SPDX-License-Identifier: BSD-3-Clause
"""Rows of a quantized table: the reference's bits, for every block and kind of index."""

import pytest
import torch
from torch import Tensor

import blockscale as bs
from blockscale.core.operand import Operand, operand
from blockscale.core.parse import CATALOG, parse
from blockscale.kernels.cpu import _native
from blockscale.ops import primitives as P
from blockscale.ops.embedding import embedding
from tests.kernels.cpu.equal import settings
from tests.support.cpu_primitives import BLOCKS, ELEMENTS, rough, spelling
from tests.support.ops_embedding import EXTRA
from tests.support.same import same

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def table(fmt: str, rows: int, size: int, seed: int = 1) -> Operand:
    """A quantized table."""
    form, draw = parse(fmt), torch.tensor([1, 2])
    with bs.use("reference"):
        packed, *parts = P.choose_quantize(rough((rows, size), seed), fmt, draw)
    return operand(packed, P.from_list(parts, form), fmt, size)


def wrong(stored: Operand, indices: Tensor, threads: int = 1) -> list[tuple[str, torch.dtype]]:
    """Instruction sets and dtypes whose bits differ from the reference's."""
    bad = []
    for dtype in DTYPES:
        with bs.use("reference"):
            expected = embedding(stored, indices, dtype)
        for isa in _native.isas():
            with settings(isa, threads):
                if not same(embedding(stored, indices, dtype), expected):
                    bad.append((isa, dtype))
    return bad


@pytest.mark.parametrize("fmt", [*CATALOG, *EXTRA])
def test_rows(fmt: str) -> None:
    for rows, size in [(19, 37), (40, 64), (3, 1), (1, 5)]:
        indices = torch.randint(rows, (4, 3))
        assert wrong(table(str(parse(fmt)), rows, size), indices) == [], (rows, size)


@pytest.mark.some(8)
@pytest.mark.parametrize("element", ELEMENTS)
def test_elements_and_blocks(element: str) -> None:
    for i, block in enumerate(BLOCKS[ELEMENTS.index(element) % 6 :: 6]):
        fmt = spelling(7 * i + ELEMENTS.index(element), element, block)
        assert wrong(table(fmt, 21, 203), torch.tensor([20, 0, 7, 7, 16])) == [], fmt


@pytest.mark.parametrize(
    "indices",
    [
        torch.tensor(3),
        torch.tensor([], dtype=torch.long),
        torch.zeros(2, 0, 3, dtype=torch.long),
        torch.arange(19, dtype=torch.int32),
        torch.tensor([[18, 0], [7, 7]], dtype=torch.int32).t(),
        torch.arange(38)[::2] // 2,
        torch.tensor(5).expand(3, 4),
    ],
    ids=["one", "none", "none of 3", "int32", "transposed", "strided", "expanded"],
)
def test_kinds_of_indices(indices: Tensor) -> None:
    for fmt in (
        *("int4:group16:fp16:asym", "uint4:group16:fp16:asym(fp16)"),
        *("e2m1:group16:e4m3", "int12:tile4x16:fp32"),
    ):
        assert wrong(table(fmt, 19, 37), indices) == []


@pytest.mark.parametrize("size", [2047, 2048, 2049, 4100])
def test_long_rows_and_threads(size: int) -> None:
    for fmt in ("int4:group48:e8m0/floor", "int3:tile2x100:fp32:asym", "e2m1:group16:e4m3:recip"):
        indices = torch.randint(9, (20,))
        assert wrong(table(fmt, 9, size), indices, threads=3) == [], fmt


def test_many_short_rows() -> None:
    assert wrong(table("int4:group8:fp32", 50, 8), torch.randint(50, (20000,)), threads=2) == []


@pytest.mark.parametrize("index", [-1, 19, 2**40, -(2**63)])
def test_indices_that_are_no_row(isa: str, index: int) -> None:
    stored = table("int4:group16:fp32", 19, 37)
    for indices in (torch.tensor(index), torch.tensor([[0, 1], [index, 2]])):
        with bs.use("cpu"), pytest.raises(IndexError, match=f"out of range: .*{index}.* 19 rows"):
            embedding(stored, indices, torch.float32)


def test_an_empty_table(isa: str) -> None:
    stored = table("int4:group16:fp32", 0, 37)
    with bs.use("cpu"):
        none = torch.zeros(0, dtype=torch.long)
        assert embedding(stored, none, torch.float32).shape == (0, 37)
        with pytest.raises(
            IndexError, match=r"index out of range: found 0 \.\.\. 0 for a table of 0 rows"
        ):
            embedding(stored, torch.tensor([0]), torch.float32)


@pytest.mark.parametrize("dtype", [torch.int16, torch.uint8, torch.bool, torch.float32], ids=str)
def test_indices_of_other_dtypes(isa: str, dtype: torch.dtype) -> None:
    stored = table("int4:group16:fp32", 19, 37)
    with bs.use("cpu"), pytest.raises(IndexError, match=f"int64 or int32 .* found {dtype}"):
        embedding(stored, torch.ones(3, dtype=dtype), torch.float32)
