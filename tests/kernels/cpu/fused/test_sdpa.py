# SPDX-License-Identifier: BSD-3-Clause
"""Attention lies within the op's bound of exact attention, whatever operands and masks are."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import blockscale as bs
from blockscale.core.operand import UNQUANTIZED, Quantizer, Value
from blockscale.core.parse import parse
from blockscale.kernels.cpu.fused import sdpa
from blockscale.ops import primitives as P
from blockscale.ops.fused import FUSED
from blockscale.ops.fused.values import quantized
from tests.kernels.cpu.fused.given import UINT8, coded, fixed
from tests.support.same import same

SIZES = (  # batch, heads, rows, keys, depth, width
    (2, 3, 64, 64, 32, 32), (1, 2, 7, 9, 5, 16), (2, 2, 100, 130, 64, 48), (1, 1, 1, 300, 128, 128),
    (1, 1, 65, 1, 1, 16),
)  # fmt: skip


def heads(batch: int, count: int, rows: int, width: int, seed: int = 0) -> Tensor:
    """[batch, heads, rows, width] as models have it: rows of all heads side by side."""
    x = torch.randn(batch, rows, count, width, generator=torch.Generator().manual_seed(seed))
    return x.transpose(1, 2)


def exact(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """In float64 by the definition, and what an error of one unit may be."""
    q, k, v = q.double(), k.double(), v.double()
    added = 0 if mask is None else mask.double()
    weights = torch.softmax(q @ k.mT * scale + added, -1)
    scores = (q.abs() @ k.abs().mT * scale).amax(-1, keepdim=True)
    return weights @ v, (1 + scores) * (weights @ v.abs())


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_exact_attention_is_near(isa: str, sizes: tuple[int, ...]) -> None:
    batch, count, rows, keys, depth, width = sizes
    q = heads(batch, count, rows, depth, 1) * 3
    k, v = heads(batch, count, keys, depth, 2) * 3, heads(batch, count, keys, width, 3)
    some = torch.rand(batch, 1, 1, keys) < 0.7
    some[..., 0] = True
    below = torch.arange(keys) <= torch.arange(rows)[:, None]
    masks: list[dict[str, Any]] = [
        {}, {"scale": 0.3}, {"mask": torch.randn(rows, keys)}, {"mask": some}, {"causal": True},
        {"mask": torch.randn(batch, count, rows, keys)},
    ]  # fmt: skip
    for told in masks:
        mask = below if told.get("causal") else told.get("mask")
        if mask is not None and mask.dtype == torch.bool:
            mask = torch.zeros(()).where(mask, -math.inf)
        expected, unit = exact(q, k, v, mask, told.get("scale", depth**-0.5))
        with bs.use("cpu"):
            (found,) = FUSED["sdpa"](Value(q), Value(k), Value(v), **told)
        assert found.is_contiguous()
        error = (found.double() - expected).abs()
        assert (error <= FUSED["sdpa"].ulps * 2.0**-24 * unit).all(), told


def test_codes_are_read_and_written(isa: str) -> None:
    """Codes stand for their floats; the result's are those of the float result."""
    x = [heads(2, 4, 50, 32, seed).contiguous() for seed in range(3)]
    formats = ("int8:tensor:fp32", "e4m3:token:fp32", "nvfp4")
    values = [coded(each, fmt) for each, fmt in zip(x, formats, strict=True)]
    plain = [Value(P.dequantize(each.operand, torch.float32)) for each in values]
    with bs.use("cpu"):
        (expected,) = FUSED["sdpa"](*plain)
        assert same(FUSED["sdpa"](*values)[0], expected)
        for y in (fixed(UINT8, 4), Quantizer(None, None, None, "int8:token:fp32")):
            found = FUSED["sdpa"](values[0], plain[1], values[2], y=y)
            with bs.use("reference"):
                codes = quantized(expected, y)
            assert all(same(p, q) for p, q in zip(found, codes, strict=True))


