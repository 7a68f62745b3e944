# SPDX-License-Identifier: BSD-3-Clause
"""ONNX files (.onnx), which onnxruntime and others run without torch."""

import importlib.util
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import fx, nn
from torch.export import ExportedProgram

from blockscale.core.format import Format
from blockscale.export.to_onnx import take, write
from blockscale.export.to_onnx.decoder import (
    GENAI,
    Decoder,
    decoder_of,
    decoder_program,
    drop_config,
    name_inputs,
    write_config,
)
from blockscale.export.to_onnx.decoder_cache import cache_format, fixed_sizes, put_codes_in
from blockscale.export.to_onnx.integer import TensorInput
from blockscale.export.to_onnx.scope import HIGHEST, LOWEST, RUN, OpsetNeeds
from blockscale.export.to_onnx.take import (
    Activation,
    MarkedRows,
    MarkedStep,
    MarkedWeight,
    Piece,
    is_integers,
    take_integer_ops,
    without_dead,
)
from blockscale.export.to_program import Example, arguments, program_of, run_example
from blockscale.files.whole import check_new, check_place
from blockscale.graph import passes
from blockscale.graph.adoption.program import as_ours
from blockscale.graph.expand import expand
from blockscale.graph.passes import clean, constants, duplicates
from blockscale.graph.pickled import State, state
from blockscale.graph.program import exported, import_graph

_WIDE = (
    "blockscale: the model computes in {}, which runtimes on CPUs do not: {} computes in float32, "
    "with the same values of weights, and takes and gives float32"
)
_PACKAGES = ("onnx", "onnxscript")


def unavailable() -> str | None:
    """Why ONNX files cannot be written here: the package that is missing; None if none is."""
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    return f"{missing[0]} is not installed: pip install 'blockscale[onnx]'" if missing else None


def onnx(  # noqa: PLR0913 - the first three are the call, the rest are options
    graph: nn.Module | ExportedProgram,
    path: str | Path,
    example: Example | None = None,
    *,
    opset: int | None = None,
    dynamic_batch: bool = False,
    cache: bool | str | Format = False,
    sizes: Mapping[str, int] | None = None,
    overwrite: bool = False,
) -> None:
    """Write an ONNX file (.onnx) of a converted graph, a quantized model or an integer model.

    graph: what bs.graph.convert, bs.graph.to_integer or bs.graph.lower(…, "integer") gives, a model
        of layers in evaluation mode, an exported program, or what others quantized
    example: what a model is called with, as in bs.export.program; a graph or program has its own
    opset: of the file; None for the lowest that holds its formats: 21, 24 for e8m0, 25 for int2;
        28, which onnxruntime (1.31) does not run, has types for e2m1, e2m3 and e3m2
    dynamic_batch: as in bs.export.program, for models. Sizes that are free in a graph stay free.
    cache: of a language model of transformers, which then needs no example: keys and values of
        past tokens are inputs and outputs, named as optimum names them, all sizes free; beside the
        file lies genai_config.json, which onnxruntime-genai reads. A format, such as
        "int8:token:fp32" or "int4:group32:fp32": they are codes and scales (docs/export.md)
    sizes: with a cache, {"batch_size": …, "sequence_length": …, "past_sequence_length": …}: every
        call is of just so many rows, new and past tokens, and no size in the file is free
    overwrite: replace a file that is there

    Weights are stored as their codes, packed, with their scales as they are. QuantizeLinear and
    DequantizeLinear stand where onnxruntime runs them, other standard operators for the other
    formats. A model in bfloat16 or float16 becomes a file that computes in float32, with a warning.
    Above 2 GB the tensors lie in `<path>.data`. It appears whole or not at all.

    Raises before anything is written: ModuleNotFoundError with the extra to install,
    FileExistsError, and ValueError for a graph that is prepared, fused or lowered to floats, an
    example that does not fit, an opset too low, and a format or an op that a file cannot hold.
    """
    path = _file_place(path, opset, overwrite)
    decoder = _decoder(graph, example, cache, sizes, path, overwrite)
    graph = graph if decoder is None else decoder.program()
    program, pieces = _mark(graph, example, dynamic_batch and decoder is None)
    if example is not None:
        run_example(program.module(), *arguments(example))
    model = write.translate(program)
    if halves := widened(model):
        warnings.warn(_WIDE.format(" and ".join(halves), path.name), stacklevel=2)
    needs = write.fill(model, pieces_widened(pieces), opset or 0).needs
    write.stamp(model, _enough(opset, needs))
    if decoder is not None:
        decoder.finish(model.graph)
    if write.is_large(model):
        check_new(write.beside(path), overwrite)
    write.save(model, path)
    _set_config(decoder, path, overwrite)


