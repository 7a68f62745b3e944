# SPDX-License-Identifier: BSD-3-Clause
"""What runs torch's ops on the device "webgpu": handlers, by the overload that they are for."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

Handler = Callable[..., Any]
Rest = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]

HANDLERS: dict[Any, Handler] = {}
_rest: list[Rest] = []
_ACROSS = {  # ops whose tensors may be on several devices
    "copy_", "index", "index_put_", "index_put", "_index_put_impl_",
    "_has_compatible_shallow_copy_type",
}  # fmt: skip


def handles(*names: str) -> Callable[[Handler], Handler]:
    """Register the decorated function for these overloads of aten, `add.Tensor`.

    It takes an overload's arguments, and gives NotImplemented for those that it is not for.
    """

    def register(handler: Handler) -> Handler:
        for name in names:
            packet, _, which = name.partition(".")
            found = getattr(getattr(torch.ops.aten, packet, None), which, None)
            if found is not None:  # each version of torch has ops that others lack
                HANDLERS[found] = handler
        return handler

    return register


def handles_rest(rest: Rest) -> Rest:
    """Register what runs the ops that have no handler."""
    _rest.append(rest)
    return rest


def run(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an op of torch's, some of whose tensors are on the device.

    Raises RuntimeError if others are elsewhere, and are more than a number.
    """
    _check_devices(op, args)
    handler = HANDLERS.get(op)
    if handler is not None:
        made = handler(*args, **kwargs)
        if made is not NotImplemented:
            return made
    return _rest[0](op, args, kwargs)


def _check_devices(op: Any, args: tuple[Any, ...]) -> None:
    for x in _tensors(args):
        if x.ndim and x.device.type != "webgpu" and op.overloadpacket.__name__ not in _ACROSS:
            raise RuntimeError(
                f"{op}: some tensors are on webgpu and one {tuple(x.shape)} is on {x.device}; "
                f"move it with .to('webgpu')"
            )


def _tensors(args: tuple[Any, ...]) -> Iterator[Tensor]:
    for arg in args:
        if isinstance(arg, Tensor):
            yield arg
        elif isinstance(arg, list | tuple):
            yield from (each for each in arg if isinstance(each, Tensor))
