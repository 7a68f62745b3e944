# SPDX-License-Identifier: BSD-3-Clause
"""Quantized weights in a file: codes as they are stored, and the nodes that make floats of them.

DequantizeLinear where ONNX has a type for the codes and the blocks lie along one axis; else packed
bytes, whose description (doc_string) is their format and shape, and operators on bits and numbers.
Weights lie as the op that reads them wants them, [k, n] for MatMul: onnxruntime fuses only that.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from blockscale.core import pack as packing
from blockscale.core.operand import Operand
from blockscale.core.reference import QParams
from blockscale.core.scales import TwoLevel
from blockscale.export.to_onnx import steps
from blockscale.export.to_onnx.scope import Scope, native, put_codes, put_tensor, put_zeros
from blockscale.export.to_onnx.steps import decode, expand, repeat, unpack, whole_groups

_GATHERED = {  # types of codes -> those in which Gather takes them
    "INT2": "INT8", "INT4": "INT8", "INT8": "INT8", "INT16": "INT16", "UINT2": "UINT8",
    "UINT4": "UINT8", "UINT8": "UINT8", "UINT16": "UINT16", "FLOAT8E4M3FN": "FLOAT16",
    "FLOAT8E5M2": "FLOAT16", "FLOAT4E2M1": "FLOAT16", "FLOAT6E2M3": "FLOAT16",
    "FLOAT6E3M2": "FLOAT16",
}  # fmt: skip
Move = tuple[str, tuple[int, ...]]  # ("view", sizes) or ("permute", dims)


class _Along(NamedTuple):
    """The blocks as DequantizeLinear's attributes: of all (axis None), by axis, or along one."""

    axis: int | None = None
    block_size: int = 0


def move(tensor: Tensor, moves: tuple[Move, ...]) -> Tensor:
    """The tensor after views and permutations."""
    for kind, sizes in moves:
        tensor = tensor.reshape(sizes) if kind == "view" else tensor.permute(sizes)
    return tensor


def weight(
    scope: Scope, name: str, stored: Operand, moves: tuple[Move, ...], dtype: torch.dtype
) -> str:
    """The values of a weight as `moves` leave them; its initializers are `<name>.codes`, … ."""
    along = _along(stored, moves, scope.file.opset)
    if along is not None:
        values = _dequantize_linear(scope, name, stored, moves, along)
    else:
        values = _by_operators(scope, name, stored)
        for kind, sizes in moves:
            if kind == "view":
                values = scope.op("Reshape", values, scope.ints(*sizes))
            else:
                values = scope.op("Transpose", values, perm=list(sizes))
    return _as(scope, values, dtype)


def _as(scope: Scope, values: str, dtype: torch.dtype) -> str:
    kinds = {torch.float16: "FLOAT16", torch.bfloat16: "BFLOAT16"}
    return scope.cast(values, kinds[dtype]) if dtype in kinds else values


def _along(stored: Operand, moves: tuple[Move, ...], opset: int) -> _Along | None:
    """How the blocks of the moved weight lie; None where DequantizeLinear cannot say it."""
    fmt, shape = stored.format, stored.shape
    if native(fmt.element, opset) is None or fmt.offset is not None or fmt.zero is not None:
        return None
    counts = tuple(stored.scale.shape)
    if stored.scale.numel() == 1:
        return _Along()
    if fmt.block.flat:
        return None
    axes = [i for i, (n, count) in enumerate(zip(shape, counts, strict=True)) if n != count]
    axis = _axis(stored, moves)
    if axis is not None:
        return _Along(axis)
    if len(axes) != 1 or any(kind == "view" for kind, _ in moves):
        return None
    size, at = fmt.block.sizes_for(len(shape))[axes[0]] or shape[axes[0]], axes[0]
    for _, dims in moves:
        at = dims.index(at)
    return _Along(at, size)


def _axis(stored: Operand, moves: tuple[Move, ...]) -> int | None:
    """The axis of the moved weight along which alone the scales change, one by one."""
    count = stored.scale.numel()
    which = torch.arange(count, dtype=torch.int32).reshape(stored.scale.shape)
    which = stored.format.block.expand(which, torch.Size(stored.shape)).expand(stored.shape)
    which = move(which, moves)
    for axis, n in enumerate(which.shape):
        by_axis = torch.arange(n, dtype=torch.int32)
        if n == count and bool((which.movedim(axis, -1) == by_axis).all()):
            return axis
    return None


