# SPDX-License-Identifier: BSD-3-Clause
"""Weights made ready for the linear kernels, and kept beside them (blockscale.kernels.resident)."""

from typing import Any, NamedTuple

from torch import Tensor

from blockscale.core.operand import Operand
from blockscale.kernels.cpu import _native
from blockscale.kernels.cpu.native import addresses, native, threads
from blockscale.kernels.resident import Residents, tensors


class Ready(NamedTuple):
    """weight: a _native.LinearWeight; copies: what it reads in the place of tensors of ours."""

    weight: Any
    copies: tuple[Tensor, ...]


def prepared(weight: Operand) -> Any:
    """The `_native.LinearWeight` of a weight [n, k]. It reads its memory later, too: keep it.

    Raises ValueError if its parts do not fit the format.
    """
    return _READY[weight].weight


def ready_of(weight: Operand) -> Ready:
    """A weight [n, k] made ready, kept nowhere. Raises as `prepared`."""
    n, codes = native(weight.fmt), weight.codes
    if codes.ndim != 2:
        raise ValueError(f"{n.format}: a linear weight's codes must be [n, k], found {codes.shape}")
    shape = (codes.shape[0], weight.size)
    ordered = n.checked_codes(codes, shape)
    parts = n.checked_parts(shape, weight.scale, weight.zero_point, weight.outer, more=weight.more)
    made = _native.LinearWeight(n.handle, *shape, ordered.data_ptr(), addresses(parts))
    originals = {id(part) for part in tensors(weight)}
    given = (ordered, *parts)
    copies = tuple(part for part in given if part is not None and id(part) not in originals)
    return Ready(made, copies)


def fingerprint(part: Tensor) -> int:
    """A number that changes with a tensor's bytes."""
    whole = part.contiguous()
    value: int = _native.fingerprint(whole.data_ptr(), whole.nbytes, threads())
    return value


_READY = Residents(ready_of, fingerprint, lambda ready: bool(ready.weight.unchanged()))
