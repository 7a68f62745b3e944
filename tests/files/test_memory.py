# SPDX-License-Identifier: BSD-3-Clause
"""Peak memory of a run on a model of several GB is bounded by its largest tensor.

`python -m tests.files.test_memory FOLDER RECIPE…` prints the figures of docs/files.md.
"""

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from blockscale.files.header import StoredTensor, lay_out, tensor_of
from blockscale.files.stream import StreamWriter

ROOT = Path(__file__).parents[2]
ROWS, COLUMNS = 131072, 4096  # of the largest tensor: 1.07 GB of bfloat16
ALLOWED = 500e6  # beside three times the largest tensor
NEEDED = 10e9  # bytes of disk

# VmHWM, not getrusage's ru_maxrss: that one remembers the process that this one was forked from.
RUN = """
import json, pathlib, sys, time
from blockscale.files.directory.quantize_directory import quantize_directory

began = time.monotonic()
quantize_directory(*sys.argv[1:])
[line] = [n for n in pathlib.Path("/proc/self/status").read_text().splitlines() if "VmHWM" in n]
print(json.dumps({"peak": int(line.split()[1]) * 1024, "seconds": time.monotonic() - began}))
"""


def big_model(folder: Path) -> dict[str, StoredTensor]:
    """Three shards of bfloat16, 3.5 GB in all."""
    folder.mkdir(parents=True)
    shapes = {
        "embed.weight": (ROWS, COLUMNS),
        **{f"layers.{i}.weight": (COLUMNS, 3 * COLUMNS) for i in range(12)},
        "head.weight": (ROWS, COLUMNS),
        "experts": (16, 2048, 2048),
    }
    tensors = {name: tensor_of(torch.bfloat16, shape) for name, shape in shapes.items()}
    names, where = list(tensors), {}
    noise = torch.randn(1 << 24).bfloat16()
    for index in range(3):
        file = f"model-{index + 1:05}-of-00003.safetensors"
        header, placed = lay_out(
            {name: tensors[name] for name in names[index::3]}, {"format": "pt"}
        )
        with StreamWriter(folder / file, header, placed) as writer:
            data = memoryview(noise.view(torch.uint8).numpy())
            for name, each in placed.items():
                where[name] = file
                for start in range(0, each.nbytes, len(data)):
                    writer.chunk(name, start, data[: each.nbytes - start])
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    return tensors


def measure(model: Path, out: Path, recipe: str) -> dict[str, float]:
    """{"peak": bytes, "seconds": time} of a process of its own."""
    command = [sys.executable, "-c", RUN, str(model), str(out), recipe]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    shutil.rmtree(out)
    return json.loads(done.stdout)


@pytest.mark.slow
def test_peak_memory(tmp_path):
    if shutil.disk_usage(tmp_path).free < NEEDED:
        pytest.skip(f"needs {NEEDED / 1e9:.0f} GB of disk")
    try:
        tensors = big_model(tmp_path / "model")
        largest = max(each.nbytes for each in tensors.values())
        assert sum(each.nbytes for each in tensors.values()) > 3e9
        for recipe in ("mxfp4", "int8", "nvfp4"):
            found = measure(tmp_path / "model", tmp_path / "out", recipe)
            assert found["peak"] < ALLOWED + 3 * largest, (recipe, found)
            assert found["peak"] < ALLOWED, (recipe, found)  # holds slabs, not tensors
    finally:
        shutil.rmtree(tmp_path / "model", ignore_errors=True)


def main(folder: Path, recipes: list[str]) -> None:
    began = time.monotonic()
    tensors = big_model(folder / "model")
    total = sum(each.nbytes for each in tensors.values())
    print(f"{total / 1e9:.2f} GB, made in {time.monotonic() - began:.0f} s")
    for recipe in recipes:
        found = measure(folder / "model", folder / "out", recipe)
        peak, speed = found["peak"] / 1e6, total / found["seconds"] / 1e6
        print(f"{recipe}: peak {peak:.0f} MB, {found['seconds']:.0f} s, {speed:.0f} MB/s")
    shutil.rmtree(folder / "model")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
