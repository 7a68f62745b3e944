# SPDX-License-Identifier: BSD-3-Clause
"""Codes and scales that are chosen again and again, each under all the others.

Coordinate descent on the error of a layer's output, tr((T - Q) H (T - Q)^T): given all other
columns, the best value of column j is Q_j + ((T - Q) H)_j / H_jj, which is rounded; given all
codes, the best step of a block has a closed form. So no step of it raises the error, where a
format rounds to nearest; others are left as they are. Sweeps over codes are those of Behdin et
al. 2023, "QuantEase" (arXiv 2309.01885, section 3, algorithm 1); there the scales stay.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from blockscale.calibration.algorithms.block_scales import Where, nearest_scale, select
from blockscale.calibration.algorithms.columns import Columns, Graphs, below, beside
from blockscale.core import reference
from blockscale.core.arithmetic.precision import FLT_MAX
from blockscale.core.block import WHOLE
from blockscale.core.scale import PowerOfTwo

_BATCH = 64  # columns that are rounded in one call
_LEAST = 32  # columns whose errors are handed on together, where blocks are smaller


def descend(
    columns: Columns,
    targets: Sequence[Tensor],
    hs: Sequence[Tensor],
    sweeps: int,
    *,
    damping: Sequence[float] = (),
    fit: bool = True,
) -> list[Tensor]:
    """Choose codes and scales of all columns again, at most `sweeps` times; all have codes already.

    targets: [k, n] float64 of each matrix, what the values should be
    hs: [k, k] float64 of each, symmetric, with a diagonal above 0; matrices may have the same one
    damping: added to the diagonal of each h, so that what inputs hardly ever tell of stays near its
        target: without, a column with little in its input makes up for all others
    fit: scales too, not codes alone
    Returns h @ (target - values) [k, n] of each, without damping.
    """
    fmt = columns.single
    if not fmt.rounding.startswith("nearest"):
        sweeps = 0  # what is rounded one way only need not come nearer
    fits = fit and not isinstance(fmt.scale, PowerOfTwo)  # whose neighbour is seldom nearer
    more = list(damping) or [0.0] * columns.count
    hessians = _Hessians.of(columns, targets, hs, more)
    live, parts = list(range(columns.count)), list(_parts(columns))
    graphs = Graphs(columns.values.device)  # which know where these h lie
    for _ in range(sweeps):
        before, now = columns.values.clone(), tuple(live)
        for part in parts:
            step = partial(_Part(columns, now, part, hessians).descend, fits=fits)
            key = "descend", now, part.sizes
            graphs.run(key, sweeps * len(parts), step, part.numbers)
        differs = (columns.values != before).any(0).split(columns.rows)
        moves = torch.stack([each.any() for each in differs]).tolist()
        live = [e for e in live if moves[e]]
        if not live:
            break
    for rest, away, plus in zip(hessians.rests, _away(columns, targets), more, strict=True):
        rest.sub_(away, alpha=plus)
    return hessians.rests


def _away(columns: Columns, targets: Sequence[Tensor]) -> Iterator[Tensor]:
    """How far the values of each matrix are from what they should be."""
    for e, target in enumerate(targets):
        yield target - columns.values[:, columns.of(e)]


class _Hessians(NamedTuple):
    """What is known of each matrix: rests, damped h @ (target - values) [k, n], which goes along;
    which h it has; and of each h, which several matrices may have: it [k, k] without damping; its
    damped diagonal [k]; and h in parts of that, negative."""

    rests: list[Tensor]
    which: list[int]
    hs: Sequence[Tensor]
    diagonals: list[Tensor]
    couplings: list[Tensor]

    @classmethod
    def of(
        cls,
        columns: Columns,
        targets: Sequence[Tensor],
        hs: Sequence[Tensor],
        damping: Sequence[float],
    ) -> "_Hessians":
        """Before the first sweep."""
        rests, numbers = [], dict[tuple[int, float], int]()
        for h, away, plus in zip(hs, _away(columns, targets), damping, strict=True):
            rests.append((h @ away).add_(away, alpha=plus))
            numbers.setdefault((id(h), plus), len(numbers))
        which = [numbers[id(h), plus] for h, plus in zip(hs, damping, strict=True)]
        every = [which.index(i) for i in range(len(numbers))]
        diagonals = [hs[e].diagonal() + damping[e] for e in every]
        couplings = [hs[e] / -own for e, own in zip(every, diagonals, strict=True)]
        return cls(rests, which, [hs[e] for e in every], diagonals, couplings)


class _Neighbours(NamedTuple):
    """Where neighbouring columns are that hold whole blocks.

    columns: of the weights; blocks: which columns of the scale these belong to; sizes: how many
    columns each of them has, in their order
    numbers: on a GPU [columns] and [blocks] int64 in its memory, which a step that is recorded
        reads anew each time; else nothing
    """

    columns: Where
    blocks: Sequence[int | Tensor]
    sizes: tuple[int, ...]
    numbers: tuple[Tensor, ...]

    def at(self, *numbers: Tensor) -> "_Neighbours":
        """A place like this at other columns, where numbers say so."""
        if not numbers:
            return self
        columns, blocks = numbers
        return _Neighbours(columns, blocks.split(1), self.sizes, numbers)


def _parts(columns: Columns) -> Iterator[_Neighbours]:
    """Neighbouring columns that hold whole blocks, and which blocks of columns those are."""
    size, most = columns.sizes[1], len(columns.has_scale[0])
    count = most if size == WHOLE else max(1, _LEAST // size)
    device = columns.values.device
    for first in range(0, most, max(count, 1)):
        blocks = range(first, min(first + count, most))
        each = [columns.columns_of(block) for block in blocks]
        start, stop = each[0].start, each[-1].stop
        sizes = tuple(of.stop - of.start for of in each)
        numbers: tuple[Tensor, ...] = ()
        if device.type == "cuda":
            numbers = tuple(
                torch.arange(a, b, device=device) for a, b in ((start, stop), (first, blocks.stop))
            )
        yield _Neighbours(slice(start, stop), blocks, sizes, numbers)


class _Cluster(NamedTuple):
    """Neighbours among the matrices that are worked on, which have one h: what is not a product is
    one call for all of them.

    h: which one; live: their places among those that are worked on; matrices: their numbers; rows:
    where those of each are among those of the cluster
    """

    h: int
    live: range
    matrices: range
    rows: list[slice]

    def apart(self, wide: Tensor) -> Iterator[tuple[int, Tensor]]:
        """Of [c, rows of the cluster] what each matrix has, as it would be alone."""
        for i, rows in zip(self.live, self.rows, strict=True):
            yield i, wide[:, rows].contiguous()


def _runs(columns: Columns, live: Sequence[int], which: Sequence[int]) -> list[_Cluster]:
    """All of these matrices, in order. which: the h of each of all matrices"""
    results, first = [], 0
    for i in range(1, len(live) + 1):
        goes_on = (
            i < len(live) and live[i] == live[i - 1] + 1 and which[live[i]] == which[live[first]]
        )
        if not goes_on:
            own = range(live[first], live[i - 1] + 1)
            results.append(_Cluster(which[live[first]], range(first, i), own, columns.among(own)))
            first = i
    return results


class _Part:
    """Some columns of some matrices, `live`, that are chosen again before their errors are handed
    on to the others.

    own: of each h what these columns have among themselves, damped
    near: h @ (target - values) of these columns, of each matrix; errors: what they changed by, of
    each run
    """

    def __init__(
        self,
        columns: Columns,
        live: Sequence[int],
        place: _Neighbours,
        hessians: _Hessians,
    ):
        self.columns, self.live, self.place = columns, live, place
        self._rests, which, self._hs, self._diagonals, self._couplings = hessians
        self._runs = _runs(columns, live, which)
        self._own: dict[int, Tensor] = {}
        self._near: list[Tensor] = []
        self._errors: list[Tensor] = []

    def descend(self, *numbers: Tensor, fits: bool) -> tuple[()]:
        """The scales of these blocks, if those fit, then all codes; the errors are handed on at
        last. numbers: where they are, of a place that has them."""
        self.place = self.place.at(*numbers)
        part = self.place.columns
        for h in dict.fromkeys(run.h for run in self._runs):
            self._own[h] = _copy_of(self._hs[h][part][:, part])
            self._own[h].diagonal().copy_(self._diagonals[h][part])
        self._near = [self._rests[e][part].clone() for e in self.live]
        size = len(self._near[0])
        self._errors = [self._near[0].new_zeros(size, run.rows[-1].stop) for run in self._runs]
        first = 0
        for block, count in zip(self.place.blocks, self.place.sizes, strict=True):
            if fits:
                self._fit(block, slice(first, first + count))
            first += count
        for start in range(0, first, _BATCH):
            here = slice(start, min(start + _BATCH, first))
            some = self._columns(here)
            own = {h: self._couplings[h][some][:, some].contiguous() for h in self._own}
            for run, errors in zip(self._runs, self._errors, strict=True):
                self._round(run, here, own[run.h], errors)
        self._hand_on(part)
        return ()

    def _hand_on(self, part: Where) -> None:
        """What these columns changed by, to all columns."""
        wide = {h: _copy_of(self._hs[h][:, part]) for h in self._own}
        for h, own in self._own.items():
            wide[h][part] = own
        for run, errors in zip(self._runs, self._errors, strict=True):
            for i, error in run.apart(errors):
                self._rests[self.live[i]].addmm_(wide[run.h], error)

    def _columns(self, here: slice) -> Where:
        """Where some of these columns are in the weights."""
        part = self.place.columns
        if isinstance(part, Tensor):
            return part[here]
        return slice(part.start + here.start, part.start + here.stop)

    def _round(self, run: _Cluster, here: slice, coupling: Tensor, errors: Tensor) -> None:
        columns, some = self.columns, self._columns(here)
        near = beside([self._near[i][here] for i in run.live])
        base = columns.values[some, columns.of(run.matrices)].double()
        goal = base + near / self._diagonals[run.h][some, None]
        result = columns.round(run.matrices, some, goal, base, coupling)
        errors[here] += result.errors
        if here.stop < len(errors):
            for i, error in run.apart(result.errors):
                self._near[i] += self._own[run.h][:, here] @ error

    def _fit(self, block: int | Tensor, here: slice) -> None:
        """The step of each block that is best for its codes, where that lowers the error."""
        columns, live, fmt = self.columns, self.live, self.columns.single
        stored = self._columns(here)
        old, values = columns.qparams_of(live, block), columns.values_of(live, stored).double()
        step = reference.step_of(old, fmt)[:, 0].double()
        v = values  # step times what the codes count
        if old.offset is not None:
            offset = old.offset.double()[:, 0]
            v = v - (offset if columns.sizes[0] == 1 else offset[columns.row_block])
        of_error, of_v = self._costs(v, here)
        target = step + step * (of_error / of_v)
        target = torch.where((of_v > 0) & (target * step > 0), target, step)
        target = target.clamp(-FLT_MAX, FLT_MAX)
        new = old._replace(scale=nearest_scale(target.float()[:, None], old.outer, fmt))
        less = 1 - reference.step_of(new, fmt)[:, 0].double() / step  # of v: what values lose by it
        change = less * (2 * of_error + less * of_v)
        columns.write(live, block, select((change < 0)[:, None], new, old))
        delta = values - columns.revalue(live, block, stored)
        for run, errors, own in zip(self._runs, self._errors, self._by_run(delta), strict=True):
            errors[here] += own
            for i, part in run.apart(own):
                self._near[i].addmm_(self._own[run.h][:, here], part)

    def _by_run(self, tensor: Tensor) -> Iterator[Tensor]:
        """Of [c, rows] what each run has."""
        yield from tensor.split([run.rows[-1].stop for run in self._runs], 1)

    def _costs(self, v: Tensor, here: slice) -> tuple[Tensor, Tensor]:
        """Of each block: what its error gains with its step, and with the square of that."""
        of_error, of_v = [], []
        for run, some in zip(self._runs, self._by_run(v), strict=True):
            for i, own in run.apart(some):
                of_error.append(_of_blocks((own * self._near[i][here]).sum(0), self.columns))
                costs = torch.mm(self._own[run.h][here, here], own)
                of_v.append(_of_blocks(costs.mul_(own).sum(0), self.columns))
        return below(of_error), below(of_v)


def _copy_of(part: Tensor) -> Tensor:
    """Part of an h, or all of it, in memory of its own: it is written to."""
    return part.clone(memory_format=torch.contiguous_format)


def _of_blocks(rows: Tensor, columns: Columns) -> Tensor:
    """A number for each row [n] -> its sum over the rows of each block."""
    if columns.sizes[0] == 1:
        return rows
    count = 1 if columns.sizes[0] == WHOLE else -(-len(rows) // columns.sizes[0])
    return rows.new_zeros(count).index_add_(0, columns.row_block, rows)
