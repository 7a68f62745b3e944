# SPDX-License-Identifier: BSD-3-Clause
"""How `torchrun -m blockscale quantize` scales over the processes of one host.

    python -m benchmarks.directory_processes FOLDER [RECIPE …] [--processes 1 8] [--seconds 20]

64 shards of holes, so that no disk is read (with a FOLDER in /dev/shm none is written), are
quantized by each number of processes with one thread each; the model is as large as one process
needs `seconds` for. Prints JSON: MB of bfloat16 source a second, from where all processes are ready
to the finished directory, the ratio to one process, processor seconds of rank 0, and whether the
files are equal. FOLDER gets model and results, which are deleted.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

import blockscale as bs
from benchmarks.directory import rate
from blockscale.bench.machine import commit, hardware, versions
from blockscale.core.recipe import Recipe
from blockscale.files.directory.ranks import ranks_of_launcher
from blockscale.files.directory.shared_run import quantize_over_ranks
from blockscale.files.header import lay_out, tensor_of

RECIPES = ("nvfp4", "mxfp4")
SHARDS, ROWS, COLUMNS = 64, 4096, 4096
MOST = 16e9  # bytes of source
SHARE = 0.25  # of a kernel's rate that a process of its own has, about


def write_model(folder: Path, each: int) -> int:
    """Shards of `each` tensors, which are holes; returns their bytes."""
    folder.mkdir(parents=True)
    for shard in range(SHARDS):
        names = [f"layers.{shard * each + i}.mlp.down.weight" for i in range(each)]
        kinds = {name: tensor_of(torch.bfloat16, (ROWS, COLUMNS)) for name in names}
        header, placed = lay_out(kinds, {"format": "pt"})
        with (folder / f"model-{shard + 1:05}-of-{SHARDS:05}.safetensors").open("wb") as file:
            file.write(header)
            file.truncate(len(header) + sum(part.nbytes for part in placed.values()))
    return SHARDS * each * ROWS * COLUMNS * 2


def kernel_rate(recipe: str, times: int = 3) -> float:
    """Bytes of bfloat16 zeros that one thread quantizes in a second; loads the kernels."""
    fmt = Recipe.read(recipe).weight
    assert fmt is not None
    x = torch.zeros(1024, COLUMNS, dtype=torch.bfloat16)

    def work() -> int:
        for _ in range(times):
            bs.quantize(x, fmt)
        return times * x.nbytes

    work()
    return rate(work) * 1e6


def help_out(model: Path, out: Path, recipe: str) -> None:
    """One of the processes; rank 0 prints how long it took."""
    kernel_rate(recipe, 1)
    ranks = ranks_of_launcher()
    ready = ranks.store.add("ready", 1)
    while ready < ranks.world:
        time.sleep(0.02)
        ready = ranks.store.add("ready", 0)
    began, spent = time.monotonic(), time.process_time()
    quantize_over_ranks(model, out, recipe, ranks)
    if ranks.rank == 0:
        told = {"seconds": time.monotonic() - began, "of a processor": time.process_time() - spent}
        print(json.dumps(told))


def run(model: Path, out: Path, recipe: str, count: int) -> dict[str, Any]:
    """So many processes, by torchrun."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    worker = ["-m", "benchmarks.directory_processes", "--help-out", out, model, recipe]
    command = [*launcher, f"--nproc-per-node={count}", *worker]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [str(each) for each in command], stdout=subprocess.PIPE, text=True, check=True,
        env=environment, cwd=Path(__file__).parents[1],
    )  # fmt: skip
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    digest = hashlib.sha256()
    for path in sorted(out.iterdir()):
        digest.update(path.read_bytes())
    shutil.rmtree(out)
    return found | {"digest": digest.hexdigest()}


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("recipes", nargs="*")
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--help-out", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.help_out:
        help_out(given.folder, given.help_out, given.recipes[0])
        return
    about = {"commit": commit(), "hardware": hardware(), "versions": versions()}
    print(json.dumps(about | {"processors": os.cpu_count()}))
    for recipe in given.recipes or RECIPES:
        model, out = given.folder / "model", given.folder / "out"
        wanted = min(SHARE * kernel_rate(recipe) * given.seconds, MOST)
        nbytes = write_model(model, max(round(wanted / SHARDS / (ROWS * COLUMNS * 2)), 1))
        try:
            runs = {count: run(model, out, recipe, count) for count in given.processes}
        finally:
            shutil.rmtree(model)
            shutil.rmtree(out, ignore_errors=True)
        equal = len({each.pop("digest") for each in runs.values()}) == 1
        first = next(iter(runs.values()))["seconds"]
        for each in runs.values():
            each |= {"mb_a_second": nbytes / 1e6 / each["seconds"], "x": first / each["seconds"]}
        print(json.dumps({"recipe": recipe, "bytes": nbytes, "equal": equal, "runs": runs}))


if __name__ == "__main__":
    main()
