# SPDX-License-Identifier: BSD-3-Clause
"""C files of integer models, compiled and called; an encoder with the words that occur."""

import copy
import ctypes
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import blockscale.export as exporters
from blockscale.core.recipe import Recipe
from blockscale.demo.graph import calibrated, embedded, program_of
from blockscale.graph.conversion import convert
from blockscale.graph.fusion import fuse
from blockscale.graph.lowering import lower
from blockscale.graph.lowering.integers.recipe import integer_recipe
from blockscale.layers.apply import quantize_

NO_COMPILER = "no C compiler is installed: cc, gcc or clang is needed to run the file"
_STRICT = ("-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic")
_TYPES = {
    "int8_t": torch.int8, "uint8_t": torch.uint8, "int16_t": torch.int16, "int32_t": torch.int32,
    "int64_t": torch.int64,
}  # fmt: skip
_RUN = re.compile(r"^int model_run\((.*)\);$", re.M)
_DOOR = re.compile(r"(?:const )?(\w+) \*(in|out)_(\w+)")
_HEAD = 200  # lines in which the head, the macros and the declaration stand


def compiler() -> str | None:
    """The path of a C compiler, None without one."""
    return next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)


def compiled(path: Path) -> Callable[[Mapping[str, Tensor]], list[Tensor]]:
    """A C file that bs.export.c wrote under the name "model" -> what calls it, compiled to a
    library beside it: named inputs -> its outputs, float32 by the exponents that it states,
    or integers where it states none.

    Raises RuntimeError without a compiler, or where the compiler refuses the file; what calls it a
    ValueError for an input of another size.
    """
    command_of_compiler = compiler()
    if command_of_compiler is None:
        raise RuntimeError(NO_COMPILER)
    library = path.with_suffix(".so")
    command = [
        command_of_compiler,
        *_STRICT,
        "-O2",
        "-shared",
        "-fPIC",
        str(path),
        "-o",
        str(library),
    ]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    if process.returncode:
        raise RuntimeError(f"{command_of_compiler} refuses {path}: {process.stderr[-500:]}")
    with path.open(encoding="ascii") as file:
        head = "".join(line for line, _ in zip(file, range(_HEAD), strict=False))
    declared = _RUN.search(head)
    if declared is None:
        raise RuntimeError(f"{path} does not declare model_run: it was not written by bs.export.c")
    doors = [each.groups() for each in _DOOR.finditer(declared[1])]
    function = ctypes.CDLL(str(library)).model_run
    return lambda given: _call(function, doors, head, given)


def _call(
    function: Any, doors: list[tuple[str, ...]], head: str, inputs: Mapping[str, Tensor]
) -> list[Tensor]:
    values = []
    for ctype, way, name in doors:
        if way == "in":
            x = inputs[name].to(_TYPES[ctype]).contiguous()
            if x.numel() != (size := _macro(head, f"IN_{name.upper()}_SIZE")):
                raise ValueError(f"{name} has {x.numel()} elements, the C file is for {size}")
            values.append(x)
        else:
            values.append(torch.empty(_shape(head, f"out_{name}"), dtype=_TYPES[ctype]))
    if function(*(ctypes.c_void_p(each.data_ptr()) for each in values)):
        raise RuntimeError("model_run returned an error: an index lies outside of its table")
    outputs = [(n, y) for (_, way, n), y in zip(doors, values, strict=True) if way == "out"]
    return [_decoded(head, name, y) for name, y in outputs]


def _decoded(head: str, name: str, y: Tensor) -> Tensor:
    if f"MODEL_OUT_{name}_EXPONENT" not in head:
        return y
    zero, exponent = (_macro(head, f"OUT_{name}_{each}") for each in ("ZERO", "EXPONENT"))
    return (y.to(torch.float64) - zero).ldexp(torch.tensor(exponent)).to(torch.float32)


def _shape(head: str, name: str) -> list[int]:
    match = re.search(rf"^ \* output \w+ {name}\[\d+\]: (\d+(?: x \d+)*|one)", head, re.M)
    if match is None:
        raise RuntimeError(f"the C file does not state the shape of {name}")
    return [int(n) for n in match[1].split(" x ") if n != "one"]


