"""x divided by its Euclidean length."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx

from blockscale.ops.fused.define import fused

_Found = tuple[tuple[fx.Node, ...], dict[str, Any]]


def _called(node: Any, target: Any, count: int) -> tuple[Any, ...] | None:
    """The arguments of a call of `target` with so many and no others; None if it is none."""
    called = isinstance(node, fx.Node) and node.op == "call_function" and node.target == target
    return node.args if called and len(node.args) == count and not node.kwargs else None


def _chain(node: fx.Node) -> _Found | None:
    """What F.normalize leaves in a graph: x / expand_as(clamp_min(norm(x), eps), x)."""
    aten = torch.ops.aten
    x, expanded = _called(node, aten.div.Tensor, 2) or (None, None)
    clamped, like = _called(expanded, aten.expand_as.default, 2) or (None, None)
    norm, eps = _called(clamped, aten.clamp_min.default, 2) or (None, None)
    inner = _called(norm, aten.linalg_vector_norm.default, 4)
    if inner is None or x is None or like is not x or inner[0] is not x:
        return None
    _, order, dims, keep = inner
    if order != 2 or not keep or not isinstance(dims, list | tuple) or len(dims) != 1:
        return None
    return ((x,), {"dim": dims[0], "eps": float(eps)}) if isinstance(eps, int | float) else None


@fused(ulps=64, chain=("div.Tensor", _chain))
def l2_normalize(x: Tensor, *, dim: int = 1, eps: float = 1e-12) -> Tensor:
    """x [...] -> the same shape, of length 1 along `dim`; lengths below eps count as eps."""
    return F.normalize(x, dim=dim, eps=eps)
