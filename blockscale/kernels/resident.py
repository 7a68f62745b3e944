# SPDX-License-Identifier: BSD-3-Clause
"""What a backend keeps beside a weight: the same codes laid out for its kernels, or on its device.

The work is done once a weight, not once a call. What it gave is kept while the weight lives and
made again if the weight changes, in no attribute of the weight: those would be saved and copied
with it. Each backend has one Residents for each thing that it keeps.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from weakref import ref

from torch import Tensor

from blockscale.core.operand import Operand

T = TypeVar("T")


@dataclass(frozen=True)
class _Resident(Generic[T]):
    """value: of the weight whose tensors `parts` weakly refer to (None where it has none)."""

    parts: tuple[Any, ...]
    stamps: tuple[Any, ...]
    fmt: str
    size: int
    value: T


class Residents(Generic[T]):
    """One thing that a backend keeps beside each weight.

    make:        makes it of a weight. It may refer to other memory than the weight's own, never to
                 the weight's tensors: they would not be freed.
    unchanged:   whether a value is still good, beside what is checked here; None: always
    fingerprint: a number that changes with a tensor's bytes, for tensors of inference mode, whose
                 changes torch does not count
    """

    def __init__(
        self,
        make: Callable[[Operand], T],
        fingerprint: Callable[[Tensor], int],
        unchanged: Callable[[T], bool] | None = None,
    ):
        self._make, self._fingerprint, self._unchanged = make, fingerprint, unchanged
        self._by_codes: dict[int, _Resident[T]] = {}

    def __len__(self) -> int:
        """How many weights have something kept beside them."""
        return len(self._by_codes)

    def __getitem__(self, weight: Operand) -> T:
        """What is kept beside a weight, made now if there is nothing yet or it has changed.

        Keep the weight while you use it. Raises what `make` raises.
        """
        value = self._by_codes.get(id(weight.codes))
        if value is not None and self._holds(value, weight):
            return value.value
        return self._keep(weight)

    def _holds(self, resident: _Resident[T], weight: Operand) -> bool:
        """Whether it was made of these very tensors, and they have not changed since."""
        if resident.fmt != weight.fmt or resident.size != weight.size:
            return False
        parts = tensors(weight)
        if len(parts) != len(resident.parts):
            return False
        for reference, stamp, part in zip(resident.parts, resident.stamps, parts, strict=True):
            if part is None or reference is None:
                if part is not reference:
                    return False
            elif reference() is not part:
                return False
            elif part.is_inference():
                if self._stamp(part) != stamp:
                    return False
            elif stamp[1] != part._version or stamp[0] != part.data_ptr():  # a call less
                return False
        return self._unchanged is None or self._unchanged(resident.value)

    def _stamp(self, part: Any) -> tuple[int, int]:
        """Numbers that change with the tensor."""
        if part.is_inference():
            return part.data_ptr(), self._fingerprint(part)
        return part.data_ptr(), part._version

    def _keep(self, weight: Operand) -> T:
        key = id(weight.codes)
        parts = tensors(weight)
        stamps = tuple(None if part is None else self._stamp(part) for part in parts)
        value = self._make(weight)

        def forget(dead: Any) -> None:
            setting = self._by_codes.get(key)
            if setting is not None and any(dead is each for each in setting.parts):
                del self._by_codes[key]

        weak = tuple(None if part is None else ref(part, forget) for part in parts)
        self._by_codes[key] = _Resident(weak, stamps, weight.fmt, weight.size, value)
        return value


def tensors(weight: Operand) -> tuple[Tensor | None, ...]:
    """All tensors of a weight, in one order; None for a part that its format does not have."""
    return weight[:4] if not weight.more else (*weight[:4], *weight.more)
