# SPDX-License-Identifier: BSD-3-Clause
"""Caches in codes, and attention over them in float64, head by head."""

import math

import torch
from torch import Tensor

import blockscale as bs
from blockscale.core.operand import Operand


def exact(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    seen: Tensor | None,
    added: Tensor | None,
    scale: float,
    sinks: Tensor | None = None,
) -> Tensor:
    """In float64, head by head, with what each new token sees, and the score of no value."""
    y = torch.zeros(*query.shape[:-1], value.shape[-1], dtype=torch.float64)
    batch, heads, new, _ = query.shape
    shared, count = key.shape[1:3]
    for b in range(batch):
        for h in range(heads):
            k, v = (x[b, h // (heads // shared)].double() for x in (key, value))
            for i in range(new):
                scores = k @ query[b, h, i].double() * scale
                if added is not None:
                    scores += added.expand(batch, heads, new, count)[b, h, i].double()
                if seen is not None:
                    scores[~seen.expand(batch, heads, new, count)[b, h, i]] = -math.inf
                elif added is None:
                    scores[count - new + i + 1 :] = -math.inf
                if sinks is not None:
                    scores = torch.cat([scores, sinks[h].double()[None]])
                y[b, h, i] = scores.softmax(0).nan_to_num()[:count] @ v
    return y


def cached(
    fmt: str, tokens: int, recent: int, *, heads: int = 2, depth: int = 64, width: int = 64,
    batch: int = 2, values: str | None = None,
) -> tuple[Operand, Operand, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Keys and values in codes, recent ones, and all of both in floats."""
    draw = torch.Generator().manual_seed(tokens + recent)
    shapes = ((batch, heads, tokens + recent, size) for size in (depth, width))
    both = [torch.randn(shape, generator=draw) for shape in shapes]
    codes = [
        bs.quantize(x[:, :, :tokens].contiguous(), f)
        for x, f in zip(both, (fmt, values or fmt), strict=True)
    ]
    new = [x[:, :, tokens:].contiguous() for x in both]
    whole = [torch.cat([q.dequantize(), x], 2) for q, x in zip(codes, new, strict=True)]
    return codes[0].operand, codes[1].operand, new[0], new[1], whole[0], whole[1]


def across(
    fmt: str, chunk: int, chunks: int, recent: int, *, heads: int = 2, depth: int = 64,
    values: str = "int8_token", batch: int = 2,
) -> tuple[Operand, Operand, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The same with keys per channel, [batch, heads, chunks, depth, tokens of a chunk]."""
    tokens = chunk * chunks
    _, v, recent_keys, recent_values, key, value = cached(
        values, tokens, recent, heads=heads, depth=depth, width=depth, batch=batch
    )
    draw = torch.Generator().manual_seed(tokens)
    codes = bs.quantize(torch.randn((batch, heads, chunks, depth, chunk), generator=draw), fmt)
    key[:, :, :tokens] = codes.dequantize().mT.flatten(2, 3)
    return codes.operand, v, recent_keys, recent_values, key, value


def close(y: Tensor, expected: Tensor) -> None:
    """Sums of values whose powers are at most 1: far below a code's error."""
    assert (y.double() - expected).abs().max() < 2e-5 * max(1.0, expected.abs().max().item())
