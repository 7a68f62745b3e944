# SPDX-License-Identifier: BSD-3-Clause
"""A pair of layers of a 70B model's shape: on one GPU, and cut over all GPUs of this host.

    python -m benchmarks.parallel OUT.json

Ratios of the time of `bs.parallel.shard_`'s parts (fc1 column-wise, fc2 row-wise, one sum over
NCCL) to that of the whole pair on one GPU, both as CUDA graphs; and the pair of bfloat16 layers.
"""

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

import blockscale as bs
from benchmarks.record import record

WIDTH, INNER = 8192, 28672
ROWS = (16, 256)
RECIPES = ("mxfp4", "nvfp4", "int4:group32:fp16", "int8_channel")


class Pair(nn.Module):
    """Two layers of a feed-forward network."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(WIDTH, INNER, bias=False)
        self.fc2 = nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [rows, WIDTH] -> [rows, WIDTH]."""
        y: torch.Tensor = self.fc2(nn.functional.silu(self.fc1(x)))
        return y


def microseconds(model: nn.Module, x: torch.Tensor, times: int = 50) -> float:
    """A call as a CUDA graph: the median of `times`."""
    stream = torch.cuda.Stream()
    with torch.no_grad(), torch.cuda.stream(stream):
        for _ in range(5):
            model(x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            model(x)
        ends = [
            (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))
            for _ in range(times)
        ]
        for begin, end in ends:
            begin.record(stream)
            graph.replay()
            end.record(stream)
        torch.cuda.synchronize()
    return sorted(1000 * begin.elapsed_time(end) for begin, end in ends)[times // 2]


def work(rank: int, size: int, store: str, out: str) -> None:
    """What each process does; the first one writes."""
    torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl", init_method=f"file://{store}", rank=rank, world_size=size,
        device_id=torch.device("cuda", rank),
    )  # fmt: skip
    mesh = dist.device_mesh.init_device_mesh("cuda", (size,))
    torch.manual_seed(0)
    with torch.device("cuda"):
        plain = Pair().to(torch.bfloat16)
        inputs = {rows: torch.randn(rows, WIDTH, dtype=torch.bfloat16) for rows in ROWS}
    state = plain.state_dict()
    lines: list[dict[str, Any]] = [
        {"recipe": "bfloat16", "rows": n, "whole_us": microseconds(plain, x)}
        for n, x in inputs.items()
    ]
    for recipe in RECIPES:
        with torch.device("cuda"):
            model = Pair().to(torch.bfloat16)
        model.load_state_dict(state)
        bs.quantize_(model, recipe)
        whole = {n: microseconds(model, x) for n, x in inputs.items()}
        y = {n: model(x) for n, x in inputs.items()}
        bs.parallel.shard_(model, mesh, {"fc1": "colwise", "fc2": "rowwise"})
        for n, x in inputs.items():
            dist.barrier()
            error = float((model(x).float() - y[n].float()).norm() / y[n].float().norm())
            cut = microseconds(model, x)
            lines.append(
                {"recipe": recipe, "rows": n, "whole_us": whole[n], "cut_us": cut,
                 "ratio": cut / whole[n], "processes": size, "relative_error": error}
            )  # fmt: skip
    if rank == 0:
        record("parallel", lines, Path(out))
    dist.barrier()
    os._exit(0)  # graphs that hold a communicator keep it from being destroyed


def main() -> None:
    """One process for each GPU of this host."""
    size = torch.cuda.device_count()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(work, (size, f"{folder}/store", sys.argv[1]), nprocs=size)


if __name__ == "__main__":
    main()
