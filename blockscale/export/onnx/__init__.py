"""ONNX files (.onnx), which onnxruntime and others run without torch."""

import importlib.util
from pathlib import Path
from typing import Any

from torch import fx, nn
from torch.export import ExportedProgram

from blockscale.export.onnx import file as files
from blockscale.export.onnx import take, write
from blockscale.export.onnx.scope import HIGHEST, LOWEST
from blockscale.export.onnx.take_integer import take_integer, without_dead
from blockscale.export.program import Example, arguments, exported_model, tried
from blockscale.files.whole import check_place
from blockscale.graph import passes
from blockscale.graph.expand import expand
from blockscale.graph.integer.convert import IntegerModel
from blockscale.graph.passes import clean, constants, duplicates
from blockscale.graph.program import exported, imported
from blockscale.graph.state import State, state

_PACKAGES = ("onnx", "onnxscript")


def unavailable() -> str | None:
    """Why ONNX files cannot be written here: the package that is missing; None if none is."""
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    return f"{missing[0]} is not installed: pip install 'blockscale[onnx]'" if missing else None


def onnx(
    graph: nn.Module | ExportedProgram,
    path: str | Path,
    example: Example | None = None,
    *,
    opset: int | None = None,
    dynamic_batch: bool = False,
    overwrite: bool = False,
) -> None:
    """Write an ONNX file of a converted graph, a quantized program or a quantized model."""
    path = check_place(path, "model.onnx")
    if path.exists() and not overwrite:
        raise FileExistsError(f"{path} exists: remove it, or say overwrite=True")
    if opset is not None and not LOWEST <= opset <= HIGHEST:
        raise ValueError(
            f"opset {opset}: blocks of scales are in opset {LOWEST} and later, and onnxruntime "
            f"runs what needs no more than {HIGHEST}: leave opset out for the lowest that holds it"
        )
    if reason := unavailable():
        raise ModuleNotFoundError(reason)
    program, pieces = _marked(graph, example, dynamic_batch)
    model = write.translated(program, _outputs(program))
    needs = write.filled(model, pieces).needs
    if opset is not None and opset < needs.opset:
        raise ValueError(f"opset {opset} is too low: {needs.because}, which opset {needs.opset} has")
    write.stamp(model, opset or needs.opset)
    files.save(model, path)


def _marked(
    graph: Any, example: Example | None, dynamic_batch: bool
) -> tuple[ExportedProgram, list[take.Piece]]:
    """A program with marks for all that quantizes, and what they stand for."""
    if isinstance(graph, IntegerModel):
        pieces: list[take.Piece] = []
        marked = take_integer(graph, pieces)
        made = exported_model(marked, example, dynamic_batch)
        return without_dead(made), pieces
    taken = _graph(graph, example, dynamic_batch)
    pieces = take.take(taken)
    return exported(taken), pieces


def _graph(graph: Any, example: Example | None, dynamic_batch: bool) -> fx.GraphModule:
    """A graph of single ops, of our own to change. Raises ValueError for what cannot be one."""
    if not (isinstance(graph, fx.GraphModule) and isinstance(graph.meta.get("blockscale"), State)):
        if not isinstance(graph, ExportedProgram):
            graph = exported_model(graph, example, dynamic_batch)
    made = imported(graph)
    expand(made)
    passes.apply(made, (clean, constants, duplicates))
    return made


def _outputs(program: ExportedProgram) -> list[str] | None:
    return None
