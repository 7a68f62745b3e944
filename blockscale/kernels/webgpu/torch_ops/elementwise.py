# SPDX-License-Identifier: BSD-3-Clause
"""Elementwise ops, of floats and of integers, and their gradients."""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from blockscale.kernels.webgpu.gpu.launch import launch
from blockscale.kernels.webgpu.gpu.probe import EXACT, DeviceArithmetic
from blockscale.kernels.webgpu.gpu.shader import Constant, Shader, ShaderKernel
from blockscale.kernels.webgpu.torch_device import WebGPUTensor, handles
from blockscale.kernels.webgpu.torch_ops.copies import (
    FLOATS,
    THREADS,
    addresses,
    cast,
    copy_,
    fresh,
    joint,
    send,
    words,
)

# Whole numbers and booleans of up to 64 bits: sums, products, bits, order, and as floats.


@dataclass(frozen=True)
class IntegerKernel(ShaderKernel, part="kernels/torch_elementwise/integers"):
    """A function of two whole numbers, torch_functions/integers/{function}."""

    function: str
    address: str


WHOLE = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_OF_BOOLEANS = {"add": "either", "mul": "both"}  # as torch has it
_PARTS = {
    "add", "sub", "mul", "both", "either", "differ", "maximum", "minimum", "equal", "unequal",
    "less", "at_most",
}  # fmt: skip


