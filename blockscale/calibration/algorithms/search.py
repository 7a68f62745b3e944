# SPDX-License-Identifier: BSD-3-Clause
"""Plain rounding by search: scales by their errors' cost, then codes and scales together.

Nothing is fed back from column to column. Where the inputs' gram matrix is known, the error that
counts is that of the layer's output, and coordinate descent lowers it from plain rounding on.
"""

from collections.abc import Iterator
from typing import ClassVar

import torch
from torch import Tensor

from blockscale.calibration.algorithms import hessian as grams
from blockscale.calibration.algorithms.block_scales import nearest_scale, quantized, select, widened
from blockscale.calibration.algorithms.columns import Columns, without_dead
from blockscale.calibration.algorithms.mse import best_scales
from blockscale.core import reference
from blockscale.core.arithmetic.bits import FLT_MAX
from blockscale.core.block import WHOLE
from blockscale.core.format import Format
from blockscale.core.reference import QParams
from blockscale.core.scale import PowerOfTwo
from blockscale.ops.batching import in_blocks_of, within_rows
from blockscale.ops.quantize import quantize
from blockscale.ops.tensor import QTensor

# Codes and scales that are chosen again and again, each under all the others.
#
# Coordinate descent on the error of a layer's output, tr((T - Q) H (T - Q)^T): given all other
# columns, the best value of column j is Q_j + ((T - Q) H)_j / H_jj, which is rounded; given all
# codes, the best step of a block has a closed form. So no step of it raises the error, where a
# format
# rounds to nearest; others are left as they are. Sweeps over codes are those of Behdin et al. 2023,
# "QuantEase" (arXiv 2309.01885, section 3, algorithm 1); there the scales stay.

_BATCH = 64  # columns that are rounded in one call
_LEAST = 32  # columns whose errors are handed on together, where blocks are smaller


def descend(
    columns: Columns, target: Tensor, h: Tensor, sweeps: int, *, fit: bool = True
) -> Tensor:
    """Choose codes and scales of all columns again, at most `sweeps` times; all have codes already.

    target: [k, n] float64, what the values should be
    h: [k, k] float64, symmetric, with a diagonal above 0
    fit: scales too, not codes alone
    Returns h @ (target - values) [k, n].
    """
    if not columns.single.rounding.startswith("nearest"):
        sweeps = 0  # what is rounded one way only need not come nearer
    fits = fit and not isinstance(
        columns.single.scale, PowerOfTwo
    )  # whose neighbour is seldom nearer
    coupling = h / -h.diagonal()
    rest = h @ (target - columns.values)
    for _ in range(sweeps):
        before = columns.values.clone()
        for part, blocks in _parts(columns):
            own, near = h[part, part].contiguous(), rest[part].clone()
            errors = torch.zeros_like(near)
            for block in blocks if fits else ():
                _fit(columns, block, part, own, near, errors)
            for first in range(part.start, part.stop, _BATCH):
                some = slice(first, min(first + _BATCH, part.stop))
                here = slice(some.start - part.start, some.stop - part.start)
                base = columns.values[some].double()
                wanted = base + near[here] / h.diagonal()[some, None]
                found = columns.round(some, wanted, base, coupling[some, some].contiguous())
                errors[here] += found.errors
                if some.stop < part.stop:
                    near += own[:, here] @ found.errors
            rest.addmm_(h[:, part], errors)
        if bool((columns.values == before).all()):
            break
    return rest


