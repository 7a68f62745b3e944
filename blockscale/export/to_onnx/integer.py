# SPDX-License-Identifier: BSD-3-Clause
"""The ops of an integer graph by ONNX's integer operators: sums in int32, scales as shifts.

Floats are read once, where the model's input becomes codes, and made once, at its end. Numbers in
between are those of `blockscale/ops/integer`, bit for bit (docs/integers.md).
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from blockscale.core.arithmetic.precision import pow2
from blockscale.core.arithmetic.sums import FARTHEST_LEFT, INT32_MAX
from blockscale.core.pack import from_stored
from blockscale.core.parse import parse
from blockscale.export.to_onnx.encode import rounded, without_nan
from blockscale.export.to_onnx.integer_products import (
    clipped,
    convolve,
    divide,
    in_bytes,
    int64,
    larger,
    multiply,
    shifted,
    shifted_left,
)
from blockscale.export.to_onnx.scope import Scope, put_tensor

_SMALL = 1 << 17  # more than any code of 16 bits: wide sums saturate before they go to the left

Sizes = tuple[int | None, ...]


class TensorInput(NamedTuple):
    """A tensor that an op takes and that the graph computes: the name of its value, its dtype and
    its sizes, None where they are free."""

    name: str
    kind: torch.dtype
    sizes: Sizes


Arguments = Mapping[str, Any]  # {argument: TensorInput, a tensor that the model holds, or a value}


def is_written(op: str) -> bool:
    """Whether ONNX has operators for an integer op, or for torch's `pad` of integers."""
    return op in _WRITERS


def step(scope: Scope, op: str, args: Arguments) -> str:
    """What an integer op gives. op: without `integer_`"""
    return _WRITERS[op](scope, args)


def _value(scope: Scope, args: Arguments, name: str) -> TensorInput:
    """An argument as a value of the file: a tensor of the model is stored."""
    value = args[name]
    if isinstance(value, TensorInput):
        return value
    return TensorInput(_stored(scope, name, value), value.dtype, tuple(value.shape))


def _stored(scope: Scope, name: str, tensor: Tensor) -> str:
    return put_tensor(scope.file, f"{scope.within}.{name}", tensor)


def _name_of(kind: torch.dtype) -> str:
    return str(kind).removeprefix("torch.").upper()


def _wide(args: Arguments) -> bool:
    return bool(args["largest"] > INT32_MAX)


def _centered(scope: Scope, x: TensorInput, zero: int, *, wide: bool) -> str:
    """How many steps each code means, int32 or int64."""
    codes = scope.cast(x.name, "INT64" if wide else "INT32")
    if not zero:
        return codes
    point = np.array(zero, np.int64 if wide else np.int32)
    return scope.op("Sub", codes, scope.constant(point))


def _finish(scope: Scope, acc: str, args: Arguments, *, wide: bool) -> str:
    """`shifts.ended`: sums int32, or int64 if wide, as codes of a format, or as sums."""
    fmt, shift = args["fmt"], args["shift"]
    sums = acc if wide else scope.cast(acc, "INT64")
    if not fmt:
        to_left = (-shift).clamp(0, FARTHEST_LEFT).to(torch.int64)
        has_clamp = args["low"] != args["high"]
        if not has_clamp and not bool((to_left > 0).any()):
            return acc
        sums = shifted_left(scope, sums, to_left)
        sums = clipped(scope, sums, args["low"], args["high"]) if has_clamp else sums
        return sums if wide else scope.cast(sums, "INT32")
    form = parse(fmt)
    if wide and bool((shift < 0).any()):
        small = clipped(scope, sums, -_SMALL, _SMALL)
        sums = scope.op("Where", scope.constant((shift < 0).numpy()), small, sums)
    return _as_codes(scope, shifted(scope, sums, shift, form.rounding), args)


def _as_codes(scope: Scope, steps: str, args: Arguments) -> str:
    if args["zero"]:
        steps = scope.op("Add", steps, int64(scope, args["zero"]))
    codes = clipped(scope, steps, args["low"], args["high"])
    return scope.cast(codes, _name_of(parse(args["fmt"]).element.code_dtype))


def _quantize(scope: Scope, args: Arguments) -> str:
    fmt = parse(args["fmt"])
    unit = pow2(torch.tensor(args["exponent"], dtype=torch.int32))
    y = scope.op("Div", _value(scope, args, "x").name, scope.constant(unit.numpy()))
    y = rounded(scope, without_nan(scope, y), fmt.rounding)
    if args["zero"]:
        y = scope.op("Add", y, scope.floats(float(args["zero"])))
    low, high = fmt.element.limits(fmt.wide)
    y = scope.op("Clip", y, scope.floats(low), scope.floats(high))
    return scope.cast(y, _name_of(fmt.element.code_dtype))