def test_heads_that_are_shared() -> None:
    q, k, v = heads(2, 6, 20, 16, 1), heads(2, 2, 30, 16, 2), heads(2, 2, 30, 16, 3)
    with bs.use("cpu"):
        (found,) = FUSED["sdpa"](Value(q), Value(k), Value(v), enable_gqa=True)
        repeated = [Value(each.repeat_interleave(3, 1)) for each in (k, v)]
        (expected,) = FUSED["sdpa"](Value(q), *repeated)
    assert same(found, expected)


def test_without_a_batch() -> None:
    x = [heads(1, 3, 20, 16, seed) for seed in range(3)]
    with bs.use("cpu"):
        (expected,) = FUSED["sdpa"](*map(Value, x))
        (found,) = FUSED["sdpa"](*(Value(each[0]) for each in x))
    assert same(found, expected[0])


def test_threads() -> None:
    x = [Value(heads(4, 4, 100, 32, seed)) for seed in range(3)]
    found = []
    for count in (1, 3):
        torch.set_num_threads(count)
        with bs.use("cpu"):
            found.append(FUSED["sdpa"](*x, y=fixed(UINT8, 4))[0])
    assert torch.equal(*found)


def test_numbers_that_are_odd(isa: str) -> None:
    """NaN and infinities go where torch has them; rows that see nothing are 0."""
    q, k, v = (heads(1, 2, 40, 16, seed) for seed in range(3))
    unseen = torch.zeros(40, 40)
    unseen[3], unseen[5, 1:], unseen[7] = -math.inf, -math.inf, torch.finfo(torch.float32).min
    bad = [q.clone(), k.clone(), v.clone()]
    bad[0][0, 0, 2] = math.nan
    bad[1][0, 1, 4, 1] = math.nan
    bad[2][0, 0, 6, 3] = math.inf
    large = [q * 1e18, k * 1e18, v]
    for operands, mask in (([q, k, v], unseen), (bad, None), (bad, unseen), (large, None)):
        expected = F.scaled_dot_product_attention(*operands, mask)
        with bs.use("cpu"):
            (found,) = FUSED["sdpa"](*map(Value, operands), mask=mask)
        assert torch.equal(found.isnan(), expected.isnan())
        assert torch.allclose(found, expected, atol=1e-4, equal_nan=True)
    assert mask is None


def test_what_is_composed() -> None:
    q, k, v = (Value(heads(1, 2, 8, 16, seed)) for seed in range(3))

    def supports(*operands: Value, dtype: torch.dtype = torch.float32, **told: Any) -> bool:
        y = told.pop("y", UNQUANTIZED)
        own = FUSED["sdpa"]._own(operands, told, dtype, y)
        formats = tuple(parse(each.fmt) for each in (*operands, y) if each.fmt)
        return sdpa.supports(formats, own)

    assert supports(q, k, v)
    mask = torch.zeros(8, 8)
    narrow = Value(v.data[..., :15])
    assert not supports(q, k, narrow)  # no whole vectors
    assert not supports(q, k, v, mask=mask, causal=True)  # torch raises
    assert not supports(q, k, v, mask=mask[:, :3])
    assert not supports(q, Value(k.data[:, :1]), Value(v.data[:, :1]))
    assert not supports(q, k, v, dtype=torch.bfloat16)
    assert not supports(q, k, Value(v.data.double()))
    assert not supports(*(Value(each.data[0, 0]) for each in (q, k, v)))
    assert not supports(q, k, v, y=Quantizer(None, None, None, "int8:tensor:fp32"))
    assert not supports(q, Value(k.data[:, :, :0]), Value(v.data[:, :, :0]))
    (found,) = FUSED["sdpa"](q, k, narrow)
    expected = F.scaled_dot_product_attention(q.data, k.data, narrow.data)
    assert same(found, expected.contiguous())
