# SPDX-License-Identifier: BSD-3-Clause
"""The steps of an integer model by ONNX's integer operators: sums in int32, scales as shifts.

Floats are read once, where the model's input becomes codes, and made once, at its end. Numbers in
between are those of `bs.graph.to_integer`, bit for bit (docs/power_of_two.md).
"""

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from blockscale.core.arithmetic.bits import pow2
from blockscale.core.reference import QParams, step_of
from blockscale.export.to_onnx.encode import rounded, without_nan
from blockscale.export.to_onnx.integer_products import convolved, multiplied
from blockscale.export.to_onnx.integer_shift import shifted
from blockscale.export.to_onnx.scope import Scope
from blockscale.export.to_onnx.stored import put_tensor
from blockscale.graph.integer import steps

_KINDS = {
    torch.int8: "INT8",
    torch.uint8: "UINT8",
    torch.int16: "INT16",
    torch.int32: "INT32",
    torch.float32: "FLOAT",
}


class _Taken(NamedTuple):
    """What a step takes: the name of the value, and its dtype in torch."""

    name: str
    kind: torch.dtype


def is_step(module: nn.Module) -> bool:
    """Whether it computes, as one of the steps that `step` writes."""
    return type(module) in _WRITERS


def step(
    scope: Scope, module: nn.Module, given: Sequence[str], kinds: Sequence[torch.dtype]
) -> str:
    """What a step of an integer model gives. kinds: the dtypes of what it takes."""
    taken = [_Taken(*each) for each in zip(given, kinds, strict=True)]
    return _WRITERS[type(module)](scope, module, taken)


def _int(scope: Scope, number: Any, kind: Any = np.int32) -> str:
    return scope.constant(np.array(number, kind))


def _centered(scope: Scope, codes: str, zero_point: int) -> str:
    """How many steps each code means, int32."""
    codes = scope.cast(codes, "INT32")
    return scope.op("Sub", codes, _int(scope, zero_point)) if zero_point else codes


def _quantize(scope: Scope, module: Any, given: Sequence[_Taken]) -> str:
    fmt, zero = module.format, module._buffers["zero_point"]
    unit = step_of(QParams(module.scale, None, zero), fmt).reshape(())
    y = scope.op("Div", given[0].name, scope.constant(unit.numpy()))
    y = rounded(scope, without_nan(scope, y), fmt.rounding)
    if zero is not None:
        y = scope.op("Add", y, scope.floats(float(zero)))
    low, high = fmt.element.limits(fmt.wide)
    y = scope.op("Clip", y, scope.floats(low), scope.floats(high))
    return scope.cast(y, _KINDS[fmt.element.code_dtype])


def _dequantize(scope: Scope, module: Any, given: Sequence[_Taken]) -> str:
    values = scope.cast(_centered(scope, given[0].name, module.zero_point), "FLOAT")
    return scope.op("Mul", values, scope.constant(pow2(module.exponent).numpy()))


def _requantize(scope: Scope, module: Any, given: Sequence[_Taken]) -> str:
    before, after = module.zero_points
    fmt = module.format
    sums = scope.cast(_centered(scope, given[0].name, before), "INT64")
    codes = shifted(scope, sums, module.shift.to(torch.int64), fmt.rounding)
    if after:
        codes = scope.op("Add", codes, _int(scope, after, np.int64))
    low, high = (_int(scope, int(limit), np.int64) for limit in fmt.element.limits(fmt.wide))
    codes = scope.op("Clip", codes, low, high)
    return scope.cast(codes, _KINDS[fmt.element.code_dtype])


def _linear(scope: Scope, module: Any, given: Sequence[_Taken]) -> str:
    weight = module.weight.t().contiguous()
    y = multiplied(scope, given[0].name, given[0].kind, module.zero_point, weight)
    bias = module._buffers["bias"]
    return y if bias is None else scope.op("Add", y, _stored(scope, "bias", bias))


def _stored(scope: Scope, name: str, tensor: Tensor) -> str:
    return put_tensor(scope.file, f"{scope.within}.{name}", tensor)


def _conv(scope: Scope, module: Any, given: Sequence[_Taken]) -> str:
    y = convolved(scope, given[0].name, given[0].kind, module)
    bias = module._buffers["bias"]
    if bias is None:
        return y
    by_channel = bias.reshape(-1, *[1] * (module.weight.ndim - 2))
    return scope.op("Add", y, _stored(scope, "bias", by_channel))


