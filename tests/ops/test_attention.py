# SPDX-License-Identifier: BSD-3-Clause
"""Attention over a cache in codes, against float64 and step by step."""

import math

import pytest
import torch
from torch import Tensor

import blockscale as bs
from blockscale.core.operand import operand, quantizer
from blockscale.core.parse import parse
from blockscale.kernels.registry import find
from blockscale.ops import primitives as P
from blockscale.ops.attention import cached_attention
from tests.support.caches import across, cached, close, exact
from tests.support.op_samples import Made

FORMATS = (
    *(
        "int8_token",
        "int4:group32:fp32",
        "mxfp4",
        "nvfp4_token",
        "mxfp8",
        "log4:group32:fp32",
        "e4m3:token:fp32",
    ),
    *("uint4:group16:fp16:asym", "nf4:group64:fp32", "e2m3:group32:e8m0", "int3:group32:fp32"),
)


def samples(made: Made) -> dict[str, list[tuple]]:
    size, fmt = made.x.shape[-1], parse(made.fmt)
    past = torch.randn(1, 1, 4, size)
    qparams = P.from_list(P.choose_qparams.reference(past, str(fmt)), fmt)
    by = quantizer(qparams, fmt, made.seed)
    codes = operand(P.quantize.reference(past, by), qparams, fmt, size)
    query, recent = torch.randn(1, 2, 1, size), torch.randn(1, 1, 2, size)
    mask = torch.ones(1, 1, 1, 6, dtype=torch.bool)
    return {
        "cached_attention": [
            (query, codes, codes, recent, recent, None, 0.5, None),
            (query, codes, codes, recent, recent, mask, 0.5, torch.randn(2)),
        ]
    }


@pytest.mark.parametrize("fmt", FORMATS)
def test_formats(fmt: str) -> None:
    keys, values, k, v, key, value = cached(fmt, 70, 5)
    query = torch.randn(2, 8, 1, 64)
    y = cached_attention(query, keys, values, k, v, None, 0.125)
    close(y, exact(query, key, value, None, None, 0.125))


@pytest.mark.parametrize(
    ("heads", "new", "tokens", "recent", "depth", "width"),
    [
        (2, 1, 33, 1, 64, 64),  # a head each: sums along features
        (4, 2, 64, 2, 64, 32),
        (16, 3, 31, 40, 32, 96),  # 24 queries: two vectors of them
        (2, 1, 1024, 1, 32, 32),  # one part, to the last key
        (8, 1, 1025, 1030, 32, 32),  # parts with one key and with few
        (6, 5, 96, 5, 64, 40),  # a width that is no whole vector
        (64, 2, 40, 2, 32, 32),  # 64 queries
        (64, 3, 40, 3, 32, 32),  # 96: decoded once
    ],
)
def test_shapes(heads: int, new: int, tokens: int, recent: int, depth: int, width: int) -> None:
    keys, values, k, v, key, value = cached(
        "int8:group32:fp32", tokens, recent, depth=depth, width=width, values="int8:token:fp32"
    )
    query = torch.randn(2, heads, new, depth)
    y = cached_attention(query, keys, values, k, v, None, 0.2)
    close(y, exact(query, key, value, None, None, 0.2))
    with bs.use("reference"):
        close(cached_attention(query, keys, values, k, v, None, 0.2).float(), y.double())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_dtypes_come_back(dtype: torch.dtype) -> None:
    keys, values, k, v, key, value = cached("int8_token", 40, 3)
    query = torch.randn(2, 4, 1, 64).to(dtype)
    y = cached_attention(query, keys, values, k.to(dtype), v.to(dtype), None, 0.1)
    assert y.dtype == dtype
    key, value = (
        torch.cat([x[:, :, :40], x[:, :, 40:].to(dtype).float()], 2) for x in (key, value)
    )
    expected = exact(query.float(), key, value, None, None, 0.1)
    assert (y.double() - expected).abs().max() < 0.01 * expected.abs().max()


@pytest.mark.parametrize("heads", [1, 8])
@pytest.mark.parametrize("kind", ["seen", "added"])
def test_masks(kind: str, heads: int) -> None:
    """Padding on the left, also where a row sees nothing: zeros, as torch has it."""
    keys, values, k, v, key, value = cached("int4:group32:fp32", 45, 2)
    query = torch.randn(2, 8, 2, 64)
    seen = torch.rand(2, heads, 2, 47) < 0.6
    seen[0, 0, 1] = False
    added = torch.randn(2, heads, 2, 47)
    mask = seen if kind == "seen" else added
    y = cached_attention(query, keys, values, k, v, mask, 0.125)
    of = (seen, None) if kind == "seen" else (None, added)
    close(y, exact(query, key, value, *of, 0.125))


