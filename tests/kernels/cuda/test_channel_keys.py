# SPDX-License-Identifier: BSD-3-Clause
"""Keys per channel in codes on CUDA, against float64 and the reference."""

import math

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

import blockscale as bs
from blockscale.kernels.cuda.cached_attention import (
    PartSettings,
    _supports,
    attention,
    both_readings,
    query_parts,
    usual,
    warps_for,
)
from blockscale.ops.attention import cached_attention
from tests.support.caches import across, close, exact
from tests.support.cuda_attention import SMALL, by_kernel, on_device
from tests.support.cuda_equal import DEVICE

INT4, UINT2 = "int4:group32:fp16:asym", "uint2:group32:fp16:asym"
FORMATS = (  # keys, values, tokens of a chunk, chunks; a step is 8 words of a channel, at 2 bits 4
    (INT4, INT4, 32, 5),  # of two blocks in two chunks
    ("int4:group16:fp32", "int8_token", 32, 3),  # of four in two chunks
    ("int8:group32:fp16:asym", "int4:group32:fp16", 64, 1),  # of one
    (UINT2, UINT2, 32, 5),  # of two, one of which is not there
    ("int4:group128:fp32", "mxfp4", 128, 1),  # of half a block
    ("int4:group32:fp32", "int8_token", 32, 3),
    ("int8:group32:fp16", "uint8:group64:fp32:asym", 32, 2),
    ("mxfp4", "mxfp4", 32, 3),
    ("mxfp8", "e4m3:token:fp32", 96, 1),
    ("nvfp4_token", "nvfp4_token", 32, 3),
    ("int2:group64:bf16", "int8_token", 64, 3),  # of one
    ("int4:token:fp32", "int8_token", 64, 2),  # a block is a chunk
)  # fmt: skip
FAST = 3  # of which each is what no other is


@pytest.mark.parametrize(
    ("fmt", "values", "chunk", "chunks"),
    [*FORMATS[:FAST], *(pytest.param(*each, marks=pytest.mark.slow) for each in FORMATS[FAST:])],
)
def test_formats(fmt: str, values: str, chunk: int, chunks: int) -> None:
    """Parts of codes, of which the last may be short, and one of floats."""
    keys, values_, k, v, key, value = across(fmt, chunk, chunks, 3, values=values, batch=1)
    query = torch.randn(1, 4, 1, 64)
    y = by_kernel(query, keys, values_, k, v, None, 0.125)
    close(y, exact(query, key, value, None, None, 0.125))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("heads", "new", "depth", "fmt", "chunk", "chunks", "settings"),
    [
        (8, 3, 32, INT4, 32, 4, SMALL),  # 12 queries
        (2, 1, 96, UINT2, 32, 9, PartSettings(32, 2, 2, 2)),  # a depth that is no power of two
        (4, 2, 64, "int8:group32:fp16", 64, 5, PartSettings(16, 1, 4, 2)),
        (2, 3, 80, "int4:group64:fp16:asym", 64, 2, PartSettings(32, 4, 1, 3)),
    ],
)
def test_shapes(
    heads: int, new: int, depth: int, fmt: str, chunk: int, chunks: int, settings: PartSettings
) -> None:
    """Of both batches, whose chunks follow each other."""
    keys, values, k, v, key, value = across(fmt, chunk, chunks, 5, depth=depth)
    query = torch.randn(2, heads, new, depth)
    y = by_kernel(query, keys, values, k, v, None, 0.2, settings)
    close(y, exact(query, key, value, None, None, 0.2))