def _macro(head: str, name: str) -> int:
    match = re.search(rf"^#define MODEL_{name} \(?(-?\d+)\)?$", head, re.M)
    if match is None:
        raise RuntimeError(f"the C file does not state MODEL_{name}")
    return int(match[1])


def with_occurring_words(
    model: Any, tokens: Mapping[str, Tensor]
) -> tuple[nn.Module, dict[str, Tensor]]:
    """A copy of a BERT encoder of transformers whose word embeddings are the rows that occur, and
    the tokens in its numbering. It computes what the model does.

    tokens: input_ids int64 [sentences, length] and what goes with them
    """
    words, ids = tokens["input_ids"].unique(return_inverse=True)
    part = copy.deepcopy(model)
    table = part.embeddings.word_embeddings
    part.embeddings.word_embeddings = nn.Embedding.from_pretrained(table.weight[words].detach())
    return part, dict(tokens) | {"input_ids": ids}


# What other programs' runtimes write to the terminal, kept until it is needed.


@contextmanager
def quiet() -> Iterator[None]:
    """Keep warnings, and what Python and native code write to standard error, from the terminal;
    where an error ends the block it is written after all."""
    with tempfile.TemporaryFile("w+") as output, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sys.stderr.flush()
        terminal = os.dup(2)
        os.dup2(output.fileno(), 2)
        try:
            with redirect_stderr(output):
                yield
        except BaseException:
            os.dup2(terminal, 2)
            output.seek(0)
            sys.stderr.write(output.read())
            raise
        finally:
            os.dup2(terminal, 2)
            os.close(terminal)


# MiniLM in the files of each export target, run by what those files are for.

_LONGEST = 64  # sentences, and tokens in one: ExecuTorch plans its memory before it runs
_OCCURRING = (  # 12 million numbers are a minute of a compiler
    "its word embeddings are the rows that the sentences use"
)
_INT8 = Recipe("int8_channel", "uint8:tensor:fp32:asym", skip=["pooler"])

Run = Callable[[Mapping[str, Tensor]], Any]


@dataclass(frozen=True)
class ExportFile:
    """One line: a target, what runs its files, the recipe, how many of the encoder's layers are in
    the file, seconds to write it, its bytes, the smallest cosine of the sentence embeddings to
    those of the same layers in float, and the seconds of embedding. Where a package is missing
    there is the reason, and nothing of what is measured. note: what else to know of the line."""

    target: str
    run_by: str
    recipe: str | None = None
    layers: int | None = None
    write_seconds: float | None = None
    file_bytes: int | None = None
    cosine: float | None = None
    embed_seconds: float | None = None
    missing: str | None = None
    note: str | None = None


def _program(path: Path) -> Run:
    module = torch.export.load(path).module()
    return lambda tokens: module(**tokens)


def _onnx(path: Path) -> Run:
    import onnxruntime  # type: ignore[import-untyped]

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def run(tokens: Mapping[str, Tensor]) -> list[Tensor]:
        outputs = session.run(None, {name: each.numpy() for name, each in tokens.items()})
        return [torch.from_numpy(each) for each in outputs]

    return run


def _executorch(path: Path) -> Run:
    from executorch.runtime import Runtime

    method = Runtime.get().load_program(path).load_method("forward")
    return lambda tokens: method.execute([each.contiguous() for each in tokens.values()])


def _compressed_tensors(path: Path) -> Run:
    from transformers import AutoModel

    model = AutoModel.from_pretrained(path, dtype=torch.float32).eval()
    return lambda tokens: model(**tokens)


class ExportCase(NamedTuple):
    """A target's recipe, what runs its files: name and package, the file's name, how it is run;
    and how many of the encoder's layers are written, if not all.

    recipe: None for bs.graph.integer_recipe's, and a graph of integers
    package: None for a C compiler
    """

    recipe: Recipe | None
    run_by: str
    package: str | None
    file: str
    read: Callable[[Path], Run]
    layers: int | None = None


