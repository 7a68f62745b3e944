"""Quantized weights in a file: codes as they are stored, and the nodes that make floats of them.

DequantizeLinear where ONNX has a type for the codes and the blocks lie along one axis; else a call
of a function in the file, of standard operators alone. Weights lie as the op that reads them wants
them, [k, n] for MatMul, because onnxruntime fuses only that.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from blockscale.core import pack as packing
from blockscale.core.operand import Operand
from blockscale.core.reference import QParams
from blockscale.core.scales.two_level import TwoLevel
from blockscale.export.onnx import steps
from blockscale.export.onnx.blocks import expand, repeated
from blockscale.export.onnx.scope import Scope
from blockscale.export.onnx.stored import native, put_codes, put_tensor, put_zeros
from blockscale.export.onnx.unpack import decode, unpack, whole_groups

Move = tuple[str, tuple[int, ...]]  # ("view", sizes) or ("permute", dims)


class _Along(NamedTuple):
    """How DequantizeLinear is told of blocks: one for all (axis None), by axis, or along one."""

    axis: int | None = None
    block_size: int = 0


def moved(tensor: Tensor, moves: tuple[Move, ...]) -> Tensor:
    """The tensor after views and permutations."""
    for kind, sizes in moves:
        tensor = tensor.reshape(sizes) if kind == "view" else tensor.permute(sizes)
    return tensor


def weight(
    scope: Scope, name: str, stored: Operand, moves: tuple[Move, ...], dtype: torch.dtype
) -> str:
    """The values of a weight as `moves` leave them; its initializers are `<name>.codes`, … ."""
    along = _along(stored, moves)
    if along is not None:
        values = _dequantize_linear(scope, name, stored, moves, along)
    else:
        values = _by_function(scope, name, stored)
        for kind, sizes in moves:
            if kind == "view":
                values = scope.op("Reshape", values, scope.ints(*sizes))
            else:
                values = scope.op("Transpose", values, perm=list(sizes))
    return _as(scope, values, dtype)


def _as(scope: Scope, values: str, dtype: torch.dtype) -> str:
    kinds = {torch.float16: "FLOAT16", torch.bfloat16: "BFLOAT16"}
    return scope.cast(values, kinds[dtype]) if dtype in kinds else values


def _along(stored: Operand, moves: tuple[Move, ...]) -> _Along | None:
    """How the blocks of the moved weight lie; None where DequantizeLinear cannot say it."""
    fmt, shape = stored.format, stored.shape
    if native(fmt.element) is None or fmt.offset is not None or fmt.zero is not None:
        return None
    counts = tuple(stored.scale.shape)
    if stored.scale.numel() == 1:
        return _Along()
    if fmt.block.flat:
        return None
    divided = [i for i, (n, count) in enumerate(zip(shape, counts, strict=True)) if n != count]
    axis = _axis(stored, moves)
    if axis is not None:
        return _Along(axis)
    if len(divided) != 1 or any(kind == "view" for kind, _ in moves):
        return None
    size, at = fmt.block.sizes_for(len(shape))[divided[0]] or shape[divided[0]], divided[0]
    for _, dims in moves:
        at = dims.index(at)
    return _Along(at, size)


def _axis(stored: Operand, moves: tuple[Move, ...]) -> int | None:
    """The axis of the moved weight along which alone the scales change, one by one."""
    count = stored.scale.numel()
    which = torch.arange(count, dtype=torch.int32).reshape(stored.scale.shape)
    which = stored.format.block.expand(which, torch.Size(stored.shape)).expand(stored.shape)
    which = moved(which, moves)
    for axis, n in enumerate(which.shape):
        by_axis = torch.arange(n, dtype=torch.int32)
        if n == count and bool((which.movedim(axis, -1) == by_axis).all()):
            return axis
    return None


def _dequantize_linear(
    scope: Scope, name: str, stored: Operand, moves: tuple[Move, ...], along: _Along
) -> str:
    fmt, file = stored.format, scope.file
    codes = moved(packing.unpack(stored.codes, fmt.element, stored.shape), moves)
    qparams, zero = stored.qparams, stored.zero_point
    if along.block_size:
        step, zero = _moved_step(scope, name, stored, moves)
        dims = tuple(moved(qparams.scale, moves).shape)
    else:
        dims = () if along.axis is None else (codes.shape[along.axis],)
        step = steps.step(scope, name, fmt, _flat(qparams, dims))
    inputs = [put_codes(file, f"{name}.codes", fmt.element, codes), step]
    if fmt.element.integer:
        inputs.append(put_zeros(file, f"{name}.zero_point", fmt.element, zero, dims))
    axis: dict[str, Any] = {} if along.axis is None else {"axis": along.axis}
    block: dict[str, Any] = {"block_size": along.block_size} if along.block_size else {}
    return scope.op("DequantizeLinear", *inputs, **axis, **block)


def _flat(qparams: QParams, dims: tuple[int, ...]) -> QParams:
    """One scale, or one a channel, in the shape that DequantizeLinear wants."""
    outer = qparams.outer
    if outer is not None:
        outer = outer.reshape(dims if outer.numel() > 1 else (1,) * len(dims))
    return qparams._replace(scale=qparams.scale.reshape(dims), outer=outer)


def _moved_step(
    scope: Scope, name: str, stored: Operand, moves: tuple[Move, ...]
) -> tuple[str, Tensor | None]:
    """The step and the zero points of blocks in the order of the moved weight."""
    fmt, qparams, zero = stored.format, stored.qparams, stored.zero_point
    zero = None if zero is None else moved(zero, moves)
    if not isinstance(fmt.scale, TwoLevel) or fmt.scale.inner.block.name == "tensor":
        outer = None if qparams.outer is None else moved(qparams.outer, moves)
        parts = qparams._replace(scale=moved(qparams.scale, moves), outer=outer)
        return steps.step(scope, name, fmt, parts), zero
    step = steps.step(scope, name, fmt, qparams)
    for _, dims in moves:
        step = scope.op("Transpose", step, perm=list(dims))
    return step, zero


def _by_function(scope: Scope, name: str, stored: Operand) -> str:
    """A call of the function that makes floats of packed codes, steps and what else there is."""
    fmt, qparams = stored.format, stored.qparams
    packed = whole_groups(stored.codes, fmt.bits)
    packed = packed.reshape(-1, packed.shape[-1])
    inputs = {"codes": put_tensor(scope.file, f"{name}.codes", packed)}
    inputs["step"] = steps.step(scope, name, fmt, qparams)
    if qparams.zero_point is not None:
        zero = qparams.zero_point
        given = put_tensor(scope.file, f"{name}.zero_point", zero)
        inputs["zero"] = given if zero.dtype == torch.float32 else scope.cast(given, "FLOAT")
    offset = steps.offset(scope, name, fmt, qparams)
    if offset is not None:
        inputs["offset"] = offset[0]
    if qparams.book is not None:
        inputs["book"] = put_tensor(scope.file, f"{name}.book", qparams.book)
    shapes = {key: tuple(part.shape) for key, part in _parts(qparams).items()}

    def body(inside: Scope, given: list[str]) -> list[str]:
        return [_values(inside, dict(zip(inputs, given, strict=True)), stored, shapes)]

    key = ("dequantize", stored.fmt, stored.shape, tuple(shapes.items()))
    return scope.call(key, f"dequantize_{plain(stored.fmt)}", list(inputs.values()), body)[0]


def _parts(qparams: QParams) -> dict[str, Tensor]:
    named = {"step": qparams.scale, "zero": qparams.zero_point, "offset": qparams.offset}
    return {key: part for key, part in named.items() if part is not None}


def _values(
    scope: Scope, given: dict[str, str], stored: Operand, shapes: dict[str, tuple[int, ...]]
) -> str:
    """(code - zero point) · step + offset, each spread over its block."""
    fmt, shape = stored.format, stored.shape
    patterns = unpack(scope, given["codes"], fmt.element, stored.size)
    values = decode(scope, patterns, fmt.element, given.get("book", ""))
    values = scope.op("Reshape", values, scope.ints(*shape))
    if "zero" in given:
        zero = expand(scope, given["zero"], fmt.block, shapes["zero"], shape)
        values = scope.op("Sub", values, zero)
    step = expand(scope, given["step"], fmt.block, shapes["step"], shape)
    values = scope.op("Mul", values, step)
    if fmt.offset is None:
        return values
    block = fmt.offset.block or fmt.block
    return scope.op("Add", values, expand(scope, given["offset"], block, shapes["offset"], shape))


def rows(scope: Scope, name: str, stored: Operand, indices: str, dtype: torch.dtype) -> str:
    """The rows of a table [rows, size] that indices [...] ask for: [..., size]."""
    fmt, block = stored.format, stored.format.block
    if block.flat or (fmt.offset is not None and (fmt.offset.block or block).flat):
        table = weight(scope, name, stored, (), dtype)
        return scope.op("Gather", table, indices, axis=0)
    flat = scope.op("Reshape", indices, scope.ints(-1))
    file, qparams = scope.file, stored.qparams
    packed = put_tensor(file, f"{name}.codes", whole_groups(stored.codes, fmt.bits))
    patterns = unpack(scope, scope.op("Gather", packed, flat, axis=0), fmt.element, stored.size)
    book = "" if qparams.book is None else put_tensor(file, f"{name}.book", qparams.book)
    values = decode(scope, patterns, fmt.element, book)

    def each(part: str, shape: Any, of: Any) -> str:
        height, width = of.sizes_for(2)
        if shape[0] > 1:  # one for all rows stays as it is
            place = flat if height == 1 else scope.op("Div", flat, scope.ints(height))
            part = scope.op("Gather", part, place, axis=0)
        return repeated(scope, part, 1, stored.size, width) if shape[1] > 1 < width else part

    if qparams.zero_point is not None:
        zero = put_tensor(file, f"{name}.zero_point", qparams.zero_point.to(torch.float32))
        values = scope.op("Sub", values, each(zero, qparams.zero_point.shape, block))
    step = steps.step(scope, name, fmt, qparams)
    values = scope.op("Mul", values, each(step, qparams.scale.shape, block))
    offset = steps.offset(scope, name, fmt, qparams)
    if offset is not None and qparams.offset is not None:
        values = scope.op("Add", values, each(offset[0], qparams.offset.shape, offset[1]))
    shape = scope.op("Concat", scope.op("Shape", indices), scope.ints(stored.size), axis=0)
    return _as(scope, scope.op("Reshape", values, shape), dtype)


def plain(spelling: str) -> str:
    """A spelling as a name of letters, digits and underscores."""
    return "_".join("".join(c if c.isalnum() else " " for c in spelling).split())