def _dequantize_linear(
    scope: Scope, name: str, stored: Operand, moves: tuple[Move, ...], along: _Along
) -> str:
    inputs = _linear_inputs(scope, name, stored, moves, along)
    axis: dict[str, Any] = {} if along.axis is None else {"axis": along.axis}
    block: dict[str, Any] = {"block_size": along.block_size} if along.block_size else {}
    return scope.op("DequantizeLinear", *inputs, **axis, **block)


def _linear_inputs(
    scope: Scope, name: str, stored: Operand, moves: tuple[Move, ...], along: _Along
) -> list[str]:
    """Codes as they lie after the moves, the step and the zero points of their blocks."""
    fmt, file = stored.format, scope.file
    codes = move(packing.unpack(stored.codes, fmt.element, stored.shape), moves)
    qparams, zero = stored.qparams, stored.zero_point
    if along.block_size:
        step, zero = _moved_step(scope, name, stored, moves)
        dims = tuple(move(qparams.scale, moves).shape)
    else:
        dims = () if along.axis is None else (codes.shape[along.axis],)
        step = steps.step(scope, name, fmt, _flat(qparams, dims))
    inputs = [put_codes(file, f"{name}.codes", fmt.element, codes), step]
    if fmt.element.integer:
        inputs.append(put_zeros(file, f"{name}.zero_point", fmt.element, zero, dims))
    return inputs


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
    zero = None if zero is None else move(zero, moves)
    if not isinstance(fmt.scale, TwoLevel) or fmt.scale.inner.block.name == "tensor":
        outer = None if qparams.outer is None else move(qparams.outer, moves)
        parts = qparams._replace(scale=move(qparams.scale, moves), outer=outer)
        return steps.step(scope, name, fmt, parts), zero
    step = steps.step(scope, name, fmt, qparams)
    for _, dims in moves:
        step = scope.op("Transpose", step, perm=list(dims))
    return step, zero


def _by_operators(scope: Scope, name: str, stored: Operand) -> str:
    """(code - zero point) · step + offset, each spread over its block, from packed codes."""
    fmt, shape, qparams = stored.format, stored.shape, stored.qparams
    packed = whole_groups(stored.codes, fmt.bits)
    packed = packed.reshape(-1, packed.shape[-1])
    codes = put_tensor(scope.file, f"{name}.codes", packed, description(stored))
    patterns = unpack(scope, codes, fmt.element, stored.size)
    values = decode(scope, patterns, fmt.element, _book(scope, name, qparams))
    values = scope.op("Reshape", values, scope.ints(*shape))
    if qparams.zero_point is not None:
        zero = _zeros(scope, name, qparams.zero_point)
        zero = expand(scope, zero, fmt.block, tuple(qparams.zero_point.shape), shape)
        values = scope.op("Sub", values, zero)
    step = steps.step(scope, name, fmt, qparams)
    step = expand(scope, step, fmt.block, tuple(qparams.scale.shape), shape)
    values = scope.op("Mul", values, step)
    offset = steps.offset(scope, name, fmt, qparams)
    if offset is None or qparams.offset is None:
        return values
    addend = expand(scope, offset[0], offset[1], tuple(qparams.offset.shape), shape)
    return scope.op("Add", values, addend)


def description(stored: Operand) -> str:
    """What a tensor of packed codes says of them: format and shape, by which they can be read."""
    return f"{stored.format.spelling} {list(stored.shape)}"


def _book(scope: Scope, name: str, qparams: QParams) -> str:
    """The values by code that the weight has of its own; empty without any."""
    return "" if qparams.book is None else put_tensor(scope.file, f"{name}.book", qparams.book)


def _zeros(scope: Scope, name: str, zero: Tensor) -> str:
    """Zero points as float32."""
    stored = put_tensor(scope.file, f"{name}.zero_point", zero)
    return stored if zero.dtype == torch.float32 else scope.cast(stored, "FLOAT")


