# SPDX-License-Identifier: BSD-3-Clause
"""QuantizationParams: a format, and a scale where one was chosen beforehand."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, TypeAlias

import torch
from torch import Tensor

from blockscale.calibration import observers
from blockscale.calibration.observer import is_mean
from blockscale.core.format import Format
from blockscale.core.parse import parse
from blockscale.ops.quantize import quantize
from blockscale.ops.tensor import QTensor

Data: TypeAlias = Tensor | Sequence[Any] | float

# {a scheme of quantization: its formats}
SCHEMES = {
    "linear": "{element}:tensor:fp32",
    "symmetric": "{element}:tensor:fp32",
    "asymmetric": "{element}:tensor:fp32:asym",
    "channel_wise": "{element}:channel0:fp32",
    "block_wise": "{element}:group128:fp32",
    "logarithmic": "log{bits}:tensor:fp32",
}


def as_tensor(
    data: Data, shape: Sequence[int] | None = None, device: str | torch.device | None = None
) -> Tensor:
    """Numbers, lists of them included, as a tensor [shape]: float32 unless they are one already.

    Raises ValueError where they are not as many as the shape has, or no numbers.
    """
    try:
        x = data if isinstance(data, Tensor) else torch.tensor(data, dtype=torch.float32)
    except (TypeError, RuntimeError) as error:
        raise ValueError(
            f"expected a tensor or lists of numbers, found {data!r}: {error}"
        ) from None
    if shape is not None:
        if prod(shape) != x.numel():
            raise ValueError(f"{x.numel()} numbers do not fill the shape {tuple(shape)}")
        x = x.reshape(tuple(shape))
    return x if device is None else x.to(device)


@dataclass(frozen=True, eq=False)
class QuantizationParams:
    """A format, and a stored scale, zero point and offset, which each tensor chooses if not."""

    format: Format
    scale: "Tensor | QTensor | None" = None
    zero_point: Tensor | None = None
    offset: "Tensor | QTensor | None" = None

    @classmethod
    def of(cls, source: "ParamsLike") -> "QuantizationParams":
        """The parameters of `source`: themselves, a format, its name or its spelling.

        Raises ValueError as `bs.parse`.
        """
        return source if isinstance(source, QuantizationParams) else cls(parse(source))

    @classmethod
    def int8_symmetric(cls) -> "QuantizationParams":
        """8-bit integers under one scale: `int8`."""
        return cls(parse("int8"))

    @classmethod
    def uint8_asymmetric(cls) -> "QuantizationParams":
        """8-bit integers from 0, a scale and a zero point: `uint8`."""
        return cls(parse("uint8"))

    @classmethod
    def int4_symmetric(cls) -> "QuantizationParams":
        """4-bit integers under one scale."""
        return cls(parse("int4:tensor:fp32"))

    @classmethod
    def int8_channel_wise(cls, axis: int = 0) -> "QuantizationParams":
        """8-bit integers, a scale for each index along `axis`."""
        return cls(parse(f"int8:channel{axis}:fp32"))

    @classmethod
    def int4_block_wise(cls, block: int = 128) -> "QuantizationParams":
        """4-bit integers, a scale for each `block` elements along the last dimension."""
        return cls(parse(f"int4:group{block}:fp32"))

    def with_scheme(self, scheme: str) -> "QuantizationParams":
        """The same elements under the scales of a scheme, chosen from each tensor.

        scheme: of SCHEMES, which has the format of each; "logarithmic" takes powers of two of as
            many bits. Raises ValueError for others, and where such a format does not exist.
        """
        if scheme not in SCHEMES:
            raise ValueError(f"unknown scheme {scheme!r}; choose from {', '.join(SCHEMES)}")
        own = self.format.element
        return QuantizationParams(parse(SCHEMES[scheme].format(element=own.name, bits=own.bits)))

    def quantize(self, x: Data) -> QTensor:
        """x [...] in the format. Raises as `bs.quantize`."""
        return quantize(as_tensor(x), self.format, self.scale, self.zero_point, offset=self.offset)

    def layout(self, shape: Sequence[int]) -> "QuantizedMemoryLayout":
        """What a tensor of `shape` is stored as. Raises ValueError where blocks do not fit it."""
        return QuantizedMemoryLayout.of(self.format, shape)


ParamsLike: TypeAlias = str | Format | QuantizationParams


@dataclass(frozen=True)
class QuantizedMemoryLayout:
    """The tensors that a quantized one is stored as, and their bytes (docs/numerics.md, 6).

    parts: {"codes", "scale", …: (dtype, shape)}; bytes: of all; bits: an element, with everything
    """

    parts: dict[str, tuple[torch.dtype, tuple[int, ...]]]
    bytes: int
    bits: float

    @classmethod
    def of(cls, fmt: Format, shape: Sequence[int]) -> "QuantizedMemoryLayout":
        """Of a tensor of `shape`."""
        own, nbytes = tuple(shape), fmt.nbytes(shape)
        parts = {"codes": fmt.packed(own), **fmt.stored(own)}
        return cls(parts, nbytes, 8 * nbytes / max(prod(own), 1))


def create_optimal_params(
    sample: "Data | Format | str", bits: int | bool = 8, accuracy_priority: bool = True
) -> QuantizationParams:
    """What is best kept in about `bits` bits, or the parameters of a named format.

    sample: data [...]: of the formats of FORMATS with as many bits, the one with the least rounding
        error on it; without `accuracy_priority` the one whose scale spans most: all of a tensor.
        A format or its name, such as "int8": as it is; without `accuracy_priority` its elements
        under one scale for each tensor, and one zero point if they are unsigned. The
        priority may then stand second: create_optimal_params("uint8", False)
    Raises ValueError for a number of bits that FORMATS has none of, and as `bs.parse`.
    """
    if isinstance(sample, str | Format):
        exact = accuracy_priority and (bits if isinstance(bits, bool) else True)
        return _of_format(parse(sample), exact)
    if bits not in FORMATS or isinstance(bits, bool):
        raise ValueError(f"unsupported number of bits {bits}; choose from {sorted(FORMATS)}")
    names = FORMATS[bits]
    if not accuracy_priority:
        return QuantizationParams(parse(names[0]))
    x = as_tensor(sample).detach().float()
    errors = {name: float((quantize(x, name).dequantize() - x).square().sum()) for name in names}
    return QuantizationParams(parse(min(names, key=lambda name: errors[name])))


def _of_format(form: Format, exact: bool) -> QuantizationParams:
    if exact:
        return QuantizationParams(form)
    name = form.element.name
    return QuantizationParams(parse(f"{name}:tensor:fp32{':asym' * name.startswith('uint')}"))


# {bits of a code: formats, the one with the fewest scales first}
FORMATS = {
    2: ("int2:tensor:fp32", "int2:group64:fp16"),
    3: ("int3:tensor:fp32", "int3:group64:fp16"),
    4: ("int4:tensor:fp32", "mxfp4", "nf4:group64:fp16", "int4:group64:fp16"),
    6: ("int6:tensor:fp32", "mxfp6", "mxfp6_e2m3", "int6:group64:fp16"),
    8: ("int8", "mxfp8", "uint8", "int8_channel", "int8:group64:fp16"),
    16: ("int16", "bfp16"),
}


# What samples look like, and which observer keeps them best.

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
        magnitudes = finite.abs().sort().values
        last = magnitudes.numel() - 1
        return cls(
            finite.numel(), x.numel() - finite.numel(), float(finite.min()), float(finite.max()),
            float(mean), float(deviation),
            float(((finite - mean).abs() > 3 * deviation).double().mean()),
            {percent: float(magnitudes[round(percent / 100 * last)]) for percent in (50, 99, 99.9)},
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
