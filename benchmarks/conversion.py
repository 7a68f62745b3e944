# SPDX-License-Identifier: BSD-3-Clause
"""Reading and converting other producers' checkpoints, beside a plain copy of the same bytes.

    python -m benchmarks.conversion [--layers 8] [--rounds 3] [--folder DIR] [--only awq]
        [--name NAME]

Writes a llama's matrices (2048, inner 8192) of random codes as each producer's files; then, round
by round, copies the source, reads it tensor by tensor, and converts it, all counted: choosing,
reading, carrying, writing, waiting for the disk, reading back, comparing. MB/s are of the source's
bytes, of the fastest round; sources are in the page cache. Peak memory is what a conversion adds to
the process. The result is recorded under results/.
"""

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

import blockscale as bs
from benchmarks.record import record
from blockscale.core.parse import parse
from blockscale.export.conversion.directory import Directory
from blockscale.export.writers import PlannedTensor, writer_of
from blockscale.export.writers.gguf_files.file import GGUFFile
from blockscale.ops.tensor import QTensor, from_parts

HIDDEN, INNER, KEYS = 2048, 8192, 512
SHAPES = {
    "self_attn.q_proj": (HIDDEN, HIDDEN),
    "self_attn.k_proj": (KEYS, HIDDEN),
    "self_attn.v_proj": (KEYS, HIDDEN),
    "self_attn.o_proj": (HIDDEN, HIDDEN),
    "mlp.gate_proj": (INNER, HIDDEN),
    "mlp.up_proj": (INNER, HIDDEN),
    "mlp.down_proj": (HIDDEN, INNER),
}
_GROUPS = "uint4:group128:fp16:asym"
_Q4_K = "uint4:group32:(uint6:group8:fp16):offset(uint6:group8:fp16)"
# {source: (producer, format, whether all zero points are 8, what it becomes)}
SOURCES: dict[str, tuple[str, str, bool, tuple[str, ...]]] = {
    "AWQ": ("awq", _GROUPS, False, ("gguf", "mlx", "gptq", "blockscale")),
    "AWQ, symmetric": ("awq", _GROUPS, True, ("gguf",)),
    "GPTQ": ("gptq", _GROUPS, False, ("gguf", "mlx", "awq", "blockscale")),
    "GPTQ, symmetric": ("gptq", _GROUPS, True, ("gguf",)),
    "bitsandbytes nf4": ("bnb", "nf4:group64:fp32", False, ("gguf", "blockscale")),
    "MLX": ("mlx", "uint4:group64:bf16:offset", False, ("blockscale",)),
    "GGUF Q4_0": ("gguf", "int4:group32:fp16:full", False, ("mlx", "awq", "gptq", "blockscale")),
    "GGUF Q4_1": ("gguf", "uint4:group32:fp16:offset", False, ("mlx",)),
    "GGUF Q4_K": ("gguf", _Q4_K, False, ("mlx", "blockscale")),
    "GGUF Q8_0": ("gguf", "int8:group32:fp16:full", False, ("mlx", "gptq")),
    "blockscale": ("blockscale", _GROUPS, False,
                   ("gguf", "mlx", "awq", "gptq", "compressed-tensors")),
}  # fmt: skip
_REQUANTIZED = {("bitsandbytes nf4", "gguf"): "int8:group32:fp16:full"}  # GGUF has no nf4


