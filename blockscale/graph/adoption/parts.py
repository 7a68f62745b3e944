# SPDX-License-Identifier: BSD-3-Clause
"""Scales and zero points of other libraries as ours: float32 and int32, of the tensor's rank.

Theirs are Python numbers, 0-D or 1-D tensors, or lack the dimensions that a block covers. Which
dtypes give the same bits is said at each place.
"""

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from blockscale.core.block import WHOLE, read_block
from blockscale.graph import constants
from blockscale.graph.adoption.weights import WANTED, reader_of
from blockscale.graph.nodes import aten, call, is_known, shape

# What a quantizing node of another library says, in one form whatever its library is.

Part = fx.Node | float | int | None


class NoFormatError(ValueError):
    """No format has the bits of a node; the message says of what."""


@dataclass(frozen=True)
class QuantizerCall:
    """A node that quantizes, dequantizes or chooses.

    kind:   "quantize", "dequantize" or "choose"
    x:      floats, or codes for "dequantize"
    sizes:  of a block along each dimension, WHOLE for all of one
    scale, zero_point: nodes or numbers; zero_point None for none
    low, high: the smallest and largest code; dtype: of codes
    inside: whether the zero point is added before rounding
    out:    the dtype of values, for "dequantize"
    mapping: how "choose" chooses: "asym", "half", "full" or "" (see blockscale.core.format)
    """

    kind: str
    x: fx.Node
    sizes: tuple[int, ...]
    scale: Part
    zero_point: Part
    low: int
    high: int
    dtype: torch.dtype
    inside: bool = False
    out: torch.dtype = torch.float32
    mapping: str = ""


def rank_of(x: fx.Node) -> int:
    """How many dimensions the node's tensor has. Raises NoFormatError if that is not known."""
    result = shape(x)
    if result is None:
        raise NoFormatError(f"the shape of {x.name} is not known")
    return len(result)


def block_name(sizes: Sequence[int]) -> str:
    """The spelling of the block with these sizes (WHOLE: all of a dimension)."""
    split_dims = [dim for dim, size in enumerate(sizes) if size != WHOLE]
    if not split_dims:
        return "tensor"
    if len(split_dims) == 1 and sizes[split_dims[0]] == 1:
        return f"channel{split_dims[0]}"
    sides = "x".join("*" if size == WHOLE else str(size) for size in sizes)
    return str(read_block(f"block{sides}"))


def in_whole(sizes: Sequence[Any], of: Sequence[Any]) -> tuple[int, ...]:
    """Block sizes as numbers, WHOLE where they are the tensor's own size.

    Raises NoFormatError for a size that is neither.
    """
    results = []
    for size, n in zip(sizes, of, strict=True):
        if isinstance(size, fx.Node):
            size = size.meta.get("val", size)  # noqa: PLW2901 - a symbolic size
        if isinstance(size, int) and size == 1 and not is_known(n == 1):
            results.append(1)
        elif not isinstance(size, fx.Node) and (is_known(size == n) or size == -1):
            results.append(WHOLE)
        elif isinstance(size, int):
            results.append(size)
        else:
            raise NoFormatError(f"a block has {size} elements along a dimension of {n}")
    return tuple(results)


def element(low: int, high: int, zero: bool) -> tuple[str, list[str]]:
    """The element and options whose codes are low … high; raises NoFormatError.

    zero: whether there is a zero point
    """
    bits = int(high + 1).bit_length() - 1
    if high != 2**bits - 1 or not 1 <= bits <= 16:
        raise NoFormatError(f"codes {low} … {high} are not integers of 1 to 16 bits")
    if low == 0:
        return f"uint{bits}", ["asym"] if zero else []
    if low == -high - 1 and bits < 16:
        return f"int{bits + 1}", ["asym" if zero else "full"]
    if low == -high and not zero and bits < 16:
        return f"int{bits + 1}", []
    info = " with a zero point" if zero else ""
    raise NoFormatError(f"no element here has the codes {low} … {high}{info}")


def constant(graph: fx.GraphModule, part: Part) -> Tensor | None:
    """The tensor of a part that is a number or that the graph holds; None for others."""
    if isinstance(part, fx.Node):
        return constants.get(graph, part).detach() if constants.is_constant(part) else None
    return None if part is None else torch.tensor(part)


_BYTES = (torch.int8, torch.uint8, torch.int16, torch.uint16)


@dataclass(frozen=True)
class ScaleNodes:
    """Nodes of the scale and the zero point; zero_type: "int32", or "fp32" where it is floats."""

    scale: fx.Node
    zero_point: fx.Node | None
    zero_type: str


def parts_of(graph: fx.GraphModule, node: fx.Node, call: QuantizerCall) -> ScaleNodes:
    """The parts of a node, written before it; raises NoFormatError for what has no counterpart."""
    name = reader_of(node)
    zero, kind = _zero_point(graph, node, call, f"{name}.zero_point")
    return ScaleNodes(_scale(graph, node, call, f"{name}.scale"), zero, kind)


