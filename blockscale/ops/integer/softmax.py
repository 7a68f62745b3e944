# SPDX-License-Identifier: BSD-3-Clause
"""Softmax and attention of codes: powers of two by a table and a shift, one division a row.

I-ViT's Shiftmax (Li and Gu 2023, arXiv:2207.01405, sec. 3.3) brings exp to 2^x and shifts by the
whole part; it approximates x * log2(e) by three shifts and 2^fraction by a line. Here log2(e) and
the scale are one integer factor, and 2^-fraction comes from a table of 256 entries, which makes the
error of a power 2^-9 in place of 2^-4.
"""

from typing import Any

import torch
from torch import Tensor

from blockscale.ops.integer.define import integer_op
from blockscale.ops.integer.shifts import centered, ended, ended_like

FRACTION = 8  # bits of an exponent behind the point: the table has 2^8 entries
POWER = 15  # bits of the largest power
_INVERSE = 31  # bits of what the sum divides
_FAR = 2**30  # exponents from here on have the power 0


def powers(x: Tensor, factor: int, right: int, table: Tensor, seen: Tensor | None) -> Tensor:
    """Scores x [..., n] int32 or int64 -> 2^POWER * exp(scale * (x - largest)) [..., n] int64.

    factor * 2^-right: scale * log2(e) in units of 2^-FRACTION; table: [256] int32
    seen: bool, broadcasts with x; what is not seen has the power 0
    """
    wide = x.to(torch.int64)
    if seen is not None:
        wide = torch.where(seen, wide, torch.full((), -(2**40), dtype=torch.int64))
    below = (wide.amax(-1, keepdim=True) - wide).clamp(max=_FAR)
    exponent = (below * factor) >> right
    whole = (exponent >> FRACTION).clamp(max=31)
    power = table.to(torch.int64)[exponent & (2**FRACTION - 1)] >> whole
    return power if seen is None else torch.where(seen, power, torch.zeros_like(power))


def shares(power: Tensor, bits: int) -> Tensor:
    """Powers [..., n] -> their shares of the sum in units of 2^-bits [..., n] int64."""
    total = power.sum(-1, keepdim=True).clamp(min=1)
    inverse = torch.div(1 << _INVERSE, total, rounding_mode="floor")
    right = _INVERSE - bits
    return (power * inverse + (1 << (right - 1))) >> right


def _softmax_shape(x: Tensor, *others: Any) -> Tensor:
    return ended_like(x, torch.zeros(1, dtype=torch.int32), others[-1], torch.int64)


@integer_op(shape=_softmax_shape)
def softmax(
    x: Tensor, factor: int, right: int, table: Tensor, bits: int, zero: int, low: int, high: int,
    fmt: str,
) -> Tensor:  # fmt: skip
    """Codes or sums x [..., n] -> codes [..., n] under the step 2^-bits.

    Others as `powers`. A zero point of x changes nothing.
    """
    result = shares(powers(x, factor, right, table, None), bits)
    shift = torch.zeros(1, dtype=torch.int32)
    return ended(result, shift, zero, low, high, fmt)


def _attention_shape(query: Tensor, key: Tensor, value: Tensor, *others: Any) -> Tensor:
    batch = query.shape[:-2]
    if key.ndim <= 2 or key.shape[-3] == query.shape[-3]:
        batch = torch.broadcast_shapes(batch, key.shape[:-2])  # type: ignore[no-untyped-call]
    sums = query.new_empty((*batch, query.shape[-2], value.shape[-1]), dtype=torch.int32)
    return ended_like(sums, others[-5], others[-1])


@integer_op(shape=_attention_shape)
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    seen: Tensor | None,
    causal: bool,
    zeros: list[int],
    factor: int,
    right: int,
    table: Tensor,
    shift: Tensor,
    zero: int,
    low: int,
    high: int,
    fmt: str,
) -> Tensor:
    """Codes query [..., m, k], key [..., n, k], value [..., n, v] -> codes [..., m, v].

    All of 8 bits, and n < 2^15, so that int32 holds every sum. Scores are sums of products; their
    softmax is in units of 2^-8, 0 ... 255; its product with the values is ended. Fewer heads of key
    and value are repeated.
    seen: bool, broadcasts with [..., m, n]; causal: row i sees keys up to i
    zeros: of query, key and value
    """
    q, k, v = (centered(x, z) for x, z in zip((query, key, value), zeros, strict=True))
    if k.ndim > 2 and k.shape[-3] != q.shape[-3]:
        k, v = (x.repeat_interleave(q.shape[-3] // k.shape[-3], -3) for x in (k, v))
    scores = q @ k.transpose(-2, -1)
    if causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
    result = shares(powers(scores, factor, right, table, seen), 8).clamp(0, 255)
    return ended(result.to(torch.int32) @ v, shift, zero, low, high, fmt)
