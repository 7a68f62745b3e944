# SPDX-License-Identifier: BSD-3-Clause
"""Float ONNX models that others made, with quantized weights and inputs: the graph is rewritten.

What is written for a weight or an input is what bs.export.onnx writes for a layer's: every format,
by DequantizeLinear where ONNX has it, and by standard operators where it has not.
"""

import importlib.util
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from blockscale.core.ledger import Ledger, SkippedError
from blockscale.core.recipe import Recipe
from blockscale.core.untrusted import shown
from blockscale.export.to_onnx import write
from blockscale.export.to_onnx.float_model import STANDARD, FloatModel
from blockscale.export.to_onnx.rewriting import Feed, InputRanges, Rewriting, input_of
from blockscale.export.to_onnx.scope import LOWEST
from blockscale.files.metadata import FileError
from blockscale.files.whole import check_new, check_place

Feeds = str | Path | Iterable[Feed]


def quantize_onnx(  # noqa: PLR0913 - the first three are the call, the rest are options
    model: str | Path,
    out: str | Path,
    recipe: Any,
    *,
    calibrate: Feeds | None = None,
    observer: str = "mse",
    strict: bool = False,
    overwrite: bool = False,
    dry_run: bool = False,
) -> Ledger:
    """Quantize a float ONNX file; returns the ledger of its stored tensors.

    model: the file, of any opset that onnx can upgrade to 21; tensors may lie beside it
    out: the file to write; above 2 GB its tensors lie in `<out>.data`
    recipe: a preset, a format, a Recipe, as in bs.quantize_; layers are called as their tensors
        without `.weight`, or by the path in their node's name where tensors have no names
    calibrate: for inputs of static scales: an .npz file, an array for each of the model's inputs
        (one call, or calls one after another in a dimension more); or calls, {input: array} each.
        Without it such scales are chosen as the model runs.
    observer: how static scales are chosen, as in bs.calibrate
    strict: raise SkippedError where a layer that the recipe covers cannot be quantized
    overwrite, dry_run: replace a file that is there; write nothing

    Weights of MatMul, Gemm, Conv, ConvTranspose and of Gather's tables become codes; biases, norms,
    recurrent layers and what graphs inside of nodes read stay in float, and the ledger says so.
    The file appears whole or not at all. Raises before anything is written: ModuleNotFoundError
    with the extra to install, FileExistsError, FileError for what is no ONNX file, and ValueError
    for a recipe that no file can hold, a model in which nothing can be quantized, and calls that do
    not fit.
    """
    place = check_place(out, "quantized.onnx")
    if not dry_run:
        check_new(place, overwrite)
    choice, notes = _check_recipe(Recipe.read(recipe)).uncalibrated()
    proto = _read(Path(model))
    result = FloatModel.of(proto)
    rewriting = Rewriting(result, choice, _observe(result, choice, calibrate, observer))
    ledger = replace(rewriting.run(str(model)), notes=notes)
    if strict and (ledger.skipped or notes):
        first = notes[0] if notes else f"{ledger.skipped[0].name}: {ledger.skipped[0].reason}"
        raise SkippedError(f"strict: {first}; nothing was written")
    if not dry_run:
        if write.is_large(proto):
            check_new(write.beside(place), overwrite)
        write.save(proto, place)
    return ledger


def _check_recipe(recipe: Recipe) -> Recipe:
    """The recipe. Raises ValueError for parts that are not put into other people's graphs."""
    missing = [each for each in ("onnx", "onnxruntime") if importlib.util.find_spec(each) is None]
    if missing:
        raise ModuleNotFoundError(f"{missing[0]} is not installed: pip install 'blockscale[onnx]'")
    recipe.refuse_profiles("codes in an ONNX file are chosen by our formats: name the format")
    for scheme in (recipe.default, *recipe.layer_rules.values()):
        for part in ("output", "bias"):
            if getattr(scheme, part) is not None:
                raise ValueError(
                    f"the recipe has a format for {part}s, and a float ONNX file gets formats for "
                    f"weights and inputs only: leave {part}= out (the next layer's input is its "
                    "place)"
                )
    if recipe.op_rules:
        raise ValueError(
            f"the recipe has a rule for the op {next(iter(recipe.op_rules))!r}, and of a float "
            "ONNX file only layers are quantized: leave the rule out"
        )
    return recipe


