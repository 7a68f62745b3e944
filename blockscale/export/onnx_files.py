# SPDX-License-Identifier: BSD-3-Clause
"""Float ONNX models that others made, with quantized weights and inputs: the graph is rewritten.

What is written for a weight or an input is what bs.export.onnx writes for a layer's: every format,
by DequantizeLinear where ONNX has it, and by standard operators where it has not.
"""

import importlib.util
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from blockscale.calibration import algorithms
from blockscale.calibration.bias import KEEP, correctable
from blockscale.calibration.calibrate import asks_correction
from blockscale.calibration.learn import AUTO, DEFAULT, Data, Methods, read_methods
from blockscale.core.ledger import Ledger, SkippedError
from blockscale.core.recipe import Recipe
from blockscale.core.untrusted import shown
from blockscale.core.work import Progress
from blockscale.export.to_onnx import write
from blockscale.export.to_onnx.float_layers import FileCalibration, as_tensor
from blockscale.export.to_onnx.float_model import STANDARD, FloatModel, inputs_of
from blockscale.export.to_onnx.rewriting import Rewriting, input_of
from blockscale.export.to_onnx.scope import LOWEST
from blockscale.files.metadata import FileError
from blockscale.files.whole import check_new, check_place

Feed = Mapping[str, np.ndarray[Any, Any]]
Feeds = str | Path | Iterable[Feed]


def quantize_onnx(  # noqa: PLR0913 - the first three are the call, the rest are options
    model: str | Path,
    out: str | Path,
    recipe: Any,
    *,
    calibrate: Feeds | None = None,
    observer: Any = None,
    weight: Any = None,
    bias: str | None = None,
    sequential: bool = True,
    budget: float = 2e9,
    progress: bool | Progress = True,
    strict: bool = False,
    overwrite: bool = False,
    dry_run: bool = False,
) -> Ledger:
    """Quantize a float ONNX file; returns the ledger of its stored tensors.

    model: the file, of any opset that onnx can upgrade to 21; tensors may lie beside it
    out: the file to write; above 2 GB its tensors lie in `<out>.data`
    recipe: a preset, a format, a Recipe, as in bs.quantize_; layers are called as their tensors
        without `.weight`, or by the path in their node's name where tensors have no names
    calibrate: what data chooses from: an .npz file, an array for each of the model's inputs
        (one call, or calls one after another in a dimension more); or calls, {input: array} each.
        Without it static scales are chosen as the model runs, and weights are rounded.
    observer, weight, bias: how static scales, codes of weights and biases are chosen, as in
        bs.calibrate, in place of what the recipe says; of weight those that look at one layer
    sequential, budget: as in bs.calibrate: each layer sees what the quantized layers before it
        leave, at a run of the calls for each input of layers; bytes of statistics at one time
    progress: as in bs.calibrate: a bar on stderr, if that is a terminal, while calls are run
    strict: raise SkippedError where a layer that the recipe covers cannot be quantized
    overwrite, dry_run: replace a file that is there; write nothing

    Weights of MatMul, Gemm, Conv, ConvTranspose and of Gather's tables become codes; biases, norms,
    recurrent layers and what graphs inside of nodes read stay in float, and the ledger says so.
    The file appears whole or not at all. Raises before anything is written: ModuleNotFoundError
    with the extra to install, FileExistsError, FileError for what is no ONNX file, and ValueError
    for a recipe that no file can hold, a model in which nothing can be quantized, calls that do
    not fit, and a method that needs calls without any.
    """
    place = check_place(out, "quantized.onnx")
    if not dry_run:
        check_new(place, overwrite)
    choice = _check_recipe(Recipe.read(recipe))
    methods = _methods(choice, calibrate is not None, observer, weight, bias)
    proto = _read(Path(model))
    result = FloatModel.of(proto)
    data = Data((), strict, progress, sequential=sequential, budget=budget)
    calibration = (
        None if calibrate is None else _calibration(result, choice, methods, calibrate, data)
    )
    rewriting = Rewriting(result, choice, calibration, methods.corrects)
    ledger = rewriting.run(str(model))
    ledger = replace(ledger, notes=(*methods.notes, *ledger.notes))
    if strict and (ledger.skipped or methods.notes):
        first = [*methods.notes, *(f"{each.name}: {each.reason}" for each in ledger.skipped)][0]
        raise SkippedError(f"strict: {first}; nothing was written")
    if not dry_run:
        if write.is_large(proto):
            check_new(write.beside(place), overwrite)
        write.save(proto, place)
    ledger.warn()
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