CASES = {
    "program": ExportCase(_INT8, "torch.export", "torch", "model.pt2", _program),
    "onnx": ExportCase(_INT8, "onnxruntime", "onnxruntime", "model.onnx", _onnx),
    "executorch": ExportCase(
        Recipe("int8_channel", "int8_token", skip=["pooler"]),
        "ExecuTorch", "executorch", "model.pte", _executorch, layers=1,  # seconds a layer
    ),
    "compressed_tensors": ExportCase(
        Recipe("int4:group32:fp32", skip=["embeddings"]),
        "transformers", "compressed_tensors", "model", _compressed_tensors,
    ),
    "c": ExportCase(None, "a C compiler", None, "model.c", compiled, layers=1),  # a minute for all
}  # fmt: skip


def files(
    model: nn.Module,
    tokens: Mapping[str, Tensor],
    targets: Iterable[str] | None = None,
    converted: Mapping[Recipe, nn.Module] | None = None,
) -> Iterator[ExportFile]:
    """A file of a BERT encoder of transformers for each target, written, read and run.

    tokens: input_ids and what goes with them, [at most 64 sentences, at most 64 tokens]
    targets: names in CASES; None for all
    converted: graphs of the whole model that are there already, by their recipes, with free sizes
    """
    reasons = {target.name: target.unavailable for target in exporters.targets()}
    graphs = {f"{_spell(recipe)} None": graph for recipe, graph in (converted or {}).items()}
    for target in CASES if targets is None else targets:  # two targets have one graph
        case = CASES[target]
        reason = reasons[target] or _not_installed(case.package, target)
        note = _OCCURRING if case.recipe is None else None
        if reason is not None:
            yield ExportFile(target, case.run_by, missing=reason)
            continue
        part: Any = model
        if case.layers is not None:
            part = copy.deepcopy(model)
            part.encoder.layer = part.encoder.layer[: case.layers]
        inputs = tokens
        if case.recipe is None:
            part, inputs = with_occurring_words(part, tokens)
        name = f"{_spell(case.recipe)} {case.layers}"
        if name not in graphs:
            graphs[name] = _quantized(part, case.recipe, inputs)
        yield replace(_file(target, graphs[name], part, inputs), note=note)


def _not_installed(package: str | None, target: str) -> str | None:
    """Why a file that can be written cannot be run: its reader is missing."""
    if package is None:
        return None if compiler() else NO_COMPILER
    if find_spec(package) is not None:
        return None
    extra = target.replace("_", "-")
    return f"{package} is not installed: pip install 'blockscale[{extra}]'"


def _quantized(model: nn.Module, recipe: Recipe | None, tokens: Mapping[str, Tensor]) -> nn.Module:
    """A graph where inputs are quantized, of integers without a recipe; else the model's layers."""
    if recipe is None:
        program = program_of(model, tokens, _LONGEST, _LONGEST)
        graph = convert(calibrated(program, integer_recipe(program), tokens))
        return lower(fuse(graph), "integer")
    if recipe.input is not None:
        program = program_of(model, tokens, _LONGEST, _LONGEST)
        return convert(calibrated(program, recipe, tokens))
    quantized = copy.deepcopy(model)
    quantize_(quantized, recipe)
    return quantized


def _file(
    target: str, quantized: nn.Module, model: Any, tokens: Mapping[str, Tensor]
) -> ExportFile:
    """Write what was quantized of `model`; read the file and run it."""
    case = CASES[target]
    with tempfile.TemporaryDirectory() as folder, quiet(), torch.no_grad():
        path = Path(folder) / case.file
        began = time.perf_counter()
        sizes = {"example": dict(tokens)} if case.recipe is None else {}
        getattr(exporters, target)(quantized, path, **sizes)
        write_seconds = time.perf_counter() - began
        size = sum(f.stat().st_size for f in (path.iterdir() if path.is_dir() else [path]))
        run = case.read(path)
        run(tokens)  # warm up
        began = time.perf_counter()
        output = run(tokens)
        embed_seconds = time.perf_counter() - began
        same = embedded(output, tokens) * embedded(model(**tokens), tokens)
    return ExportFile(
        target, case.run_by, _spell(case.recipe), len(model.encoder.layer), write_seconds,
        size, float(same.sum(-1).min()), embed_seconds,
    )  # fmt: skip


def _spell(recipe: Recipe | None) -> str:
    if recipe is None:
        return "integer_recipe"
    weight = str(recipe.weight)
    return weight if recipe.input is None else f"{weight} x {recipe.input}"
