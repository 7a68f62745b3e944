# SPDX-License-Identifier: BSD-3-Clause
"""What parts of a layer send each other: one collective a call, local tensors, with gradients."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

_OPS = {"max": "MAX", "sum": "SUM"}


class _Summed(torch.autograd.Function):
    """The sum over all processes; each has the whole gradient already."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        del ctx
        total = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        del ctx
        return gradients[0], None


class _Shared(torch.autograd.Function):
    """The same tensor on all processes, of which each uses it for its part: gradients are sums."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        total = gradients[0].clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=ctx.group)
        return total, None


class _Gather(torch.autograd.Function):
    """All parts along the last dimension; each process has the gradient of its own in the whole."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, places: Sequence[int], rank: int, group: Any) -> Tensor:
        ctx.at = places[rank], places[rank + 1] - places[rank]
        sizes = [stop - start for start, stop in pairwise(places)]
        wide = max(sizes)
        own = torch.nn.functional.pad(x, (0, wide - x.shape[-1])).contiguous()
        every = [torch.empty_like(own) for _ in sizes]
        dist.all_gather(every, own, group=group)
        return torch.cat([each[..., :n] for each, n in zip(every, sizes, strict=True)], -1)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0].narrow(-1, *ctx.at), None, None, None


def summed(x: Tensor, group: Any) -> Tensor:
    """The sum of what all processes have, in the order that the backend adds. x may become it."""
    if x.requires_grad and torch.is_grad_enabled():
        total: Tensor = _Summed.apply(x, group)
        return total
    x = x.contiguous()
    dist.all_reduce(x, group=group)
    return x


def shared(x: Tensor, group: Any) -> Tensor:
    """x, whose gradient is the sum of what all processes made of it; without one it is x."""
    if not (x.requires_grad and torch.is_grad_enabled()):
        return x
    same: Tensor = _Shared.apply(x, group)
    return same


def join_parts(x: Tensor, places: Sequence[int], rank: int, group: Any) -> Tensor:
    """x [..., part] -> [..., n]: the parts of all processes, which end at `places`."""
    whole: Tensor = _Gather.apply(x, places, rank, group)
    return whole


def merge(group: Any) -> Any:
    """How ranges merge (blockscale.core.shared_scales.Merge): exact, in whatever order."""

    def all_reduce(x: Tensor, how: str) -> None:
        dist.all_reduce(x, getattr(dist.ReduceOp, _OPS[how]), group=group)

    return all_reduce


# The same around modules, as hooks.


def sharing(group: Any) -> Callable[..., Any]:
    """A hook before a module: gradients to its float inputs are sums over all processes."""

    def share(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        del module
        return tuple(shared(a, group) if isinstance(a, Tensor) else a for a in args)

    return share


def sharing_last(count: int, group: Any) -> Callable[..., Any]:
    """A hook after a layer: gradients to its last outputs are sums over all processes. Those to the
    others are already, by the column-wise layer that takes them."""

    def share(module: nn.Module, args: Any, y: Tensor) -> Tensor:
        del module, args
        return torch.cat([y[..., :-count], shared(y[..., -count:], group)], -1)

    return share


def summing(group: Any) -> Callable[..., Any]:
    """A hook after a module whose result is a part of a sum."""

    def add(module: nn.Module, args: Any, y: Tensor) -> Tensor:
        del module, args
        return summed(y, group)

    return add