def _parts(columns: Columns) -> Iterator[tuple[slice, range]]:
    """Neighbouring columns that hold whole blocks, and which blocks of columns those are."""
    size, most = columns.sizes[1], len(columns.chosen)
    count = most if size == WHOLE else max(1, _LEAST // size)
    for first in range(0, most, max(count, 1)):
        blocks = range(first, min(first + count, most))
        last = columns.columns_of(blocks[-1])
        yield slice(columns.columns_of(first).start, last.stop), blocks


def _fit(
    columns: Columns, block: int, part: slice, own: Tensor, near: Tensor, errors: Tensor
) -> None:
    """The step of each block that is best for its codes, where that lowers the error.

    part: of all columns, where own = h, near = h @ (target - values) and errors are given
    """
    stored = columns.columns_of(block)
    here = slice(stored.start - part.start, stored.stop - part.start)
    fmt, old, values = columns.single, columns.qparams_of(block), columns.values[stored].double()
    step = reference.step_of(old, fmt)[:, 0].double()
    v = values  # step times what the codes count
    if old.offset is not None:
        v = v - old.offset.double()[columns.row_block, 0]
    costs = own[here, here]
    of_error = _of_blocks((v * near[here]).sum(0), columns)
    of_v = _of_blocks(torch.mm(costs, v).mul_(v).sum(0), columns)
    wanted = step + step * (of_error / of_v)
    wanted = torch.where((of_v > 0) & (wanted * step > 0), wanted, step).clamp(-FLT_MAX, FLT_MAX)
    new = old._replace(scale=nearest_scale(wanted.float()[:, None], old.outer, fmt))
    less = 1 - reference.step_of(new, fmt)[:, 0].double() / step  # of v is what values lose by it
    change = less * (2 * of_error + less * of_v)
    columns.put(block, select((change < 0)[:, None], new, old))
    moved = values - columns.revalue(stored)
    errors[here] += moved
    near.addmm_(own[:, here], moved)


def _of_blocks(rows: Tensor, columns: Columns) -> Tensor:
    """A number for each row [n] -> its sum over the rows of each block."""
    if columns.sizes[0] == 1:
        return rows
    count = 1 if columns.sizes[0] == WHOLE else -(-len(rows) // columns.sizes[0])
    return rows.new_zeros(count).index_add_(0, columns.row_block, rows)


class Search:
    """The scales of least error among many, and codes that make up for one another.

    weighting: "gram": each column's errors count by the mean square of its input, and then, by
        coordinate descent, as the gram matrix says; "none" looks at the weight alone.
    power: errors count |e|^power while scales are searched: 2, or 1 for the least absolute error.
    sweeps: how often all codes and scales are chosen again, each under all the others; 0 leaves
        every weight rounded to nearest.

    Candidates are those of "mse"; with `signed`, both signs. With "gram" and sweeps, the error of
    the layer's output is never above that of these scales alone, nor of what `bs.quantize` does.
    Flat blocks that end within rows, whose columns share scales, are searched without descent.
    """

    name: ClassVar[str] = "search"

    def __init__(self, weighting: str = "gram", *, power: float = 2.0, sweeps: int = 4):
        grams.check_weighting("search", weighting)
        if not (isinstance(power, int | float) and power > 0):
            raise ValueError(
                f"search: power (errors count as |e|^power) must be > 0, got {power!r}"
            )
        if sweeps < 0:
            raise ValueError(f"search: sweeps must be >= 0, got {sweeps}")
        self.weighting, self.power, self.sweeps = weighting, power, sweeps

    @property
    def needs_gram(self) -> bool:
        """Whether errors count by what the inputs are."""
        return self.weighting == "gram"

    def quantize(
        self, weight: Tensor, fmt: Format, gram: Tensor | None, layer: str
    ) -> tuple[QTensor, list[str]]:
        """As `WeightAlgorithm.quantize`."""
        x = widened(weight, fmt, layer)
        rows = within_rows(fmt, x.shape)
        importance: Tensor | None = None
        notes: list[str] = []
        gram = None if gram is None or not self.needs_gram else gram.to(x.device)
        if self.needs_gram:
            importance, notes = grams.importance_of(gram, x.shape[1], layer)
        qparams = best_scales(x, rows, importance, self.power)
        if gram is None or importance is None or not self.sweeps or rows.block.flat:
            found = quantized(x, qparams, rows)
        else:
            h, _ = without_dead(grams.checked(gram, x.shape[1], layer))
            found = self._descended(x, rows, qparams, h)
        if rows is fmt:
            return found, notes
        parts = in_blocks_of(found.qparams, fmt, x.shape)
        return QTensor(found.packed, parts, fmt, found.size), notes

    def _descended(self, x: Tensor, fmt: Format, qparams: QParams, h: Tensor) -> QTensor:
        """What coordinate descent makes of plain rounding under these scales."""
        target = x.T.double().contiguous()
        columns = Columns(x, fmt, None)
        columns.take(qparams)
        columns.round(slice(None), target)
        rest = descend(columns, target, h, self.sweeps)
        plain = quantize(x, fmt)
        away = target - plain.dequantize().T
        if ((target - columns.values) * rest).sum() > (away * (h @ away)).sum():
            return plain
        return columns.finished()
