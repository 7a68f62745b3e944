# SPDX-License-Identifier: BSD-3-Clause
"""Statistics that merge: of two observers, or of the same observer in many processes."""

import copy
import zlib
from collections.abc import Callable
from typing import Any, ClassVar, Self

import torch
import torch.distributed as dist
from torch import Tensor

from blockscale.layers.buffers import Buffers
from blockscale.parallel.messages import gather_messages

COUNTERS = ("samples", "nans", "infinities")
_COMBINE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "min": torch.minimum,
    "max": torch.maximum,
    "sum": torch.add,
    "join": lambda a, b: torch.cat([a, b]),  # 1-D samples, one after the other
}
_DIMS = 8  # the most dimensions of a tensor that processes can agree on
_UNKNOWN = -(2**62)


class MergeableStatistics(Buffers):
    """Buffers in the shape of a format's scale, with the way in which each of them merges.

    Each starts with a number that merging does not change, mostly 0. They keep their dtype when the
    module is moved, and take the shapes of a state that is loaded.

    samples, nans, infinities: int64 [], elements seen, and how many of them were not finite
    """

    name: ClassVar[str]
    samples: Tensor
    nans: Tensor
    infinities: Tensor

    def __init__(self, fmt: str):
        super().__init__()
        self.fmt = fmt
        self._merges = dict.fromkeys(COUNTERS, "sum")
        self._fixed: dict[str, tuple[int, ...]] = {}
        self._empty: dict[str, float] = {}  # what those start with that do not start with 0
        for counter in COUNTERS:
            self.register_buffer(counter, torch.zeros((), dtype=torch.int64))

    def _statistic(
        self, name: str, merge: str, *fixed: int, dtype: torch.dtype = torch.float32
    ) -> None:
        """A buffer [scale's shape, *fixed]; merge: "min", "max" or "sum"."""
        self._merges[name], self._fixed[name] = merge, fixed
        self.register_buffer(name, torch.zeros((0, *fixed), dtype=dtype))

    def _sample(self, name: str, dtype: torch.dtype = torch.float32) -> None:
        """A buffer [n] of things that were kept as they are, bounded by who fills it."""
        self._merges[name] = "join"
        self.register_buffer(name, torch.zeros(0, dtype=dtype))

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The scale's shape, or None before there was any data."""
        first, fixed = next(iter(self._fixed.items()))
        size = self.get_buffer(first).shape
        return tuple(size[: len(size) - len(fixed)]) if size.numel() else None

    @property
    def finite(self) -> int:
        """How many finite elements were seen."""
        return int(self.samples - self.nans - self.infinities)

    def describe(self) -> str:
        """What was seen, in words."""
        return (
            f"{int(self.samples)} elements, {int(self.nans)} NaN, {int(self.infinities)} infinite"
        )

    def extra_repr(self) -> str:
        return f"'{self.fmt}', {MergeableStatistics.describe(self)}"

    def _start(self, shape: tuple[int, ...]) -> None:
        """Give every statistic the scale's shape. Raises ValueError if it has another."""
        if self.shape is None:
            for name, fixed in self._fixed.items():
                self._buffers[name] = self.get_buffer(name).new_full(
                    (*shape, *fixed), self._empty.get(name, 0)
                )
        elif self.shape != shape:
            raise ValueError(
                f"{self.fmt}: the scale had shape {self.shape} and now has {shape}; only the "
                f"blocks 'tensor' and 'channel-1' take any number of rows: use one of them, or "
                f"dynamic scales"
            )

    # --- merging

    def merge_(self, other: "MergeableStatistics") -> Self:
        """Add what `other` saw, which stays as it is: then self is as if it had seen both.

        Raises ValueError for another kind of observer, another format or another scale's shape.
        """
        if not isinstance(other, MergeableStatistics) or other._identity() != self._identity():
            other_identity = (
                other._identity() if isinstance(other, MergeableStatistics) else repr(other)
            )
            raise ValueError(
                f"cannot merge statistics of different observers: {self._identity()} with "
                f"{other_identity}"
            )
        other = copy.deepcopy(other)
        if other.shape is not None:
            self._start(other.shape)
        if self.shape is not None:
            other._start(self.shape)
        self._align(lambda n: torch.maximum(self.get_buffer(n), other.get_buffer(n)))
        other._align(self.get_buffer)
        mine, theirs = self._parts(), other._parts()
        self._take({n: _COMBINE[self._merges[n]](mine[n], theirs[n]) for n in mine})
        for child, others in zip(self.children(), other.children(), strict=True):
            child.merge_(others)  # type: ignore[operator]
        self._settle()
        return self

    def all_reduce_(self, group: dist.ProcessGroup | None = None) -> Self:
        """Merge with the same observer of every process of `group`, once, when all have observed.

        Processes that saw nothing take part. All end with the same statistics.

        Raises ValueError, in every process, where observers or scales' shapes are not the same.
        """
        self._agree(group)
        self._align(lambda n: _reduced(self.get_buffer(n), "max", group))
        self._take({n: _reduced(p, self._merges[n], group) for n, p in self._parts().items()})
        for child in self.children():
            child.all_reduce_(group)  # type: ignore[operator]
        self._settle()
        return self

    def _agree(self, group: dist.ProcessGroup | None) -> None:
        """Start with the scale's shape of the processes that have data."""
        sizes = self.shape and [*self.shape, *[-1] * (_DIMS - len(self.shape))]
        entries = [zlib.crc32(self._identity().encode()), *(sizes or [_UNKNOWN] * _DIMS)]
        largest = _reduced(torch.tensor(entries, device=self.samples.device), "max", group)
        entries[1:] = sizes or [-_UNKNOWN] * _DIMS
        smallest = _reduced(torch.tensor(entries, device=self.samples.device), "min", group)
        if bool((largest > smallest).any()):
            raise ValueError(
                "the processes hold different observers, or scales of different shapes; this "
                f"one holds {self._identity()}, scale of shape {self.shape}"
            )
        if int(largest[1]) > _UNKNOWN:
            self._start(tuple(n for n in largest[1:].tolist() if n >= 0))

    def _identity(self) -> str:
        return f"{self.name} ({self.fmt}) with {self._fixed}"

    def _align(self, largest: Callable[[str], Tensor]) -> None:
        """Bring the statistics into a form that merges; `largest(name)` is over all observers."""

    def _parts(self) -> dict[str, Tensor]:
        """What merges."""
        return {name: self.get_buffer(name) for name in self._merges}

    def _take(self, merged: dict[str, Tensor]) -> None:
        """The statistics become what their parts merged to."""
        self._buffers.update(merged)

    def _settle(self) -> None:
        """What remains to be done when everything has merged."""

    # --- as a module

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        for child in self.children():
            child._apply(fn)
        super()._apply(fn, recurse)
        return self

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *rest: Any, **others: Any
    ) -> None:
        for name, how in self._merges.items():
            new, fixed = state_dict.get(prefix + name), self._fixed.get(name, ())
            if new is None or name in COUNTERS:
                continue
            if how == "join" or tuple(new.shape[new.ndim - len(fixed) :]) == fixed:
                self._buffers[name] = self.get_buffer(name).new_zeros(new.shape)
        super()._load_from_state_dict(state_dict, prefix, *rest, **others)


def _reduced(part: Tensor, how: str, group: dist.ProcessGroup | None) -> Tensor:
    """One tensor of every process -> what they merge to, in every process."""
    if how == "join":
        return _join(part, group)
    total = part.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, getattr(dist.ReduceOp, how.upper()), group)
    return total


def _join(part: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """[n] of every process, n not the same in all -> [sum of n], in the order of the processes."""
    return torch.cat(gather_messages(part, group))