def _set_config(decoder: "_CachedFile | None", path: Path, overwrite: bool) -> None:
    """The config beside the file, of onnxruntime-genai, is of this file or of none before it."""
    if decoder is not None and decoder.for_genai:
        write_config(decoder.decoder, path)
    elif overwrite:
        drop_config(path)


class _CachedFile(NamedTuple):
    """A decoder as a file has it. fmt: of keys and values in codes; fixed: rows, tokens, past"""

    decoder: Decoder
    fmt: Format | None
    fixed: tuple[int, int, int] | None

    @property
    def for_genai(self) -> bool:
        """Whether onnxruntime-genai (0.18) can run it: its caches are floats, and grow."""
        return self.fmt is None and self.fixed is None

    def program(self) -> ExportedProgram:
        """torch.export's program of it, in floats."""
        return decoder_program(self.decoder, self.fixed)

    def finish(self, graph: Any) -> None:
        """The graph (GraphProto) with its names, and its cache in codes."""
        name_inputs(graph, self.decoder, fixed=self.fixed is not None)
        if self.fmt is not None:
            put_codes_in(graph, self.decoder, self.fmt)


def _decoder(
    model: Any, example: Example | None, cache: bool | str | Format,
    sizes: Mapping[str, int] | None, path: Path, overwrite: bool,
) -> _CachedFile | None:  # fmt: skip
    """What is written with its cache, if it is. Raises ValueError for an example, which it has
    itself, and for sizes without a cache."""
    if cache is False:
        if sizes is not None:
            raise ValueError("sizes are those of a decoder with its cache: pass cache=True, too")
        return None
    if example is not None:
        raise ValueError("cache=True has an example of its own: leave example out")
    fixed = None if sizes is None else fixed_sizes(sizes)
    decoder = decoder_of(model)
    file = _CachedFile(decoder, None if cache is True else cache_format(cache, decoder), fixed)
    if file.for_genai:
        check_new(path.with_name(GENAI), overwrite)
    return file


def _file_place(path: str | Path, opset: int | None, overwrite: bool) -> Path:
    """The place of the file. Raises where it is taken, and for opsets that cannot be had."""
    path = check_place(path, "model.onnx")
    check_new(path, overwrite)
    if opset is not None and not LOWEST <= opset <= HIGHEST:
        raise ValueError(
            f"opset must be {LOWEST} (the first with blocks) to {HIGHEST} (onnxruntime runs up to "
            f"{RUN}), got {opset}: leave it out for the lowest that has the formats"
        )
    if reason := unavailable():
        raise ModuleNotFoundError(reason)
    from onnx import __version__, defs

    if opset is not None and opset > defs.onnx_opset_version():
        raise ValueError(
            f"onnx {__version__} has opsets up to {defs.onnx_opset_version()}, got {opset}: "
            "install a newer onnx, or leave opset out"
        )
    return path


def _enough(opset: int | None, needs: OpsetNeeds) -> int:
    """The opset of a file that needs one. Raises ValueError if a lower one is asked for."""
    if opset is not None and opset < needs.opset:
        raise ValueError(
            f"opset {opset} is too low: {needs.because}, which needs opset {needs.opset}; "
            "leave opset out"
        )
    return opset or needs.opset


