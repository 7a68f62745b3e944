# SPDX-License-Identifier: BSD-3-Clause
"""A weight that is rounded column after column, with scales that are chosen on the way; and plain
rounding by search: scales by their errors' cost, then codes and scales together.

The search feeds nothing back from column to column. Where the inputs' gram matrix is known, the
error that counts is that of the layer's output, and coordinate descent lowers it from plain
rounding on.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from blockscale.calibration.algorithms import hessian as grams
from blockscale.calibration.algorithms.block_scales import (
    best_scales,
    nearest_scale,
    plain_scales,
    put,
    quantized,
    search,
    select,
    spread,
    widened,
)
from blockscale.core import reference
from blockscale.core.arithmetic.precision import FLT_MAX
from blockscale.core.block import WHOLE, read_block
from blockscale.core.format import Format
from blockscale.core.operand import Quantizer, quantizer
from blockscale.core.reference import QParams
from blockscale.core.scale import PowerOfTwo
from blockscale.ops import primitives
from blockscale.ops.batching import in_blocks_of, within_rows
from blockscale.ops.quantize import quantize
from blockscale.ops.round_columns import Rounded, round_columns
from blockscale.ops.tensor import QTensor


class Columns:
    """Codes and scales of a weight [n, k] in progress.

    Everything is held transposed: a column of the weight is a row here, so that neighbours in
    memory are rounded at once.

    block_of: [k], which column of the scale each column of the weight belongs to
    row_block: [n], which row of the scale each row of the weight belongs to
    chosen:   for each column of the scale, whether it is known
    values:   [k, n] float32, what the codes mean, of columns that were rounded
    """

    def __init__(self, weight: Tensor, fmt: Format, importance: Tensor | None, *, spacing: int = 1):
        """Importance: [k] float64 for scales of least (weighted) squared error, None for amax.

        spacing: as `mse.search` takes it
        """
        self._format, self._importance, self._spacing = fmt, importance, spacing
        self.single, self._qparams, self._outer = spread(weight, fmt)
        self._column = replace(self.single, block=read_block("group1"))
        n, k = weight.shape
        self.sizes = fmt.block.sizes_for(2)
        self.row_block = _indices(n, self.sizes[0], weight.device)
        self.block_of = _indices(k, self.sizes[1], weight.device)
        learned = fmt.element.learned  # a table and its scales belong together: both are chosen
        self.chosen = [learned] * self._qparams.scale.shape[1]
        self.values = torch.empty(k, n, device=weight.device)
        self._codes = torch.empty(k, n, dtype=fmt.element.code_dtype, device=weight.device)

    def columns_of(self, block: int) -> slice:
        """The columns of the weight that share a column of the scale."""
        size = self.sizes[1] or len(self.block_of)
        return slice(block * size, min((block + 1) * size, len(self.block_of)))

    def choose(self, block: int, x: Tensor) -> None:
        """Choose the scales of one column of blocks from its weights [n, columns] float32."""
        at = slice(block, block + 1)
        outer = None if self._outer is None else self._outer[:, at].contiguous()
        if self._importance is None:
            qparams = plain_scales(x, self.single, outer)
        else:
            importance = self._importance[self.columns_of(block)]
            qparams = search(x, self.single, outer, importance, spacing=self._spacing)
        self.put(block, qparams)
        self.chosen[block] = True

    def choose_all(self, weight: Tensor) -> None:
        """Choose every scale from the weight [n, k] float32 as it is."""
        for block in (i for i, choice in enumerate(self.chosen) if not choice):
            self.choose(block, weight[:, self.columns_of(block)])

    def put(self, block: int, qparams: QParams) -> None:
        """Take these scales [rows of the scale, 1] for one column of blocks."""
        put(qparams, self._qparams, (slice(None), slice(block, block + 1)))

    def take(self, qparams: QParams) -> None:
        """Take all scales as they are given, the outer ones those that the weight chooses."""
        put(qparams, self._qparams, (slice(None), slice(None)))
        self.chosen = [True] * len(self.chosen)

    def qparams_of(self, block: int) -> QParams:
        """The scales of one column of blocks [rows of the scale, 1], the outer ones spread."""
        return self._at(lambda part: part[:, block : block + 1].contiguous())

    def rounding_of(self, columns: Tensor | slice) -> Quantizer:
        """The scale of each element of these columns, as `round_columns` takes them."""
        blocks = self.block_of[columns]
        whole_rows = self.sizes[0] == 1

        def each(part: Tensor) -> Tensor:
            of_rows = part if whole_rows else part[self.row_block]
            return of_rows[:, blocks].T.contiguous()

        return quantizer(self._at(each), self._column)

    def round(
        self,
        columns: Tensor | slice,
        tensor: Tensor,
        base: Tensor | None = None,
        coupling: Tensor | None = None,
    ) -> Rounded:
        """Round columns [c, n] float64 as `round_columns` does; codes and values are kept."""
        if coupling is None:
            coupling = tensor.new_zeros(len(tensor), len(tensor))
        result = round_columns(tensor, base, coupling, self.rounding_of(columns))
        self._codes[columns], self.values[columns] = result.codes, result.values
        return result

    def revalue(self, columns: slice) -> Tensor:
        """The same codes under scales that were changed: their values [c, n] float32, kept too."""
        by = self.rounding_of(columns)
        assert by.qparams is not None
        result = reference.dequantize(self._codes[columns], by.qparams, by.format, torch.float32)
        self.values[columns] = result
        return result

    def finished(self) -> QTensor:
        """All codes with their scales."""
        packed = primitives.pack(self._codes.T.contiguous(), str(self._format))
        return QTensor(packed, self._qparams, self._format, self._codes.shape[0])

    def _at(self, of: Callable[[Tensor], Tensor]) -> QParams:
        """`of` each part that belongs to blocks, the outer scale spread; a table stays whole."""
        parts = self._qparams._replace(outer=self._outer, book=None)
        qparams = QParams(*(None if p is None else of(p) for p in parts))  # type: ignore[arg-type]
        return qparams._replace(book=self._qparams.book)


def _indices(n: int, size: int, device: torch.device) -> Tensor:
    """Which block each of n rows or columns belongs to."""
    return (
        torch.zeros(n, dtype=torch.int64, device=device)
        if size == WHOLE
        else (torch.arange(n, device=device) // size)
    )


# Error feedback: columns are rounded in an order, and those to come make up for their errors.

_TRIES = 16  # each with ten times the damping


def feed_back(columns: Columns, target: Tensor, factor: Tensor, order: Tensor, batch: int) -> None:
    """Round all columns in `order`; the scales of a block are chosen when its first one is reached.

    target: [k, n] float64, what the values should be
    factor: [k, k] float64, upper U with U^T U = H^-1, of the permuted H
    batch: columns that are rounded in one call, at most; then all later ones make up for them
    """
    pending = target[order]
    coupling = factor / factor.diagonal()[:, None]  # what an error costs each later column
    of_block = columns.block_of[order]
    blocks, k, place_of = of_block.tolist(), len(order), order.argsort()
    first = 0
    while first < k:
        if not columns.chosen[blocks[first]]:
            places = place_of[columns.columns_of(blocks[first])]
            columns.choose(blocks[first], pending[places].T.float().contiguous())
        last = first + 1
        while last < min(k, first + batch) and columns.chosen[blocks[last]]:
            last += 1
        some = slice(first, last)
        own = coupling[some, some].contiguous()
        result = columns.round(order[some], pending[some], None, own)
        pending[last:].addmm_(coupling[some, last:].T, result.errors, alpha=-1)
        first = last


def without_dead(h: Tensor) -> tuple[Tensor, int]:
    """H with the mean of its diagonal for inputs that were always 0, and how many those are.

    The rest of their rows and columns is 0 in any X^T X: they neither give nor take errors.
    """
    dead = h.diagonal() == 0
    count = int(dead.sum())
    if not count:
        return h, 0
    mean = h.diagonal()[~dead].mean() if count < len(h) else h.new_ones(())
    return h + torch.diag(dead * mean), count


def backwards_factor(h: Tensor, damping: float, layer: str) -> tuple[Tensor, float]:
    """Symmetric H [k, k] float64 -> upper R with R R^T = H + damping · mean diag, the damping.

    R is the Cholesky factor of H backwards. The damping is raised tenfold until there is one.
    """
    size = float(h.diagonal().mean()) if len(h) else 0.0
    one = torch.eye(len(h), dtype=h.dtype, device=h.device)
    for _ in range(_TRIES):
        backwards, failed = torch.linalg.cholesky_ex((h + damping * size * one).flip(0, 1))
        if not int(failed):
            return backwards.flip(0, 1), damping
        damping = max(10 * damping, 1e-6)
    raise ValueError(
        f"{layer}: the Gram matrix of its inputs has no Cholesky factor, even with damping "
        f"{damping / 10:g}: it is not a sum of X^T X; compute it again"
    )


def inverse_factor(h: Tensor, damping: float, layer: str) -> tuple[Tensor, float]:
    """Symmetric H [k, k] float64 -> upper U with U^T U = (H + damping · mean diag)^-1, the damping.

    U is the inverse of R in H = R R^T with R upper: one factorization and no inverse of H, which
    the paper's code computes and factors again.
    """
    r, damping = backwards_factor(h, damping, layer)
    one = torch.eye(len(h), dtype=h.dtype, device=h.device)
    return torch.linalg.solve_triangular(r, one, upper=True), damping


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
                goal = base + near[here] / h.diagonal()[some, None]
                result = columns.round(some, goal, base, coupling[some, some].contiguous())
                errors[here] += result.errors
                if some.stop < part.stop:
                    near += own[:, here] @ result.errors
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
    target = step + step * (of_error / of_v)
    target = torch.where((of_v > 0) & (target * step > 0), target, step).clamp(-FLT_MAX, FLT_MAX)
    new = old._replace(scale=nearest_scale(target.float()[:, None], old.outer, fmt))
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
            result = quantized(x, qparams, rows)
        else:
            h, _ = without_dead(grams.checked(gram, x.shape[1], layer))
            result = self._descended(x, rows, qparams, h)
        if rows is fmt:
            return result, notes
        parts = in_blocks_of(result.qparams, fmt, x.shape)
        return QTensor(result.packed, parts, fmt, result.size), notes

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
