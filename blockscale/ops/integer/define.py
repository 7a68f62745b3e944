# SPDX-License-Identifier: BSD-3-Clause
"""How an integer op is defined: its reference in plain PyTorch is its meaning, its fallback and
its shape rule. A kernel of its name gives the same integers."""

from collections.abc import Callable
from typing import Any, get_type_hints

from blockscale.kernels.registry import find
from blockscale.ops.op import Op, register
from blockscale.ops.operand import signature

INTEGER_OPS: dict[str, Op] = {}


def integer_op(reference: Callable[..., Any]) -> Op:
    """Make the decorated reference the torch op `blockscale::integer_<its name>`.

    Its first argument is a tensor, on whose device it runs.
    """
    name, takes = f"integer_{reference.__name__}", signature(reference, None)
    returns = get_type_hints(reference)["return"]

    def run(*args: Any) -> Any:
        kernel = find(name, (), args[0].device.type, args, composed=True)
        return reference(*args) if kernel is None else kernel.run(*args)

    result = register(name, reference, takes, returns, run)
    INTEGER_OPS[name] = result
    return result
