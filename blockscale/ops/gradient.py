# SPDX-License-Identifier: BSD-3-Clause
"""Gradients of ops, in terms of their own arguments."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from blockscale.core.torch_private import (
    AFTER_AUTOGRAD,
    BelowAutograd,
    any_requires_grad,
    autograd_of_op,
    forward_level,
    innermost_transform,
    set_forward_grad,
    single_level,
)
from blockscale.kernels.registry import as_chosen, choice
from blockscale.ops.op import LIBRARY, OPS, Op, is_plain_call

_unpacked: Any = forward_ad.unpack_dual
_paired: Any = forward_ad.make_dual


# Ops under torch.func: one level of a transform after the other, and forward-mode derivatives.
#
# torch's own gradients of custom ops (torch._library.autograd) refuse to be called inside of grad,
# vjp and jacrev, and in forward mode they lose tangents without a word.


def one_level(
    target: Op, save: Callable[..., None], backward: Callable[..., Any]
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
            inputs = backward(ctx, *gradients)
            return (*(None if isinstance(each, list) else each for each in inputs), None)

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
    tensors: dict[str, Tensor] = {}
    for name, arg in zip(names, flat, strict=False):
        for each in arg if isinstance(arg, list | tuple) else [arg]:
            tangent = _unpacked(each, level=0).tangent if isinstance(each, Tensor) else None
            if tangent is not None:
                tensors.setdefault(name, tangent)
    return tensors


def with_tangent(
    target: Op, forward: Callable[..., Tensor] | None, flat: Sequence[Any], tangents: Any
) -> Tensor:
    """The op's result with its tangent. Raises NotImplementedError where there is no rule."""
    wrong = sorted(tangents.keys() - {"x", "gradient", "bias"})
    if forward is None or wrong:
        text = f" for {', '.join(wrong)}" if wrong else ""
        raise NotImplementedError(
            f"blockscale::{target.name} has no forward-mode derivative{text} (torch.func.jvp, "
            f"jacfwd, hessian, torch.autograd.forward_ad): use reverse mode, torch.func.vjp, "
            f"jacrev or grad"
        )
    plain = [_unpacked(a, level=0).primal if isinstance(a, Tensor) else a for a in flat]
    result: Tensor = target.overload(*plain)
    tangent = forward(tangents, *target.signature.bind(*plain))
    dual: Tensor = _paired(result, tangent, level=0)
    return dual


Backward = Callable[..., dict[str, Tensor | None]]
Forward = Callable[..., Tensor]


# Gradients of our ops.


def differentiable(target: Op, backward: Backward, forward: Forward | None = None) -> None:
    """Give `target` a gradient: `backward(gradient, needs, *arguments)` of the op's own arguments.

    needs: names of those of the torch op's arguments that need a gradient
    returns: gradients by these names; what is absent has none
    forward: `forward(tangents, *arguments)`, the tangent of what it gives, from those by name of
        the torch op's arguments that have one; without it, forward mode is an error that says so

    As torch.library.register_autograd does, but a plain call is not dispatched a second time.
    """
    names = target.signature.names

    def backward_of_all(ctx: Any, *gradients: Any) -> Any:
        tensors = iter(ctx.saved_tensors)
        flat = tuple(next(tensors) if each is None else each[0] for each in ctx.others)
        needs = zip(names, ctx.needs_input_grad, strict=False)
        values = {name for name, need in needs if need is True}  # lists of parts have a list
        with as_chosen(ctx.choice):
            gradients_of = backward(*gradients, values, *target.signature.bind(*flat))
        return tuple(
            [None] * len(each) if name.endswith("more") and each else gradients_of.get(name)
            for name, each in zip(names, flat, strict=False)
        )

    if not _watches():
        torch.library.register_autograd(
            f"blockscale::{target.name}", backward_of_all, setup_context=_save, lib=LIBRARY
        )
        return

    kernel = _kernel(target, forward, backward_of_all)
    LIBRARY.impl(target.name, kernel, "Autograd", with_keyset=True)


def _kernel(target: Op, forward: Forward | None, backward: Callable[..., Any]) -> Any:
    """What torch calls where autograd listens."""
    names = target.signature.names
    defaults = tuple(each.default for each in target.signature.flat)

    @cache
    def watched(transformed: bool) -> Callable[..., Any]:
        return one_level(target, _save, backward) if transformed else _watch(target, backward)

    def kernel(keys: Any, *flat: Any) -> Any:
        if is_plain_call(keys, flat):
            return target.run(*target.signature.bind(*flat))
        flat += defaults[len(flat) :]  # as many as gradients come back
        if tangents := tangents_of(names, flat):
            return with_tangent(target, forward, flat, tangents)
        return watched(innermost_transform() is not None)(keys, *flat)

    return kernel


def _watch(target: Op, backward: Callable[..., Any]) -> Callable[..., Any]:
    """The op for autograd's eyes. It takes torch a millisecond to make: only when it is wanted."""
    result: Callable[..., Any] = autograd_of_op(target.overload, backward, _save)
    return result


@cache
def _watches() -> bool:
    """Whether this torch can make it."""
    try:
        _watch(next(iter(OPS.values())), _save)
    except (ImportError, AttributeError, TypeError):
        return False
    return True


def _save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """Keep a call's flat arguments for its backward pass."""
    del output
    ctx.choice = choice()  # autograd runs a GPU's backward pass on a thread of its own
    ctx.save_for_backward(*(each for each in inputs if isinstance(each, Tensor)))
    ctx.others = [None if isinstance(each, Tensor) else (each,) for each in inputs]


def not_differentiable(target: Op, instead: str) -> None:
    """Make a backward pass through `target` raise RuntimeError, not give a wrong gradient."""

    def backward(*_: Any) -> Any:
        raise RuntimeError(f"blockscale::{target.name} has no gradient: {instead}")

    differentiable(target, backward)
