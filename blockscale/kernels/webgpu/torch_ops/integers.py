# SPDX-License-Identifier: BSD-3-Clause
"""Whole numbers and booleans of up to 64 bits: sums, products, bits, order, and as floats."""

from dataclasses import dataclass
from typing import Any

import torch

from blockscale.kernels.webgpu.gpu.launch import launch
from blockscale.kernels.webgpu.gpu.shader import Constant, Kernel, Shader
from blockscale.kernels.webgpu.torch_device.handlers import handles
from blockscale.kernels.webgpu.torch_device.tensor import WebGPUTensor
from blockscale.kernels.webgpu.torch_ops.addresses import addresses, joint
from blockscale.kernels.webgpu.torch_ops.copies import THREADS, fresh, sent


@dataclass(frozen=True)
class Integers(Kernel, part="kernels/torch_integers"):
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
    made = fresh(shape, dtype)
    at = addresses(shape, [x, y])
    constants: tuple[tuple[str, Constant], ...] = (
        ("X_BITS", x.dtype.itemsize * 8), ("X_SIGNED", x.dtype.is_signed),
        ("Y_BITS", y.dtype.itemsize * 8), ("Y_SIGNED", y.dtype.is_signed),
        ("RESULT_BITS", dtype.itemsize * 8),
    )  # fmt: skip
    shader = Shader(Integers(part, at.address), (*constants, *at.constants))
    buffers = {"x": x.memory, "y": y.memory, "result": made.memory, **at.buffers}
    count = made.numel()
    groups = -(-count // max(4 // dtype.itemsize, 1) // THREADS)
    launch(shader, buffers, {"count": count}, groups, baked=False)
    return made


def _there(x: Any) -> WebGPUTensor:
    return x if isinstance(x, WebGPUTensor) else sent(torch.as_tensor(x))


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
