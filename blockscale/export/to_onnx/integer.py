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
    convolved,
    divided,
    in_bytes,
    int64,
    larger,
    multiplied,
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


Given = Mapping[str, Any]  # {argument: TensorInput, a tensor that the model holds, or a value}


def is_written(op: str) -> bool:
    """Whether ONNX has operators for an integer op, or for torch's `pad` of integers."""
    return op in _WRITERS


def step(scope: Scope, op: str, given: Given) -> str:
    """What an integer op gives. op: without `integer_`"""
    return _WRITERS[op](scope, given)


def _value(scope: Scope, given: Given, name: str) -> TensorInput:
    """An argument as a value of the file: a tensor of the model is stored."""
    found = given[name]
    if isinstance(found, TensorInput):
        return found
    return TensorInput(_stored(scope, name, found), found.dtype, tuple(found.shape))


def _stored(scope: Scope, name: str, tensor: Tensor) -> str:
    return put_tensor(scope.file, f"{scope.within}.{name}", tensor)


def _name_of(kind: torch.dtype) -> str:
    return str(kind).removeprefix("torch.").upper()


def _wide(given: Given) -> bool:
    return bool(given["largest"] > INT32_MAX)


def _centered(scope: Scope, x: TensorInput, zero: int, *, wide: bool) -> str:
    """How many steps each code means, int32 or int64."""
    codes = scope.cast(x.name, "INT64" if wide else "INT32")
    if not zero:
        return codes
    point = np.array(zero, np.int64 if wide else np.int32)
    return scope.op("Sub", codes, scope.constant(point))


def _ended(scope: Scope, acc: str, given: Given, *, wide: bool) -> str:
    """`shifts.ended`: sums int32, or int64 if wide, as codes of a format, or as sums."""
    fmt, shift = given["fmt"], given["shift"]
    sums = acc if wide else scope.cast(acc, "INT64")
    if not fmt:
        left = (-shift).clamp(0, FARTHEST_LEFT).to(torch.int64)
        clamped = given["low"] != given["high"]
        if not clamped and not bool((left > 0).any()):
            return acc
        sums = shifted_left(scope, sums, left)
        sums = clipped(scope, sums, given["low"], given["high"]) if clamped else sums
        return sums if wide else scope.cast(sums, "INT32")
    form = parse(fmt)
    if wide and bool((shift < 0).any()):
        small = clipped(scope, sums, -_SMALL, _SMALL)
        sums = scope.op("Where", scope.constant((shift < 0).numpy()), small, sums)
    return _as_codes(scope, shifted(scope, sums, shift, form.rounding), given)


def _as_codes(scope: Scope, steps: str, given: Given) -> str:
    if given["zero"]:
        steps = scope.op("Add", steps, int64(scope, given["zero"]))
    codes = clipped(scope, steps, given["low"], given["high"])
    return scope.cast(codes, _name_of(parse(given["fmt"]).element.code_dtype))


def _quantize(scope: Scope, given: Given) -> str:
    fmt = parse(given["fmt"])
    unit = pow2(torch.tensor(given["exponent"], dtype=torch.int32))
    y = scope.op("Div", _value(scope, given, "x").name, scope.constant(unit.numpy()))
    y = rounded(scope, without_nan(scope, y), fmt.rounding)
    if given["zero"]:
        y = scope.op("Add", y, scope.floats(float(given["zero"])))
    low, high = fmt.element.limits(fmt.wide)
    y = scope.op("Clip", y, scope.floats(low), scope.floats(high))
    return scope.cast(y, _name_of(fmt.element.code_dtype))


def _dequantize(scope: Scope, given: Given) -> str:
    x = _value(scope, given, "x")
    wide = x.kind == torch.int64
    values = scope.cast(_centered(scope, x, given["zero"], wide=wide), "FLOAT")
    step = pow2(torch.tensor(given["exponent"], dtype=torch.int32))
    return scope.op("Mul", values, scope.constant(step.numpy()))


def _rescale(scope: Scope, given: Given) -> str:
    x = _value(scope, given, "x")
    wide = x.kind == torch.int64
    return _ended(scope, _centered(scope, x, given["x_zero"], wide=wide), given, wide=wide)


def _linear(scope: Scope, given: Given) -> str:
    x, weight = _value(scope, given, "x"), given["weight"].t().contiguous()
    wide = _products(given) > INT32_MAX
    if not wide and in_bytes(x.kind, given["x_zero"], weight):
        y = multiplied(scope, x.name, x.kind, given["x_zero"], weight)
    else:
        kind = "INT64" if wide else "INT32"
        factor = scope.cast(_stored(scope, "weight", weight), kind)
        y = scope.op("MatMul", _centered(scope, x, given["x_zero"], wide=wide), factor)
    return _of_products(scope, y, given, wide=wide)


def _products(given: Given) -> int:
    """The bound of a layer's sums before they are shifted to the left, as those without a format
    may be: `largest` is of what comes out as well."""
    left = 0 if given["fmt"] else int((-given["shift"]).clamp(0, FARTHEST_LEFT).max())
    return int(given["largest"] >> left)


def _of_products(scope: Scope, y: str, given: Given, *, wide: bool) -> str:
    """Sums of products with their bias, which lies along the last dimension, ended."""
    bias = given["bias"]
    if bias is not None:
        offset = bias.to(torch.int64 if wide else torch.int32)
        y = scope.op("Add", y, _stored(scope, "bias", offset))
    ends_wide = _wide(given)
    y = scope.cast(y, "INT64") if ends_wide and not wide else y
    return _ended(scope, y, given, wide=ends_wide)


