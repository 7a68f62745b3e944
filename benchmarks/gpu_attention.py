# SPDX-License-Identifier: BSD-3-Clause
"""One new token's attention over a cache in codes (ops.attention) on a GPU.

    python -m benchmarks.gpu_attention [--tokens 2048 8192 32768] [--batch 1 8] [--formats A,B]
        [--settings] [--save NAME]

"FORMAT keys per channel": keys in chunks of blocks of tokens, as QuantizedCache has them. A Llama's
layer in bfloat16: 8 heads of keys and values of 128 features, 32 of queries, 16 recent
tokens. Times are of CUDA graphs over caches that together exceed the L2 cache, and beside them:

sdpa    torch's scaled_dot_product_attention over keys and values in bfloat16, the faster of heads
        shared by torch and heads of keys expanded to those of queries (a view)
copy    a device copy of the bytes of codes and scales

--settings: also what each choice of a program's warps, tokens and steps takes, to choose by.
Written to benchmarks/results/NAME.json (gpu_attention) with hardware, versions and commit.
"""

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import blockscale as bs
from benchmarks.gpu_linear import copied, timed
from benchmarks.record import record
from blockscale.core.operand import Operand
from blockscale.kernels.cuda import available
from blockscale.kernels.operand import tokens_of
from blockscale.ops.attention import cached_attention

SHARED, HEADS, FEATURES, RECENT = 8, 32, 128, 16
CHUNK = 32  # tokens of keys per channel, at least: integrations/transformers/cache.py
FORMATS = ",".join([
    *("int8_token", "e4m3:token:fp32", "int4:group32:fp16", "mxfp4", "nvfp4_token", "mxfp8"),
    *("int4:group32:fp16:asym", "int4:group32:fp16 keys per channel"),
    *("int4:group32:fp16:asym keys per channel", "uint2:group32:fp16:asym keys per channel"),
])  # fmt: skip
_PER_CHANNEL = " keys per channel"
_L2 = 120e6  # bytes, twice an H200's
_SETTINGS = [  # tokens of a warp's step, warps, stages; programs
    (t, p, w, s)
    for t, w, s in ((32, 4, 3), (32, 2, 3), (32, 1, 3), (16, 4, 3), (32, 4, 4), (32, 8, 3))
    for p in (132, 264, 528)
]


def both(batch: int, tokens: int, seed: int) -> list[Tensor]:
    """Random keys and values."""
    g = torch.Generator("cuda").manual_seed(seed)
    shape = (batch, SHARED, tokens, FEATURES)
    return [torch.randn(shape, device="cuda", generator=g).bfloat16() for _ in "kv"]


def in_codes(batch: int, tokens: int, seed: int, fmt: str) -> list[Operand]:
    """Random keys and values in a format's codes, keys per channel where it says so."""
    keys, values = both(batch, tokens, seed)
    spelling = fmt.removesuffix(_PER_CHANNEL)
    if spelling != fmt:
        block = bs.parse(spelling).block.sizes_for(4)[-1]
        keys = keys.unflatten(2, (-1, -(-CHUNK // block) * block)).mT.contiguous()
    return [bs.quantize(x, spelling).operand for x in (keys, values)]


def bytes_of(operands: tuple[Operand, ...]) -> int:
    """Of codes and scales."""
    parts = [(o.codes, o.scale, o.zero_point, o.outer) for o in operands]
    return sum(part.nbytes for each in parts for part in each if part is not None)


def sdpa(batch: int, tokens: int, query: Tensor) -> float:
    """Seconds of torch's attention."""
    copies = max(1, round(_L2 / (batch * SHARED * tokens * FEATURES * 4)))
    caches = [both(batch, tokens + RECENT, i) for i in range(copies)]
    shared = [partial(F.scaled_dot_product_attention, query, *c, enable_gqa=True) for c in caches]
    shape = (batch, HEADS, tokens + RECENT, FEATURES)
    groups = HEADS // SHARED
    wide = [
        [x[:, :, None].expand(-1, -1, groups, -1, -1).reshape(shape) for x in c] for c in caches
    ]
    apart = [partial(F.scaled_dot_product_attention, query, *c) for c in wide]
    grouped = [x.reshape(batch * SHARED, 1, tokens + RECENT, FEATURES) for x in caches[0]]
    few = query.reshape(batch * SHARED, 1, groups, FEATURES)
    stacked = [partial(F.scaled_dot_product_attention, few, *grouped)]
    return min(timed(calls) for calls in (shared, apart, stacked))


def case(fmt: str, batch: int, tokens: int, query: Tensor, by_torch: float, copy: float,
         settings: bool) -> dict[str, Any]:  # fmt: skip
    """One line of the record."""
    recent = both(batch, RECENT, 99)
    first = in_codes(batch, tokens, 0, fmt)
    size = bytes_of(tuple(first))
    copies = max(1, round(_L2 / size))
    caches = [in_codes(batch, tokens, i, fmt) for i in range(copies)]
    scale = FEATURES**-0.5
    calls: list[Callable[[], Tensor]] = [
        partial(cached_attention, query, *c, *recent, None, scale) for c in caches
    ]
    line: dict[str, Any] = {"format": fmt, "batch": batch, "tokens": tokens, "MB": size / 1e6}

    def figures(seconds: float) -> dict[str, float]:
        return {
            "us": round(seconds * 1e6, 1), "of sdpa": round(seconds / by_torch, 3),
            "copy of it": round(size / copy / seconds, 3),
        }  # fmt: skip

    line |= figures(timed(calls))
    if settings:
        line["settings"] = choices(query, caches, recent, scale, figures)
    return line


def choices(query: Tensor, caches: list[list[Operand]], recent: list[Tensor], scale: float,
            figures: Callable[[float], dict[str, float]]) -> list[Any]:  # fmt: skip
    """The best of what programs may be, best first."""
    from triton.runtime.errors import OutOfResources

    from blockscale.kernels.cuda.cached_attention import PartSettings, attention

    found = []
    batch, shared, tokens, _ = tokens_of(caches[0][0])
    for t, programs, warps, stages in _SETTINGS:
        each = -(-tokens * batch * shared // programs)
        s = PartSettings(t, max(1, -(-each // (t * warps))), warps, stages)
        calls = [
            partial(attention, query, *c, (recent[0], recent[1]), None, scale, s) for c in caches
        ]
        try:
            found.append((figures(timed(calls)), tuple(s), programs))
        except OutOfResources:
            continue
    return sorted(found, key=lambda each: each[0]["us"])[:4]


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, nargs="+", default=[2048, 8192, 32768])
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--formats", default=FORMATS)
    parser.add_argument("--settings", action="store_true")
    parser.add_argument("--save", default="gpu_attention")
    args = parser.parse_args()
    assert available() is None
    big = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    copy = big.numel() / copied(big, torch.empty_like(big))
    figures = []
    for batch in args.batch:
        query = torch.randn(batch, HEADS, 1, FEATURES, device="cuda").bfloat16()
        for tokens in args.tokens:
            by_torch = sdpa(batch, tokens, query)
            print(f"batch {batch}, {tokens} tokens: sdpa {by_torch * 1e6:.1f} us", flush=True)
            for fmt in args.formats.split(","):
                figures.append(case(fmt, batch, tokens, query, by_torch, copy, args.settings))
                print(figures[-1], flush=True)
    print(record(args.save, figures))


if __name__ == "__main__":
    main()
