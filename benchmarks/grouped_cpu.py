# SPDX-License-Identifier: BSD-3-Clause
"""The experts of a mixture in one product on the CPU, beside a call for each of them.

    python -m benchmarks.grouped_cpu OUT.json [--threads 2] [--tokens 1,32,512]

Each line is a stack of Qwen3-MoE's sizes, tokens sent to 8 of its experts at random: the median of
`grouped_linear`, of `linear` called for each expert that has rows (its parts cut before), and of
torch's float32 product likewise. The last lines are the first and the second output of a model of
one layer with 128 experts.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import blockscale as bs
from benchmarks.record import record
from blockscale.core.stacks import groups, matrix
from blockscale.ops.grouped_linear import grouped_linear, product

EXPERTS, TOP, N, K = 64, 8, 1536, 2048
FORMATS = ("mxfp4", "nvfp4", "int4:group32:fp32", "fp8")


def median(call: Callable[[], Any], seconds: float = 1.0) -> float:
    """Seconds of a call, of as many as fit."""
    call()
    times: list[float] = []
    while sum(times) < seconds or len(times) < 3:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def case(fmt: str, tokens: int) -> dict[str, Any]:
    """One line of the record."""
    draw = torch.Generator().manual_seed(tokens)
    floats = torch.randn(EXPERTS, N, K, generator=draw)
    whole = bs.quantize(floats, "e2m1:group16:(e4m3:block*x*:fp32)" if fmt == "nvfp4" else fmt)
    chosen = torch.rand(tokens, EXPERTS, generator=draw).topk(TOP).indices.flatten()
    ends = chosen.bincount(minlength=EXPERTS).cumsum(0)
    x, stack = torch.randn(tokens * TOP, K, generator=draw), whole.operand
    some = [(matrix(stack, e), floats[e], slice(a, b)) for e, a, b in groups(ends)]
    one = median(lambda: grouped_linear(x, stack, ends))
    loop = median(lambda: [product(x[rows], each) for each, _, rows in some if each is not None])
    by_torch = median(lambda: [x[rows] @ each.T for _, each, rows in some])
    return {
        "format": fmt, "tokens": tokens, "ms": 1e3 * one, "of the loop": one / loop,
        "of torch float32": one / by_torch,
    }  # fmt: skip


def first_outputs(fmt: str) -> dict[str, Any]:
    """Seconds of the first and of the second output of a model."""
    import transformers as hf

    config = hf.AutoConfig.for_model(
        "qwen3_moe", vocab_size=512, hidden_size=K, moe_intermediate_size=N // 2,
        num_hidden_layers=1, num_attention_heads=16, num_key_value_heads=4, head_dim=128,
        num_experts=128, num_experts_per_tok=TOP, decoder_sparse_step=1,
    )  # fmt: skip
    model: Any = hf.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    bs.quantize_(model, fmt)
    ids, times = torch.arange(32).reshape(1, -1), []
    with torch.inference_mode():
        for _ in range(2):
            start = time.perf_counter()
            model(ids, use_cache=False)
            times.append(time.perf_counter() - start)
    return {"format": fmt, "first output": times[0], "second output": times[1]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", default="1,32,512")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    lines = [case(fmt, int(n)) for fmt in FORMATS for n in given.tokens.split(",")]
    lines += [first_outputs(fmt) for fmt in ("mxfp4", "nvfp4")]
    for line in lines:
        print(line, flush=True)
    print(record("grouped_cpu", {"threads": given.threads, "lines": lines}, given.output))


if __name__ == "__main__":
    main()
