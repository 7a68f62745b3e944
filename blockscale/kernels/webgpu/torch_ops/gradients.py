# SPDX-License-Identifier: BSD-3-Clause
"""Gradients that torch leaves to its devices, in terms of other ops."""

from typing import Any

import torch
from torch import Tensor

from blockscale.kernels.webgpu.torch_device.handlers import handles
from blockscale.kernels.webgpu.torch_ops.copies import FLOATS


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
    made = gradient.new_zeros(sizes)
    torch.ops.aten.slice.Tensor(made, dim, start, end, step).copy_(gradient)
    return made


@handles("select_backward.default")
def of_select(gradient: Tensor, sizes: Any, dim: int, index: int) -> Tensor:
    """Zeros but for what was selected."""
    made = gradient.new_zeros(sizes)
    made.select(dim, index).copy_(gradient)
    return made
