# SPDX-License-Identifier: BSD-3-Clause
"""Weights that are rounded column by column, and codes and scales that are chosen again and again.

Several matrices of one width are worked on side by side: what belongs to their rows alone is one
call for all of them, and products with what belongs to a matrix are a call for each, of the shape
that they have for one matrix alone. So each gets the bits that it gets alone.
"""

import warnings
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor

from blockscale.calibration.algorithms.block_scales import (
    Where,
    per_block,
    plain_scales,
    search,
    write_part,
)
from blockscale.core import reference
from blockscale.core.block import WHOLE, read_block
from blockscale.core.format import Format
from blockscale.core.operand import Quantizer, quantizer
from blockscale.core.reference import QParams
from blockscale.ops import primitives
from blockscale.ops.primitives import Rounded, round_columns
from blockscale.ops.tensor import QTensor

_OF_BLOCKS = ("scale", "zero_point", "offset")
_EVERY = slice(None)


class Columns:
    """Codes and scales of matrices [n, k] of one format in progress; each has an n of its own.

    Everything is held transposed: a column of a matrix is a row here, so that neighbours in memory
    are rounded at once; and the columns of all matrices lie side by side, N, the sum of their n.

    count: how many matrices; rows: n of each
    block_of: [k], which column of the scale each column of a matrix belongs to
    row_block: [n], which row of the scale each row of the only matrix belongs to
    has_scale:   of each matrix, for each column of its scale, whether it is known
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
        self.count, k = len(weights), weights[0].shape[1]
        self.rows = [len(weight) for weight in weights]
        self._places = _places(self.rows)
        spreads = [per_block(weight, fmt) for weight in weights]
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
        self.row_block = _indices(self.rows[0], self.sizes[0], device)
        self.block_of = _indices(k, self.sizes[1], device)
        learned = fmt.element.learned  # a table and its scales belong together: both are chosen
        blocks = self._whole[0].scale.shape[1]
        self.has_scale = [[learned] * blocks for _ in weights]
        self._graphs = Graphs(device)
        self.values = torch.empty(k, sum(self.rows), device=device)
        self._codes = torch.empty_like(self.values, dtype=fmt.element.code_dtype)

    def of(self, e: int | range) -> slice:
        """Where the rows of a matrix are, or of neighbours, among those of all."""
        first, last = (e, e) if isinstance(e, int) else (e[0], e[-1])
        return slice(self._places[first].start, self._places[last].stop)

    def among(self, live: Sequence[int]) -> list[slice]:
        """Where the rows of each of these matrices are, among those of these alone."""
        return _places([self.rows[e] for e in live])

    def _scales_of(self, e: int | range) -> slice:
        """Where its rows of the scale are."""
        return _EVERY if self.count == 1 else self.of(e)

    def columns_of(self, block: int) -> slice:
        """The columns of a matrix that share a column of the scale."""
        size = self.sizes[1] or len(self.block_of)
        return slice(block * size, min((block + 1) * size, len(self.block_of)))

    def choose(self, blocks: Sequence[tuple[int, int]], x: Tensor) -> None:
        """Choose the scales of a column of blocks of some matrices: (matrix, which column).

        x: their weights, one below another, [rows, columns] float32, as many columns of each
        """
        outer = None
        if self._outer is not None:
            parts = [self._outer[self._scales_of(e), b : b + 1] for e, b in blocks]
            outer = below(parts).contiguous()
        of_rows = None
        if self._importance is not None:
            counts = [self._importance[e][self.columns_of(b)] for e, b in blocks]
            of_rows = counts[0]
            if len(blocks) > 1:
                pairs = zip(counts, blocks, strict=True)
                of_rows = below([count.expand(self.rows[e], -1) for count, (e, _) in pairs])

        def step(x: Tensor, *more: Tensor) -> tuple[Tensor | None, ...]:
            rest = list(more)
            counts = None if of_rows is None else rest.pop(0)
            above = rest.pop(0) if rest else None
            if counts is None:
                return plain_scales(x, self.single, above)
            return search(x, self.single, above, counts, spacing=self._spacing)

        inputs = [x, *(each for each in (of_rows, outer) if each is not None)]
        key = "choose", len(blocks), tuple(x.shape)
        qparams = QParams(*self._graphs.run(key, len(self.has_scale[0]), step, inputs))  # type: ignore[arg-type]
        places = self.among([e for e, _ in blocks])
        for (e, b), rows in zip(blocks, places, strict=True):
            own = qparams if len(blocks) == 1 else _rows_of(qparams, rows)
            write_part(own, self._qparams, (self._scales_of(e), slice(b, b + 1)))
            self.has_scale[e][b] = True

    def choose_all(self, weights: Sequence[Tensor]) -> None:
        """Choose every scale from the weights [n, k] float32 as they are."""
        for b in range(len(self.has_scale[0])):
            some = [(e, b) for e in range(self.count) if not self.has_scale[e][b]]
            if some:
                columns = self.columns_of(b)
                self.choose(some, below([weights[e][:, columns] for e, _ in some]))

    def write(self, live: Sequence[int], block: int | Tensor, qparams: QParams) -> None:
        """Take these scales, one below another, for a column of blocks of these matrices."""
        at = _one(block)
        if len(live) == self.count:
            write_part(qparams, self._qparams, (_EVERY, at))
            return
        for e, rows in zip(live, self.among(live), strict=True):
            write_part(_rows_of(qparams, rows), self._qparams, (self.of(e), at))

    def take(self, *every: QParams) -> None:
        """Take all scales of each matrix as they are, the outer ones those that its weight
        chooses."""
        for e, qparams in enumerate(every):
            write_part(qparams, self._qparams, (self._scales_of(e), _EVERY))
        self.has_scale = [[True] * len(each) for each in self.has_scale]

    def qparams_of(self, live: Sequence[int], block: int | Tensor) -> QParams:
        """The scales of one column of blocks of these matrices, one below another [rows, 1], the
        outer ones spread."""
        at = _one(block)
        if len(live) == self.count:
            return self._at(lambda part: part[:, at].contiguous())
        return self._at(lambda part: torch.cat([part[self.of(e), at] for e in live]))

    def rounding_of(self, e: int | range, columns: Where) -> Quantizer:
        """The scale of each element of these columns, as `round_columns` takes them."""
        blocks, own = self.block_of[columns], self._scales_of(e)
        whole_rows = self.sizes[0] == 1

        def each(part: Tensor) -> Tensor:
            of_rows = part[own] if whole_rows else part[self.row_block]
            return of_rows[:, blocks].T.contiguous()

        return quantizer(self._at(each), self._column)

    def round(
        self,
        e: int | range,
        columns: Where,
        tensor: Tensor,
        base: Tensor | None = None,
        coupling: Tensor | None = None,
    ) -> Rounded:
        """Round columns [c, n] float64 of a matrix, or of neighbours that have one coupling, as
        `round_columns` does; codes and values are kept."""
        if coupling is None:
            coupling = tensor.new_zeros(len(tensor), len(tensor))
        result = round_columns(tensor, base, coupling, self.rounding_of(e, columns))
        own = self.of(e)
        self._codes[:, own][columns], self.values[:, own][columns] = result.codes, result.values
        return result

    def values_of(self, live: Sequence[int], columns: Where) -> Tensor:
        """The values of these columns of these matrices [c, rows]."""
        return self._beside(self.values[columns], live)

    def revalue(
        self, live: Sequence[int], block: int | Tensor, columns: Where | None = None
    ) -> Tensor:
        """The same codes of a column of blocks under scales that were changed: their values [c,
        rows] float32, kept too.

        columns: those of the block, where its number lies on a GPU
        """
        if columns is None:
            assert isinstance(block, int)
            columns = self.columns_of(block)
        of_block, c = self.qparams_of(live, block), _count(columns)
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
            for e, rows in zip(live, self.among(live), strict=True):
                self.values[columns, self.of(e)] = result[:, rows]
        return result

    def result(self, e: int = 0) -> QTensor:
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


def beside(parts: Sequence[Tensor]) -> Tensor:
    """Tensors [c, n] one beside another."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), 1)