def _dequantize(scope: Scope, args: Arguments) -> str:
    x = _value(scope, args, "x")
    wide = x.kind == torch.int64
    values = scope.cast(_centered(scope, x, args["zero"], wide=wide), "FLOAT")
    step = pow2(torch.tensor(args["exponent"], dtype=torch.int32))
    return scope.op("Mul", values, scope.constant(step.numpy()))


def _rescale(scope: Scope, args: Arguments) -> str:
    x = _value(scope, args, "x")
    wide = x.kind == torch.int64
    return _finish(scope, _centered(scope, x, args["x_zero"], wide=wide), args, wide=wide)


def _linear(scope: Scope, args: Arguments) -> str:
    x, weight = _value(scope, args, "x"), args["weight"].t().contiguous()
    wide = _products(args) > INT32_MAX
    if not wide and in_bytes(x.kind, args["x_zero"], weight):
        y = multiply(scope, x.name, x.kind, args["x_zero"], weight)
    else:
        kind = "INT64" if wide else "INT32"
        factor = scope.cast(_stored(scope, "weight", weight), kind)
        y = scope.op("MatMul", _centered(scope, x, args["x_zero"], wide=wide), factor)
    return _of_products(scope, y, args, wide=wide)


def _products(args: Arguments) -> int:
    """The bound of a layer's sums before they are shifted to the left, as those without a format
    may be: `largest` is of what comes out as well."""
    to_left = 0 if args["fmt"] else int((-args["shift"]).clamp(0, FARTHEST_LEFT).max())
    return int(args["largest"] >> to_left)


def _of_products(scope: Scope, y: str, args: Arguments, *, wide: bool) -> str:
    """Sums of products with their bias, which lies along the last dimension, ended."""
    bias = args["bias"]
    if bias is not None:
        offset = bias.to(torch.int64 if wide else torch.int32)
        y = scope.op("Add", y, _stored(scope, "bias", offset))
    ends_wide = _wide(args)
    y = scope.cast(y, "INT64") if ends_wide and not wide else y
    return _finish(scope, y, args, wide=ends_wide)


def _conv(scope: Scope, args: Arguments) -> str:
    x, weight = _value(scope, args, "x"), args["weight"]
    if args["transposed"]:
        raise ValueError(
            f"{scope.within}: ONNX has no transposed convolution of integers: leave it in float, "
            f"or write a C file (bs.export.c)"
        )
    if _products(args) > INT32_MAX or not in_bytes(x.kind, args["x_zero"], weight):
        raise ValueError(
            f"{scope.within}: a convolution of {_name_of(x.kind).lower()} and "
            f"{_name_of(weight.dtype).lower()} with sums up to {_products(args)} has no integer "
            f"operator in ONNX: use formats of 8 bits, or of 16 without asym"
        )
    count = len(args["shape"]) - 2
    first, last = [0, count + 1, *range(1, count + 1)], [0, *range(2, count + 2), 1]
    dense = from_stored(weight, "channels_last", args["shape"]).contiguous()
    y = convolve(
        scope, scope.op("Transpose", x.name, perm=first), x.kind, args["x_zero"], dense,
        pads=list(args["padding"]) * 2, strides=list(args["stride"]),
        dilations=list(args["dilation"]), group=args["groups"],
    )  # fmt: skip
    y = scope.op("Transpose", y, perm=last)
    return _of_products(scope, y, args, wide=False)


def _matmul(scope: Scope, args: Arguments) -> str:
    return _of_two(scope, args, "MatMul")


def _mul(scope: Scope, args: Arguments) -> str:
    return _of_two(scope, args, "Mul")


def _of_two(scope: Scope, args: Arguments, how: str) -> str:
    wide = _wide(args)
    a, b = (
        _centered(scope, _value(scope, args, name), args[f"{name}_zero"], wide=wide)
        for name in ("a", "b")
    )
    return _finish(scope, scope.op(how, a, b), args, wide=wide)


def _add(scope: Scope, args: Arguments) -> str:
    sides = []
    for name in ("a", "b"):
        side = _centered(scope, _value(scope, args, name), args[f"{name}_zero"], wide=True)
        sides.append(shifted_left(scope, side, torch.tensor(args[f"{name}_shift"])))
    y = scope.op("Add" if args["b_sign"] > 0 else "Sub", *sides)
    wide = _wide(args)
    return _finish(scope, y if wide else scope.cast(y, "INT32"), args, wide=wide)


def _look_up(scope: Scope, args: Arguments) -> str:
    codes = scope.cast(_value(scope, args, "x").name, "INT64")  # negative ones count from the end
    return scope.op("Gather", _stored(scope, "table", args["table"]), codes)


def _embedding(scope: Scope, args: Arguments) -> str:
    rows = _value(scope, args, "indices").name
    return scope.op("Gather", _stored(scope, "weight", args["weight"]), rows)


