# SPDX-License-Identifier: BSD-3-Clause
"""The experts of a mixture in one product (ops.grouped_linear) on a GPU.

    python -m benchmarks.grouped OUT.json [--formats A,B] [--tokens 1,16] [--models A,B]
        [--seconds S] [--sweep] [--compile]

Each case is a stack of a model's experts, tokens sent to `top` of them at random. Times are of CUDA
graphs with 16 routings, over stacks that exceed the L2 cache, and beside them, of the same run:

grouped_mm  torch._grouped_mm with the experts in bfloat16, the same routings
dense       one product of ours (`ops.linear`) of as much: as many rows as an expert has on the
            average, with a matrix of as many outputs as all experts have that tokens went to
copy        a device copy of the bytes of those experts

--sweep prints what each tile takes, beside what is chosen; --compile makes the kernels and times
nothing, so that several processes do it side by side.
"""

import argparse
import time
from collections.abc import Callable
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
from blockscale.core.stacks import parts_of
from blockscale.kernels.cuda import available
from blockscale.kernels.cuda.grouped import FusedTiles, StackSettings, grouped, tile_table
from blockscale.kernels.cuda.linear import how_read
from blockscale.kernels.cuda.matmul.fused import FusedSettings, arrangement, takes
from blockscale.kernels.cuda.matmul.order import for_fused
from blockscale.kernels.cuda.matmul.reading import Reading
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
LOW, HIGH, TALL = FusedSettings(64, 64, 3), FusedSettings(128, 128), FusedSettings(256, 128)
TILES = (
    *((LOW,), (HIGH,), (TALL,), (HIGH, LOW), (TALL, HIGH, LOW), (TALL, LOW)),
    (FusedSettings(128, 64, 2), LOW),
)
FEW_TILES = tuple(StackSettings(*each) for each in (
    *((16, 64, 4, 3), (16, 64, 4, 6), (16, 32, 2, 4), (16, 32, 2, 6), (16, 16, 1, 6)),
    *((16, 128, 4, 3), (32, 64, 4, 3), (32, 128, 4, 4), (64, 128, 8, 3)),
))  # fmt: skip


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


def tiles_of(r: Reading, e: Experts, tokens: int) -> list[StackSettings | FusedTiles]:
    """What is worth a measurement for so many tokens."""
    each = tokens * e.top / min(e.experts, tokens * e.top)
    few = [s for s in FEW_TILES if s.rows <= max(4 * each, 16) and each <= 16]
    many = [tiles for tiles in TILES if tiles[0].rows <= max(2 * each, 64) and each >= 4]
    return [*few, *(tiles for tiles in many if all(takes(r, s) for s in tiles))]


def by_tile(whole: Operand, x: Tensor, settings: Any) -> Callable[[Tensor], Tensor]:
    """The product with one kind of tile, of the ends of the experts."""
    fmt = parts_of(whole).fmt
    r = how_read(x, fmt, x.dtype)
    return lambda ends: grouped(x, whole, ends, fmt, r, None, None, x.dtype, settings)


def sweep(e: Experts, whole: Operand, tokens: int, compiles: bool) -> str:
    """Microseconds of each tile, the least first, and of bringing x into order."""
    x = torch.randn(tokens * e.top, e.k, device="cuda").bfloat16()
    ends = [routing(e, tokens, seed) for seed in range(2 if tokens > 64 else ROUTINGS)]
    r = how_read(x, parts_of(whole).fmt, x.dtype)
    times: dict[str, float] = {}
    for settings in tiles_of(r, e, tokens):
        call = by_tile(whole, x, settings)
        if isinstance(settings, StackSettings):
            name = f"tile({','.join(map(str, settings))})"
        else:
            name = "+".join(f"{s.rows}x{s.outputs}" for s in settings)
        try:
            if compiles:
                call(ends[0])
            else:
                times[name] = timed([partial(call, end) for end in ends]) * 1e6
        except (triton.runtime.errors.OutOfResources, RuntimeError) as error:
            print(f"{name}: {type(error).__name__} {str(error)[:200]}", flush=True)
    if not compiles:
        times["order"] = timed([partial(for_fused, x, *arrangement(r))]) * 1e6
        times["table"] = timed([partial(tile_table, ends[0], x.shape[0], 128)]) * 1e6
    each = sorted(times.items(), key=lambda pair: pair[1])
    return "    " + " ".join(f"{name} {time:.1f}" for name, time in each)


def compile_all(e: Experts, fmt: str, whole: Operand, tokens: int, sweeps: bool) -> None:
    """Run once what `case` times and, where asked for, a sweep."""
    if sweeps:
        sweep(e, whole, tokens, True)
    x = torch.randn(tokens * e.top, e.k, device="cuda").bfloat16()
    grouped_linear(x, whole, routing(e, tokens, 0))
    dense_call(e, fmt, tokens * e.top, min(e.experts, tokens * e.top), 1)[0]()
    torch.cuda.synchronize()


def told(line: dict) -> str:
    """A line of the record as it is printed, under HEADING."""
    start = f"{line['model']:18} {line['format']:20} {line['tokens']:5} {line['us']:9.1f}"
    ratios = f"{line['of grouped_mm']:10.2f} {line['dense of it']:10.2f} {line['copy of it']:9.2f}"
    return f"{start} {ratios} {line['tflops']:8.0f}"


def arguments() -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--formats", default=FORMATS)
    parser.add_argument("--tokens", default=TOKENS)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--seconds", type=float, default=480)
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--compile", action="store_true")
    return parser.parse_args()


def measured(
    args: argparse.Namespace, name: str, fmt: str, floats: Tensor, copy: float, deadline: float
) -> list[dict]:
    """The lines of one stack, which are printed as they come."""
    e, lines = MODELS[name], []
    whole = stack(e, fmt)
    for tokens in map(int, args.tokens.split(",")):
        if time.monotonic() > deadline:
            print("out of time", flush=True)
            break
        if args.compile:
            compile_all(e, fmt, whole, tokens, args.sweep)
            continue
        try:
            line = {"model": name} | case(e, fmt, whole, tokens, floats, copy)
        except (triton.runtime.errors.OutOfResources, AssertionError) as error:
            print(f"{name:18} {fmt:20} {tokens:5}  {error}", flush=True)
            continue
        lines.append(line)
        print(told(line), flush=True)
        if args.sweep:
            print(sweep(e, whole, tokens, False), flush=True)
    return lines


def main() -> None:
    args = arguments()
    assert available() is None, available()
    deadline, lines = time.monotonic() + args.seconds, []
    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    copy = source.nbytes / copied(source, torch.empty_like(source)) * 2
    del source
    if not args.compile:
        print(f"{torch.cuda.get_device_name(0)}: copy {copy / 1e9:.0f} GB/s, read and written")
        print(HEADING, flush=True)
    for name in args.models.split(","):
        e = MODELS[name]
        kind = {"device": "cuda", "dtype": torch.bfloat16}
        floats = torch.randn(e.experts, e.n, e.k, **kind) if not args.compile else None
        for fmt in args.formats.split(","):
            lines += measured(args, name, fmt, floats, copy, deadline)
        del floats
        torch.cuda.empty_cache()
    if lines:
        record("grouped", lines, args.out)


if __name__ == "__main__":
    with bs.use("cuda"):
        main()
