# SPDX-License-Identifier: BSD-3-Clause
"""GPTQ: column after column is rounded, and the columns to come make up for the error.

Frantar, Ashkboos, Hoefler, Alistarh: "GPTQ: accurate post-training quantization for generative
pre-trained transformers", ICLR 2023 (arXiv 2210.17323), algorithm 1, sections 3.2 and 3.3. Here any
format will do: what shares a scale is the format's block.
"""

from collections.abc import Iterator, Sequence
from typing import ClassVar, NamedTuple

from torch import Tensor

from blockscale.calibration.algorithms import hessian as grams
from blockscale.calibration.algorithms.block_scales import widened
from blockscale.calibration.algorithms.columns import Columns, below, beside, stands_beside
from blockscale.calibration.algorithms.descent import descend
from blockscale.calibration.algorithms.mse import MSE
from blockscale.core.format import Format
from blockscale.ops.batching import in_blocks_of, within_rows
from blockscale.ops.quantize import quantize
from blockscale.ops.tensor import QTensor

_HALF = 0.5
_NO_DRIFT = (
    "asymmetric has no effect: the inputs of the float model were not collected "
    "(bs.calibrate does so unless sequential=False)"
)
_COARSE = 4  # of the factors tried for a scale, where sweeps fit it again: a third of the time


