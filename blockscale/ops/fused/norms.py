# SPDX-License-Identifier: BSD-3-Clause
"""Normalizing: what a row or a channel is divided by depends on all of it."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx

from blockscale.ops.fused.define import fused


@fused(ulps=64)
def add_layer_norm(
    a: Tensor,
    b: Tensor,
    *,
    normalized_shape: list[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """The layer norm of a + b: what ends a residual branch.

    a, b [..., *normalized_shape] that broadcast -> the normalized sum.
    """
    return F.layer_norm(a + b, normalized_shape, weight, bias, eps)


@fused(ulps=64, aten=("batch_norm.default x weight bias running_mean running_var ! * eps *",))
def batch_norm(
    x: Tensor,
    *,
    running_mean: Tensor,
    running_var: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """x with the mean and the variance that training found for each channel made 0 and 1.

    x [batch, n, ...], floats [n] -> the same shape.
    """
    return F.batch_norm(x, running_mean, running_var, weight, bias, training=False, eps=eps)


@fused(ulps=64, aten=("group_norm.default x num_groups weight bias eps *",))
def group_norm(
    x: Tensor,
    *,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """x with mean 0 and variance 1 over groups of channels.

    x [batch, n, ...], floats weight and bias [n] -> the same shape.
    """
    return F.group_norm(x, num_groups, weight, bias, eps)


@fused(
    ulps=64,
    aten=(
        "instance_norm.default x weight bias ! ! * * eps *",
        "instance_norm.default x weight bias running_mean running_var ! * eps *",
    ),
)
def instance_norm(
    x: Tensor,
    *,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Each channel of each example with mean 0 and variance 1, its own or stored ones.

    x [batch, n, ...], floats [n] -> the same shape.
    """
    own = running_mean is None
    return F.instance_norm(x, running_mean, running_var, weight, bias, own, eps=eps)


_Chained = tuple[tuple[fx.Node, ...], dict[str, Any]]


def _arguments_of(node: Any, target: Any, count: int) -> tuple[Any, ...] | None:
    """The arguments of a call of `target` with `count` of them; None for other nodes."""
    is_call = isinstance(node, fx.Node) and node.op == "call_function" and node.target == target
    return node.args if is_call and len(node.args) == count and not node.kwargs else None


def _normalize_chain(node: fx.Node) -> _Chained | None:
    """What F.normalize leaves in a graph: x / expand_as(clamp_min(norm(x), eps), x)."""
    aten = torch.ops.aten
    x, divisor = _arguments_of(node, aten.div.Tensor, 2) or (None, None)
    length, like = _arguments_of(divisor, aten.expand_as.default, 2) or (None, None)
    norm, eps = _arguments_of(length, aten.clamp_min.default, 2) or (None, None)
    inner = _arguments_of(norm, aten.linalg_vector_norm.default, 4)
    if inner is None or x is None or like is not x or inner[0] is not x:
        return None
    _, order, dims, keep = inner
    if order != 2 or not keep or not isinstance(dims, list | tuple) or len(dims) != 1:
        return None
    return ((x,), {"dim": dims[0], "eps": float(eps)}) if isinstance(eps, int | float) else None


@fused(ulps=64, chain=("div.Tensor", _normalize_chain))
def l2_normalize(x: Tensor, *, dim: int = 1, eps: float = 1e-12) -> Tensor:
    """x divided by its Euclidean length.

    x [...] -> the same shape, of length 1 along `dim`; lengths below eps count as eps.
    """
    return F.normalize(x, dim=dim, eps=eps)


@fused(
    ulps=64,
    aten=(
        "layer_norm.default x normalized_shape weight bias eps *",
        "native_layer_norm.default[0] x normalized_shape weight bias eps",
    ),
)
def layer_norm(
    x: Tensor,
    *,
    normalized_shape: list[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """x with mean 0 and variance 1 over the last dimensions.

    x [..., *normalized_shape], floats weight and bias of those sizes -> the same shape.
    """
    return F.layer_norm(x, normalized_shape, weight, bias, eps)


@fused(ulps=64, aten=("log_softmax.int x dim @", "_log_softmax.default x dim !"))
def log_softmax(x: Tensor, *, dim: int) -> Tensor:
    """The logarithm of softmax: x [...] -> the same shape."""
    return torch.log_softmax(x, dim)


@fused(ulps=64, aten=("rms_norm.default",))
def rms_norm(
    x: Tensor,
    *,
    normalized_shape: list[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    """x divided by the root of the mean of its squares.

    x [..., *normalized_shape], floats weight of those sizes -> the same shape.
    """
    return F.rms_norm(x, normalized_shape, weight, eps)


@fused(ulps=64, aten=("softmax.int x dim @", "_softmax.default x dim !"))
def softmax(x: Tensor, *, dim: int) -> Tensor:
    """exp(x), divided by its sum: x [...] -> the same shape, with a sum of 1 along `dim`."""
    return torch.softmax(x, dim)