@pytest.mark.slow
@pytest.mark.parametrize("chunks", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("kind", ["seen", "added"])
def test_masks_and_sinks(kind: str, chunks: int) -> None:
    """Each token's own: scores lie in the tokens' order."""
    keys, values, k, v, key, value = across(INT4, 32, chunks, 2, values=INT4, batch=1)
    query, sinks = torch.randn(1, 4, 2, 64), torch.randn(4)
    count = 32 * chunks + 2
    seen = torch.rand(1, 4, 2, count) < 0.6
    seen[0, 0, 1] = False
    added = 4 * torch.randn(1, 4, 2, count)
    y = by_kernel(query, keys, values, k, v, seen if kind == "seen" else added, 0.125, SMALL, sinks)
    of = (seen, None) if kind == "seen" else (None, added)
    close(y, exact(query, key, value, *of, 0.125, sinks))


def test_numbers_of_a_query() -> None:
    """As many as are exact; times a scale, those that leave 2^-16 or less."""
    keys, values, *_ = across(INT4, 32, 1, 1, values=INT4, batch=1)
    by_channel, by_token = both_readings(keys, values)
    kinds = (torch.bfloat16, torch.float16, torch.float32)
    assert [query_parts(dtype, by_channel) for dtype in kinds] == [2, 2, 3]
    assert [query_parts(dtype, by_token) for dtype in kinds] == [1, 2, 3]


def test_how_many_queries() -> None:
    """What a processor holds of queries times scales: in two warps, if not in four; else the
    reference takes all of it."""
    keys, values, k, v, *_ = across(INT4, 32, 2, 3, values=INT4, batch=1, depth=128)
    for heads, new, dtype, warps in (
        (8, 1, torch.float32, 4), (16, 2, torch.bfloat16, 4), (16, 2, torch.float32, 2),
        (32, 2, torch.bfloat16, 2), (32, 2, torch.float32, 0), (64, 2, torch.bfloat16, 0),
    ):  # fmt: skip
        query = torch.randn(1, heads, new, 128).to(dtype)
        assert warps_for(query, *both_readings(keys, values), new * heads // 2) == warps
        assert _supports((), (query, keys, values, k, v, None, 0.1)) == (warps > 0)
        assert warps_for(query, *both_readings(values, values), new * heads // 2) == 4
    wide = across(INT4, 32, 2, 3, batch=1, depth=256)[:2]  # values of 8 bits: words, not queries
    assert warps_for(torch.randn(1, 8, 1, 256).bfloat16(), *both_readings(*wide), 4) == 2


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_dtypes(dtype: torch.dtype) -> None:
    """Queries in two numbers, times a scale: far below one rounding of the result."""
    keys, values, k, v, key, value = across(INT4, 32, 2, 3, values=INT4, batch=1)
    query = torch.randn(1, 4, 1, 64).to(dtype)
    recent = [x.to(dtype) for x in (k, v)]
    for x, new in zip((key, value), recent, strict=True):
        x[:, :, 64:] = new.float()
    y = by_kernel(query, keys, values, *recent, None, 0.125)
    assert y.dtype == dtype
    expected = exact(query.float(), key, value, None, None, 0.125)
    rounding = 2.0**-8 if dtype is torch.bfloat16 else 2.0**-11
    assert ((y.double() - expected).abs() <= rounding * expected.abs() + 2e-5).all()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:All-NaN")  # numpy's, of the largest of nothing
def test_what_is_not_finite_stays_where_it_is() -> None:
    """A NaN of a query in its row, one of a scale in the queries that share its head."""
    keys, values, k, v, _, _ = across("mxfp4", 32, 3, 2)
    query = torch.randn(2, 4, 1, 64)
    query[0, 1] = math.nan
    keys.scale[1, 1, 2, 7] = 255
    expected = torch.zeros(2, 4, 1, 64, dtype=torch.bool)
    expected[0, 1] = True
    expected[1, 2:] = True
    assert torch.equal(by_kernel(query, keys, values, k, v, None, 0.125).isnan(), expected)


def test_what_goes_by_the_reference() -> None:
    """Blocks whose words are no power of two, codes in no words, and values that are not read."""
    query = torch.randn(2, 4, 1, 64)
    for fmt, chunk, values, reads in (
        (INT4, 32, INT4, True), ("uint4:group40:fp32:asym", 40, INT4, False),
        ("int3:group32:fp32", 32, INT4, False), ("uint4:group32:fp16:offset", 32, INT4, False),
        ("int4:group12:fp32", 36, INT4, False), (INT4, 32, "int8:tensor:fp32", False),
    ):  # fmt: skip
        keys, values_, k, v, _, _ = across(fmt, chunk, 1, 2, values=values)
        assert _supports((), (query, keys, values_, k, v, None, 0.1)) == reads, fmt


@pytest.mark.slow
def test_the_op_takes_it() -> None:
    """By its name, near the reference."""
    keys, values, k, v, _, _ = across(UINT2, 32, 3, 2, values=UINT2, batch=1)
    query = torch.randn(1, 4, 1, 64)
    keys, values = on_device(keys, values)
    call = (query.to(DEVICE), keys, values, k.to(DEVICE), v.to(DEVICE), None, 0.125)
    with bs.use("cuda"):
        y = cached_attention(*call)
    assert torch.equal(y, attention(*call[:3], call[3:5], None, 0.125, usual(96, 2, 2)))
    with bs.use("reference"):
        close(y.cpu(), cached_attention(*call).cpu().double())
