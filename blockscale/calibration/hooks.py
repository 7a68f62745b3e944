# SPDX-License-Identifier: BSD-3-Clause
"""See what modules are given and give while a model runs."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

Callback = Callable[[Tensor, Any], None]  # told of a module's first input, and of its output


@contextmanager
def watch(callbacks: Mapping[nn.Module, Callback]) -> Iterator[None]:
    """Call `callback(input, output)` after every call of a module, as long as this lasts.

    The input is what the module was given first, whatever its name.
    """
    handles = []
    try:
        for module, callback in callbacks.items():

            def hook(
                _: nn.Module, args: Any, kwargs: Any, y: Any, tell: Callback = callback
            ) -> None:
                tell(args[0] if args else next(iter(kwargs.values())), y)

            # before a user's own hooks, which may change what the layer gave
            handles.append(module.register_forward_hook(hook, with_kwargs=True, prepend=True))
        yield
    finally:
        for handle in handles:
            handle.remove()