def _read(path: Path) -> Any:
    """The model of a file (ModelProto), of opset 21 or later, all its tensors in it."""
    import onnx
    from onnx import version_converter

    if not path.is_file():
        raise FileError(f"{path} is no file: name the .onnx file")
    try:
        proto = onnx.load(str(path))
        if not proto.graph.node or not proto.opset_import:
            raise ValueError("it has no nodes or no opset")
    except Exception as error:  # protobuf's DecodeError and onnx's own have no common base
        info = str(error).strip().splitlines() or [type(error).__name__]
        raise FileError(f"{path} is no ONNX file that onnx can read: {shown(info[0])}") from None
    opset = next((o.version for o in proto.opset_import if o.domain in STANDARD), 0)
    if opset >= LOWEST:
        return proto
    try:
        return version_converter.convert_version(proto, LOWEST)
    except Exception as error:
        info = str(error).strip().splitlines() or [type(error).__name__]
        raise ValueError(
            f"{path} is of opset {opset}, and onnx {onnx.__version__} cannot upgrade it to "
            f"{LOWEST}, the first with blocks: {shown(info[0])}; export it again with a later one"
        ) from error


def _observe(
    model: FloatModel, recipe: Recipe, calibrate: Feeds | None, observer: str
) -> InputRanges | None:
    """The ranges of inputs in the calls; None without calls. Raises ValueError where no input is to
    be observed."""
    if calibrate is None:
        return None
    ranges = InputRanges(model.proto)
    for site in model.sites():
        fmt = input_of(recipe, site)
        if fmt is not None and fmt.block.static:
            ranges.observe(site.data, fmt, observer)
    if not ranges.names:
        raise ValueError(
            "the recipe gives no layer of the model an input of a static scale, so there is "
            "nothing to calibrate: leave the calls out, or name a format for inputs, such as "
            "'uint8:tensor:fp32:asym'"
        )
    if isinstance(calibrate, str | Path):
        calibrate = feeds_of(calibrate, inputs_of(model.proto.graph))
    ranges.run(calibrate)
    return ranges


def feeds_of(path: str | Path, inputs: Mapping[str, int | None]) -> list[Feed]:
    """The calls that an .npz file holds: an array for each of these inputs.

    inputs: {name: its rank, None where the model does not say}
    An array of its input's rank is one call; one of a rank more holds calls, one after another.

    Raises FileError for what is no such file, ValueError for arrays that do not fit the inputs.
    """
    path = Path(path)
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except FileNotFoundError:
        raise FileError(f"{path} does not exist") from None
    except (OSError, ValueError, AttributeError) as error:
        raise FileError(
            f"{path} is no .npz file of arrays ({error}): write one by np.savez(path, "
            f"{', '.join(f'{name}=…' for name in inputs)})"
        ) from None
    if arrays.keys() != inputs.keys():
        raise ValueError(
            f"{path} holds {', '.join(sorted(arrays)) or 'nothing'}, and the model's inputs are "
            f"{', '.join(inputs)}: an array for each, under its name"
        )
    calls = {name: _calls(path, name, array, inputs[name]) for name, array in arrays.items()}
    counts = {name: len(each) for name, each in calls.items()}
    if len(set(counts.values())) > 1 or 0 in counts.values():
        text = ", ".join(f"{name} {count}" for name, count in counts.items())
        raise ValueError(f"{path}: calls of each input: {text}; expected the same number, not 0")
    return [dict(zip(calls, each, strict=True)) for each in zip(*calls.values(), strict=True)]


def _calls(path: Path, name: str, array: Any, rank: int | None) -> list[Any]:
    if array.ndim == rank:
        return [array]
    if rank is None or array.ndim == rank + 1:
        return list(array)
    raise ValueError(
        f"{path}: {name} has {array.ndim} dimensions, expected {rank} for one call or {rank + 1} "
        f"for several"
    )


def inputs_of(graph: Any) -> dict[str, int | None]:
    """{name: rank} of what a graph (GraphProto) is called with; None where it says none."""
    stored = {each.name for each in graph.initializer}
    free = [each for each in graph.input if each.name not in stored]
    return {
        each.name: len(each.type.tensor_type.shape.dim)
        if each.type.tensor_type.HasField("shape")
        else None
        for each in free
    }