def _pad(scope: Scope, args: Arguments) -> str:
    """torch's `pad` of integers with a constant, which onnxruntime has of some widths alone."""
    x, around = _value(scope, args, "x"), list(args["pad"])
    rank, count = len(x.sizes), len(around) // 2
    begins, ends = ([around[2 * i + end] for i in range(count)] for end in (0, 1))
    axes = scope.ints(*(rank - 1 - i for i in range(count)))
    codes = scope.cast(x.name, "INT64")
    y = scope.op("Pad", codes, scope.ints(*begins, *ends), int64(scope, args["value"]), axes)
    return scope.cast(y, _name_of(x.kind))


def _sum_pool(scope: Scope, args: Arguments) -> str:
    x, kernel, padding = _value(scope, args, "x"), list(args["kernel"]), list(args["padding"])
    acc, axes = _centered(scope, x, args["x_zero"], wide=True), _last(len(kernel))
    if list(x.sizes[-len(kernel) :]) == kernel and not any(padding):
        return _mean(scope, scope.op("ReduceSum", acc, scope.ints(*axes), keepdims=1), args)
    if any(padding):
        ends = scope.ints(*padding, *padding)
        acc = scope.op("Pad", acc, ends, int64(scope, 0), scope.ints(*axes))
    sums = _over_windows(scope, acc, kernel, args["stride"], _sum)
    return _mean(scope, sums, args)


def _sum(scope: Scope, a: str, b: str) -> str:
    return scope.op("Add", a, b)


def _sum_over(scope: Scope, args: Arguments) -> str:
    acc = _centered(scope, _value(scope, args, "x"), args["x_zero"], wide=True)
    axes = scope.ints(*args["dims"])
    return _mean(scope, scope.op("ReduceSum", acc, axes, keepdims=int(args["keepdim"])), args)


def _mean(scope: Scope, acc: str, args: Arguments) -> str:
    """Sums int64 over the divisor, rounded once: `reductions._mean`."""
    if args["divisor"] == 1:
        wide = _wide(args)
        return _finish(scope, acc if wide else scope.cast(acc, "INT32"), args, wide=wide)
    shift = args["shift"].to(torch.int64)
    by = (torch.ones_like(shift) << shift.clamp(0, 40)) * args["divisor"]
    acc = shifted_left(scope, acc, (-shift).clamp(0, 31))
    return _as_codes(scope, divide(scope, acc, by, parse(args["fmt"]).rounding), args)


def _last(count: int) -> list[int]:
    return [*range(-count, 0)]


def _over_windows(
    scope: Scope,
    x: str,
    kernel: Sequence[int],
    stride: Sequence[int],
    both: Callable[[Scope, str, str], str],
) -> str:
    """Windows of x [..., *size] under what makes one number of two, tap by tap."""
    total = ""
    for at in product(*(range(size) for size in kernel)):
        part = _every(scope, x, at, kernel, stride)
        total = both(scope, total, part) if total else part
    return total


def _every(
    scope: Scope, x: str, at: Sequence[int], kernel: Sequence[int], stride: Sequence[int]
) -> str:
    """One tap of all windows: each `stride`-th number of x from `at` on."""
    last = [a - k + 1 for a, k in zip(at, kernel, strict=True)]  # 0: up to the end
    ends = [end or 2**31 - 1 for end in last]
    axes = scope.ints(*_last(len(kernel)))
    return scope.op("Slice", x, scope.ints(*at), scope.ints(*ends), axes, scope.ints(*stride))


def _max_pool(scope: Scope, args: Arguments) -> str:
    x = _value(scope, args, "x")
    kernel, stride, padding, dilation = (
        list(args[name]) for name in ("kernel", "stride", "padding", "dilation")
    )
    if x.kind in (torch.int8, torch.uint8):
        return scope.op(
            "MaxPool", x.name, kernel_shape=kernel, strides=stride, pads=padding * 2,
            dilations=dilation, ceil_mode=int(args["ceil_mode"]),
        )  # fmt: skip
    if args["ceil_mode"] or {*dilation} != {1}:
        raise ValueError(
            f"{scope.within}: max pooling of integer sums has no ceil_mode and no dilation in "
            "ONNX: leave them out, or use an output format of 8 bits for the layer before it"
        )
    y = scope.cast(x.name, "INT64")
    if any(padding):
        lowest = int64(scope, torch.iinfo(torch.int64).min)
        ends, axes = scope.ints(*padding, *padding), scope.ints(*_last(len(kernel)))
        y = scope.op("Pad", y, ends, lowest, axes)
    return scope.cast(_over_windows(scope, y, kernel, stride, larger), _name_of(x.kind))


_WRITERS: dict[str, Callable[[Scope, Arguments], str]] = {
    "quantize": _quantize,
    "dequantize": _dequantize,
    "rescale": _rescale,
    "linear": _linear,
    "conv": _conv,
    "matmul": _matmul,
    "mul": _mul,
    "add": _add,
    "look_up": _look_up,
    "embedding": _embedding,
    "max_pool": _max_pool,
    "sum_pool": _sum_pool,
    "sum_over": _sum_over,
    "pad": _pad,
}
