# SPDX-License-Identifier: BSD-3-Clause
"""The scale of each block that leaves the least squared error, found by trying many.

Clipping the range for the least squared error is old (Max 1960, Lloyd 1982); for weights see
Banner et al., "Post training 4-bit quantization of convolutional networks", NeurIPS 2019, and for
block scales that also grow (an e2m1 block filled to 4 instead of 6) Cook et al., "Four over six",
2025.
"""

from collections.abc import Iterator
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from blockscale.calibration.algorithms.block_scales import (
    block_sums,
    choose_scales,
    in_steps,
    nearest_scale,
    plain_scales,
    quantized,
    round_trip,
    search_by_parts,
    select,
    widened,
)
from blockscale.calibration.algorithms.hessian import check_weighting, importance_of
from blockscale.core import reference
from blockscale.core.arithmetic.precision import FLT_MAX
from blockscale.core.elements.minifloat import Minifloat
from blockscale.core.format import Format
from blockscale.core.reference import QParams
from blockscale.core.scale import PowerOfTwo
from blockscale.ops.tensor import QTensor

_OCTAVE = 16  # candidates from one factor to its half
_POLISHES = 2
_AT_ONCE = 1 << 17  # elements of candidates that are looked at in one call: they fit a core's cache
_AT_ONCE_ELSEWHERE = 1 << 23  # where a launch costs more than a pass over memory


class MSE:
    """Least squared error of the weight, or, weighted, nearly of the layer's output.

    weighting: "none", or "gram": each column's errors count by the mean square of its input, the
        diagonal of the gram matrix, which then is needed.

    Candidates are the ranges of a block times `factors`, put through the format's own scale rule;
    with a zero point, its two neighbours too. The best is polished: for its codes the best step is
    known in closed form. What `bs.quantize` would choose is a candidate, so that no block gets
    worse.
    """

    name: ClassVar[str] = "mse"

    def __init__(self, weighting: str = "none"):
        check_weighting("mse", weighting)
        self.weighting = weighting

    @property
    def needs_gram(self) -> bool:
        """Whether errors count by the inputs' mean square."""
        return self.weighting == "gram"

    def quantize(
        self, weight: Tensor, fmt: Format, gram: Tensor | None, layer: str
    ) -> tuple[QTensor, list[str]]:
        """As `WeightAlgorithm.quantize`."""
        x = widened(weight, fmt, layer)
        importance = None
        notes: list[str] = []
        if self.needs_gram:
            gram = None if gram is None else gram.to(x.device)
            importance, notes = importance_of(gram, x.shape[1], layer)
        return quantized(x, best_scales(x, fmt, importance), fmt), notes


def best_scales(x: Tensor, fmt: Format, importance: Tensor | None, power: float = 2.0) -> QParams:
    """x [n, k] float32 -> the scales of the whole, a part at a time.

    importance: [k] float64, how much |error|^power of a column counts.
    """

    def of_part(part: Tensor, single: Format, outer: Tensor | None, columns: slice) -> QParams:
        counts = None if importance is None else importance[columns]
        return search(part, single, outer, counts, power=power)

    return search_by_parts(x, fmt, of_part)