def _scale(
    graph: fx.GraphModule, node: fx.Node, quantizer_call: QuantizerCall, name: str
) -> fx.Node:
    scale, item = quantizer_call.scale, _by_item(node)
    value = constant(graph, scale)
    if not isinstance(scale, fx.Node):
        assert value is not None
        return _hold(
            graph, _rounded(quantizer_call, float(scale or 0.0)), name, quantizer_call, node
        )
    dtype = _dtype(scale) if value is None else value.dtype
    if value is not None:
        if item:  # it is read as a Python number
            return _hold(graph, _rounded(quantizer_call, value.item()), name, quantizer_call, node)
        if dtype == torch.float64 and quantizer_call.kind == "dequantize":
            value, dtype = value.to(torch.float32), torch.float32
            if not torch.equal(value.to(torch.float64), constant(graph, scale)):  # type: ignore[arg-type]
                raise NoFormatError("its scale has more bits than float32")
        _only_float32(dtype)
        return _hold(graph, value, name, quantizer_call, node)
    exact = item or (quantizer_call.kind == "dequantize" and _from_torch(scale))
    if dtype == torch.float64 and exact:  # these numbers are float32, kept in float64
        scale = call(graph, aten._to_copy.default, (scale,), {"dtype": torch.float32}, like=node)
        dtype = torch.float32
    _only_float32(dtype)
    return _of_rank(graph, scale, quantizer_call, node)


def _only_float32(dtype: torch.dtype) -> None:
    if dtype != torch.float32:
        raise NoFormatError(
            f"its scale is {dtype}, and its arithmetic too; formats compute in float32"
        )


def _rounded(call: QuantizerCall, scale: float) -> Tensor:
    """A scale that was a Python number, whose reciprocal is taken in float64."""
    value = torch.tensor(scale, dtype=torch.float32)
    theirs = torch.tensor(1.0 / scale if scale else torch.inf, dtype=torch.float32)
    if call.kind == "quantize" and not torch.equal(theirs, 1.0 / value):
        raise NoFormatError(f"the reciprocal of its scale {scale} is not that of a float32")
    return value


def _zero_point(
    graph: fx.GraphModule, node: fx.Node, quantizer_call: QuantizerCall, name: str
) -> tuple[fx.Node | None, str]:
    zero = quantizer_call.zero_point
    if zero is None or _always_zero(zero):
        return None, "int32"
    value = constant(graph, zero)
    if value is not None and not bool(value.any()):
        return None, "int32"
    dtype = value.dtype if value is not None else _dtype(zero)
    wraps = dtype in _BYTES and dtype == quantizer_call.dtype
    if (
        isinstance(zero, fx.Node)
        and quantizer_call.kind == "dequantize"
        and wraps
        and _in_codes(node)
    ):
        raise NoFormatError(f"codes minus zero points overflow {dtype}")
    kind, target = ("fp32", torch.float32) if quantizer_call.inside else ("int32", torch.int32)
    if value is not None:
        if dtype.is_floating_point and kind == "int32" and bool((value != value.round()).any()):
            raise NoFormatError("its zero points are not integers")
        return _hold(graph, value.to(target), name, quantizer_call, node), kind
    if dtype.is_floating_point and kind == "int32":
        raise NoFormatError("its zero points are floats that are known only at run time")
    assert isinstance(zero, fx.Node)
    if dtype != target:
        zero = call(graph, aten._to_copy.default, (zero,), {"dtype": target}, like=node)
    return _of_rank(graph, zero, quantizer_call, node), kind


def _in_codes(node: fx.Node) -> bool:
    """Whether it subtracts in the codes' own dtype."""
    name = str(node.target)
    return "per_tensor" not in name and "affine" not in name


def _by_item(node: fx.Node) -> bool:
    """Whether it reads its scale as a Python number."""
    return "per_tensor" in str(node.target)


def _torch_choice(part: Any, *names: str) -> bool:
    """Whether a node is a result of one of torch's choose_qparams ops."""
    choice = part.args[0] if isinstance(part, fx.Node) and part.target is operator.getitem else None
    return isinstance(choice, fx.Node) and any(
        str(choice.target).startswith(f"quantized_decomposed.{name}") for name in names
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
    dtype: torch.dtype = value.dtype
    return dtype


def _counts(call: QuantizerCall) -> list[Any]:
    """How many blocks there are along each dimension; None where it is not known."""
    of = shape(call.x)
    if of is None:
        raise NoFormatError(f"the shape of {call.x.name} is not known")
    pairs = zip(of, call.sizes, strict=True)
    return [1 if size == WHOLE else n // size if isinstance(n, int) else None for n, size in pairs]


def _hold(
    graph: fx.GraphModule, part: Tensor, name: str, call: QuantizerCall, node: fx.Node
) -> fx.Node:
    """A constant part as a buffer of the tensor's rank."""
    counts = _counts(call)
    if part.numel() == 1 and all(count in (1, None) for count in counts):
        counts = [1] * len(counts)
    if None in counts:
        raise NoFormatError("the number of its blocks is dynamic, and its scale is a constant")
    total = torch.Size(counts).numel()
    if part.numel() != total:
        raise NoFormatError(f"it has {part.numel()} scales for {total} blocks")
    constant = constants.put_constant(
        graph, "_adopted", part.reshape(counts).contiguous(), like=node
    )
    constant.meta[WANTED] = name
    return constant


def _of_rank(
    graph: fx.GraphModule, part: fx.Node, quantizer_call: QuantizerCall, node: fx.Node
) -> fx.Node:
    """A part that is computed, with the dimensions that a block covers: one number in any rank
    stays as it is."""
    sizes = shape(part)
    if sizes is None:
        raise NoFormatError(f"the shape of {part.name} is not known")
    if len(sizes) == len(quantizer_call.sizes) or all(is_known(n == 1) for n in sizes):
        return part
    whole = [dim for dim, size in enumerate(quantizer_call.sizes) if size == WHOLE]
    if len(sizes) + len(whole) != len(quantizer_call.sizes):
        raise NoFormatError(
            f"its scale has shape {list(sizes)} for blocks of {quantizer_call.sizes}"
        )
    for dim in whole:
        part = call(graph, aten.unsqueeze.default, (part, dim), like=node)
    return part