class GPTQ:
    """Error feedback under the gram matrix H of the layer's inputs, and then coordinate descent.

    scales: how a block's scale is chosen: "absmax", or "mse" as the algorithm of that name does,
        weighted by what an error still costs after later columns have made up for it, 1 / U_jj^2
        (the paper's eq. 2). It is chosen when the first of the block's columns is reached, from
        weights that already make up for earlier errors.
    damping: what is added to H's diagonal, in parts of its mean, for the sweeps as well: it keeps
        the weights of inputs that the data hardly use. Where H still has no Cholesky factor it is
        raised tenfold until it has one, and a note says so.
    act_order: columns with large inputs first (the paper's code calls it so). Codes and scales stay
        in the weight's order.
    static: choose all scales from the weight as it was given.
    sweeps: how often all codes and scales are chosen again afterwards, each under all the others
        (blockscale.calibration.algorithms.descent); the paper has none of it. With "absmax" the
        scales stay as they are.
    asymmetric: make up for what the quantized layers before changed in this layer's input, too: the
        output is to be that of the float model's input (GPTAQ, Li et al. 2025, arXiv 2504.02692,
        eq. 3). `bs.calibrate` runs the float model beside the one that is quantized so far for it.
        It needs the drift Xq^T (Xf - Xq) / rows. The paper corrects each column's residual
        on the way; here the weight is moved first towards where that output is nearest, half the
        way for True, or by the part that is given: all of it fits the calibration data too well.
    batch: columns whose errors are handed on together (section 3.3, step 2); only speed depends on
        it.

    All arithmetic on H and on the weights in progress is float64: errors add up over thousands of
    columns, and the factor of an ill-conditioned H loses half its digits. Rounding itself is that
    of the format, in float32. If plain rounding has the lower error tr((W - Q) H (W - Q)^T) it is
    kept, and a note says so: error feedback looks at one column at a time and can lose.
    """

    name: ClassVar[str] = "gptq"
    by_rows: ClassVar[bool] = True
    needs_gram = True

    def __init__(  # noqa: PLR0913 - each is a choice of its own
        self,
        scales: str = "mse",
        *,
        damping: float = 0.01,
        act_order: bool = True,
        static: bool = False,
        sweeps: int = 4,
        asymmetric: bool | float = False,
        batch: int = 64,
    ):
        if scales not in ("absmax", "mse"):
            raise ValueError(f"gptq: scales must be 'absmax' or 'mse', got {scales!r}")
        if not damping >= 0:
            raise ValueError(
                "gptq: damping (a fraction of the Hessian's mean diagonal) must be >= 0, got "
                f"{damping}"
            )
        if batch < 1:
            raise ValueError(f"gptq: batch (columns rounded at a time) must be >= 1, got {batch}")
        if sweeps < 0:
            raise ValueError(f"gptq: sweeps must be >= 0, got {sweeps}")
        self.scales, self.damping, self.batch = scales, damping, batch
        self.act_order, self.static, self.sweeps = act_order, static, sweeps
        self.asymmetric = _HALF if asymmetric is True else float(asymmetric)
        if not 0 <= self.asymmetric <= 1:
            raise ValueError(
                f"gptq: asymmetric must be True, False or a number from 0 to 1, got {asymmetric!r}"
            )

    @property
    def needs_drift(self) -> bool:
        """Whether `quantize` should be given the drift of the layer's inputs."""
        return self.asymmetric > 0

    def quantize(
        self,
        weight: Tensor,
        fmt: Format,
        gram: Tensor | None,
        layer: str,
        *,
        drift: Tensor | None = None,
    ) -> tuple[QTensor, list[str]]:
        """As `WeightAlgorithm.quantize`; without a gram matrix nothing is fed back, with a note.

        drift: Xq^T (Xf - Xq) / rows [k, k] of the layer's inputs Xq, of which `gram` is, and its
            inputs Xf in the float model; looked at if `asymmetric`
        """
        return self.quantize_each([weight], fmt, [gram], [layer], [drift])[0]

    def quantize_each(
        self,
        weights: Sequence[Tensor],
        fmt: Format,
        grams_of: Sequence[Tensor | None],
        layers: Sequence[str],
        drifts: Sequence[Tensor | None],
    ) -> list[tuple[QTensor, list[str]]]:
        """What `quantize` gives for each of several `weights` of one width k, to the bit.

        Small ones are worked on side by side (`beside`), which takes hardly longer than one, and
        so are those that have one gram matrix: parts of the rows of one weight.
        fmt: of all; grams_of, layers, drifts: of each, as `quantize` takes them
        """
        results: list[tuple[QTensor, list[str]] | None] = []
        some: list[_Problem] = []
        inputs: dict[int, grams.Inputs] = {}
        shifts: dict[int, grams.Shift] = {}
        every = zip(weights, grams_of, layers, drifts, strict=True)
        for weight, gram, layer, drift in every:
            x = widened(weight, fmt, layer)
            if fmt.block.flat:
                results.append(self._quantize_flat(x, fmt, gram, layer, drift))
            elif gram is None:
                results.append(self._unknown(x, fmt, layer))
            else:
                if id(gram) not in inputs:
                    inputs[id(gram)] = own = grams.Inputs(gram.to(x.device), x.shape[1], layer)
                    if self.asymmetric and drift is not None:
                        shifts[id(gram)] = own.shift(drift, self.asymmetric, self.damping)
                some.append(self._problem(x, inputs[id(gram)], shifts.get(id(gram))))
                results.append(None)
        shifts.clear()
        count = self.beside(fmt, weights[0].shape) if stands_beside(fmt) else 0
        solutions = (
            each for few in _side_by_side(some, count) for each in self._quantize_few(few, fmt)
        )
        return [next(solutions) if each is None else each for each in results]

    @staticmethod
    def beside(fmt: Format, shape: Sequence[int]) -> int:
        """How many weights of this shape [n, k] and format `fmt` are worked on side by side; those
        that are large take no longer one by one."""
        if not stands_beside(fmt):
            return 1
        n, k = shape
        return max(1, min(_MOST, _ELEMENTS // max(1, k * (k + n))))

    def _unknown(self, x: Tensor, fmt: Format, layer: str) -> tuple[QTensor, list[str]]:
        """Codes of a weight of whose inputs nothing is known."""
        if self.scales == "absmax":
            alone = quantize(x, fmt)
        else:
            alone = MSE().quantize(x, fmt, None, layer)[0]
        return alone, ["no data about its inputs: every column is rounded by itself"]

    def _problem(self, x: Tensor, inputs: grams.Inputs, shift: grams.Shift | None) -> "_Problem":
        notes, target = [], x.T.double().contiguous()
        if inputs.dead:
            notes = [
                f"{inputs.dead} of {len(inputs.h)} inputs were always 0: their columns are rounded "
                "to nearest"
            ]
        if shift is not None:
            target = shift.of(target)
        elif self.asymmetric:
            notes.append(_NO_DRIFT)
        return _Problem(x, target, inputs, notes)

    def _quantize_flat(
        self, x: Tensor, fmt: Format, gram: Tensor | None, layer: str, drift: Tensor | None
    ) -> tuple[QTensor, list[str]]:
        """The same in blocks over the flattened weight, where rows hold them whole."""
        rows = within_rows(fmt, x.shape)
        if rows.block.flat:
            raise ValueError(
                f"{layer}: {fmt}: its flat blocks end in the middle of rows of {x.shape[1]} "
                "columns, and gptq rounds column by column: use 'mse', or a format with "
                "groupN blocks"
            )
        q, notes = self.quantize(x, rows, gram, layer, drift=drift)
        return QTensor(q.packed, in_blocks_of(q.qparams, fmt, x.shape), fmt, q.size), notes

    def _quantize_few(
        self, problems: Sequence["_Problem"], fmt: Format
    ) -> list[tuple[QTensor, list[str]]]:
        """Codes for weights of one width, and notes."""
        by_inputs = {id(each.inputs): self._factors(each.inputs) for each in _first(problems)}
        factors = [by_inputs[id(each.inputs)] for each in problems]
        importance = None
        if self.scales != "absmax":
            importance = [of.factor.diagonal().pow(-2)[of.order.argsort()] for of in factors]
        spacing = _COARSE if self.sweeps else 1
        columns = Columns([each.x for each in problems], fmt, importance, spacing=spacing)
        targets = [each.target for each in problems]
        if self.static:
            columns.choose_all([target.T.float().contiguous() for target in targets])
        feed_back(columns, targets, factors, self.batch)
        hs, fit = [each.inputs.h for each in problems], self.scales != "absmax"
        plus = [of.plus for of in factors]
        rests = descend(columns, targets, hs, self.sweeps, damping=plus, fit=fit)
        plain = [quantize(each.x, fmt) for each in problems]
        worse = [
            each.error_of(columns.values[:, columns.of(e)], rests[e]) > each.error_of(q)
            for e, (each, q) in enumerate(zip(problems, plain, strict=True))
        ]
        more = [self._damping_notes(of.damping) for of in factors]
        return [
            (plain[e], [*each.notes, *more[e], _NOT_LOWER])
            if worse[e]
            else (columns.result(e), [*each.notes, *more[e]])
            for e, each in enumerate(problems)
        ]

    def _factors(self, inputs: grams.Inputs) -> grams.Factors:
        return inputs.factors(self.damping, act_order=self.act_order)

    def _damping_notes(self, damping: float) -> list[str]:
        if damping > self.damping:
            return [f"H has no Cholesky factor: damping raised to {damping:g}"]
        return []


_NOT_LOWER = "error feedback did not lower the error: rounded to nearest"


class _Problem(NamedTuple):
    """A weight x [n, k] float32 whose values should be `target` [k, n] float64, and its inputs."""

    x: Tensor
    target: Tensor
    inputs: grams.Inputs
    notes: list[str]

    def error_of(self, q: QTensor | Tensor, rest: Tensor | None = None) -> Tensor:
        """The error of the layer's output with codes or values [k, n]; rest: h @ (target -
        values)."""
        values = q.dequantize().T if isinstance(q, QTensor) else q
        away = self.target - values
        return (away * (self.inputs.h @ away if rest is None else rest)).sum()


_MOST = 32  # matrices side by side
_ELEMENTS = 1 << 24  # of what is held of them, such as k² of a factor, in float64


def _first(problems: Sequence[_Problem]) -> list[_Problem]:
    """The first one of each inputs."""
    return list({id(each.inputs): each for each in reversed(problems)}.values())[::-1]


def _side_by_side(problems: Sequence[_Problem], count: int) -> Iterator[list[_Problem]]:
    """Neighbours of at most `count` inputs; one by one for 0."""
    some: list[_Problem] = []
    for each in problems:
        if some and len(_first([*some, each])) > count:
            yield some
            some = []
        some.append(each)
    if some:
        yield some


# Error feedback: columns are rounded in an order, and those to come make up for their errors.


class _Feeding:
    """Neighbouring matrices of one H, whose columns are rounded in an order of its own.

    steps: (a block whose scales are chosen first or None, the first column, behind the last one)
    """

    def __init__(self, columns: Columns, some: range, targets: Sequence[Tensor], by: grams.Factors):
        self.columns, self.some, self.order = columns, some, by.order
        self.pending = [target[by.order] for target in targets]
        self._coupling = by.factor / by.factor.diagonal()[:, None]  # what an error costs others
        self._place_of = by.order.argsort()
        self._rows = columns.among(some)
        self.steps: list[tuple[int | None, int, int]] = []

    def plan(self, batch: int) -> None:
        """Which columns are rounded in one call: at most `batch`, and none whose scale is not
        chosen yet but the first."""
        blocks, has_scale = (
            self.columns.block_of[self.order].tolist(),
            list(self.columns.has_scale[self.some[0]]),
        )
        first, k = 0, len(blocks)
        while first < k:
            block = None if has_scale[blocks[first]] else blocks[first]
            has_scale[blocks[first]] = True
            last = first + 1
            while last < min(k, first + batch) and has_scale[blocks[last]]:
                last += 1
            self.steps.append((block, first, last))
            first = last

    def weights_of(self, block: int) -> Tensor:
        """Their weights as they are now, one below another [rows, columns] float32."""
        places = self._place_of[self.columns.columns_of(block)]
        return below([each[places].T.float().contiguous() for each in self.pending])

    def round(self, first: int, last: int) -> None:
        """Round these columns of the order; all later ones make up for them."""
        some = slice(first, last)
        own = self._coupling[some, some].contiguous()
        now = beside([each[some] for each in self.pending])
        errors = self.columns.round(self.some, self.order[some], now, None, own).errors
        for each, rows in zip(self.pending, self._rows, strict=True):
            error = errors[:, rows].contiguous()
            each[last:].addmm_(self._coupling[some, last:].T, error, alpha=-1)


def feed_back(
    columns: Columns,
    targets: Sequence[Tensor],
    factors: Sequence[grams.Factors],
    batch: int,
) -> None:
    """Round all columns of each matrix in its order; the scales of a block are chosen when its
    first column is reached.

    targets: [k, n] float64, what the values should be
    factors: of the inverse of each H; neighbours may have the same one
    batch: columns that are rounded in one call, at most; then all later ones make up for them
    """
    every, first = [], 0
    for last in range(1, len(factors) + 1):
        if last == len(factors) or factors[last] is not factors[first]:
            every.append(_Feeding(columns, range(first, last), targets[first:last], factors[first]))
            first = last
    for each in every:
        each.plan(batch)
    for i in range(max(len(each.steps) for each in every)):
        now = [each for each in every if i < len(each.steps)]
        by_width: dict[int, list[tuple[_Feeding, int]]] = {}  # by columns: a last block has fewer
        for each in now:
            block = each.steps[i][0]
            if block is not None:
                stored = columns.columns_of(block)
                by_width.setdefault(stored.stop - stored.start, []).append((each, block))
        for some in by_width.values():
            x = below([each.weights_of(block) for each, block in some])
            columns.choose([(e, block) for each, block in some for e in each.some], x)
        for each in now:
            each.round(*each.steps[i][1:])
