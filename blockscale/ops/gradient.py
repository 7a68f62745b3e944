# SPDX-License-Identifier: BSD-3-Clause
"""Gradients of ops, in terms of their own arguments."""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from blockscale.core.torch_private import autograd_of_op, innermost_transform
from blockscale.kernels.registry import as_chosen, choice
from blockscale.ops.dispatch import nothing_asked
from blockscale.ops.functorch import one_level, tangents_of, with_tangent
from blockscale.ops.op import LIBRARY, OPS, Op

Backward = Callable[..., dict[str, Tensor | None]]
Forward = Callable[..., Tensor]


def differentiable(target: Op, backward: Backward, forward: Forward | None = None) -> None:
    """Give `target` a gradient: `backward(gradient, wanted, *arguments)` of the op's own arguments.

    wanted: names of those of the torch op's arguments that want a gradient
    returns: gradients by these names; what is absent has none
    forward: `forward(tangents, *arguments)`, the tangent of what it gives, from those by name of
        the torch op's arguments that have one; without it, forward mode is an error that says so

    As torch.library.register_autograd does, but a plain call is not dispatched a second time.
    """
    names = target.signature.names

    def backward_of_all(ctx: Any, *gradients: Any) -> Any:
        saved = iter(ctx.saved_tensors)
        flat = tuple(next(saved) if each is None else each[0] for each in ctx.others)
        needs = zip(names, ctx.needs_input_grad, strict=False)
        wanted = {name for name, need in needs if need is True}  # lists of parts have a list
        with as_chosen(ctx.choice):
            gradients_of = backward(*gradients, wanted, *target.signature.bind(*flat))
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
        return one_level(target, _save, backward) if transformed else _watched(target, backward)

    def kernel(keys: Any, *flat: Any) -> Any:
        if nothing_asked(keys, flat):
            return target.run(*target.signature.bind(*flat))
        flat += defaults[len(flat) :]  # as many as gradients come back
        if tangents := tangents_of(names, flat):
            return with_tangent(target, forward, flat, tangents)
        return watched(innermost_transform() is not None)(keys, *flat)

    return kernel


def _watched(target: Op, backward: Callable[..., Any]) -> Callable[..., Any]:
    """The op for autograd's eyes. It takes torch a millisecond to make: only when it is wanted."""
    made: Callable[..., Any] = autograd_of_op(target.overload, backward, _save)
    return made


@cache
def _watches() -> bool:
    """Whether this torch can make it."""
    try:
        _watched(next(iter(OPS.values())), _save)
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
