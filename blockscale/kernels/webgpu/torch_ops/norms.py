# SPDX-License-Identifier: BSD-3-Clause
"""What normalizes rows: softmax and its logarithm, layer_norm."""

from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from blockscale.kernels.webgpu.gpu.launch import launch
from blockscale.kernels.webgpu.gpu.shader import Kernel, Shader
from blockscale.kernels.webgpu.torch_device.handlers import handles
from blockscale.kernels.webgpu.torch_device.tensor import WebGPUTensor
from blockscale.kernels.webgpu.torch_ops.addresses import addresses
from blockscale.kernels.webgpu.torch_ops.copies import (
    FLOATS,
    cast,
    fresh,
    narrowed,
    sent,
    whole,
)
from blockscale.kernels.webgpu.torch_ops.elementwise import bits


@dataclass(frozen=True)
class Softmax(Kernel, part="kernels/torch_softmax"):
    """softmax of rows. float: memory/float/{float}"""

    float: str
    address: str


@dataclass(frozen=True)
class LayerNorm(Softmax, part="kernels/torch_layer_norm"):
    """layer_norm of rows."""


def _softmax(x: WebGPUTensor, dim: int, dtype: torch.dtype, **flags: bool) -> Any:
    """Along any dimension, which is moved to the end for the kernel."""
    if x.dtype not in FLOATS or dtype not in FLOATS:
        return NotImplemented
    if x.ndim == 0:
        return _softmax(x.reshape(1), 0, dtype, **flags).reshape(())  # type: ignore[arg-type]
    last: Any = x.movedim(dim, -1)
    made = fresh(tuple(last.shape), torch.float32)
    columns = last.shape[-1]
    at = addresses(tuple(last.shape), [last])
    constants = (("LOGARITHM", flags.get("log", False)), ("SAFE", flags.get("safe", False)))
    shader = Shader(Softmax(FLOATS[x.dtype], at.address), (*constants, *at.constants))
    rows = made.numel() // max(columns, 1)
    buffers = {"x": x.memory, "result": made.memory, **at.buffers}
    launch(shader, buffers, {"rows": rows, "columns": columns}, rows, baked=False)
    return narrowed(made, dtype).movedim(-1, dim)


@handles("_softmax.default")
def softmax(x: WebGPUTensor, dim: int, half_to_float: bool) -> Any:
    """exp(x) over the sum of such along a dimension."""
    return _softmax(x, dim, torch.float32 if half_to_float else x.dtype)


@handles("_log_softmax.default")
def log_softmax(x: WebGPUTensor, dim: int, half_to_float: bool) -> Any:
    """The logarithm of softmax."""
    return _softmax(x, dim, torch.float32 if half_to_float else x.dtype, log=True)


@handles("_safe_softmax.default")
def safe_softmax(x: WebGPUTensor, dim: int, dtype: Any = None) -> Any:
    """softmax, but 0 where all is -inf."""
    return _softmax(x, dim, dtype or x.dtype, safe=True)


@handles("native_layer_norm.default")
def layer_norm(
    x: WebGPUTensor, shape: Any, weight: Any, bias: Any, epsilon: float
) -> tuple[Tensor, Tensor, Tensor] | Any:
    """Rows less their mean over their deviation; with the means and what was multiplied by."""
    if x.dtype not in FLOATS:
        return NotImplemented
    columns = prod(shape)
    if tuple(x.shape[x.ndim - len(shape) :]) != tuple(shape):
        raise RuntimeError(
            f"layer_norm over {list(shape)} does not match a tensor {tuple(x.shape)}"
        )
    rows = x.numel() // max(columns, 1)
    made = fresh(tuple(x.shape), torch.float32)
    outer = (*x.shape[: x.ndim - len(shape)], *[1] * len(shape))
    means, inverses = fresh(outer, torch.float32), fresh(outer, torch.float32)
    at = addresses(tuple(x.shape), [x])
    shader = Shader(LayerNorm(FLOATS[x.dtype], at.address), at.constants)
    buffers = {
        "x": x.memory, "weight": _factors(weight, columns, 1.0).memory,
        "bias": _factors(bias, columns, 0.0).memory, "result": made.memory,
        "means": means.memory, "inverses": inverses.memory, **at.buffers,
    }  # fmt: skip
    sizes = {"rows": rows, "columns": columns, "epsilon": bits(epsilon)}
    launch(shader, buffers, sizes, rows, baked=False)
    return narrowed(made, x.dtype), means, inverses


def _factors(given: Any, columns: int, otherwise: float) -> WebGPUTensor:
    """A weight or bias in float32; the same number for all columns where there is none."""
    if given is None:
        return sent(torch.full((columns,), otherwise))
    return whole(cast(given, torch.float32))
