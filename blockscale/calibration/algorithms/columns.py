# SPDX-License-Identifier: BSD-3-Clause
"""Weights that are rounded column by column, and codes and scales that are chosen again and again.

Several matrices of one shape are worked on side by side: what belongs to their rows alone is one
call for all of them, and products with what belongs to a matrix are a call for each, of the shape
that they have for one matrix alone. So each gets the bits that it gets alone.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from blockscale.calibration.algorithms.block_scales import (
    nearest_scale,
    plain_scales,
    put,
    search,
    select,
    spread,
)
from blockscale.core import reference
from blockscale.core.arithmetic.precision import FLT_MAX
from blockscale.core.block import WHOLE, read_block
from blockscale.core.format import Format
from blockscale.core.operand import Quantizer, quantizer
from blockscale.core.reference import QParams
from blockscale.core.scale import PowerOfTwo
from blockscale.ops import primitives
from blockscale.ops.round_columns import Rounded, round_columns
from blockscale.ops.tensor import QTensor

_OF_BLOCKS = ("scale", "zero_point", "offset")
_EVERY = slice(None)


class Columns:
    """Codes and scales of matrices [n, k] of one format in progress.

    Everything is held transposed: a column of a matrix is a row here, so that neighbours in memory
    are rounded at once; and the columns of all matrices lie side by side, N = matrices · n.

    count: how many matrices; rows: n
    block_of: [k], which column of the scale each column of a matrix belongs to
    row_block: [n], which row of the scale each row of a matrix belongs to
    chosen:   of each matrix, for each column of its scale, whether it is known
    values:   [k, N] float32, what the codes mean, of columns that were rounded
    """

    def __init__(
        self,
        weights: Sequence[Tensor],
        fmt: Format,
        importance: Sequence[Tensor] | None,
        *,
        spacing: int = 1,
    ):
        """Importance: of each matrix [k] float64 for scales of least (weighted) squared error, None
        for amax. spacing: as `mse.search` takes it. Several matrices: if `stands_beside(fmt)`."""
        self._format, self._importance, self._spacing = fmt, importance, spacing
        self.count, (self.rows, k) = len(weights), weights[0].shape
        spreads = [spread(weight, fmt) for weight in weights]
        self.single = spreads[0][0]
        self._whole = [qparams for _, qparams, _ in spreads]
        outers = [outer for _, _, outer in spreads if outer is not None]
        self._outer = below(outers) if outers else None
        self._qparams = self._whole[0]
        if self.count > 1:
            names = [name for name in _OF_BLOCKS if name in fmt.parts]
            parts = {n: below([getattr(q, n) for q in self._whole]) for n in names}
            self._qparams = QParams(**parts)
        self._column = replace(self.single, block=read_block("group1"))
        self.sizes = fmt.block.sizes_for(2)
        device = weights[0].device
        self.row_block = _indices(self.rows, self.sizes[0], device)
        self.block_of = _indices(k, self.sizes[1], device)
        learned = fmt.element.learned  # a table and its scales belong together: both are chosen
        blocks = self._whole[0].scale.shape[1]
        self.chosen = [[learned] * blocks for _ in weights]
        self.values = torch.empty(k, self.count * self.rows, device=device)
        self._codes = torch.empty_like(self.values, dtype=fmt.element.code_dtype)

    def of(self, e: int) -> slice:
        """Where the rows of a matrix are, among those of all."""
        return slice(e * self.rows, (e + 1) * self.rows)

    def _scales_of(self, e: int) -> slice:
        """Where its rows of the scale are."""
        return _EVERY if self.count == 1 else self.of(e)

    def columns_of(self, block: int) -> slice:
        """The columns of a matrix that share a column of the scale."""
        size = self.sizes[1] or len(self.block_of)
        return slice(block * size, min((block + 1) * size, len(self.block_of)))

    def choose(self, blocks: Sequence[tuple[int, int]], x: Tensor) -> None:
        """Choose the scales of a column of blocks of some matrices: (matrix, which column).

        x: their weights [matrices · n, columns] float32, as many columns of each
        """
        outer = None
        if self._outer is not None:
            parts = [self._outer[self._scales_of(e), b : b + 1] for e, b in blocks]
            outer = below(parts).contiguous()
        if self._importance is None:
            qparams = plain_scales(x, self.single, outer)
        else:
            counts = [self._importance[e][self.columns_of(b)] for e, b in blocks]
            of_rows = counts[0]
            if len(blocks) > 1:
                of_rows = torch.stack(counts).repeat_interleave(self.rows, 0)
            qparams = search(x, self.single, outer, of_rows, spacing=self._spacing)
        for i, (e, b) in enumerate(blocks):
            own = qparams if len(blocks) == 1 else _rows_of(qparams, self.of(i))
            put(own, self._qparams, (self._scales_of(e), slice(b, b + 1)))
            self.chosen[e][b] = True

    def choose_all(self, weights: Sequence[Tensor]) -> None:
        """Choose every scale from the weights [n, k] float32 as they are."""
        for b in range(len(self.chosen[0])):
            some = [(e, b) for e in range(self.count) if not self.chosen[e][b]]
            if some:
                columns = self.columns_of(b)
                self.choose(some, below([weights[e][:, columns] for e, _ in some]))

    def put(self, live: Sequence[int], block: int, qparams: QParams) -> None:
        """Take these scales, one below another, for a column of blocks of these matrices."""
        at = slice(block, block + 1)
        if len(live) == self.count:
            put(qparams, self._qparams, (_EVERY, at))
            return
        for i, e in enumerate(live):
            put(_rows_of(qparams, self.of(i)), self._qparams, (self.of(e), at))

    def take(self, qparams: QParams) -> None:
        """Take all scales of the only matrix as they are given, the outer ones those that the
        weight chooses."""
        put(qparams, self._qparams, (_EVERY, _EVERY))
        self.chosen = [[True] * len(self.chosen[0])]

    def qparams_of(self, live: Sequence[int], block: int) -> QParams:
        """The scales of one column of blocks of these matrices, one below another [rows, 1], the
        outer ones spread."""
        at = slice(block, block + 1)
        if len(live) == self.count:
            return self._at(lambda part: part[:, at].contiguous())
        return self._at(lambda part: torch.cat([part[self.of(e), at] for e in live]))

    def rounding_of(self, e: int, columns: Tensor | slice) -> Quantizer:
        """The scale of each element of these columns, as `round_columns` takes them."""
        blocks, own = self.block_of[columns], self._scales_of(e)
        whole_rows = self.sizes[0] == 1

        def each(part: Tensor) -> Tensor:
            of_rows = part[own] if whole_rows else part[self.row_block]
            return of_rows[:, blocks].T.contiguous()

        return quantizer(self._at(each), self._column)

    def round(
        self,
        e: int,
        columns: Tensor | slice,
        tensor: Tensor,
        base: Tensor | None = None,
        coupling: Tensor | None = None,
    ) -> Rounded:
        """Round columns [c, n] float64 of a matrix as `round_columns` does; codes and values are
        kept."""
        if coupling is None:
            coupling = tensor.new_zeros(len(tensor), len(tensor))
        result = round_columns(tensor, base, coupling, self.rounding_of(e, columns))
        own = self.of(e)
        self._codes[:, own][columns], self.values[:, own][columns] = result.codes, result.values
        return result

    def values_of(self, live: Sequence[int], columns: slice) -> Tensor:
        """The values of these columns of these matrices [c, matrices · n]."""
        return self._beside(self.values[columns], live)

    def revalue(self, live: Sequence[int], block: int) -> Tensor:
        """The same codes of a column of blocks under scales that were changed: their values [c,
        matrices · n] float32, kept too."""
        columns = self.columns_of(block)
        of_block, c = self.qparams_of(live, block), columns.stop - columns.start
        every = self.row_block if self.count == 1 and self.sizes[0] != 1 else None

        def each(part: Tensor) -> Tensor:
            of_rows = part if every is None else part[every]
            return of_rows.T.expand(c, -1).contiguous()

        by = of_block._replace(book=None)
        wide = QParams(*(None if p is None else each(p) for p in by))  # type: ignore[arg-type]
        codes = self._beside(self._codes[columns], live)
        whole = wide._replace(book=of_block.book)
        result = reference.dequantize(codes, whole, self._column, torch.float32)
        if len(live) == self.count:
            self.values[columns] = result
        else:
            for i, e in enumerate(live):
                self.values[columns, self.of(e)] = result[:, self.of(i)]
        return result

    def finished(self, e: int = 0) -> QTensor:
        """All codes of a matrix with their scales."""
        codes = self._codes[:, self.of(e)].T.contiguous()
        packed = primitives.pack(codes, str(self._format))
        qparams = self._whole[e]
        if self.count > 1:
            own = _rows_of(self._qparams, self.of(e))
            some = {n: getattr(own, n).contiguous() for n in _OF_BLOCKS if n in self._format.parts}
            qparams = qparams._replace(**some)
        return QTensor(packed, qparams, self._format, codes.shape[1])

    def _beside(self, tensor: Tensor, live: Sequence[int]) -> Tensor:
        """What these matrices have of rows [c, N]."""
        if len(live) == self.count:
            return tensor
        return torch.cat([tensor[:, self.of(e)] for e in live], 1)

    def _at(self, of: Callable[[Tensor], Tensor]) -> QParams:
        """`of` each part that belongs to blocks, the outer scale spread; a table stays whole."""
        parts = self._qparams._replace(outer=self._outer, book=None)
        qparams = QParams(*(None if p is None else of(p) for p in parts))  # type: ignore[arg-type]
        return qparams._replace(book=self._qparams.book)


def stands_beside(fmt: Format) -> bool:
    """Whether several matrices in this format can be worked on side by side: nothing but an outer
    scale belongs to more than one row."""
    if fmt.block.flat or fmt.element.learned or fmt.block.sizes_for(2)[0] != 1:
        return False
    return set(fmt.parts) <= {*_OF_BLOCKS, "outer"}


def _indices(n: int, size: int, device: torch.device) -> Tensor:
    """Which block each of n rows or columns belongs to."""
    return (
        torch.zeros(n, dtype=torch.int64, device=device)
        if size == WHOLE
        else (torch.arange(n, device=device) // size)
    )


def below(parts: Sequence[Tensor]) -> Tensor:
    """Tensors one below another."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def _rows_of(qparams: QParams, rows: slice) -> QParams:
    """Some rows of the scales, where each row is one of the weight's."""
    return QParams(*(None if p is None else p[rows] for p in qparams))  # type: ignore[arg-type]