def tensor(fmt_text: str, shape: tuple[int, int], symmetric: bool, seed: int) -> QTensor:
    """Random codes under scales around 0.01; offsets -8 steps, or random zero points."""
    random = torch.Generator().manual_seed(seed)
    fmt = parse(fmt_text)
    held: dict[str, torch.Tensor] = {}
    for part, (dtype, size) in fmt.stored(shape).items():
        if part == "zero_point":
            points = torch.randint(4, 13, size, generator=random)
            held[part] = (torch.full_like(points, 8) if symmetric else points).to(dtype)
        elif dtype == torch.uint8:
            held[part] = torch.randint(0, 64, size, generator=random, dtype=dtype)
        elif part == "offset":
            held[part] = held["scale"] * -8
        else:
            held[part] = (0.005 + 0.01 * torch.rand(size, generator=random)).to(dtype)
    size = (shape[0], shape[1] * fmt.bits // 8)
    codes = torch.randint(0, 256, size, generator=random, dtype=torch.uint8)
    held["codes"] = codes.view(torch.int8) if fmt.bits == 8 else codes
    return from_parts(fmt, shape[1], held)


def write(path: Path, producer: str, fmt: str, symmetric: bool, layers: int) -> None:
    """A checkpoint of this producer, its matrices alone."""
    named = {f"model.layers.{i}.{n}.weight": s for i in range(layers) for n, s in SHAPES.items()}
    planned = [PlannedTensor(name, shape, parse(fmt)) for name, shape in named.items()]
    if producer == "gguf":
        output: Any = GGUFFile(path, planned, {}, 32, {})
    else:
        path.mkdir()
        output = Directory(path, writer_of(producer), planned, {})
    for seed, (name, shape) in enumerate(named.items()):
        output.write(name, tensor(fmt, shape, symmetric, seed))
    output.close()


def files_of(path: Path) -> list[Path]:
    """A file, or those of a directory."""
    return [path] if path.is_file() else sorted(path.iterdir())


def copy(source: Path, target: Path) -> None:
    """The same bytes in another place, on the disk."""
    target.mkdir()
    for file in files_of(source):
        shutil.copyfile(file, target / file.name)
        number = os.open(target / file.name, os.O_RDONLY)
        os.fsync(number)
        os.close(number)


def read_bytes(source: Path) -> None:
    """What lies in the page cache, a few MB at a time."""
    room = bytearray(1 << 22)
    for path in files_of(source):
        with path.open("rb", buffering=0) as file:
            while file.readinto(room):
                pass


def read(source: Path) -> None:
    """Every tensor as a QTensor, one at a time."""
    with bs.checkpoint(source) as opened:
        for name in opened:
            opened[name]


def peak(call: Callable[[], None]) -> tuple[float, float]:
    """Seconds of a call, and MB that it added to what the process held before."""
    Path("/proc/self/clear_refs").write_text("5")
    before, start = _resident("VmRSS"), time.perf_counter()
    call()
    return time.perf_counter() - start, (_resident("VmHWM") - before) / 1e3


def _resident(what: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(what))


def calls(name: str, source: Path) -> Iterator[tuple[str, Callable[[Path], Any]]]:
    """{what: it, given a place that is free}"""
    yield "copy", lambda place: copy(source, place)
    yield "bytes", lambda _: read_bytes(source)
    yield "read", lambda _: read(source)
    for to in SOURCES[name][3]:
        recipe = _REQUANTIZED.get((name, to))
        yield (
            to,
            lambda place, to=to, recipe=recipe: bs.export.convert_checkpoint(
                source, place, to, names="keep", requantize=recipe
            ),
        )


def measure(name: str, folder: Path, layers: int, rounds: int) -> dict[str, Any]:
    """{what: MB/s of the fastest round} of one source, and memory."""
    producer, fmt, symmetric, _ = SOURCES[name]
    source = folder / ("source.gguf" if producer == "gguf" else "source")
    write(source, producer, fmt, symmetric, layers)
    size = sum(file.stat().st_size for file in files_of(source)) / 1e6
    found: dict[str, list[tuple[float, float]]] = {}
    for _ in range(rounds):
        for what, call in calls(name, source):
            place = folder / ("made.gguf" if what == "gguf" else "made")
            found.setdefault(what, []).append(peak(lambda: call(place)))  # noqa: B023 - at once
            _remove(place)
    _remove(source)
    fastest = {what: size / min(each)[0] for what, each in found.items()}
    memory = {what: max(m for _, m in each) for what, each in found.items()}
    return {"megabytes": size, "rates": fastest, "peak_megabytes": memory}


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def main() -> None:
    """Every source, or those whose name holds --only."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", default=None)
    parser.add_argument("--only", default="")
    parser.add_argument("--name", default="")
    options = parser.parse_args()
    figures: dict[str, Any] = {}
    for name in SOURCES:
        if options.only.lower() not in name.lower():
            continue
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            found = figures[name] = measure(name, Path(folder), options.layers, options.rounds)
        rates, memory = found["rates"], found["peak_megabytes"]
        print(f"{name}, {found['megabytes']:.0f} MB")
        for what, rate in rates.items():
            share = rate / rates["bytes" if what == "read" else "copy"]
            print(f"  {what:20} {rate:6.0f} MB/s  x{share:.2f}  {memory[what]:6.0f} MB", flush=True)
    if options.name:
        print(f"written: {record(options.name, figures)}")


if __name__ == "__main__":
    main()
