# SPDX-License-Identifier: BSD-3-Clause
"""How fast `blockscale quantize` is, in bfloat16 bytes of source for a second of one processor.

    python -m benchmarks.directory FOLDER [RECIPE …] [--gb 1.2] [--before TREE]

Prints JSON: each recipe by a process of its own, and in the same run what limits it: reading the
model from the page cache, SHA-256, and the kernel on whole tensors. FOLDER gets the model, which
is deleted at the end. `--before` runs the recipes with another checkout of blockscale, too, and
compares the bytes of all files.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

import blockscale as bs
from blockscale.bench.machine import commit, hardware, versions
from blockscale.core.recipe import Recipe
from blockscale.files.header import lay_out, tensor_of
from blockscale.files.stream import Reader, StreamWriter, bytes_of

RECIPES = (
    "int8", "int8_channel", "int4", "uint4", "fp8", "mxfp8", "mxfp6", "mxfp4", "mxint8", "nf4",
    "binary", "nvfp4",
)  # fmt: skip
SHARDS, ROWS, COLUMNS = 4, 4096, 4096

# Of a process of its own: what it took, and the digests of what it wrote.
RUN = """
import hashlib, json, pathlib, resource, shutil, sys, time
from blockscale.files.directory.quantize_directory import quantize_directory

source, out, recipe = sys.argv[1:]
before, began = resource.getrusage(resource.RUSAGE_SELF), time.monotonic()
quantize_directory(source, out, recipe)
after, ended = resource.getrusage(resource.RUSAGE_SELF), time.monotonic()
[line] = [n for n in pathlib.Path("/proc/self/status").read_text().splitlines() if "VmHWM" in n]
files = sorted(path for path in pathlib.Path(out).iterdir() if path.suffix == ".safetensors")
print(json.dumps({
    "processor": after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime,
    "wall": ended - began, "peak": int(line.split()[1]) * 1024,
    "digests": [hashlib.sha256(path.read_bytes()).hexdigest() for path in files],
}))
shutil.rmtree(out)
"""


def write_model(folder: Path, nbytes: float) -> int:
    """Shards of bfloat16 normal numbers, about `nbytes`; returns how many they are."""
    folder.mkdir(parents=True)
    each = max(round(nbytes / SHARDS / (ROWS * COLUMNS * 2)), 1)
    noise = (torch.randn(ROWS, COLUMNS) * 0.02).bfloat16()
    for shard in range(SHARDS):
        names = [f"layers.{shard * each + i}.mlp.down.weight" for i in range(each)]
        kinds = {name: tensor_of(torch.bfloat16, (ROWS, COLUMNS)) for name in names}
        path = folder / f"model-{shard + 1:05}-of-{SHARDS:05}.safetensors"
        with StreamWriter(path, *lay_out(kinds, {"format": "pt"})) as writer:
            for name in names:
                writer.chunk(name, 0, bytes_of(noise.roll(shard * each + len(name), 0)))
    return SHARDS * each * ROWS * COLUMNS * 2


def run(tree: Path, model: Path, out: Path, recipe: str, nbytes: int) -> dict[str, Any]:
    """One recipe by the blockscale of a checkout."""
    environment = os.environ | {"PYTHONPATH": str(tree)}
    command = [sys.executable, "-W", "ignore", "-c", RUN, str(model), str(out), recipe]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env=environment, cwd=tree
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found | {
        "mb_a_second_of_processor": nbytes / 1e6 / found["processor"],
        "mb_a_second": nbytes / 1e6 / found["wall"],
    }


def rate(work: Callable[[], int]) -> float:
    """MB a second of processor time; `work` says how many bytes it went through."""
    began = time.process_time()
    return work() / 1e6 / (time.process_time() - began)


def ceilings(model: Path, recipes: list[str]) -> dict[str, Any]:
    """What no run can be faster than, on one thread, in MB of what each reads."""
    files = sorted(model.glob("*.safetensors"))

    def read() -> int:
        total = 0
        for path in files:
            with Reader(path) as reader:
                for name in reader.tensors:
                    for start in range(0, ROWS, 256):
                        total += reader.rows(name, start, start + 256).nbytes
        return total

    def digest() -> int:
        data = bytes(1 << 28)
        sha256(data)
        return len(data)

    with Reader(files[0]) as reader:
        x = reader.tensor(next(iter(reader.tensors)))

    def kernel(recipe: str) -> int:
        fmt = Recipe.read(recipe).weight
        assert fmt is not None
        for _ in range(4):
            bs.quantize(x, fmt)
        return 4 * x.nbytes

    torch.set_num_threads(1)
    kernel(recipes[0])  # the first call of all loads the kernels
    kernels = {recipe: rate(lambda recipe=recipe: kernel(recipe)) for recipe in recipes}  # type: ignore[misc]
    return {"read from the page cache": rate(read), "sha256": rate(digest), "kernels": kernels}


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("recipes", nargs="*")
    parser.add_argument("--gb", type=float, default=1.2)
    parser.add_argument("--before", type=Path, help="another checkout")
    given = parser.parse_args()
    recipes = given.recipes or list(RECIPES)
    model, out = given.folder / "model", given.folder / "out"
    nbytes = write_model(model, given.gb * 1e9)
    try:
        found: dict[str, Any] = {"ceilings": ceilings(model, recipes)}
        trees = {"now": Path(__file__).parents[1]}
        if given.before:
            trees["before"] = given.before
        for recipe in recipes:
            runs = {name: run(tree, model, out, recipe, nbytes) for name, tree in trees.items()}
            digests = [each.pop("digests") for each in runs.values()]
            found[recipe] = runs | {"equal": all(each == digests[0] for each in digests)}
    finally:
        shutil.rmtree(model)
        shutil.rmtree(out, ignore_errors=True)
    about = {"bytes": nbytes, "commit": commit(), "hardware": hardware(), "versions": versions()}
    print(json.dumps(about | found, indent=1))


if __name__ == "__main__":
    main()