# Codes and scales that are chosen again and again, each under all the others.
#
# Coordinate descent on the error of a layer's output, tr((T - Q) H (T - Q)^T): given all other
# columns, the best value of column j is Q_j + ((T - Q) H)_j / H_jj, which is rounded; given all
# codes, the best step of a block has a closed form. So no step of it raises the error, where a
# format rounds to nearest; others are left as they are. Sweeps over codes are those of Behdin et
# al. 2023, "QuantEase" (arXiv 2309.01885, section 3, algorithm 1); there the scales stay.

_BATCH = 64  # columns that are rounded in one call
_LEAST = 32  # columns whose errors are handed on together, where blocks are smaller


def descend(
    columns: Columns,
    targets: Sequence[Tensor],
    hs: Sequence[Tensor],
    sweeps: int,
    *,
    fit: bool = True,
) -> list[Tensor]:
    """Choose codes and scales of all columns again, at most `sweeps` times; all have codes already.

    targets: [k, n] float64 of each matrix, what the values should be
    hs: [k, k] float64 of each, symmetric, with a diagonal above 0
    fit: scales too, not codes alone
    Returns h @ (target - values) [k, n] of each.
    """
    if not columns.single.rounding.startswith("nearest"):
        sweeps = 0  # what is rounded one way only need not come nearer
    fits = fit and not isinstance(
        columns.single.scale, PowerOfTwo
    )  # whose neighbour is seldom nearer
    every = range(columns.count)
    rests = [hs[e] @ (targets[e] - columns.values[:, columns.of(e)]) for e in every]
    couplings = [h / -h.diagonal() for h in hs]
    live = list(every)
    for _ in range(sweeps):
        before = columns.values.clone()
        for part, blocks in _parts(columns):
            _Part(columns, live, part, hs, rests).descend(blocks if fits else (), couplings)
        changed = (
            (columns.values != before).any(0).unflatten(0, (columns.count, columns.rows)).any(1)
        )
        live = [e for e, moved in enumerate(changed.tolist()) if moved and e in live]
        if not live:
            break
    return rests


