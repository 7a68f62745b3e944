# SPDX-License-Identifier: BSD-3-Clause
"""A weight that is quantized column after column, with scales that are chosen on the way."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from blockscale.calibration.algorithms.block_scales import plain_scales, put, spread
from blockscale.calibration.algorithms.mse import search
from blockscale.core import reference
from blockscale.core.block import WHOLE, read_block
from blockscale.core.format import Format
from blockscale.core.operand import Quantizer, quantizer
from blockscale.core.reference import QParams
from blockscale.ops import primitives
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
        for block in (i for i, chosen in enumerate(self.chosen) if not chosen):
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
        wanted: Tensor,
        base: Tensor | None = None,
        coupling: Tensor | None = None,
    ) -> Rounded:
        """Round columns [c, n] float64 as `round_columns` does; codes and values are kept."""
        if coupling is None:
            coupling = wanted.new_zeros(len(wanted), len(wanted))
        found = round_columns(wanted, base, coupling, self.rounding_of(columns))
        self._codes[columns], self.values[columns] = found.codes, found.values
        return found

    def revalue(self, columns: slice) -> Tensor:
        """The same codes under scales that were changed: their values [c, n] float32, kept too."""
        by = self.rounding_of(columns)
        assert by.qparams is not None
        found = reference.dequantize(self._codes[columns], by.qparams, by.format, torch.float32)
        self.values[columns] = found
        return found

    def finished(self) -> QTensor:
        """All codes with their scales."""
        packed = primitives.pack(self._codes.T.contiguous(), str(self._format))
        return QTensor(packed, self._qparams, self._format, self._codes.shape[0])

    def _at(self, of: Callable[[Tensor], Tensor]) -> QParams:
        """`of` each part that belongs to blocks, the outer scale spread; a table stays whole."""
        parts = self._qparams._replace(outer=self._outer, book=None)
        found = QParams(*(None if p is None else of(p) for p in parts))  # type: ignore[arg-type]
        return found._replace(book=self._qparams.book)


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
        found = columns.round(order[some], pending[some], None, own)
        pending[last:].addmm_(coupling[some, last:].T, found.errors, alpha=-1)
        first = last


def shifted(target: Tensor, h: Tensor, drift: Tensor, damping: float, layer: str) -> Tensor:
    """Weights [k, n] for inputs Xf -> those that give nearest to the same outputs for inputs Xq.

    h, drift: Xq^T Xq and Xq^T (Xf - Xq), both by rows [k, k] float64. The least squares solution
    of Xq T = Xf W is W + H^-1 drift W; H is damped here, too.
    """
    r, _ = backwards_factor(h, damping, layer)
    moved = torch.linalg.solve_triangular(r, drift @ target, upper=True)
    return target + torch.linalg.solve_triangular(r.T, moved, upper=False)


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