# How weights, scales and biases are chosen.


class FileMethods(NamedTuple):
    """methods: those of `bs.calibrate`; corrects: whether biases make up for mean errors
    notes: what the recipe asks for and is not done"""

    methods: Methods
    corrects: bool = False
    notes: tuple[str, ...] = ()


_ROUNDED = (
    "there are no calls, so weights are rounded plainly and scales are chosen as the model runs: "
    "pass calls by calibrate= (`--calibrate FILE.npz`)"
)


def _methods(recipe: Recipe, has_calls: bool, observer: Any, weight: Any, bias: Any) -> FileMethods:
    """What arguments ask for, else the recipe. Raises ValueError for what cannot be done."""
    if weight != AUTO:
        _refuse_blocks(algorithms.weights(weight, blocks=False))
    if not has_calls:
        for name, method in (("weight", weight), ("bias", bias)):
            if method is not None and method not in ("absmax", KEEP):
                raise ValueError(
                    f"{name} {getattr(method, 'name', method)!r} is chosen from calls of the "
                    "model, and there are none: pass them by calibrate= (`--calibrate FILE.npz`, "
                    "an array for each input)"
                )
        return FileMethods(Methods(None, None, DEFAULT), False, recipe.uncalibrated(_ROUNDED)[1])
    whole, methods = read_methods(recipe, observer, weight, None, bias)
    algorithm, transform = methods.algorithm, methods.transform
    _refuse_blocks(algorithm)
    if getattr(algorithm, "needs_drift", False):
        raise ValueError(
            f"weight {getattr(algorithm, 'name', algorithm)!r} with asymmetric runs the float "
            "model beside the quantized one, which is not done for ONNX files: leave it out"
        )
    notes: tuple[str, ...] = ()
    if transform is not None:
        who = "the recipe" if recipe.preset is None else f"preset {recipe.preset}"
        who = f"weight {AUTO!r}" if recipe.calibration is None else who
        notes = (
            f"{who} asks for the transform {transform.name}, which is not done in ONNX files: "
            "weights are chosen for inputs as they are",
        )
    return FileMethods(methods._replace(transform=None), asks_correction(whole, bias), notes)


def _refuse_blocks(algorithm: Any) -> None:
    """Raise ValueError for what chooses for whole blocks."""
    if callable(getattr(algorithm, "quantize_block", None)):
        *names, last = map(repr, algorithms.weight_names(blocks=False))
        raise ValueError(
            f"weight {getattr(algorithm, 'name', algorithm)!r} learns from whole blocks of a torch "
            f"model, and an ONNX file's layers are looked at one by one: use {', '.join(names)} "
            f"or {last}"
        )


def _calibration(
    model: FloatModel, recipe: Recipe, how: FileMethods, calibrate: Feeds, data: Data
) -> FileCalibration:
    """What is chosen from calls. Raises ValueError where nothing is to be chosen."""
    if data.sequential not in (True, False):
        raise ValueError(f"unknown sequential {data.sequential!r}; choose from True, False")
    inputs = (input_of(recipe, site) for site in model.sites())
    static = any(fmt is not None and fmt.block.static for fmt in inputs)
    if not static and how.methods.algorithm is None and not how.corrects and not how.notes:
        raise ValueError(
            "the recipe gives no layer of the model an input of a static scale, and weights are "
            "rounded, so there is nothing to calibrate: leave the calls out, name a weight "
            "algorithm, such as 'gptq', or a format for inputs, such as 'uint8:tensor:fp32:asym'"
        )
    if isinstance(calibrate, str | Path):
        calibrate = feeds_of(calibrate, inputs_of(model.proto.graph))
    calls = Calls.of(calibrate)
    if how.corrects:
        correctable(calls, None, None, how.methods.algorithm)
    return FileCalibration(model, recipe, how.methods, data._replace(batches=calls))


class Calls:
    """Calls {input: array} as batches for torch, one after another, as often as they are wanted.

    Raises ValueError for none.
    """

    def __init__(self, feeds: Iterable[Feed]):
        self._feeds = feeds

    @classmethod
    def of(cls, feeds: Iterable[Feed]) -> "Calls | Iterator[dict[str, Any]]":
        """The calls; an iterator of what can be read only once."""
        return iter(cls(feeds)) if isinstance(feeds, Iterator) else cls(feeds)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        count = 0
        for feed in self._feeds:
            count += 1
            yield {name: as_tensor(np.asarray(each)) for name, each in feed.items()}
        if not count:
            raise ValueError("the calibration has no calls: give at least one")


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