def _parts(columns: Columns) -> Iterator[tuple[slice, range]]:
    """Neighbouring columns that hold whole blocks, and which blocks of columns those are."""
    size, most = columns.sizes[1], len(columns.chosen[0])
    count = most if size == WHOLE else max(1, _LEAST // size)
    for first in range(0, most, max(count, 1)):
        blocks = range(first, min(first + count, most))
        last = columns.columns_of(blocks[-1])
        yield slice(columns.columns_of(first).start, last.stop), blocks


class _Part:
    """Some columns of some matrices, `live`, that are chosen again before their errors are handed
    on to the others.

    near: h @ (target - values) of these columns, of each matrix; errors: what they changed by
    """

    def __init__(
        self,
        columns: Columns,
        live: Sequence[int],
        part: slice,
        hs: Sequence[Tensor],
        rests: Sequence[Tensor],
    ):
        self.columns, self.live, self.part = columns, live, part
        self._hs, self._rests = hs, rests
        self._own = [hs[e][part, part].contiguous() for e in live]
        self._near = [rests[e][part].clone() for e in live]
        self._errors = [torch.zeros_like(near) for near in self._near]

    def descend(self, blocks: Sequence[int], couplings: Sequence[Tensor]) -> None:
        """The scales of these blocks, then all codes; the errors are handed on at last."""
        for block in blocks:
            self._fit(block)
        part = self.part
        for first in range(part.start, part.stop, _BATCH):
            some = slice(first, min(first + _BATCH, part.stop))
            for i, e in enumerate(self.live):
                self._round(i, e, some, couplings[e][some, some].contiguous())
        for i, e in enumerate(self.live):
            self._rests[e].addmm_(self._hs[e][:, part], self._errors[i])

    def _round(self, i: int, e: int, some: slice, coupling: Tensor) -> None:
        start, part, columns = self.part.start, self.part, self.columns
        here = slice(some.start - start, some.stop - start)
        base = columns.values[some, columns.of(e)].double()
        goal = base + self._near[i][here] / self._hs[e].diagonal()[some, None]
        result = columns.round(e, some, goal, base, coupling)
        self._errors[i][here] += result.errors
        if some.stop < part.stop:
            self._near[i] += self._own[i][:, here] @ result.errors

    def _fit(self, block: int) -> None:
        """The step of each block that is best for its codes, where that lowers the error."""
        columns, live, fmt = self.columns, self.live, self.columns.single
        stored = columns.columns_of(block)
        here = slice(stored.start - self.part.start, stored.stop - self.part.start)
        old, values = columns.qparams_of(live, block), columns.values_of(live, stored).double()
        step = reference.step_of(old, fmt)[:, 0].double()
        v = values  # step times what the codes count
        if old.offset is not None:
            offset = old.offset.double()[:, 0]
            v = v - (offset if len(live) > 1 else offset[columns.row_block])
        of_error, of_v = self._costs(v, here)
        target = step + step * (of_error / of_v)
        target = torch.where((of_v > 0) & (target * step > 0), target, step)
        target = target.clamp(-FLT_MAX, FLT_MAX)
        new = old._replace(scale=nearest_scale(target.float()[:, None], old.outer, fmt))
        less = 1 - reference.step_of(new, fmt)[:, 0].double() / step  # of v: what values lose by it
        change = less * (2 * of_error + less * of_v)
        columns.put(live, block, select((change < 0)[:, None], new, old))
        moved = values - columns.revalue(live, block)
        for i in range(len(live)):
            own = moved[:, columns.of(i)].contiguous()
            self._errors[i][here] += own
            self._near[i].addmm_(self._own[i][:, here], own)

    def _costs(self, v: Tensor, here: slice) -> tuple[Tensor, Tensor]:
        """Of each block: what its error gains with its step, and with the square of that."""
        of_error, of_v = [], []
        for i in range(len(self.live)):
            own = v[:, self.columns.of(i)].contiguous()
            of_error.append(_of_blocks((own * self._near[i][here]).sum(0), self.columns))
            costs = torch.mm(self._own[i][here, here], own)
            of_v.append(_of_blocks(costs.mul_(own).sum(0), self.columns))
        return below(of_error), below(of_v)


def _of_blocks(rows: Tensor, columns: Columns) -> Tensor:
    """A number for each row [n] -> its sum over the rows of each block."""
    if columns.sizes[0] == 1:
        return rows
    count = 1 if columns.sizes[0] == WHOLE else -(-len(rows) // columns.sizes[0])
    return rows.new_zeros(count).index_add_(0, columns.row_block, rows)
