# SPDX-License-Identifier: BSD-3-Clause
"""One new token's attention over a cache in codes, in times of torch's over a float32 cache.

    python -m benchmarks.attention [--tokens 2048 8192 32768] [--seconds 2] [--save NAME]

A Llama's layer: 8 heads of keys and values of 128 features, 32 of queries, a batch of one, one
thread. Beside it what a step cost before: everything decoded, then torch's attention. They take
turns within one process; figures are the least processor time of a call. Written to
benchmarks/results/NAME.json (attention) with hardware, versions and commit.
"""

import argparse
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

import blockscale as bs
from benchmarks.convolutions import least
from benchmarks.record import record
from blockscale.bench.machine import start_again
from blockscale.ops.attention import cached_attention

if TYPE_CHECKING:
    from collections.abc import Callable

FORMATS = ("int8_token", "int8:group32:fp32", "int4:group32:fp32", "mxfp4", "nvfp4_token", "mxfp8")
SHARED, HEADS, FEATURES, RECENT = 8, 32, 128, 16


def shape_figures(tokens: int, seconds: float) -> dict[str, Any]:
    """Milliseconds of torch's attention, and of each format what part of that it takes."""
    draw = torch.Generator().manual_seed(0)
    query = torch.randn(1, HEADS, 1, FEATURES, generator=draw)
    key, value = (torch.randn(1, SHARED, tokens + RECENT, FEATURES, generator=draw) for _ in "kv")
    past = [x[:, :, :tokens].contiguous() for x in (key, value)]
    recent = [x[:, :, tokens:].contiguous() for x in (key, value)]
    scale = FEATURES**-0.5
    calls: dict[str, Callable[[], object]] = {
        "float32": partial(F.scaled_dot_product_attention, query, key, value, enable_gqa=True)
    }

    def decoded(codes: list[bs.QTensor]) -> Tensor:
        k, v = (torch.cat([q.dequantize(), x], 2) for q, x in zip(codes, recent, strict=True))
        return F.scaled_dot_product_attention(query, k, v, enable_gqa=True)

    sizes = {"float32": 2 * key.nbytes}
    for fmt in FORMATS:
        codes = [bs.quantize(x, fmt) for x in past]
        operands = [q.operand for q in codes]
        calls[fmt] = partial(cached_attention, query, *operands, *recent, None, scale)
        calls[f"{fmt}, decoded first"] = partial(decoded, codes)
        sizes[fmt] = sum(q.nbytes for q in codes)
    times = least(calls, seconds * len(calls))
    base = times["float32"]
    return {
        "float32 ms": round(base, 3),
        "of float32": {name: round(times[name] / base, 3) for name in calls if name != "float32"},
        "GB/s of codes": {n: round(sizes[n] / times[n] / 1e6, 1) for n in sizes},
    }


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, nargs="+", default=[2048, 8192, 32768])
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--save", default="attention")
    args = parser.parse_args()
    start_again()
    torch.set_num_threads(1)
    figures = {}
    for tokens in args.tokens:
        figures[str(tokens)] = shape_figures(tokens, args.seconds)
        print(tokens, figures[str(tokens)], flush=True)
    print(record(args.save, figures))


if __name__ == "__main__":
    main()