def _clamp(scope: Scope, module: Any, given: Sequence[_Taken]) -> str:
    low, high = (scope.constant(each.to(torch.int32).numpy()) for each in (module.low, module.high))
    codes = scope.op("Min", scope.op("Max", scope.cast(given[0].name, "INT32"), low), high)
    return scope.cast(codes, _KINDS[given[0].kind])


def _add(scope: Scope, module: Any, given: Sequence[_Taken]) -> str:
    sides = []
    for x, zero, shift in zip(
        given, module.zero_points, (module.shift, module.other_shift), strict=True
    ):
        side = _centered(scope, x.name, zero)
        if bool((shift > 0).any()):
            by = scope.constant(shift.numpy().astype(np.uint32))
            bits = scope.op("BitShift", scope.cast(side, "UINT32"), by, direction="LEFT")
            side = scope.cast(bits, "INT32")
        sides.append(side)
    return scope.op("Add", *sides)


def _sum_pool(scope: Scope, module: Any, given: Sequence[_Taken]) -> str:
    kernel, stride, padding = module.windows
    x = _centered(scope, given[0].name, module.zero_point)
    if list(module.size or ()) == list(kernel) and not any(padding):
        return scope.op("ReduceSum", x, scope.ints(-2, -1), keepdims=1)
    if any(padding):
        ends = scope.ints(*padding, *padding)
        x = scope.op("Pad", x, ends, _int(scope, 0), scope.ints(-2, -1))
    return _over_windows(scope, x, kernel, stride, "Add")


def _over_windows(
    scope: Scope, x: str, kernel: Sequence[int], stride: Sequence[int], how: str
) -> str:
    """Windows of x [..., h, w] int32 under an operator of two, tap by tap."""
    total = ""
    for at in product(*(range(size) for size in kernel)):
        part = _every(scope, x, at, kernel, stride)
        total = scope.op(how, total, part) if total else part
    return total


def _every(
    scope: Scope, x: str, at: Sequence[int], kernel: Sequence[int], stride: Sequence[int]
) -> str:
    """One tap of all windows: each `stride`-th number of x from `at` on."""
    last = [a - k + 1 for a, k in zip(at, kernel, strict=True)]  # 0: up to the end
    ends = [end or 2**31 - 1 for end in last]
    return scope.op(
        "Slice", x, scope.ints(*at), scope.ints(*ends), scope.ints(-2, -1), scope.ints(*stride)
    )


def _max_pool(scope: Scope, module: Any, given: Sequence[_Taken]) -> str:
    kernel, stride, padding, dilation = (
        _pair(each) for each in (module.kernel_size, module.stride, module.padding, module.dilation)
    )
    if given[0].kind in (torch.int8, torch.uint8):
        return scope.op(
            "MaxPool",
            given[0].name,
            kernel_shape=kernel,
            strides=stride,
            pads=padding * 2,
            dilations=dilation,
            ceil_mode=int(module.ceil_mode),
        )
    if module.ceil_mode or dilation != [1, 1]:
        raise ValueError(
            "max pooling of integer sums has no ceil_mode and no dilation in ONNX: leave "
            "them out, or use an output format of 8 bits for the layer before it"
        )
    x = scope.cast(given[0].name, "INT32")
    if any(padding):
        lowest = _int(scope, torch.iinfo(torch.int32).min)
        x = scope.op("Pad", x, scope.ints(*padding, *padding), lowest, scope.ints(-2, -1))
    return scope.cast(_over_windows(scope, x, kernel, stride, "Max"), _KINDS[given[0].kind])


def _pair(size: Any) -> list[int]:
    return [size, size] if isinstance(size, int) else list(size)


_WRITERS: dict[type[nn.Module], Callable[..., str]] = {
    steps.Quantize: _quantize,
    steps.Dequantize: _dequantize,
    steps.Requantize: _requantize,
    steps.IntegerLinear: _linear,
    steps.IntegerConv: _conv,
    steps.Clamp: _clamp,
    steps.Add: _add,
    steps.SumPool: _sum_pool,
    nn.MaxPool2d: _max_pool,
}
