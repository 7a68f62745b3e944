# SPDX-License-Identifier: BSD-3-Clause
"""Ops under torch.func: one level of a transform after the other, and forward-mode derivatives.

torch's own gradients of custom ops (torch._library.autograd) refuse to be called inside of grad,
vjp and jacrev, and in forward mode they lose tangents without a word.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from blockscale.core.torch_private import (
    AFTER_AUTOGRAD,
    BelowAutograd,
    any_requires_grad,
    forward_level,
    innermost_transform,
    set_forward_grad,
    single_level,
)

if TYPE_CHECKING:
    from blockscale.ops.op import Op

_unpacked: Any = forward_ad.unpack_dual
_paired: Any = forward_ad.make_dual


def one_level(
    target: "Op", save: Callable[..., None], backward: Callable[..., Any]
) -> Callable[..., Any]:
    """The op for autograd's eyes inside of transforms: it records the level that is being run, and
    torch passes the call on to those below.

    save: takes a context, the op's flat arguments and its result; backward: a context and
    gradients, as those of an autograd.Function
    """
    function, enable = single_level()

    def below(keys: Any, flat: Sequence[Any]) -> Any:
        with BelowAutograd():
            return target.overload.redispatch(keys & AFTER_AUTOGRAD, *flat)

    class OneLevel(function):  # type: ignore[misc,valid-type]
        @staticmethod
        def forward(ctx: Any, *args: Any) -> Any:
            *flat, keys = args
            # torch turns both off inside of forward; the levels below have their own graphs
            with torch.enable_grad(), set_forward_grad(True):
                result = below(keys, flat)
            save(ctx, tuple(flat), result)
            return tuple(result) if isinstance(result, list) else result

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            given = backward(ctx, *gradients)
            return (*(None if isinstance(each, list) else each for each in given), None)

    def kernel(keys: Any, *flat: Any) -> Any:
        if not (torch.is_grad_enabled() and any_requires_grad(*flat)):
            return below(keys, flat)
        with enable():
            result = OneLevel.apply(*flat, keys)
        return list(result) if isinstance(result, tuple) else result

    return kernel


def tangents_of(names: Sequence[str], flat: Sequence[Any]) -> dict[str, Tensor]:
    """{name of a flat argument: its tangent}, in forward mode; for a list that of its first."""
    if forward_level() < 0 and innermost_transform() is None:
        return {}  # compiled transforms enter the level without Python's knowledge
    found: dict[str, Tensor] = {}
    for name, arg in zip(names, flat, strict=False):
        for each in arg if isinstance(arg, list | tuple) else [arg]:
            tangent = _unpacked(each, level=0).tangent if isinstance(each, Tensor) else None
            if tangent is not None:
                found.setdefault(name, tangent)
    return found


def with_tangent(
    target: "Op", forward: Callable[..., Tensor] | None, flat: Sequence[Any], tangents: Any
) -> Tensor:
    """The op's result with its tangent. Raises NotImplementedError where there is no rule."""
    wrong = sorted(tangents.keys() - {"x", "gradient", "bias"})
    if forward is None or wrong:
        told = f" for {', '.join(wrong)}" if wrong else ""
        raise NotImplementedError(
            f"blockscale::{target.name} has no forward-mode derivative{told} (torch.func.jvp, "
            f"jacfwd, hessian, torch.autograd.forward_ad): use reverse mode, torch.func.vjp, "
            f"jacrev or grad"
        )
    plain = [_unpacked(a, level=0).primal if isinstance(a, Tensor) else a for a in flat]
    result: Tensor = target.overload(*plain)
    tangent = forward(tangents, *target.signature.bind(*plain))
    dual: Tensor = _paired(result, tangent, level=0)
    return dual