def _places(rows: Sequence[int]) -> list[slice]:
    """Where matrices of so many rows lie, one below another."""
    return [slice(*ends) for ends in pairwise(accumulate(rows, initial=0))]


def _one(block: int | Tensor) -> Where:
    """Where a column of blocks is in the scale."""
    return block if isinstance(block, Tensor) else slice(block, block + 1)


def _count(columns: Where) -> int:
    return len(columns) if isinstance(columns, Tensor) else columns.stop - columns.start


def _rows_of(qparams: QParams, rows: slice) -> QParams:
    """Some rows of the scales, where each row is one of the weight's."""
    return QParams(*(None if p is None else p[rows] for p in qparams))  # type: ignore[arg-type]


# What a GPU replays.

Step = Callable[..., tuple[Tensor | None, ...]]

_EAGER = 2  # times that a step runs before it is recorded: its kernels compile meanwhile
_LEAST = 8  # a step that is taken less often is not worth recording
_ONE_BY_ONE = (
    "calibration is slow on this GPU: its kernels are started one by one, since a CUDA graph could "
    "not record them ({error})"
)


class Graphs:
    """Steps that are taken again and again for some weights, which a GPU replays.

    A step for a group of columns is hundreds of small kernels, each shorter than what starting it
    costs the processor. On CUDA a step is recorded once, as a CUDA graph, and replayed for all
    further groups: the same kernels, so the same bits. Elsewhere steps just run. What was recorded
    goes with this object.

    enabled: whether steps are recorded at all (for tests, which compare both)
    """

    enabled = True

    def __init__(self, device: torch.device):
        self._device = device
        self._calls: dict[Hashable, int] = {}
        self._graphs: dict[Hashable, _Graph | None] = {}
        self._pool: Any = None

    def run(
        self, key: Hashable, times: int, step: Step, inputs: Sequence[Tensor]
    ) -> tuple[Tensor | None, ...]:
        """What `step(*inputs)` gives; a result is valid until the next step of this key.

        key: steps of one key are the same kernels on tensors of the same shapes, and what they
            read or write beside their inputs lies where it lay
        times: how often a step of this key will be taken, about
        """
        if self._device.type != "cuda" or not self.enabled or times < _LEAST:
            return step(*inputs)
        count = self._calls[key] = self._calls.get(key, 0) + 1
        if count <= _EAGER:
            return step(*inputs)
        if key not in self._graphs:
            self._graphs[key] = self._record(step, inputs)
        graph = self._graphs[key]
        return step(*inputs) if graph is None else graph.replay(inputs)

    def _record(self, step: Step, inputs: Sequence[Tensor]) -> "_Graph | None":
        """The step as a graph; None, with a warning, where it cannot be one."""
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        own = [each.clone() for each in inputs]
        graph, beside = torch.cuda.CUDAGraph(), torch.cuda.Stream(self._device)
        now = torch.cuda.current_stream(self._device)
        beside.wait_stream(now)
        try:
            with torch.cuda.stream(beside):
                # other threads may calibrate on other GPUs meanwhile
                graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                try:
                    results = step(*own)
                finally:
                    graph.capture_end()
        except RuntimeError as error:  # it reads this machine's memory, or waits for the GPU
            self._pool = None  # which a failed recording spoils
            why = str(error).partition("\n")[0]
            warnings.warn(_ONE_BY_ONE.format(error=why), stacklevel=2)
            return None
        now.wait_stream(beside)
        return _Graph(graph, own, results)


@dataclass
class _Graph:
    """A step that is recorded, with the tensors that it reads and writes."""

    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor]
    results: tuple[Tensor | None, ...]

    def replay(self, inputs: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
        for own, each in zip(self.inputs, inputs, strict=True):
            own.copy_(each)
        self.graph.replay()
        return self.results
