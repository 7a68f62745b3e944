# SPDX-License-Identifier: BSD-3-Clause
"""ExecuTorch: a file for phones and other devices, run by XNNPACK and portable kernels."""

import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn
from torch.export import ExportedProgram

from blockscale.core.format import Format
from blockscale.core.parse import parse
from blockscale.core.scale import FloatScale, PowerOfTwo
from blockscale.export.to_executorch.core_ops import LeftError, lowered
from blockscale.export.to_executorch.integers import product, products, to_integers
from blockscale.export.to_executorch.plain import write_out
from blockscale.export.to_program import Example, program_of
from blockscale.files.whole import check_new, check_place, written_whole
from blockscale.graph.adoption.program import as_ours
from blockscale.graph.constants import get
from blockscale.graph.expand import expand
from blockscale.graph.nodes import dequantize_of, describe, quantize_of
from blockscale.graph.pickled import State
from blockscale.graph.program import import_graph


def executorch(
    graph: nn.Module | ExportedProgram,
    path: str | Path,
    example: Example | None = None,
    *,
    dynamic_batch: bool = False,
    overwrite: bool = False,
) -> None:
    """Write ExecuTorch's file (.pte) of a quantized model, a converted graph or a program.

    graph, example, dynamic_batch: as of bs.export.program; graphs are those of bs.graph.convert
    path: the file to write, usually .pte; overwrite: replace a file that is there

    Linear layers and convolutions run in integers where XNNPACK can: int8 per channel weights with
    8-bit inputs and outputs whose scales are given, and linear layers with int8 per channel or int4
    weights and 8-bit inputs per token, whose scales XNNPACK chooses itself. All other weights stay
    packed in the file and are decoded when it runs, by torch's core ops. Inputs that run so are
    integers under float scales.

    Raises ValueError, before anything is written, for a fused or lowered graph, a format that
    cannot run, an example that does not fit, or if the place is a directory; FileExistsError if a
    file is there; ImportError without executorch. Warns of int4 scales that XNNPACK rounds.
    """
    path = check_place(path, "model.pte")
    check_new(path, overwrite)
    if reason := unavailable():
        raise ImportError(reason)
    _check_stage(graph)
    source = as_ours(program_of(graph, example, dynamic_batch))
    expand(source)
    _check_inputs(source)
    _check_weights(source)
    content = _file_bytes(source)
    with written_whole(path) as temporary:
        temporary.write_bytes(content)


def _check_stage(graph: Any) -> None:
    """Raise ValueError for graphs whose quantize and dequantize nodes are gone."""
    facts = graph.meta.get("blockscale") if isinstance(graph, fx.GraphModule) else None
    stage = facts.stage if isinstance(facts, State) else ""
    nodes = getattr(getattr(graph, "graph", None), "nodes", ())
    fused = any(str(node.target).startswith("blockscale.fused_") for node in nodes)
    if fused or stage in ("fused", "lowered"):
        raise ValueError(
            f"a {stage or 'fused'} graph has no quantize and dequantize nodes any more: pass "
            "the result of bs.graph.convert, before bs.graph.fuse and bs.graph.lower"
        )


def _check_inputs(graph: fx.GraphModule) -> None:
    """Raise ValueError that names each format of inputs that takes bits of floats to compute."""
    examples: dict[str, str] = {}
    for node in graph.graph.nodes:
        result = quantize_of(node)
        if result is not None and not runs(result.by.format):
            examples.setdefault(str(result.by.format), describe(node))
    if examples:
        text = "".join(f"\n  {fmt}, for instance {where}" for fmt, where in examples.items())
        raise ValueError(
            "ExecuTorch has no kernels for these formats of inputs and outputs, which would "
            f"read the bits of floats:{text}\nUse integers with float scales for them "
            "(int8_token, uint8), or leave them in float; weights may have any format."
        )


def _check_weights(graph: fx.GraphModule) -> None:
    """Raise ValueError that names each format of weights whose dtype has no kernels."""
    for node in graph.graph.nodes:
        fmt = node.kwargs.get("fmt") or next((a for a in node.args if isinstance(a, str)), "")
        is_ours = str(node.target).startswith("blockscale.") and fmt
        if is_ours and parse(fmt).bits > 8 and not parse(fmt).element.signed:
            raise ValueError(
                f"{describe(node)}: ExecuTorch's kernels do not support unsigned integers of "
                f"16 bits, in which {fmt} is stored: use int16"
            )


def runs(fmt: Format) -> bool:
    """Whether values can be quantized to this format when the file runs."""
    floats = isinstance(fmt.scale, FloatScale) or (
        isinstance(fmt.scale, PowerOfTwo) and not fmt.scale.byte and fmt.block.static
    )
    return fmt.element.integer and floats and fmt.rounding != "stochastic"


def _file_bytes(source: fx.GraphModule) -> bytes:
    """The file's bytes, with XNNPACK's integers where it takes them."""
    graph = import_graph(source)
    rounded = _rounded(graph)
    if to_integers(graph):
        try:
            write_out(graph)
            content = lowered(graph)
        except LeftError as error:
            warnings.warn(
                f"blockscale: {error}: everything is computed in float, from packed weights",
                stacklevel=3,
            )
        else:
            if rounded:
                warnings.warn(
                    f"blockscale: XNNPACK rounds the int4 scales of {rounded[0]}"
                    f"{f' and {len(rounded) - 1} more' * (len(rounded) > 1)} to bfloat16: formats "
                    f"with bf16 scales lose nothing",
                    stacklevel=3,
                )
            return content
    write_out(source)
    return lowered(source)


def _rounded(graph: fx.GraphModule) -> list[str]:
    """The weights in groups of int4 whose scales are no bfloat16 numbers."""
    names = []
    for node in products(graph):
        result = product(node)
        source = None if result is None else dequantize_of(result.weight)
        if source is None:
            continue
        codes: Any = source.operand.codes
        scale = get(graph, source.operand.scale)  # type: ignore[arg-type]
        if scale.shape[-1] > 1 and not torch.equal(scale.float(), scale.bfloat16().float()):
            names.append(str(codes.target).removesuffix(".codes"))
    return names


def unavailable() -> str | None:
    """Why it cannot be written here: a missing package."""
    if find_spec("executorch") is None:
        return "executorch is not installed: pip install 'blockscale[executorch]'"
    return None
