# SPDX-License-Identifier: BSD-3-Clause
"""The experts of a mixture in one product (ops.grouped_linear) on a GPU.

    python -m benchmarks.grouped OUT.json [--formats A,B] [--tokens 1,16] [--models A,B]
        [--seconds S]

Each case is a stack of a model's experts, tokens sent to `top` of them at random. Times are of CUDA
graphs with 16 routings, over stacks that exceed the L2 cache, and beside them, of the same run:

grouped_mm  torch._grouped_mm with the experts in bfloat16, the same routings
dense       one product of ours (`ops.linear`) of as much: as many rows as an expert has on the
            average, with a matrix of as many outputs as all experts have that tokens went to
copy        a device copy of the bytes of those experts
"""

import argparse
import time
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

import blockscale as bs
from benchmarks.gpu_linear import copied, timed
from benchmarks.record import record
from blockscale.core.joined_weights import of_stack
from blockscale.core.operand import Operand, operand
from blockscale.core.parse import parse
from blockscale.core.reference import QParams
from blockscale.kernels.cuda import available
from blockscale.ops.grouped_linear import grouped_linear, waits
from blockscale.ops.linear import linear

ROUTINGS = 16
HEADING = f"{'':18} {'format':20} tokens  us      of grouped_mm  dense/it  copy/it  TFLOP/s"
FORMATS = "mxfp4,nvfp4,int4:group32:fp32,fp8"
TOKENS = "1,16,64,256,1024,4096"


class Experts(NamedTuple):
    """experts [n, k] in stacks, `top` for each token; parts: as of_stack takes them."""

    experts: int
    n: int
    k: int
    top: int
    parts: int


MODELS = {
    "mixtral gate_up": Experts(8, 28672, 4096, 2, 2),
    "mixtral down": Experts(8, 4096, 14336, 2, 1),
    "olmoe gate_up": Experts(64, 2048, 2048, 8, 2),
    "qwen3-moe gate_up": Experts(128, 1536, 2048, 8, 2),
    "qwen3-moe down": Experts(128, 2048, 768, 8, 1),
}


def routing(e: Experts, tokens: int, seed: int) -> Tensor:
    """Where the rows of each expert end, int32 [count]."""
    g = torch.Generator().manual_seed(seed)
    chosen = torch.rand(tokens, e.experts, generator=g).topk(e.top).indices.flatten()
    return chosen.bincount(minlength=e.experts).cumsum(0).to(torch.int32).cuda()


def stack(e: Experts, fmt: str) -> Operand:
    """Random experts, quantized one after another."""
    spelling = of_stack(parse(fmt), (e.experts, e.n, e.k), e.parts)
    each = []
    for i in range(e.experts):
        g = torch.Generator("cuda").manual_seed(i)
        each.append(
            bs.quantize(torch.randn(1, e.n, e.k, device="cuda", generator=g), spelling).operand
        )
    joined = [
        None if part is None else torch.cat([q.qparams[i] for q in each])
        for i, part in enumerate(each[0].qparams)
    ]
    return operand(torch.cat([q.codes for q in each]), QParams(*joined), parse(spelling), e.k)


def expert_bytes(whole: Operand) -> float:
    """Of the codes and scales of one expert."""
    parts = (whole.codes, whole.scale, whole.zero_point, whole.outer)
    return sum(part.nbytes for part in parts if part is not None) / whole.codes.shape[0]


def dense_call(e: Experts, fmt: str, rows: int, touched: int, copies: int) -> list[Any]:
    """`ops.linear` of as much work, each with weights of its own."""
    each = max(1, round(rows / touched))
    x = torch.randn(each, e.k, device="cuda").bfloat16()
    weights = [
        bs.quantize(torch.randn(e.n * touched, e.k, device="cuda").bfloat16(), fmt).operand
        for _ in range(copies)
    ]
    return [partial(linear, x, w) for w in weights]


def case(e: Experts, fmt: str, whole: Operand, tokens: int, floats: Tensor, copy: float) -> dict:
    """One line of the record."""
    x = torch.randn(tokens * e.top, e.k, device="cuda").bfloat16()
    ends = [routing(e, tokens, seed) for seed in range(ROUTINGS)]
    touched = round(
        sum(int((end.diff(prepend=end.new_zeros(1)) > 0).sum()) for end in ends) / ROUTINGS
    )
    assert not waits(x, whole), f"{fmt}: no kernel takes this stack"
    few = ends if tokens <= 64 else ends[:2]
    ours = timed([partial(grouped_linear, x, whole, end) for end in few])
    by_torch = timed([partial(torch._grouped_mm, x, floats.mT, offs=end) for end in few])
    size = expert_bytes(whole) * touched
    copies = max(1, min(8, int(150e6 // size))) if tokens <= 64 else 1
    dense = timed(dense_call(e, fmt, x.shape[0], touched, copies))
    return {
        "experts": e.experts, "n": e.n, "k": e.k, "top": e.top, "format": fmt, "tokens": tokens,
        "touched": touched, "us": ours * 1e6, "of grouped_mm": ours / by_torch,
        "dense of it": dense / ours, "copy of it": size / copy / ours,
        "tflops": 2 * x.shape[0] * e.n * e.k / ours / 1e12,
    }  # fmt: skip


def told(line: dict) -> str:
    """A line of the record as it is printed, under HEADING."""
    start = f"{line['model']:18} {line['format']:20} {line['tokens']:5} {line['us']:9.1f}"
    ratios = f"{line['of grouped_mm']:10.2f} {line['dense of it']:10.2f} {line['copy of it']:9.2f}"
    return f"{start} {ratios} {line['tflops']:8.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--formats", default=FORMATS)
    parser.add_argument("--tokens", default=TOKENS)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--seconds", type=float, default=480)
    args = parser.parse_args()
    assert available() is None, available()
    deadline, lines = time.monotonic() + args.seconds, []
    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    copy = source.nbytes / copied(source, torch.empty_like(source)) * 2
    del source
    print(
        f"{torch.cuda.get_device_name(0)}: copy {copy / 1e9:.0f} GB/s, read and written", flush=True
    )
    print(HEADING)
    for name in args.models.split(","):
        e = MODELS[name]
        floats = torch.randn(e.experts, e.n, e.k, device="cuda", dtype=torch.bfloat16)
        for fmt in args.formats.split(","):
            whole = stack(e, fmt)
            for tokens in map(int, args.tokens.split(",")):
                if time.monotonic() > deadline:
                    print("out of time", flush=True)
                    break
                try:
                    line = {"model": name} | case(e, fmt, whole, tokens, floats, copy)
                except (triton.runtime.errors.OutOfResources, AssertionError) as error:
                    print(f"{name:18} {fmt:20} {tokens:5}  {error}", flush=True)
                    continue
                lines.append(line)
                print(told(line), flush=True)
            del whole
        del floats
        torch.cuda.empty_cache()
    record("grouped", lines, args.out)


if __name__ == "__main__":
    with bs.use("cuda"):
        main()
