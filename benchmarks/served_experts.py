# SPDX-License-Identifier: BSD-3-Clause
"""A server's mixture on a GPU, by the ways in which its experts can be computed.

    python -m benchmarks.served_experts [--formats A,B] [--tokens 1,16] [--save NAME]

128 experts as Qwen3-MoE's, 8 for each token: gate and up 2 * 768 x 2048, down 2048 x 768, as a file
has them, a layer for each. Times are of whole layers (sorting, products, SwiGLU, sums), without the
router, and beside each other:

layers  a product for each expert that has tokens, which waits for how many there are
stack   the same codes as two stacks, a launch of all experts each
graph   the same in a CUDA graph, as vLLM runs it
float   transformers' grouped_mm with experts in bfloat16, in a CUDA graph
"""

import argparse
import time
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

import blockscale as bs
from benchmarks.gpu_linear import timed
from benchmarks.record import record
from blockscale.core.parse import parse
from blockscale.core.recipe import Scheme
from blockscale.integrations.vllm.experts import ExpertMatrices, Experts, Joined
from blockscale.layers.kinds import QLinear
from blockscale.layers.store import QWeight

COUNT, TOP, FEATURES, INSIDE = 128, 8, 2048, 768


def silu(y: Tensor) -> Tensor:
    """gate and up [rows, 2 n] -> [rows, n]."""
    gate, up = y.chunk(2, -1)
    return F.silu(gate) * up


def layers(fmt: str, rows: int, columns: int, each: int) -> list[Joined]:
    """For each expert `each` layers [rows, columns]."""
    form = parse(fmt)

    def one() -> QLinear:
        weight = torch.randn(rows, columns, device="cuda") * columns**-0.5
        return QLinear(QWeight.quantize(weight.bfloat16(), form), None, Scheme(form))

    return [Joined([one() for _ in range(each)]) for _ in range(COUNT)]


class FloatExperts:
    """The same in bfloat16, by torch._grouped_mm."""

    def __init__(self) -> None:
        kind = {"device": "cuda", "dtype": torch.bfloat16}
        self.up = torch.randn(COUNT, 2 * INSIDE, FEATURES, **kind) * FEATURES**-0.5
        self.down = torch.randn(COUNT, FEATURES, INSIDE, **kind) * INSIDE**-0.5

    def __call__(self, x: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
        flat = ids.reshape(-1)
        order = flat.argsort(stable=True)
        every = torch.arange(COUNT, device=x.device)
        ends = torch.searchsorted(flat[order], every, right=True).to(torch.int32)
        y = torch._grouped_mm(x[order // TOP], self.up.mT, offs=ends)
        y = torch._grouped_mm(silu(y), self.down.mT, offs=ends)
        y = y * weights.reshape(-1, 1)[order].to(y.dtype)
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order), device=order.device)
        return y[back].reshape(len(x), TOP, -1).sum(1)


def by_clock(call: Callable[[], Tensor]) -> float:
    """Seconds of one call as Python makes it, the median of 9."""
    times = []
    for _ in range(11):
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return sorted(times[2:])[4]


def case(apart: Experts, stacks: Experts, plain: FloatExperts, tokens: int) -> dict[str, float]:
    """Microseconds of each way for so many tokens, at random to experts."""
    x = torch.randn(tokens, FEATURES, device="cuda").bfloat16()
    weights = torch.rand(tokens, TOP, device="cuda")
    ids = torch.rand(tokens, COUNT, device="cuda").topk(TOP).indices
    one_by_one, at_once = (partial(each, x, weights, ids, silu) for each in (apart, stacks))
    seconds = {
        "layers": by_clock(one_by_one), "stack": by_clock(at_once), "graph": timed([at_once]),
        "float": timed([partial(plain, x, weights, ids)]),
    }  # fmt: skip
    return {name: round(each * 1e6, 1) for name, each in seconds.items()}


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--formats", default="mxfp4,nvfp4,int4:group32:fp32,fp8")
    parser.add_argument("--tokens", default="1,16,256,4096")
    parser.add_argument("--save", default="served_experts")
    args = parser.parse_args()
    plain, figures = FloatExperts(), []
    for fmt in args.formats.split(","):
        every = layers(fmt, INSIDE, FEATURES, 2), layers(fmt, FEATURES, INSIDE, 1)
        apart = Experts(*(ExpertMatrices(None, each) for each in every), COUNT)
        stacks = Experts(*(ExpertMatrices.of_layers(each) for each in every), COUNT)
        for tokens in map(int, args.tokens.split(",")):
            line = {"format": fmt, "tokens": tokens} | case(apart, stacks, plain, tokens)
            figures.append(line)
            print(line, flush=True)
    print(record(args.save, figures))


if __name__ == "__main__":
    with bs.use("cuda"), torch.no_grad():
        main()