def factors(fmt: Format, spacing: int = 1) -> list[float]:
    """Every `spacing`-th of what a block's range is multiplied with; 1 comes first anyway.

    Down to 0.18, where integers of two bits have their best range even in large blocks; up to 1.41,
    or, for minifloats, to 4: they have finer steps lower down. Of power-of-two scales, the
    neighbouring exponents, down to 2^-12 for an outlier in a large block; all of them.
    """
    if isinstance(fmt.scale, PowerOfTwo):
        return [2.0**-j for j in range(-2, 13) if j]
    top = 2 * _OCTAVE if isinstance(fmt.element, Minifloat) else _OCTAVE // 2
    return [2.0 ** (j / _OCTAVE) for j in range(top, -5 * _OCTAVE // 2 - 1, -spacing) if j]


def search(
    x: Tensor,
    fmt: Format,
    outer: Tensor | None,
    importance: Tensor | None,
    *,
    spacing: int = 1,
    power: float = 2.0,
) -> QParams:
    """x [n, k] -> for each block the candidate with the least sum of |error|^power.

    spacing: from one of `factors` that is tried to the next
    """
    count = Errors(x, fmt, importance, power)
    low, high, _ = reference.ranges(x, fmt)
    best = plain_scales(x, fmt, outer)
    least = count.of(best)
    middle = low / 2 + high / 2 if fmt.offset is not None else torch.zeros_like(low)
    for some in _together(factors(fmt, spacing), x, fmt):
        lower, higher = (
            torch.cat([(middle + (end - middle) * f).clamp(-FLT_MAX, FLT_MAX) for f in some])
            for end in (low, high)
        )
        outers = None if outer is None else outer.repeat(len(some), 1)
        candidate = choose_scales(lower, higher, fmt, outers)
        best, least = count.better(_neighbours(candidate, fmt), best, least)
    for _ in range(0 if isinstance(fmt.scale, PowerOfTwo) else _POLISHES):
        polished = _polish(x, best, fmt, importance)
        best, least = count.better(_neighbours(polished, fmt), best, least)
    return best


def _together(factors: list[float], x: Tensor, fmt: Format) -> Iterator[list[float]]:
    """The factors whose candidates are looked at in one call, one below another. Blocks that span
    rows are looked at one by one."""
    count = 1
    if not fmt.block.flat and fmt.block.sizes_for(2)[0] == 1:
        elements = _AT_ONCE if x.is_cpu else _AT_ONCE_ELSEWHERE
        count = max(1, elements // max(1, x.numel()))
    for first in range(0, len(factors), count):
        yield factors[first : first + count]


class Errors(NamedTuple):
    """How the error of weights x [n, k] is counted: the sum of importance · |error|^power."""

    x: Tensor
    fmt: Format
    importance: Tensor | None
    power: float = 2.0

    def of(self, qparams: QParams) -> Tensor:
        """The error of each block; float64, so that none vanishes.

        The scales may be those of several candidates, one below another.
        """
        times = len(qparams.scale) // max(1, self.fmt.block.scale_shape(tuple(self.x.shape))[0])
        x = self.x.repeat(times, 1) if times > 1 else self.x
        error = round_trip(x, qparams, self.fmt).double() - x
        error = error.square_() if self.power == 2 else error.abs_().pow_(self.power)
        if self.importance is not None:
            error *= self.importance
        return block_sums(error, self.fmt.block)

    def better(
        self, candidates: list[QParams], best: QParams, least: Tensor
    ) -> tuple[QParams, Tensor]:
        """The better of the best so far and further candidates, block by block; the first of those
        that are equal. Each candidate may be several, one below another."""
        size = len(least)
        if len(candidates) == 1 and len(candidates[0].scale) == size:
            error = self.of(candidates[0])
            return select(error < least, candidates[0], best), torch.minimum(error, least)

        def by_number(parts: list[Tensor]) -> Tensor:
            return torch.stack([part.unflatten(0, (-1, size)) for part in parts], 1).flatten(0, 1)

        errors = by_number([self.of(each) for each in candidates]).nan_to_num(nan=torch.inf)
        error, which = errors.min(0)
        parts = zip(*candidates, strict=True)
        new = [None if p[0] is None else by_number(p).gather(0, which[None])[0] for p in parts]
        return select(error < least, QParams(*new), best), torch.minimum(error, least)


def _neighbours(candidate: QParams, fmt: Format) -> list[QParams]:
    """A candidate, and it with the two zero points beside its own, or with its other sign."""
    if fmt.span == "signed" or fmt.element.by_sign:
        other = reference.negated(candidate.scale, fmt)
        return [candidate, candidate._replace(scale=other)]
    if candidate.zero_point is None:
        return [candidate]
    low, high = (int(end) for end in fmt.element.limits(fmt.wide))
    shifted = [(candidate.zero_point + shift).clamp(low, high) for shift in (0, -1, 1)]
    of_zero = [candidate] if fmt.zero is not None else []  # a float may lie beyond the codes
    return of_zero + [candidate._replace(zero_point=zero) for zero in shifted]


def _polish(x: Tensor, best: QParams, fmt: Format, importance: Tensor | None) -> QParams:
    """The same codes, under the step that fits them best: <x, v> / <v, v> for values v in steps."""
    step = reference.step_of(best, fmt)
    v = in_steps(round_trip(x, best, fmt).double(), best, fmt)
    counted = v if importance is None else v * importance
    if best.offset is not None:
        x = x - fmt.block.expand(best.offset.to(torch.float32), x.shape)
    of_x, of_v = block_sums(counted * x, fmt.block), block_sums(counted * v, fmt.block)
    fits = (of_v > 0) & (of_x * step.sign() > 0)
    fitted = torch.where(fits, of_x / of_v, step.double())
    return best._replace(scale=nearest_scale(fitted.clamp(max=FLT_MAX).float(), best.outer, fmt))