def _conv(scope: Scope, given: Given) -> str:
    x, weight = _value(scope, given, "x"), given["weight"]
    if given["transposed"]:
        raise ValueError(
            f"{scope.within}: ONNX has no transposed convolution of integers: leave it in float, "
            f"or write a C file (bs.export.c)"
        )
    if _products(given) > INT32_MAX or not in_bytes(x.kind, given["x_zero"], weight):
        raise ValueError(
            f"{scope.within}: a convolution of {_name_of(x.kind).lower()} and "
            f"{_name_of(weight.dtype).lower()} with sums up to {_products(given)} has no integer "
            f"operator in ONNX: use formats of 8 bits, or of 16 without asym"
        )
    count = len(given["shape"]) - 2
    first, last = [0, count + 1, *range(1, count + 1)], [0, *range(2, count + 2), 1]
    dense = from_stored(weight, "channels_last", given["shape"]).contiguous()
    y = convolved(
        scope, scope.op("Transpose", x.name, perm=first), x.kind, given["x_zero"], dense,
        pads=list(given["padding"]) * 2, strides=list(given["stride"]),
        dilations=list(given["dilation"]), group=given["groups"],
    )  # fmt: skip
    y = scope.op("Transpose", y, perm=last)
    return _of_products(scope, y, given, wide=False)


def _matmul(scope: Scope, given: Given) -> str:
    return _of_two(scope, given, "MatMul")


def _mul(scope: Scope, given: Given) -> str:
    return _of_two(scope, given, "Mul")


def _of_two(scope: Scope, given: Given, how: str) -> str:
    wide = _wide(given)
    a, b = (
        _centered(scope, _value(scope, given, name), given[f"{name}_zero"], wide=wide)
        for name in ("a", "b")
    )
    return _ended(scope, scope.op(how, a, b), given, wide=wide)


def _add(scope: Scope, given: Given) -> str:
    sides = []
    for name in ("a", "b"):
        side = _centered(scope, _value(scope, given, name), given[f"{name}_zero"], wide=True)
        sides.append(shifted_left(scope, side, torch.tensor(given[f"{name}_shift"])))
    y = scope.op("Add" if given["b_sign"] > 0 else "Sub", *sides)
    wide = _wide(given)
    return _ended(scope, y if wide else scope.cast(y, "INT32"), given, wide=wide)


def _look_up(scope: Scope, given: Given) -> str:
    codes = scope.cast(_value(scope, given, "x").name, "INT64")  # negative ones count from the end
    return scope.op("Gather", _stored(scope, "table", given["table"]), codes)


def _embedding(scope: Scope, given: Given) -> str:
    rows = _value(scope, given, "indices").name
    return scope.op("Gather", _stored(scope, "weight", given["weight"]), rows)


def _pad(scope: Scope, given: Given) -> str:
    """torch's `pad` of integers with a constant, which onnxruntime has of some widths alone."""
    x, around = _value(scope, given, "x"), list(given["pad"])
    rank, count = len(x.sizes), len(around) // 2
    begins, ends = ([around[2 * i + end] for i in range(count)] for end in (0, 1))
    axes = scope.ints(*(rank - 1 - i for i in range(count)))
    codes = scope.cast(x.name, "INT64")
    y = scope.op("Pad", codes, scope.ints(*begins, *ends), int64(scope, given["value"]), axes)
    return scope.cast(y, _name_of(x.kind))


def _sum_pool(scope: Scope, given: Given) -> str:
    x, kernel, padding = _value(scope, given, "x"), list(given["kernel"]), list(given["padding"])
    acc, axes = _centered(scope, x, given["x_zero"], wide=True), _last(len(kernel))
    if list(x.sizes[-len(kernel) :]) == kernel and not any(padding):
        return _mean(scope, scope.op("ReduceSum", acc, scope.ints(*axes), keepdims=1), given)
    if any(padding):
        ends = scope.ints(*padding, *padding)
        acc = scope.op("Pad", acc, ends, int64(scope, 0), scope.ints(*axes))
    sums = _over_windows(scope, acc, kernel, given["stride"], _added)
    return _mean(scope, sums, given)


def _added(scope: Scope, a: str, b: str) -> str:
    return scope.op("Add", a, b)


def _sum_over(scope: Scope, given: Given) -> str:
    acc = _centered(scope, _value(scope, given, "x"), given["x_zero"], wide=True)
    axes = scope.ints(*given["dims"])
    return _mean(scope, scope.op("ReduceSum", acc, axes, keepdims=int(given["keepdim"])), given)


def _mean(scope: Scope, acc: str, given: Given) -> str:
    """Sums int64 over the divisor, rounded once: `reductions._mean`."""
    if given["divisor"] == 1:
        wide = _wide(given)
        return _ended(scope, acc if wide else scope.cast(acc, "INT32"), given, wide=wide)
    shift = given["shift"].to(torch.int64)
    by = (torch.ones_like(shift) << shift.clamp(0, 40)) * given["divisor"]
    acc = shifted_left(scope, acc, (-shift).clamp(0, 31))
    return _as_codes(scope, divided(scope, acc, by, parse(given["fmt"]).rounding), given)


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


def _max_pool(scope: Scope, given: Given) -> str:
    x = _value(scope, given, "x")
    kernel, stride, padding, dilation = (
        list(given[name]) for name in ("kernel", "stride", "padding", "dilation")
    )
    if x.kind in (torch.int8, torch.uint8):
        return scope.op(
            "MaxPool", x.name, kernel_shape=kernel, strides=stride, pads=padding * 2,
            dilations=dilation, ceil_mode=int(given["ceil_mode"]),
        )  # fmt: skip
    if given["ceil_mode"] or {*dilation} != {1}:
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


_WRITERS: dict[str, Callable[[Scope, Given], str]] = {
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
