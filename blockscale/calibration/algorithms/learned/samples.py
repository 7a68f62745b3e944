# SPDX-License-Identifier: BSD-3-Clause
"""The calls of a block as samples: rows of their batch dimension, drawn without replacement."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from blockscale.calibration.block_calls import BlockCall
from blockscale.core.torch_private import pytree

NEAR = 1e-2  # of the size of what a block gives: rows that are run together or alone may differ
_HELD = 1 << 30  # bytes of calls and targets that are put together once, not anew for each step


Row = tuple[int, int]  # which call, and which row of its batch


class Sample(NamedTuple):
    """A call, or some rows of calls as one, and what the block should give for it."""

    call: BlockCall
    target: Tensor


class Samples:
    """Rows of calls, which may be run together, or whole calls where a block mixes its rows.

    run: the float block. Whether rows may be taken apart and put together is tried on it.
    """

    def __init__(
        self,
        calls: Sequence[BlockCall],
        targets: Sequence[Tensor],
        run: Callable[[BlockCall], Tensor],
    ):
        self._calls, self._targets = calls, targets
        self._shapes = [target.shape for target in targets]
        self._sizes = [shape[0] if len(shape) > 1 else 1 for shape in self._shapes]
        self.rows = [(i, r) for i, size in enumerate(self._sizes) for r in range(size)]
        self._cache: _Cache | None = None
        self._apart = self._joins(run)
        if not self._apart:
            self.rows = [(i, 0) for i in range(len(calls))]
        elif len(calls):
            self._cache = self._hold()

    def positions(self, row: Row) -> int:
        """How many places of the output, such as tokens, a row has."""
        every = prod(self._shapes[row[0]][:-1])
        return max(every // self._sizes[row[0]] if self._apart else every, 1)

    def parts(self, rows: Sequence[Row]) -> Iterator[Sample]:
        """These rows, together as far as they can be."""
        if not self._apart:
            yield from (Sample(self._calls[i], self._targets[i]) for i, _ in rows)
            return
        of_call: dict[int, list[int]] = {}
        for i, r in rows:
            of_call.setdefault(i, []).append(r)
        if self._cache is not None:
            yield self._cache.rows(of_call)
            return
        pieces = [self._piece(i, names) for i, names in of_call.items()]
        groups: list[list[tuple[Any, ...]]] = []
        for piece in pieces:
            for group in groups:
                if _alike(group[0], piece):
                    group.append(piece)
                    break
            else:
                groups.append([piece])
        yield from map(join, groups)

    def sum_of(self, number: Callable[[Sample], float], rows: Sequence[Row]) -> float:
        """The sum of number(part) over the parts of these rows."""
        return sum(map(number, self.parts(rows)))

    def descend(
        self,
        error: Callable[[Sample], Tensor],
        rows: Sequence[Row],
        values: Mapping[str, Tensor],
    ) -> None:
        """Give the values the gradients of the sum of error(part) over the parts of these rows;
        none to those that it does not depend on."""
        del values
        for part in self.parts(rows):
            error(part).backward()

    def batches(self, size: int, seed: int) -> Iterator[list[Row]]:
        """Rows of about `size` positions, again and again: all rows before one comes twice."""
        generator = torch.Generator().manual_seed(seed)
        while True:
            order = torch.randperm(len(self.rows), generator=generator).tolist()
            yield from self.in_order(size, [self.rows[place] for place in order])

    def in_order(self, size: int, rows: Sequence[Row] | None = None) -> Iterator[list[Row]]:
        """All rows once, or these, about `size` positions at a time."""
        members: list[Row] = []
        count = 0
        for row in self.rows if rows is None else rows:
            members.append(row)
            count += self.positions(row)
            if count >= size:
                yield members
                members, count = [], 0
        if members:
            yield members

    def _hold(self) -> "_Cache | None":
        """All calls as one, if they can be one and are not too large."""
        size = sum(target.nbytes for target in self._targets)
        if size > _HELD:
            return None
        pieces: list[tuple[Any, ...]] = []
        for i, rows in enumerate(self._sizes):
            pieces.append(self._piece(i, list(range(rows))))
            leaves = [leaf for leaf in pieces[-1][0] if isinstance(leaf, Tensor)]
            size += sum(leaf.nbytes for leaf in leaves)
            if size > _HELD or not (i == 0 or _alike(pieces[0], pieces[-1])):
                return None
        return _Cache(pieces)

    def _piece(self, i: int, rows: list[int]) -> tuple[Any, ...]:
        """Rows of a call: (leaves, spec, target, size of the call's batch)."""
        leaves, spec = pytree.tree_flatten(tuple(self._calls[i]))
        size = self._sizes[i]
        if size > 1 and len(rows) < size:
            at = torch.tensor(rows)
            leaves = [_rows_of(leaf, at, size) for leaf in leaves]
            return leaves, spec, _rows_of(self._targets[i], at, size), len(rows)
        return leaves, spec, self._targets[i], size

    def _joins(self, run: Callable[[BlockCall], Tensor]) -> bool:
        """Whether rows give the same alone and together with those of other calls."""
        if len(self.rows) < 2:
            return True
        first, last = self.rows[0], self.rows[-1]
        self._apart = True
        try:
            parts = list(self.parts([first, last]))
            members = [row for part in parts for row in run(part.call)]
            alone = [run(self._calls[i])[r] for i, r in (first, last)]
        except (RuntimeError, ValueError, IndexError, TypeError):
            return False
        return all(
            a.shape == b.shape and bool((a - b).abs().mean() <= NEAR * b.abs().mean())
            for a, b in zip(members, alone, strict=False)
        )


class _Cache:
    """Calls that are one, and their rows: gathered at once, by one list of places.

    Looking rows up call by call takes a copy from the host for each call and tensor.
    """

    def __init__(self, pieces: list[tuple[Any, ...]]):
        whole = join(pieces)
        self._leaves, self._spec = pytree.tree_flatten(tuple(whole.call))
        self._target, self._sizes = whole.target, [piece[3] for piece in pieces]
        self._starts = [0, *accumulate(self._sizes)]
        self._of_rows = [
            isinstance(leaf, Tensor) and leaf.ndim > 0 and len(leaf) == self._starts[-1]
            and (len(pieces) == 1 or leaf is not first)
            for leaf, first in zip(self._leaves, pieces[0][0], strict=True)
        ]  # fmt: skip

    def rows(self, of_call: dict[int, list[int]]) -> Sample:
        """{call: its rows} -> a sample of them; of a whole call its rows as they are there."""
        places = [
            self._starts[i] + r
            for i, rows in of_call.items()
            for r in (rows if len(rows) < self._sizes[i] else range(self._sizes[i]))
        ]
        at = torch.tensor(places).to(self._target.device, non_blocking=True)
        leaves = [
            leaf.index_select(0, at.to(leaf.device)) if own else leaf
            for leaf, own in zip(self._leaves, self._of_rows, strict=True)
        ]
        call = BlockCall(*pytree.tree_unflatten(leaves, self._spec))
        return Sample(call, self._target.index_select(0, at))


def _rows_of(leaf: Any, at: Tensor, size: int) -> Any:
    if isinstance(leaf, Tensor) and leaf.ndim and len(leaf) == size:
        return leaf.index_select(0, at.to(leaf.device))
    return leaf


def _alike(first: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    """Whether two pieces can be one call."""
    if first[1] != other[1] or first[2].shape[1:] != other[2].shape[1:]:
        return False
    return all(
        _cat_or_same(a, b, first[3], other[3]) for a, b in zip(first[0], other[0], strict=True)
    )


def _cat_or_same(a: Any, b: Any, rows: int, others: int) -> bool:
    if a is b:
        return not isinstance(a, Tensor) or not a.ndim or len(a) != rows or rows == 1
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        return bool(a == b)
    if a.ndim and a.shape[1:] == b.shape[1:] and len(a) == rows and len(b) == others:
        return True
    return a.shape == b.shape and torch.equal(a, b)


def join(pieces: list[tuple[Any, ...]]) -> Sample:
    """Pieces that are alike -> one call."""
    leaves = [_cat([piece[0][j] for piece in pieces], pieces) for j in range(len(pieces[0][0]))]
    call = BlockCall(*pytree.tree_unflatten(leaves, pieces[0][1]))
    return Sample(call, torch.cat([piece[2] for piece in pieces]))


def _cat(values: list[Any], pieces: list[tuple[Any, ...]]) -> Any:
    first = values[0]
    if len(values) == 1 or not isinstance(first, Tensor) or all(each is first for each in values):
        return first
    if all(v.ndim and len(v) == p[3] for v, p in zip(values, pieces, strict=True)):
        return torch.cat(values)
    return first