def whole_binary(part: str, a: Any, b: Any, dtype: torch.dtype) -> Any:
    """A function of two tensors of whole numbers, or of one and a number, as `dtype`."""
    x, y = _there(a), _there(b)
    if part not in _PARTS or x.dtype not in WHOLE or y.dtype not in WHOLE:
        return NotImplemented
    if dtype is torch.bool and x.dtype is torch.bool:
        part = _OF_BOOLEANS.get(part, part)
    if part == "sub" and torch.bool in (x.dtype, y.dtype):
        return NotImplemented  # torch refuses it
    shape = joint(x.shape, y.shape)
    result = fresh(shape, dtype)
    at = addresses(shape, [x, y])
    constants: tuple[tuple[str, Constant], ...] = (
        ("X_BITS", x.dtype.itemsize * 8), ("X_SIGNED", x.dtype.is_signed),
        ("Y_BITS", y.dtype.itemsize * 8), ("Y_SIGNED", y.dtype.is_signed),
        ("RESULT_BITS", dtype.itemsize * 8),
    )  # fmt: skip
    shader = Shader(IntegerKernel(part, at.address), (*constants, *at.constants))
    buffers = {"x": x.memory, "y": y.memory, "result": result.memory, **at.buffers}
    count = result.numel()
    groups = -(-count // max(4 // dtype.itemsize, 1) // THREADS)
    launch(shader, buffers, {"count": count}, groups, bake=False)
    return result


def _there(x: Any) -> WebGPUTensor:
    return x if isinstance(x, WebGPUTensor) else send(torch.as_tensor(x))


def _register_bits(part: str, *names: str) -> None:
    def compute(a: Any, b: Any) -> Any:
        return whole_binary(part, a, b, torch.result_type(a, b))

    handles(*names)(compute)


for _name, _part in (("and", "both"), ("or", "either"), ("xor", "differ")):
    _register_bits(_part, f"bitwise_{_name}.Tensor", f"bitwise_{_name}.Scalar")


@handles("bitwise_not.default")
def bitwise_not(x: WebGPUTensor) -> Any:
    """All bits are the other ones; a boolean is the other one."""
    return whole_binary("differ", x, True if x.dtype is torch.bool else -1, x.dtype)


@handles("logical_not.default")
def logical_not(x: WebGPUTensor) -> Any:
    """Where 0 is."""
    return whole_binary("equal", x, 0, torch.bool)


def _register_logic(part: str, name: str) -> None:
    def compute(a: WebGPUTensor, b: WebGPUTensor) -> Any:
        if a.dtype is not torch.bool or b.dtype is not torch.bool:
            return NotImplemented
        return whole_binary(part, a, b, torch.bool)

    handles(name)(compute)


for _name, _part in (("and", "both"), ("or", "either"), ("xor", "differ")):
    _register_logic(_part, f"logical_{_name}.default")


# Ops on elements: functions of one, of two, comparisons and choices between two.

# parts with the names of aten's ops, which have twins that change their tensor
_UNARY = (
    "neg", "abs", "relu", "exp", "log", "sqrt", "rsqrt", "reciprocal", "tanh", "sigmoid", "silu",
    "erf",
)  # fmt: skip
# name of an op -> the part, and whether its operands are exchanged
_COMPARE = {
    "eq": ("equal", False),
    "ne": ("unequal", False),
    "lt": ("less", False),
    "le": ("at_most", False),
    "gt": ("less", True),
    "ge": ("at_most", True),
}


@dataclass(frozen=True)
class Unary(ShaderKernel, part="kernels/torch_elementwise/unary"):
    """A function of numbers, torch_functions/unary/{function}; float: memory/float/{float}"""

    function: str
    float: str
    address: str
    device: DeviceArithmetic = EXACT


@dataclass(frozen=True)
class BinaryKernel(ShaderKernel, part="kernels/torch_elementwise/binary"):
    """A function of two numbers, torch_functions/binary/{function}.

    second: the other one is of a "tensor", or the same "number" for all
    """

    function: str
    float: str
    address: str
    second: str
    device: DeviceArithmetic = EXACT


@dataclass(frozen=True)
class Compare(BinaryKernel, part="kernels/torch_elementwise/compare"):
    """A comparison of two numbers, torch_functions/compare/{function}."""


@dataclass(frozen=True)
class Where(ShaderKernel, part="kernels/torch_elementwise/where"):
    """Elements of one of two tensors."""

    address: str


def bits(number: float) -> int:
    """A number as the bits of float32."""
    return ctypes.c_uint32.from_buffer(ctypes.c_float(number)).value


def unary(part: str, x: WebGPUTensor, **numbers: float) -> Any:
    """A function of each element, with numbers that its part reads from `sizes`."""
    if x.dtype not in FLOATS:
        return NotImplemented
    result = fresh(tuple(x.shape), x.dtype)
    at = addresses(tuple(x.shape), [x])
    shader = Shader(Unary(part, FLOATS[x.dtype], at.address), at.constants)
    sizes = {"count": x.numel()} | {name: bits(value) for name, value in numbers.items()}
    buffers = {"x": x.memory, "result": result.memory, **at.buffers}
    launch(shader, buffers, sizes, words(result), bake=False)
    return result


def binary(part: str, a: Any, b: Any, *, compare: bool = False) -> Any:
    """A function or comparison of two tensors, or of a tensor and a number."""
    dtype = torch.result_type(a, b)
    if dtype not in FLOATS:
        return whole_binary(part, a, b, torch.bool if compare else dtype)
    if not isinstance(a, WebGPUTensor):
        a = send(torch.as_tensor(a, dtype=dtype))
    x = cast(a, dtype)
    number = None if isinstance(b, WebGPUTensor) else float(b)
    operands = [x] if number is not None else [x, cast(b, dtype)]
    shape = joint(*(each.shape for each in operands))
    result = fresh(shape, torch.bool if compare else dtype)
    at = addresses(shape, operands)
    second = "tensor" if number is None else "number"
    kernel = (Compare if compare else BinaryKernel)(part, FLOATS[dtype], at.address, second)
    buffers = {"x": x.memory, "result": result.memory, **at.buffers}
    sizes = {"count": result.numel()}
    if number is None:
        buffers["y"] = operands[1].memory
    else:
        sizes["number"] = bits(number)
    launch(Shader(kernel, at.constants), buffers, sizes, words(result), bake=False)
    return result


def _in_place(compute: Callable[..., Any]) -> Callable[..., Any]:
    """The same, written into the first argument."""

    def run(x: WebGPUTensor, *args: Any, **kwargs: Any) -> Any:
        result = compute(x, *args, **kwargs)
        if result is NotImplemented:
            return result
        if result.shape != x.shape:
            raise RuntimeError(
                f"a result of shape {tuple(result.shape)} cannot be written into a tensor of shape "
                f"{tuple(x.shape)}"
            )
        return copy_(x, result)

    return run


def both(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register for overloads, and for those of the same names that change their first argument."""

    def register(compute: Callable[..., Any]) -> Callable[..., Any]:
        handles(*names)(compute)
        changing = (name.replace(".", "_.", 1) for name in names)
        handles(*changing)(_in_place(compute))
        return compute

    return register


def _register_unary(name: str) -> None:
    both(f"{name}.default")(lambda x: unary(name, x))


def _register_comparison(name: str, part: str, swap: bool) -> None:
    def compute(a: Any, b: Any) -> Any:
        if not swap:
            return binary(part, a, b, compare=True)
        return binary(part, *_as_tensors(a, b), compare=True)

    handles(f"{name}.Tensor", f"{name}.Scalar")(compute)


def _as_tensors(a: Any, b: Any) -> tuple[Any, Any]:
    """b, a: both tensors of the dtype of a comparison."""
    if isinstance(b, WebGPUTensor):
        return b, a
    return send(torch.as_tensor(b, dtype=torch.result_type(a, b))), a


for _name in _UNARY:
    _register_unary(_name)
for _name, (_part, _swapped) in _COMPARE.items():
    _register_comparison(_name, _part, _swapped)


@both("gelu.default")
def gelu(x: WebGPUTensor, *, approximate: str = "none") -> Any:
    """x times the part of a normal distribution that is below x."""
    return unary("gelu_tanh" if approximate == "tanh" else "gelu", x)


@both("leaky_relu.default")
def leaky_relu(x: WebGPUTensor, slope: float = 0.01) -> Any:
    """x, times `slope` where it is negative."""
    return unary("leaky_relu", x, number=slope)


@both("clamp.default", "hardtanh.default")
def clamp(x: WebGPUTensor, low: Any = None, high: Any = None, **bounds: Any) -> Any:
    """x between two numbers."""
    low, high = bounds.get("min", low), bounds.get("max", high)
    low, high = (
        -float("inf") if low is None else low,
        float("inf") if high is None else high,
    )
    return unary("clamp", x, low=low, high=high)


@both("clamp_min.default")
def clamp_min(x: WebGPUTensor, low: float) -> Any:
    """x, or `low` where it is below."""
    return clamp(x, low)


@both("clamp_max.default")
def clamp_max(x: WebGPUTensor, high: float) -> Any:
    """x, or `high` where it is above."""
    return clamp(x, None, high)


@both("pow.Tensor_Scalar")
def power(x: WebGPUTensor, exponent: float) -> Any:
    """x to a power that products or roots give."""
    if x.dtype not in FLOATS:
        return NotImplemented
    if exponent in (0, 1):
        return x.clone() if exponent == 1 else torch.ones_like(x)
    if exponent in (2, 3):
        square = binary("mul", x, x)
        return square if exponent == 2 else binary("mul", square, x)
    part = {0.5: "sqrt", -0.5: "rsqrt", -1: "reciprocal"}.get(exponent)
    return NotImplemented if part is None else unary(part, x)


@both("add.Tensor", "add.Scalar")
def add(a: Any, b: Any, alpha: float = 1) -> Any:
    """a + alpha b."""
    return _add("add", a, b, alpha)


@both("sub.Tensor", "sub.Scalar")
def sub(a: Any, b: Any, alpha: float = 1) -> Any:
    """a - alpha b."""
    return _add("sub", a, b, alpha)


@handles("rsub.Tensor", "rsub.Scalar")
def rsub(a: Any, b: Any, alpha: float = 1) -> Any:
    """b - alpha a."""
    return _add("sub", b, a, alpha)


def _add(part: str, a: Any, b: Any, alpha: float) -> Any:
    if alpha != 1:
        b = b * alpha
    return binary(part, a, b)


@both("mul.Tensor", "mul.Scalar")
def mul(a: Any, b: Any) -> Any:
    """a b."""
    return binary("mul", a, b)


@both("div.Tensor", "div.Scalar")
def div(a: Any, b: Any) -> Any:
    """a / b."""
    return binary("div", a, b)


@handles("maximum.default")
def maximum(a: Any, b: Any) -> Any:
    """The larger one, or NaN."""
    return binary("maximum", a, b)


@handles("minimum.default")
def minimum(a: Any, b: Any) -> Any:
    """The smaller one, or NaN."""
    return binary("minimum", a, b)


@handles("isnan.default")
def isnan(x: WebGPUTensor) -> Any:
    """Where no number is."""
    if x.dtype not in FLOATS:
        return NotImplemented
    return binary("unequal", x, x, compare=True)


@handles("where.self")
def where(condition: Any, a: Any, b: Any) -> Any:
    """a where the condition holds, else b; of any dtype."""
    if condition.dtype is not torch.bool:
        return NotImplemented
    dtype = torch.result_type(a, b)
    operands = [
        _there(condition),
        cast(_there(a), dtype),
        cast(_there(b), dtype),
    ]
    shape = joint(*(each.shape for each in operands))
    result = fresh(shape, dtype)
    at = addresses(shape, operands)
    constants = (("ITEM_BITS", dtype.itemsize * 8), *at.constants)
    shader = Shader(Where(at.address), constants)
    # a kernel may see one buffer several times if it only reads it
    buffers = dict(zip(("condition", "x", "y"), (x.memory for x in operands), strict=True))
    launch(
        shader, {**buffers, "result": result.memory, **at.buffers},
        {"count": result.numel()}, words(result), bake=False,
    )  # fmt: skip
    return result


@both("masked_fill.Scalar", "masked_fill.Tensor")
def masked_fill(x: WebGPUTensor, mask: WebGPUTensor, value: Any) -> Any:
    """x, or a number where the mask is true."""
    return where(mask, send(torch.as_tensor(value, device="cpu").to(x.dtype)), x)


# Gradients that torch leaves to its devices, in terms of other ops.


@handles("threshold_backward.default")
def of_threshold(gradient: Tensor, x: Tensor, threshold: float) -> Any:
    """Of relu, whose threshold is 0."""
    if x.dtype not in FLOATS:
        return NotImplemented
    return gradient.masked_fill(x <= threshold, 0)


@handles("tanh_backward.default")
def of_tanh(gradient: Tensor, y: Tensor) -> Tensor:
    """Of tanh, from its result."""
    return gradient * (1 - y * y)


@handles("sigmoid_backward.default")
def of_sigmoid(gradient: Tensor, y: Tensor) -> Tensor:
    """Of sigmoid, from its result."""
    return gradient * (y * (1 - y))


@handles("_softmax_backward_data.default")
def of_softmax(gradient: Tensor, y: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
    """Of softmax, from its result."""
    whole = gradient * y
    return (whole - y * whole.sum(dim, keepdim=True)).to(dtype)


@handles("slice_backward.default")
def of_slice(gradient: Tensor, sizes: Any, dim: int, start: int, end: int, step: int) -> Tensor:
    """Zeros but for what the slice has taken."""
    result = gradient.new_zeros(sizes)
    torch.ops.aten.slice.Tensor(result, dim, start, end, step).copy_(gradient)
    return result


@handles("select_backward.default")
def of_select(gradient: Tensor, sizes: Any, dim: int, index: int) -> Tensor:
    """Zeros but for what was selected."""
    result = gradient.new_zeros(sizes)
    result.select(dim, index).copy_(gradient)
    return result
