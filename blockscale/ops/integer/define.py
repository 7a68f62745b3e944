# SPDX-License-Identifier: BSD-3-Clause
"""How an integer op is defined: its reference in plain PyTorch is its meaning, its fallback and,
where there is no other, its shape rule. A kernel of its name gives the same integers."""

from collections.abc import Callable
from typing import Any, get_type_hints, overload

from blockscale.kernels.registry import find
from blockscale.ops.op import Op, register
from blockscale.ops.operand import signature

INTEGER_OPS: dict[str, Op] = {}


@overload
def integer_op(reference: Callable[..., Any], /) -> Op: ...
@overload
def integer_op(*, shape: Callable[..., Any]) -> Callable[[Callable[..., Any]], Op]: ...
def integer_op(
    reference: Callable[..., Any] | None = None, /, *, shape: Callable[..., Any] | None = None
) -> Any:
    """Make the decorated reference the torch op `blockscale::integer_<its name>`.

    Its first argument is a tensor, on whose device it runs; its result is contiguous.
    shape: what it gives, without values, from the same arguments; a reference takes a hundred times
        as long where sizes are symbols
    """
    if reference is None:
        return lambda reference: _integer_op(reference, shape)
    return _integer_op(reference, None)


def _integer_op(reference: Callable[..., Any], shape: Callable[..., Any] | None) -> Op:
    name, takes = f"integer_{reference.__name__}", signature(reference, None)
    returns = get_type_hints(reference)["return"]

    def by_reference(*args: Any) -> Any:
        return reference(*args).contiguous()

    def run(*args: Any) -> Any:
        kernel = find(name, (), args[0].device.type, args, composite=True)
        return (by_reference if kernel is None else kernel.run)(*args)

    result = register(name, reference, takes, returns, run, shape=shape or by_reference)
    INTEGER_OPS[name] = result
    return result
