# SPDX-License-Identifier: BSD-3-Clause
"""Scales and zero points of other libraries as ours: float32 and int32, of the tensor's rank.

Theirs are Python numbers, 0-D or 1-D tensors, or lack the dimensions that a block covers. Which
dtypes give the same bits is said at each place.
"""

import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from blockscale.core.block import WHOLE
from blockscale.graph import constants
from blockscale.graph.adoption.calls import Call, NoFormatError, constant
from blockscale.graph.adoption.weights import WANTED, reader_of
from blockscale.graph.nodes import aten, call, known, shape

_BYTES = (torch.int8, torch.uint8, torch.int16, torch.uint16)


@dataclass(frozen=True)
class Parts:
    """Nodes of the scale and the zero point; zero_type: "int32", or "fp32" where it is floats."""

    scale: fx.Node
    zero_point: fx.Node | None
    zero_type: str


def parts_of(graph: fx.GraphModule, node: fx.Node, found: Call) -> Parts:
    """The parts of a node, written before it; raises NoFormatError for what has no counterpart."""
    name = reader_of(node)
    zero, kind = _zero_point(graph, node, found, f"{name}.zero_point")
    return Parts(_scale(graph, node, found, f"{name}.scale"), zero, kind)


def _scale(graph: fx.GraphModule, node: fx.Node, found: Call, name: str) -> fx.Node:
    scale, item = found.scale, _by_item(node)
    value = constant(graph, scale)
    if not isinstance(scale, fx.Node):
        assert value is not None
        return _held(graph, _rounded(found, float(scale or 0.0)), name, found, node)
    dtype = _dtype(scale) if value is None else value.dtype
    if value is not None:
        if item:  # it is read as a Python number
            return _held(graph, _rounded(found, value.item()), name, found, node)
        if dtype == torch.float64 and found.kind == "dequantize":
            value, dtype = value.to(torch.float32), torch.float32
            if not torch.equal(value.to(torch.float64), constant(graph, scale)):  # type: ignore[arg-type]
                raise NoFormatError("its scale has more bits than float32")
        _only_float32(dtype)
        return _held(graph, value, name, found, node)
    exact = item or (found.kind == "dequantize" and _from_torch(scale))
    if dtype == torch.float64 and exact:  # these numbers are float32, kept in float64
        scale = call(graph, aten._to_copy.default, (scale,), {"dtype": torch.float32}, like=node)
        dtype = torch.float32
    _only_float32(dtype)
    return _of_rank(graph, scale, found, node)


def _only_float32(dtype: torch.dtype) -> None:
    if dtype != torch.float32:
        raise NoFormatError(
            f"its scale is {dtype}, and its arithmetic too; formats compute in float32"
        )


def _rounded(found: Call, scale: float) -> Tensor:
    """A scale that was a Python number, whose reciprocal is taken in float64."""
    value = torch.tensor(scale, dtype=torch.float32)
    theirs = torch.tensor(1.0 / scale if scale else torch.inf, dtype=torch.float32)
    if found.kind == "quantize" and not torch.equal(theirs, 1.0 / value):
        raise NoFormatError(f"the reciprocal of its scale {scale} is not that of a float32")
    return value


def _zero_point(
    graph: fx.GraphModule, node: fx.Node, found: Call, name: str
) -> tuple[fx.Node | None, str]:
    zero = found.zero_point
    if zero is None or _always_zero(zero):
        return None, "int32"
    value = constant(graph, zero)
    if value is not None and not bool(value.any()):
        return None, "int32"
    dtype = value.dtype if value is not None else _dtype(zero)
    wraps = dtype in _BYTES and dtype == found.dtype
    if isinstance(zero, fx.Node) and found.kind == "dequantize" and wraps and _in_codes(node):
        raise NoFormatError(f"codes minus zero points overflow {dtype}")
    kind, wanted = ("fp32", torch.float32) if found.inside else ("int32", torch.int32)
    if value is not None:
        if dtype.is_floating_point and kind == "int32" and bool((value != value.round()).any()):
            raise NoFormatError("its zero points are not integers")
        return _held(graph, value.to(wanted), name, found, node), kind
    if dtype.is_floating_point and kind == "int32":
        raise NoFormatError("its zero points are floats that are known only at run time")
    assert isinstance(zero, fx.Node)
    if dtype != wanted:
        zero = call(graph, aten._to_copy.default, (zero,), {"dtype": wanted}, like=node)
    return _of_rank(graph, zero, found, node), kind