@pytest.mark.some(2)
@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_sinks(backend: str) -> None:
    """A score of each head that takes its share and gives nothing; also where nothing is seen, or
    it is far above or below all others."""
    keys, values, k, v, key, value = cached("int4:group32:fp32", 1030, 3)
    query, sinks = torch.randn(2, 8, 2, 64), torch.randn(8) * 4
    sinks[1], sinks[2], sinks[3] = 60.0, -60.0, -math.inf
    seen = torch.rand(2, 1, 2, 1033) < 0.6
    seen[0, 0, 1] = False
    added = torch.randn(2, 8, 2, 1033)
    with bs.use(backend):
        for mask in (None, seen, added):
            y = cached_attention(query, keys, values, k, v, mask, 0.125, sinks)
            of = (seen, None) if mask is seen else (None, mask)
            close(y, exact(query, key, value, *of, 0.125, sinks))


@pytest.mark.some(2)
@pytest.mark.parametrize(
    ("fmt", "chunk", "chunks"),
    [
        ("int4:group32:fp32", 32, 3),
        ("uint4:group40:fp32:asym", 40, 27),  # parts of whole chunks
        ("int3:group12:fp32", 36, 2),  # rows that end within a byte, a chunk of no whole vectors
        ("int8:group64:fp16", 64, 17),
        ("nvfp4_token", 32, 2),
        ("int4:group32:fp32", 2048, 1),  # a chunk that is larger than a part
    ],
)
@pytest.mark.parametrize("heads", [2, 6, 16])
def test_keys_per_channel(fmt: str, chunk: int, chunks: int, heads: int) -> None:
    """Read from their codes by the kernel, and by the reference."""
    keys, values, k, v, key, value = across(fmt, chunk, chunks, 4)
    query = torch.randn(2, heads, 2, 64)
    call = (query, keys, values, k, v, None, 0.125, torch.zeros(heads))
    expected = exact(query, key, value, None, None, 0.125, torch.zeros(heads))
    assert find("cached_attention", (keys.fmt, values.fmt), "cpu", call, composite=True) is not None
    close(cached_attention(*call), expected)
    with bs.use("reference"):
        close(cached_attention(*call), expected)


def test_what_is_not_finite_stays_in_its_row() -> None:
    """A NaN of a query in its own; one of a value in its head's; a key far above all others."""
    keys, values, k, v, _, _ = cached("int8_token", 64, 2)
    query = torch.randn(2, 4, 1, 64)
    query[0, 1] = math.nan
    v[1, 0, 1, 5] = math.nan
    bad = cached_attention(query, keys, values, k, v, None, 0.125).isnan()
    expected = torch.zeros(2, 4, 1, 64, dtype=torch.bool)
    expected[0, 1] = True
    expected[1, :2, :, 5] = True
    assert torch.equal(bad, expected)
    k[:, :, 0] = query.nan_to_num()[:, ::2, 0] * 1e4
    y = cached_attention(query.nan_to_num(), keys, values, k, v.nan_to_num(), None, 1.0)
    close(y[:, ::2, 0][1:], v.nan_to_num()[1:, :, 0].double())


def test_the_same_bits_for_any_number_of_threads() -> None:
    keys, values, k, v, _, _ = cached("mxfp4", 2100, 1)
    query = torch.randn(2, 16, 1, 64)
    before = torch.get_num_threads()
    each = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            each.append(cached_attention(query, keys, values, k, v, None, 0.125))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(each[0], each[1])
    assert torch.equal(each[0], each[2])


def test_what_a_kernel_takes() -> None:
    """Blocks of a token, also where the last one is short and rows end within a byte."""

    def kernel(fmt: str, depth: int = 64) -> bool:
        keys, values, k, v, _, _ = cached(fmt, 32, 1, depth=depth, width=depth)
        call = (torch.randn(2, 2, 1, depth), keys, values, k, v, None, 0.1)
        close(
            cached_attention(*call),
            exact(call[0], *cached(fmt, 32, 1, depth=depth, width=depth)[4:], None, None, 0.1),
        )
        return (
            find("cached_attention", (keys.fmt, values.fmt), "cpu", call, composite=True)
            is not None
        )

    assert kernel("int8_token")
    assert kernel("int4:group32:fp32")
    assert not kernel("int8:tensor:fp32")
    assert not kernel("log4")
    assert not kernel("int4:flat32:fp32")
    assert kernel("int4:group32:fp32", 48)
    assert kernel("int3:group4:fp32", 20)
    assert kernel("nvfp4_token", 20)


def test_compiled_and_exported() -> None:
    """The shape rule: a graph has one node."""
    keys, values, k, v, _, _ = cached("int8_token", 32, 1)

    class Attend(torch.nn.Module):
        def forward(self, query: Tensor) -> Tensor:
            return cached_attention(query, keys, values, k, v, None, 0.125)

    query = torch.randn(2, 4, 1, 64)
    program = torch.export.export(Attend(), (query,))
    targets = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert targets == ["blockscale.cached_attention.default"]
    assert torch.equal(program.module()(query), Attend()(query))
