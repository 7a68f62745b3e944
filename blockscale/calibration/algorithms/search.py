# SPDX-License-Identifier: BSD-3-Clause
"""Plain rounding by search: scales by their errors' cost, then codes and scales together.

The search feeds nothing back from column to column. Where the inputs' gram matrix is known, the
error that counts is that of the layer's output, and coordinate descent lowers it from plain
rounding on.
"""

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from torch import Tensor

from blockscale.calibration.algorithms import hessian as grams
from blockscale.calibration.algorithms.block_scales import best_scales, quantized, widened
from blockscale.calibration.algorithms.columns import Columns, beside, stands_beside
from blockscale.calibration.algorithms.descent import descend
from blockscale.core.format import Format
from blockscale.core.reference import QParams
from blockscale.ops.batching import in_blocks_of, within_rows
from blockscale.ops.quantize import quantize
from blockscale.ops.tensor import QTensor

_DAMPING = 0.01  # of the mean of H's diagonal, as GPTQ's default


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
    by_rows: ClassVar[bool] = True

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
        return self.quantize_each([weight], fmt, [gram], [layer])[0]

    def quantize_each(
        self,
        weights: Sequence[Tensor],
        fmt: Format,
        grams_of: Sequence[Tensor | None],
        layers: Sequence[str],
        drifts: Sequence[Tensor | None] = (),
    ) -> list[tuple[QTensor, list[str]]]:
        """What `quantize` gives for each of several `weights` of one width k, to the bit.

        Those that have one gram matrix, parts of the rows of one weight, are worked on side by
        side, where nothing in the format belongs to several rows.
        fmt: of all; grams_of, layers: of each, as `quantize` takes them; drifts: not looked at
        """
        del drifts
        rows, starts = within_rows(fmt, weights[0].shape), list[_Start]()
        counts: dict[int, tuple[Tensor | None, Tensor | None, list[str]]] = {}
        for weight, gram, layer in zip(weights, grams_of, layers, strict=True):
            x = widened(weight, fmt, layer)
            if id(gram) not in counts:
                counts[id(gram)] = self._importance(gram, x, layer)
            starts.append(self._start(x, rows, layer, *counts[id(gram)]))
        sets: dict[int, list[int]] = {}
        for e, gram in enumerate(grams_of):
            sets.setdefault(id(gram) if stands_beside(rows) else e, []).append(e)
        codes: dict[int, QTensor] = {}
        for some in sets.values():
            codes |= zip(some, self._codes([starts[e] for e in some], rows), strict=True)
        return [(_in_blocks(codes[e], fmt, rows), each.notes) for e, each in enumerate(starts)]

    def _importance(
        self, gram: Tensor | None, x: Tensor, layer: str
    ) -> tuple[Tensor | None, Tensor | None, list[str]]:
        """A gram matrix where the weight x [n, k] is, how much errors of each of its inputs count,
        and notes."""
        if not self.needs_gram:
            return None, None, []
        gram = None if gram is None else gram.to(x.device)
        return gram, *grams.importance_of(gram, x.shape[1], layer)

    def _start(
        self,
        x: Tensor,
        fmt: Format,
        layer: str,
        gram: Tensor | None,
        importance: Tensor | None,
        notes: Sequence[str],
    ) -> "_Start":
        """The scales of least error of a weight."""
        qparams = best_scales(x, fmt, importance, self.power)
        descends = importance is not None and self.sweeps and not fmt.block.flat
        return _Start(x, qparams, gram if descends else None, layer, list(notes))

    def _codes(self, starts: Sequence["_Start"], fmt: Format) -> list[QTensor]:
        """The codes of weights that have one gram matrix, or none."""
        first = starts[0]
        if first.gram is None:
            return [quantized(each.x, each.qparams, fmt) for each in starts]
        gram = grams.check_gram(first.gram, first.x.shape[1], first.layer)
        return self._descend(starts, fmt, grams.without_dead(gram)[0])

    def _descend(self, starts: Sequence["_Start"], fmt: Format, h: Tensor) -> list[QTensor]:
        """What coordinate descent makes of plain rounding under these scales."""
        targets = [each.x.T.double().contiguous() for each in starts]
        columns = Columns([each.x for each in starts], fmt, None)
        columns.take(*(each.qparams for each in starts))
        columns.round(range(len(starts)), slice(None), beside(targets))
        damping = _DAMPING * float(h.diagonal().mean())
        hs, more = [h] * len(starts), [damping] * len(starts)
        rests = descend(columns, targets, hs, self.sweeps, damping=more)
        results = []
        for e, (start, target) in enumerate(zip(starts, targets, strict=True)):
            plain = quantize(start.x, fmt)
            away = target - plain.dequantize().T
            error = ((target - columns.values[:, columns.of(e)]) * rests[e]).sum()
            worse = bool(error > (away * (h @ away)).sum())
            results.append(plain if worse else columns.result(e))
        return results


def _in_blocks(q: QTensor, fmt: Format, rows: Format) -> QTensor:
    """Codes in a format whose blocks lie within rows, in blocks of `fmt`."""
    if rows is fmt:
        return q
    parts = in_blocks_of(q.qparams, fmt, (len(q.packed), q.size))
    return QTensor(q.packed, parts, fmt, q.size)


class _Start(NamedTuple):
    """A weight x [n, k] float32 with scales of least error; its gram matrix, None where codes are
    not chosen by it; the layer's name, and notes."""

    x: Tensor
    qparams: QParams
    gram: Tensor | None
    layer: str
    notes: list[str]