def rows(scope: Scope, name: str, stored: Operand, indices: str, dtype: torch.dtype) -> str:
    """The rows of a table [rows, size] that indices [...] ask for: [..., size]."""
    fmt, block = stored.format, stored.format.block
    if block.flat or (fmt.offset is not None and (fmt.offset.block or block).flat):
        table = weight(scope, name, stored, (), dtype)
        return scope.op("Gather", table, indices, axis=0)
    flat = scope.op("Reshape", indices, scope.ints(-1))
    along = _along(stored, TURNED, scope.file.opset) if name in scope.file.transposed else None
    if along is not None:
        values = _turned_rows(scope, name, stored, along, flat)
        return _as_rows(scope, values, indices, stored, dtype)
    file, qparams = scope.file, stored.qparams
    packed = put_tensor(
        file, f"{name}.codes", whole_groups(stored.codes, fmt.bits), description(stored)
    )
    patterns = unpack(scope, scope.op("Gather", packed, flat, axis=0), fmt.element, stored.size)
    values = decode(scope, patterns, fmt.element, _book(scope, name, qparams))

    def each(part: str, shape: Any, of: Any) -> str:
        height, width = of.sizes_for(2)
        if shape[0] > 1:  # one for all rows stays as it is
            place = flat if height == 1 else scope.op("Div", flat, scope.ints(height))
            part = scope.op("Gather", part, place, axis=0)
        return repeat(scope, part, 1, stored.size, width) if shape[1] > 1 < width else part

    if qparams.zero_point is not None:
        zero = put_tensor(file, f"{name}.zero_point", qparams.zero_point.to(torch.float32))
        values = scope.op("Sub", values, each(zero, qparams.zero_point.shape, block))
    step = steps.step(scope, name, fmt, qparams)
    values = scope.op("Mul", values, each(step, qparams.scale.shape, block))
    offset = steps.offset(scope, name, fmt, qparams)
    if offset is not None and qparams.offset is not None:
        values = scope.op("Add", values, each(offset[0], qparams.offset.shape, offset[1]))
    return _as_rows(scope, values, indices, stored, dtype)


def _as_rows(scope: Scope, values: str, indices: str, stored: Operand, dtype: torch.dtype) -> str:
    """Rows [count, size] for the indices [...]: [..., size]."""
    shape = scope.op("Concat", scope.op("Shape", indices), scope.ints(stored.size), axis=0)
    return _as(scope, scope.op("Reshape", values, shape), dtype)


TURNED: tuple[Move, ...] = (("permute", (1, 0)),)


def as_products_read_it(stored: Operand, moves: tuple[Move, ...], opset: int = 0) -> bool:
    """Whether a product reads a table [k, n] by DequantizeLinear: what looks up rows can do so from
    the same tensors, so that the file holds them once."""
    return moves == TURNED and _along(stored, moves, opset) is not None


def _turned_rows(scope: Scope, name: str, stored: Operand, along: _Along, flat: str) -> str:
    """Rows of a table that is stored [k, n], at indices [count]: [count, k] float32.

    It is turned back as int8 or the like; runtimes do that once, when they load the file.
    """
    codes, step, *zeros = _linear_inputs(scope, name, stored, TURNED, along)
    kind = _GATHERED[native(stored.format.element, scope.file.opset) or ""]

    def pick(part: str, rows: str) -> str:
        return scope.op("Gather", scope.op("Transpose", part, perm=[1, 0]), rows, axis=0)

    def each(part: str) -> str:
        """One number a block for the rows, or for all rows."""
        if along.block_size and along.axis == 0:  # [k / size, n]
            return repeat(scope, pick(part, flat), 1, stored.size, along.block_size)
        if along.block_size:  # [k, n / size]
            return pick(part, scope.op("Div", flat, scope.ints(along.block_size)))
        if along.axis == 1:  # [n]
            column = scope.op("Gather", part, flat, axis=0)
            return scope.op("Reshape", column, scope.ints(-1, 1))
        return part

    values = scope.cast(pick(scope.cast(codes, kind), flat), "FLOAT")
    if stored.zero_point is not None:
        zero = scope.cast(each(scope.cast(zeros[0], kind)), "FLOAT")
        values = scope.op("Sub", values, zero)
    return scope.op("Mul", values, each(step))
