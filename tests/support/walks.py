# SPDX-License-Identifier: BSD-3-Clause
"""How many files of ours one call goes through: what a reader opens to follow it.

A call is made once, so that everything is imported and every cache is full, and made again while
`sys.setprofile` sees each function of `blockscale/` that is entered. Comprehensions and lambdas are
functions, too; C++ and torch are not counted. The numbers are those of the code: neither the
machine's speed nor its load changes them. Tensors for one backend alone need its kernels here.

    python -m tests.support.walks [NAME ...] [--files]

prints the table of docs/design.md, "Walks"; with --files, also which files they are.
"""

import argparse
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import blockscale as bs
from blockscale.export.conversion import convert_checkpoint

ROOT = Path(bs.__file__).resolve().parent
Call = Callable[[], Any]


class Walk(NamedTuple):
    """What one call entered: files and folders below `blockscale/`, functions by their place."""

    files: tuple[str, ...]
    functions: int

    @property
    def folders(self) -> int:
        """Of the files."""
        return len({str(Path(file).parent) for file in self.files})


def walk(call: Call) -> Walk:
    """What a call enters when it is made for the second time."""
    call()
    entered: set[tuple[str, int, str]] = set()

    def see(frame: FrameType, event: str, argument: Any) -> None:
        del argument
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(f"{ROOT}/"):
            entered.add((code.co_filename, code.co_firstlineno, code.co_name))

    before = sys.getprofile()
    threading.setprofile(see)
    sys.setprofile(see)
    try:
        call()
    finally:
        sys.setprofile(before)
        threading.setprofile(None)  # type: ignore[arg-type] # typeshed wants a function
    files = {str(Path(file).relative_to(ROOT)) for file, _, _ in entered}
    return Walk(tuple(sorted(files)), len(entered))


def layers() -> nn.Module:
    """Three layers of two kinds, and what stands between them."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(16, 32), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32))


def linears() -> nn.Module:
    """Two layers that take rows."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32)).eval()


def rows() -> list[Tensor]:
    """Calibration data for `linears`."""
    torch.manual_seed(1)
    return [torch.randn(8, 32) for _ in range(2)]


def one_tensor(backend: str) -> Call:
    """`bs.quantize` on one backend."""
    x = torch.randn(4, 64)

    def call() -> None:
        with bs.use(backend):
            bs.quantize(x, "mxfp4")

    return call


def of_a_directory(folder: Path) -> Call:
    """`blockscale quantize` of a directory with one file."""
    (folder / "float").mkdir()
    (folder / "float" / "config.json").write_text("{}")
    save_file(dict(layers().state_dict()), folder / "float" / "model.safetensors")
    return lambda: bs.quantize_directory(folder / "float", folder / "out", "mxfp4", force=True)


def of_a_conversion(folder: Path) -> Call:
    """`blockscale convert` of our own file to compressed-tensors."""
    model = linears()
    bs.quantize_(model, "int4:group32:fp32")
    bs.save(model, folder / "ours.safetensors")
    source, target = folder / "ours.safetensors", folder / "theirs"
    return lambda: convert_checkpoint(source, target, "compressed-tensors", force=True)


def of_graphs() -> dict[str, Call]:
    """Each step of the graph flow, of what the step before gave."""
    program = torch.export.export(linears(), (rows()[0],))
    recipe = bs.Recipe("int8_channel", "uint8:tensor:fp32:asym")

    def watched() -> Any:
        return bs.graph.prepare(program, recipe, observer="min_max")

    def calibrated() -> Any:
        prepared = watched()
        bs.calibrate(prepared, rows(), progress=False)
        return prepared

    prepared = calibrated()
    converted = bs.graph.convert(prepared)
    fused = bs.graph.fuse(converted)
    return {
        "bs.graph.prepare": watched,
        "bs.graph.convert": lambda: bs.graph.convert(prepared),
        'bs.graph.lower("cpu")': lambda: bs.graph.lower(fused, "cpu"),
    }


@contextmanager
def flows() -> Iterator[dict[str, Callable[[], Call]]]:
    """{what is called: makes the call}; files that they write are gone afterwards."""

    def calibrate() -> None:
        recipe = "int4:group32:fp32"
        bs.calibrate(linears(), rows(), recipe, weight="gptq", progress=False)

    def to_onnx(folder: Path) -> Call:
        model = linears()
        bs.quantize_(model, bs.Recipe("int8_channel", "int8_token"))
        return lambda: bs.export.onnx(model, folder / "model.onnx", rows()[0], overwrite=True)

    def search() -> None:
        bs.search(linears(), rows(), budget=6.0, progress=False)

    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        found: dict[str, Callable[[], Call]] = {
            f"`bs.quantize`, {backend}": lambda backend=backend: one_tensor(backend)  # type: ignore[misc]
            for backend in ("reference", "cpu", "webgpu")
        }
        found["`bs.quantize_`, three layers"] = lambda: lambda: bs.quantize_(layers(), "mxfp4")
        found['`bs.calibrate(weight="gptq")`, two layers'] = lambda: calibrate
        for step in ("bs.graph.prepare", "bs.graph.convert", 'bs.graph.lower("cpu")'):
            found[f"`{step}`"] = lambda step=step: of_graphs()[step]  # type: ignore[misc]
        found["`blockscale quantize DIRECTORY`"] = lambda: of_a_directory(folder)
        found["`blockscale convert`"] = lambda: of_a_conversion(folder)
        found["`bs.export.onnx`"] = lambda: to_onnx(folder)
        found["`bs.search`"] = lambda: search
        yield found


def walks(*names: str) -> Iterator[tuple[str, Walk | str]]:
    """(what is called, what it enters, or why it is not run here) of the flows with these names.

    names: parts of what is called; without any, all
    """
    with flows() as found, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, make in found.items():
            if names and not any(each in name for each in names):
                continue
            try:
                yield name, walk(make())
            except (RuntimeError, ModuleNotFoundError) as error:  # a backend or a package lacks
                yield name, f"not here: {str(error).splitlines()[0]}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of what is called")
    parser.add_argument("--files", action="store_true", help="print the files, too")
    asked = parser.parse_args()
    print("| one call, warm | files | folders | functions |\n|---|--:|--:|--:|")
    for name, found in walks(*asked.names):
        if isinstance(found, str):
            print(f"| {name} | {found} | | |", flush=True)
            continue
        print(f"| {name} | {len(found.files)} | {found.folders} | {found.functions} |", flush=True)
        if asked.files:
            print("\n".join(f"    {file}" for file in found.files))


if __name__ == "__main__":
    main()