def _mark(
    graph: Any, example: Example | None, dynamic_batch: bool
) -> tuple[ExportedProgram, list[Piece]]:
    """A program with marks for all that quantizes, and what they stand for."""
    model = _graph(graph, example, dynamic_batch)
    if is_integers(model):
        pieces = take_integer_ops(model)
        return without_dead(exported(model)), pieces
    pieces = take.take(model)
    return exported(model), pieces


def _graph(graph: Any, example: Example | None, dynamic_batch: bool) -> fx.GraphModule:
    """A graph of single ops, of our own to change. Raises ValueError for what cannot be one."""
    if isinstance(graph, fx.GraphModule) and isinstance(graph.meta.get("blockscale"), State):
        stage = state(graph).stage
        if is_integers(graph):
            return import_graph(graph)
        if stage in ("prepared", "fused", "lowered"):
            raise ValueError(
                f"a {stage} graph has no separate quantize and dequantize ops, which an ONNX "
                "file needs: pass the result of bs.graph.convert"
            )
    else:
        graph = program_of(graph, example, dynamic_batch)
    result = import_graph(graph)
    if is_integers(result):  # a program of an integer graph, or of a model of integers
        passes.apply(result, (clean,))
        return result
    result = as_ours(graph)
    expand(result)
    passes.apply(result, (clean, constants, duplicates))
    return result


# Models in bfloat16 or float16 as files that compute in float32, with the same weights' values.
#
# No runtime on a CPU computes bfloat16 (onnxruntime 1.31 refuses such a file), and few float16.
# What is stored for formats stays as it is: scales in bf16 and fp16, and roundings to them.

_HALVES = {10: "float16", 16: "bfloat16"}  # TensorProto.DataType
_FLOAT = 1
_TYPES = ("to", "dtype", "output_dtype")  # attributes that are types


def widened(model: Any) -> tuple[str, ...]:
    """Make a model (ModelProto) compute in float32, in place; returns the float types it had.

    model: as torch translates it, before the pieces of formats are put in
    """
    dtypes = _widen(model.graph)
    for function in model.functions:
        dtypes |= _widen_nodes(function.node)
    return tuple(sorted(dtypes))


def pieces_widened(pieces: Sequence[Piece]) -> list[Piece]:
    """The same for what marks stand for."""
    return [_piece(each) for each in pieces]


def _piece(piece: Piece) -> Piece:
    if isinstance(piece, Activation):
        return replace(piece, source_dtype=_wide(piece.source_dtype), dtype=_wide(piece.dtype))
    if isinstance(piece, MarkedStep):
        args = {
            name: each._replace(kind=_wide(each.kind)) if isinstance(each, TensorInput) else each
            for name, each in piece.args.items()
        }
        return replace(piece, args=args)
    assert isinstance(piece, MarkedWeight | MarkedRows)
    return replace(piece, dtype=_wide(piece.dtype))


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def _widen(graph: Any) -> set[str]:
    dtypes = {name for each in graph.initializer if (name := _widen_tensor(each))}
    for value in (*graph.input, *graph.output, *graph.value_info):
        kind = value.type.tensor_type
        if kind.elem_type in _HALVES:
            dtypes.add(_HALVES[kind.elem_type])
            kind.elem_type = _FLOAT
    return dtypes | _widen_nodes(graph.node)


def _widen_nodes(nodes: Iterable[Any]) -> set[str]:
    dtypes: set[str] = set()
    for node in nodes:
        for attribute in node.attribute:
            if attribute.name in _TYPES and attribute.i in _HALVES:
                dtypes.add(_HALVES[attribute.i])
                attribute.i = _FLOAT
            tensors = [*([attribute.t] if attribute.HasField("t") else []), *attribute.tensors]
            dtypes |= {name for each in tensors if (name := _widen_tensor(each))}
            inner = [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]
            dtypes |= {name for each in inner for name in _widen(each)}
    return dtypes


def _widen_tensor(tensor: Any) -> str:
    """The type that a tensor had, now in float32; empty where it had another."""
    from onnx import numpy_helper

    if tensor.data_type not in _HALVES:
        return ""
    had = _HALVES[tensor.data_type]
    values = numpy_helper.to_array(tensor).astype("float32")
    tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    return had