def _in_codes(node: fx.Node) -> bool:
    """Whether it subtracts in the codes' own dtype."""
    name = str(node.target)
    return "per_tensor" not in name and "affine" not in name


def _by_item(node: fx.Node) -> bool:
    """Whether it reads its scale as a Python number."""
    return "per_tensor" in str(node.target)


def _torch_choice(part: Any, *names: str) -> bool:
    """Whether a node is a result of one of torch's choose_qparams ops."""
    chosen = part.args[0] if isinstance(part, fx.Node) and part.target is operator.getitem else None
    return isinstance(chosen, fx.Node) and any(
        str(chosen.target).startswith(f"quantized_decomposed.{name}") for name in names
    )


def _from_torch(part: fx.Node) -> bool:
    return _torch_choice(part, "choose_qparams")


def _always_zero(part: Any) -> bool:
    symmetric = _torch_choice(part, "choose_qparams_per_token.default")
    return symmetric and part.args[1] == 1


def _dtype(part: Any) -> torch.dtype:
    """The dtype of what a node gives: torch says float64 of choose_qparams_per_token's scales,
    which are of their input's, but float32 for float16."""
    if _torch_choice(part, "choose_qparams_per_token.default"):
        x: Any = part.args[0].args[0]
        own: torch.dtype = x.meta["val"].dtype
        return torch.float32 if own == torch.float16 else own
    value = part.meta.get("val")
    if value is None:
        raise NoFormatError(f"the dtype of {part.name} is not known")
    found: torch.dtype = value.dtype
    return found


def _counts(found: Call) -> list[Any]:
    """How many blocks there are along each dimension; None where it is not known."""
    of = shape(found.x)
    if of is None:
        raise NoFormatError(f"the shape of {found.x.name} is not known")
    pairs = zip(of, found.sizes, strict=True)
    return [1 if size == WHOLE else n // size if isinstance(n, int) else None for n, size in pairs]


def _held(graph: fx.GraphModule, part: Tensor, name: str, found: Call, node: fx.Node) -> fx.Node:
    """A constant part as a buffer of the tensor's rank."""
    counts = _counts(found)
    if part.numel() == 1 and all(count in (1, None) for count in counts):
        counts = [1] * len(counts)
    if None in counts:
        raise NoFormatError("the number of its blocks is dynamic, and its scale is a constant")
    total = torch.Size(counts).numel()
    if part.numel() != total:
        raise NoFormatError(f"it has {part.numel()} scales for {total} blocks")
    kept = constants.put(graph, "_adopted", part.reshape(counts).contiguous(), like=node)
    kept.meta[WANTED] = name
    return kept


def _of_rank(graph: fx.GraphModule, part: fx.Node, found: Call, node: fx.Node) -> fx.Node:
    """A part that is computed, with the dimensions that a block covers: one number in any rank
    stays as it is."""
    sizes = shape(part)
    if sizes is None:
        raise NoFormatError(f"the shape of {part.name} is not known")
    if len(sizes) == len(found.sizes) or all(known(n == 1) for n in sizes):
        return part
    covered = [dim for dim, size in enumerate(found.sizes) if size == WHOLE]
    if len(sizes) + len(covered) != len(found.sizes):
        raise NoFormatError(f"its scale has shape {list(sizes)} for blocks of {found.sizes}")
    for dim in covered:
        part = call(graph, aten.unsqueeze.default, (part, dim), like=node)
    return part
