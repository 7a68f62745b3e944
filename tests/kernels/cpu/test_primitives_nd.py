# SPDX-License-Identifier: BSD-3-Clause
"""Blocks along any dimensions, of tensors of any rank: the reference's bits."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import blockscale as bs
from blockscale.core.operand import Quantizer
from blockscale.kernels.cpu import _native
from blockscale.ops import primitives as P
from tests.kernels.cpu.equal import settings as running
from tests.kernels.cpu.equal import wrong
from tests.support.cpu_primitives import rough
from tests.support.some import crossed

FORMATS = [  # each has `{}` for its block
    "int8:{}:fp32",
    "int4:{}:fp32:asym",
    "uint8:{}:fp32:asym(fp16)",
    "e2m1:{}:e8m0/floor",
    "e4m3:{}:fp16",
    "e2m1:{}:e4m3",
    "ternary:{}:fp32",
    "binary:{}:bf16",
    "int8:{}:fp32:half:recip",
    "int12:{}:pow2/rceil",
    "int3:{}:fp32:stochastic",
    "uint6:{}:(uint8:token:fp32):asym",
    "uint4:{}:fp16:offset",
    "nf4:{}:fp32",
    "int8:{}:fp32:offset",
    "log8f3:{}:bf16:offset(fp16)",
]

# Shapes around what kernels do with them (make_grid.cpp): short rows taken together or not, rows of
# columns that have a scale each, runs of 8, 16 and others, whole and cut ones, blocks that no unit
# holds, strips that end within a row, and blocks that merge into those of fewer dimensions.
CASES = [
    ("block3x3x2x1", (7, 5, 3, 3)),
    ("block3x3x2x1", (6, 700, 3, 3)),
    ("block2x3x3", (4, 6, 3, 3)),
    ("block2x3x3", (3, 5, 3, 3)),
    ("block*x1x*x1", (3, 4, 5, 6)),
    ("block2x*x4", (5, 3, 10)),
    ("block*x32", (5, 64)),
    ("block*x32", (70, 100)),
    ("block4x8x16", (9, 17, 40)),
    ("block4x8x16", (6, 20, 64)),
    ("block4x8x8", (6, 20, 64)),
    ("block4x8x8", (6, 9, 1000)),
    ("block2x8x12", (3, 20, 500)),
    ("block2x3x5", (5, 7, 4104)),
    ("block2x2x128", (5, 7, 2056)),
    ("block2x2x32", (3, 5, 600)),
    ("block4x3x16", (9, 7, 523)),
    ("block2x2x64", (3, 6, 1100)),
    ("block5x16x16", (9, 20, 410)),
    ("block2x2x1", (5, 7, 130)),
    ("block2x2x2x2x2", (3, 4, 5, 3, 5)),
    ("block2x4x8x8", (5, 9, 16, 24)),
    ("tile8x8", (40, 1003)),
    ("tile3x5", (50, 603)),
    ("tile2x2", (30, 9, 3, 3)),
    ("group8", (5, 64)),
    ("group8", (5, 67)),
]


@pytest.mark.slow
@pytest.mark.parametrize(("block", "shape"), CASES, ids=str)
def test_every_block(block: str, shape: tuple[int, ...]) -> None:
    formats = FORMATS[len(shape) % 2 :: 2]
    for fmt in formats:
        assert wrong(rough(shape, 1), fmt.format(block), threads=(1, 3)) == []


@pytest.mark.some(3)
@pytest.mark.parametrize(
    ("case", "dtype"), crossed(3, CASES[::3], [torch.bfloat16, torch.float16]), ids=str
)
def test_halves_with_nan_and_infinity(case: tuple[str, tuple[int, ...]], dtype) -> None:
    block, shape = case
    x = torch.randn(shape)
    flat = x.view(-1)
    flat[7], flat[flat.shape[0] // 2], flat[-1] = torch.nan, torch.inf, -torch.inf
    for fmt in (
        "int8:{}:fp32:asym",
        "e4m3:{}:e8m0/tosa",
        "ternary:{}:fp32",
        "uint4:{}:fp32:offset",
    ):
        assert wrong(x.to(dtype), fmt.format(block), threads=(2,)) == []


BLOCK_SIZES = st.integers(1, 9) | st.sampled_from([16, 32]) | st.just("*")


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 12), BLOCK_SIZES), min_size=1, max_size=5),
    st.integers(1, 80),
    st.sampled_from(FORMATS),
    st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_any_shape(dims: list, last: int, fmt: str, dtype: torch.dtype) -> None:
    shape = (*(n for n, _ in dims[:-1]), last)
    block = "block" + "x".join(str(size) for _, size in dims)
    x = torch.randn(shape).to(dtype)
    assert wrong(x, fmt.format(block), threads=(1,)) == [], (shape, block)


LARGE = [
    ("int4:block60x70x60:fp32:asym", (61, 71, 130)),
    ("ternary:block60x70x60:fp32", (61, 71, 64)),
    ("int8:block2x3000x2:fp32", (5, 7000, 3)),
    ("e2m1:block4x8x16:e8m0/floor", (64, 64, 64)),
    ("int8:block100000x2x3:fp32", (70000, 3, 3)),
    ("binary:block2x5000x16:fp32", (3, 5001, 20)),
]


@pytest.mark.some(3)
@pytest.mark.parametrize(("fmt", "shape"), LARGE, ids=str)
def test_blocks_that_no_unit_holds(fmt: str, shape: tuple[int, ...]) -> None:
    assert wrong(rough(shape, 1), fmt, threads=(1, 3)) == []


@pytest.mark.some(3)
@pytest.mark.parametrize("shape", [(0, 4, 6, 5), (3, 0, 6, 5), (3, 4, 6, 0)])
@pytest.mark.parametrize("block", ["block3x3x2x1", "block2x2x4", "block*x2x*"])
def test_empty(shape: tuple[int, ...], block: str) -> None:
    for fmt in ("int8:{}:fp32:asym", "e2m1:{}:e4m3"):
        assert wrong(torch.empty(shape), fmt.format(block)) == []


@pytest.mark.parametrize("block", ["block3x3x2x1", "block2x2x8", "block2x3x3"])
def test_strides(block: str) -> None:
    x = torch.randn(6, 7, 9, 3, 2)
    for view in (x[..., 0], x.permute(4, 3, 0, 1, 2)[1], x[:, ::2, 1:, :, 1]):
        assert wrong(view, f"int8:{block}:fp32", threads=(2,)) == []


def test_one_block_by_hand() -> None:
    """Of [4, 4, 3] in blocks of 2 x 3 x 2, the element at (2, 3, 2) lies in block (1, 1, 1)."""
    x = torch.ones(4, 4, 3)
    x[2, 3, 2] = 254.0
    with bs.use("cpu"):
        q = bs.quantize(x, "int8:block2x3x2:fp32")
    expected = torch.full((2, 2, 2), 1 / 127)
    expected[1, 1, 1] = 2.0
    assert torch.equal(q.scale, expected)
    assert q.codes[2, 3, 2] == 127 and q.codes[3, 3, 2] == 0 and q.codes[1, 3, 2] == 127


@pytest.mark.parametrize("isa", _native.isas())
def test_stochastic_rounding_counts_elements_of_the_tensor(isa: str) -> None:
    """The same chances whatever the blocks: all scales are 1 here."""
    x = torch.rand(5, 6, 40) * 3
    x[:, :, ::2] = 127.0
    by = [Quantizer(None, None, None, f"int8:{block}:fp32:stochastic", torch.tensor([5, 11]))
          for block in ("tensor", "block2x4x8", "block2x2x2", "block3x*x4")]  # fmt: skip
    with running(isa, 2):
        first, *others = [P.fake_quantize(x, each) for each in by]
    assert all(torch.equal(first, other) for other in others)
    assert not torch.equal(first, x.round())
