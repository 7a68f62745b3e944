"""Starting a kernel past Triton's own way, which takes the host longer than all else of a call."""

from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from blockscale.kernels.cuda import interpreting

_MOST = 4096  # kinds of calls that are remembered of a kernel
_PLAIN = (int, bool, float, str, tuple, type(None))


class Direct:
    """A Triton or Gluon kernel: direct(kernel)[grid](…) does what kernel[grid](…) does.

    What Triton compiled is remembered by all that it looked at: dtypes of tensors that begin at
    multiples of 16 bytes, and every other argument's value. Arguments that are neither numbers,
    texts nor tuples of such count by identity: they must be objects that are kept, as cached ones.
    """

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self.compiled: dict[Any, Any] = {}

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return partial(self._start, grid)

    def _start(self, grid: tuple[int, ...], *arguments: Any, **named: Any) -> None:
        key = None if interpreting() else _kind(arguments, named)
        found = self.compiled.get(key) if key else None
        if found is not None:
            rest = [named[name] for name in self.kernel.arg_names[len(arguments) :]]
            found[(*grid, 1, 1)[:3]](*arguments, *rest)
            return
        found = self.kernel[grid](*arguments, **named)
        if key:
            if len(self.compiled) >= _MOST:
                self.compiled.clear()
            self.compiled[key] = found


def _kind(arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...] | None:
    kind: list[Any] = [torch.cuda.current_device()]
    for each in (*arguments, *named.values()):
        if isinstance(each, Tensor):
            if each.data_ptr() % 16:
                return None
            kind.append(each.dtype)
        elif isinstance(each, _PLAIN):
            kind.append((type(each), each))  # 1 is True, and both are 1.0
        elif hasattr(each, "block_shape"):  # a tensor descriptor: the base is aligned
            kind.append((each.base.dtype, *each.block_shape))
        else:
            kind.append(id(each))
    return tuple(kind)


@cache
def direct(kernel: Any) -> Direct:
    """The one Direct of a kernel."""
    return Direct(kernel)
