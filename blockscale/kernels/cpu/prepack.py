"""Weights made ready for the linear kernels: kept while the weight lives, made again if it changes.

The work is done once a weight, not once a call, so the result is kept beside the weight, in no
attribute of it: those would be saved and copied with it.
"""

from dataclasses import dataclass
from typing import Any
from weakref import ref

from torch import Tensor

from blockscale.kernels.cpu import _native
from blockscale.kernels.cpu.native import Native, addresses, native, threads

Weight = tuple[Tensor, Tensor, Tensor | None, Tensor | None]  # codes, scale, zero point, outer


@dataclass(frozen=True)
class _Kept:
    parts: tuple[Any, ...]  # weak references to the tensors, None where there is none
    stamps: tuple[Any, ...]
    fmt: str
    size: int
    weight: Any  # _native.LinearWeight
    copies: tuple[Tensor, ...]  # what it reads in place of the tensors


_kept: dict[int, _Kept] = {}


def prepared(weight: Weight, fmt: str, size: int) -> Any:
    """The `_native.LinearWeight` of packed codes [n, packed_size(size)] and their scale.

    It reads them later, too: keep the weight while you use it.

    Raises ValueError if they do not fit the format.
    """
    kept = _kept.get(id(weight[0]))
    if kept is not None and kept.fmt == fmt and kept.size == size and _same(kept, weight):
        return kept.weight
    kept = _prepare(weight, native(fmt), size)
    _kept[id(weight[0])] = kept
    return kept.weight


def _same(kept: _Kept, weight: Weight) -> bool:
    for reference, stamp, part in zip(kept.parts, kept.stamps, weight, strict=True):
        if part is None and reference is None:
            continue
        if reference is None or reference() is not part or _stamp(part) != stamp:
            return False
    return bool(kept.weight.unchanged())


def _stamp(part: Tensor) -> tuple[int, int]:
    """Numbers that change with the tensor."""
    if part.is_inference():  # torch counts no changes of these
        whole = part.contiguous()
        return part.data_ptr(), _native.fingerprint(whole.data_ptr(), whole.nbytes, threads())
    return part.data_ptr(), part._version


def _prepare(weight: Weight, n: Native, size: int) -> _Kept:
    codes, scale, zero_point, outer = weight
    if codes.ndim != 2:
        raise ValueError(f"{n.format}: a linear weight's codes are [n, k], not {codes.shape}")
    key, shape = id(codes), (codes.shape[0], size)
    ordered = n.checked_codes(codes, shape)
    parts = n.checked_parts(shape, scale, zero_point, outer)
    stamps = tuple(None if part is None else _stamp(part) for part in weight)
    made = _native.LinearWeight(n.handle, *shape, ordered.data_ptr(), addresses(parts))

    def forget(gone: Any) -> None:
        kept = _kept.get(key)
        if kept is not None and any(gone is each for each in kept.parts):
            del _kept[key]

    weak = tuple(None if part is None else ref(part, forget) for part in weight)
    originals = {id(part) for part in weight}
    given = (ordered, *parts)
    copies = tuple(part for part in given if part is not None and id(part) not in originals)
    return _Kept(weak, stamps, n.format.spelling, size, made, copies)
