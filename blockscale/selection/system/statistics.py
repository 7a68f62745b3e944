# SPDX-License-Identifier: BSD-3-Clause
"""What samples look like, and which observer keeps them best."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from blockscale.calibration import observers
from blockscale.calibration.observer import is_mean
from blockscale.core.format import Format
from blockscale.core.parse import parse
from blockscale.ops.tensor import QTensor
from blockscale.selection.system.params import QuantizationParams

METHODS = ("min_max", "percentile:99.9", "percentile:99.99", "entropy", "mse", "adaptive")
MEANS = ("mean", "mse")  # for binary and ternary elements, whose scale is a mean
OFFSETS = ("min_max", "mse")  # for ranges with an offset, which have no threshold of magnitudes


@dataclass(frozen=True)
class CalibrationStatistics:
    """Of all finite elements of samples.

    low, high: the smallest and the largest; mean, deviation: of a population
    outliers: the share that is more than three deviations from the mean
    percentiles: {percent: the magnitude that so many are at most}
    """

    elements: int
    nonfinite: int
    low: float
    high: float
    mean: float
    deviation: float
    outliers: float
    percentiles: dict[float, float]

    @classmethod
    def of(cls, samples: Iterable[Tensor]) -> "CalibrationStatistics":
        """Raises ValueError where no element is finite."""
        x = torch.cat([each.detach().flatten().double() for each in samples] or [torch.empty(0)])
        finite = x[x.isfinite()]
        if not finite.numel():
            raise ValueError(f"none of the {x.numel()} elements of the samples is finite")
        mean, deviation = finite.mean(), finite.std(correction=0)
        ordered = finite.abs().sort().values
        last = ordered.numel() - 1
        return cls(
            finite.numel(), x.numel() - finite.numel(), float(finite.min()), float(finite.max()),
            float(mean), float(deviation),
            float(((finite - mean).abs() > 3 * deviation).double().mean()),
            {percent: float(ordered[round(percent / 100 * last)]) for percent in (50, 99, 99.9)},
        )  # fmt: skip


def calibrated(samples: Sequence[Tensor], fmt: str | Format, method: str) -> QuantizationParams:
    """The scale that an observer chooses for all samples. Raises as the observer does."""
    form = parse(fmt)
    observer = observers.make(method, form)
    for each in samples:
        observer.observe(each)
    qparams = observer.qparams()
    whole = QTensor(qparams.scale, qparams, form, 0)  # without codes: two levels as one value
    return QuantizationParams(form, whole.scale, qparams.zero_point, whole.offset)


def recommended_method(
    samples: Sequence[Tensor], fmt: str | Format, methods: Sequence[str] = ()
) -> tuple[str, dict[str, float]]:
    """The method whose scale leaves the least squared error on the samples, and all errors.

    methods: observers (none: METHODS, MEANS or OFFSETS), each of which is tried: {method: mean
        squared error of the finite elements}
    """
    errors = {}
    form = parse(fmt)
    usual = MEANS if is_mean(form) else OFFSETS if form.offset is not None else METHODS
    for method in methods or usual:
        params = calibrated(samples, fmt, method)
        total = count = 0.0
        for x in samples:
            wide = x.detach().float()
            back = params.quantize(wide).dequantize()
            error = torch.where(wide.isfinite(), wide - back, 0.0)
            total += float(error.double().square().sum())
            count += float(wide.isfinite().sum())
        errors[method] = total / max(count, 1.0)
    return min(errors, key=lambda name: errors[name]), errors
