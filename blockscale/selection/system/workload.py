# SPDX-License-Identifier: BSD-3-Clause
"""What work is to be done, what it may cost, and what it costs: measured."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from blockscale.calibration.errors import Rounding, RoundingSums, Sums
from blockscale.core.recipe import Recipe
from blockscale.layers.apply import quantize_
from blockscale.ops.tensor import QTensor
from blockscale.selection.candidates import Candidate, read
from blockscale.selection.system.params import (
    Data,
    ParamsLike,
    QuantizationParams,
    as_tensor,
    calibrated,
    create_optimal_params,
    recommended_method,
)
from blockscale.selection.times import race

# Memory and accuracy of a format: counted, and measured on data.

# Rows and columns of a tensor without end: blocks of every common size divide it, and what is
# stored once a tensor or once a row is less than a float64 can tell.
_ENDLESS = 720720 << 40


def estimate_memory_savings(
    fmt: ParamsLike, shape: Sequence[int] | None = None, dtype: torch.dtype = torch.float32
) -> float:
    """The share of a tensor's bytes in `dtype` that `fmt` saves, 0.75 where a quarter is left.

    shape: counted exactly, codes as packed, scales and all else; below 0 where there is more than
        before. None: of a matrix without end, in which only what each block stores counts: 0.75 for
        "int8", 1 - 4.5 / 32 for 4-bit integers under a scale of 16 bits for 32 of them
    Raises ValueError for formats and blocks that do not fit.
    """
    form = QuantizationParams.of(fmt).format
    if shape is None:
        return 1 - form.bits_per_element((_ENDLESS, _ENDLESS)) / (8 * dtype.itemsize)
    before = prod(shape) * dtype.itemsize
    if not before:
        raise ValueError(
            f"a tensor of shape {tuple(shape)} has no elements, so there is nothing to save"
        )
    return 1 - form.nbytes(tuple(shape)) / before


def estimate_accuracy_impact(
    fmt: ParamsLike, data: Data | str | None = None, *, scheme: str | None = None
) -> Rounding:
    """What the format `fmt` does to this data [...], measured.

    SQNR in dB, cosine, the largest error, the percent of elements that saturate and that become 0.

    data: None for a weight as layers have them, [256, 1024] normal numbers whose rows differ in
        size by up to 16; always the same one. A string is a scheme.
    scheme: of SCHEMES: the format's elements under its scales (`QuantizationParams.with_scheme`)
    Raises ValueError as `bs.quantize` and `with_scheme`.
    """
    if isinstance(data, str):
        data, scheme = None, data
    x = _weight() if data is None else as_tensor(data)
    params = QuantizationParams.of(fmt)
    params = params if scheme is None else params.with_scheme(scheme)
    q = params.quantize(x)
    sums = RoundingSums(q.format)
    sums.count(x.detach().float(), q.dequantize(), q.qparams)
    return sums.rounding()


def _weight() -> Tensor:
    numbers = torch.randn(256, 1024, generator=torch.Generator().manual_seed(0))
    return numbers * torch.logspace(-2, 2, 256, base=2.0)[:, None]


def auto_quantize_tensor(
    data: Data,
    target: int | ParamsLike | Sequence[int] = 8,
    shape: Sequence[int] | str | torch.device | None = None,
    device: str | torch.device | ParamsLike | None = None,
    *,
    bits: int | None = None,
) -> QTensor:
    """data quantized with what keeps it best.

    data: a tensor, or numbers, which become [shape] (None: as they are) on a device
    target: a number of bits: in the best of its formats (`create_optimal_params`). A format or its
        name, such as "int8": in that one, under the scale with the least squared error of
        those that the format itself and each observer choose (`recommended_method`), or under
        its own if it has one (QuantizationParams)
    bits: the same as a number for `target`
    The order (data, shape, device, target) is taken as well: a target is never a list of sizes.
    Raises ValueError for a number of bits without formats, and as `bs.quantize`.
    """
    choice: Any = target if bits is None else bits
    if isinstance(target, Sequence) and not isinstance(target, str):
        choice = bits or (8 if device is None else device)
        shape, device = target, shape  # type: ignore[assignment]
    x = as_tensor(data, shape, device)  # type: ignore[arg-type]
    if isinstance(choice, int):
        return create_optimal_params(x, choice).quantize(x)
    params = QuantizationParams.of(choice)
    own = params.quantize(x)
    if params.scale is not None or not x.isfinite().any() or params.format.unchosen is not None:
        return own
    method, errors = recommended_method([x], params.format)
    plain = torch.where(x.isfinite(), x.detach().float() - own.dequantize(), 0.0)
    if float(plain.double().square().mean()) <= errors[method]:
        return own
    return calibrated([x], params.format, method).quantize(x)


FORMATS = (
    "int8_channel x int8_token",
    "int8_channel",
    "mxfp8",
    "mxint8",
    "int4:group32:fp16",
    "nf4:group64:fp16",
    "mxfp4",
    "nvfp4",
)


QuantizationOperationType = Literal["linear", "conv2d", "embedding"]


@dataclass(frozen=True)
class QuantizationWorkload:
    """Calls of one layer, in these formats.

    operation: "linear": x [rows, inputs] @ weight [outputs, inputs].T; "conv2d": images [rows,
        inputs, size, size] under a weight [outputs, inputs, kernel, kernel], padded to that size;
        "embedding": `rows` lines of a table [inputs, outputs]
    candidates: as in `bs.search`. Numbers are normal ones, drawn from `seed`, unless a weight is
        given.
    """

    rows: int
    inputs: int
    outputs: int
    candidates: tuple[str, ...] = FORMATS
    seed: int = 0
    weight: torch.Tensor | None = None
    operation: QuantizationOperationType = "linear"
    kernel: int = 3
    size: int = 16

    def _float(self) -> nn.Linear | nn.Conv2d | nn.Embedding:
        if self.operation == "conv2d":
            kernel = self.kernel
            return nn.Conv2d(self.inputs, self.outputs, kernel, padding="same", bias=False)
        if self.operation == "embedding":
            return nn.Embedding(self.inputs, self.outputs)
        return nn.Linear(self.inputs, self.outputs, bias=False)

    def example(self) -> torch.Tensor:
        """What the layer is called with, always the same."""
        generator = torch.Generator().manual_seed(self.seed + 1)
        if self.operation == "embedding":
            return torch.randint(self.inputs, (self.rows,), generator=generator)
        image = (self.size, self.size) if self.operation == "conv2d" else ()
        return torch.randn(self.rows, self.inputs, *image, generator=generator)

    def layer(self) -> nn.Linear | nn.Conv2d | nn.Embedding:
        """The float layer. Raises ValueError for an operation that is none of these, sizes below 1
        and a weight of another shape."""
        if self.operation not in get_args(QuantizationOperationType):
            names = ", ".join(get_args(QuantizationOperationType))
            raise ValueError(f"unknown operation {self.operation!r}; choose from {names}")
        if min(self.rows, self.inputs, self.outputs, self.kernel, self.size) < 1:
            raise ValueError(f"sizes of a workload must be >= 1, got {self}")
        module = self._float()
        shape = tuple(module.weight.shape)
        if self.weight is not None and tuple(self.weight.shape) != shape:
            raise ValueError(f"expected a weight {shape}, found {tuple(self.weight.shape)}")
        generator = torch.Generator().manual_seed(self.seed)
        numbers = torch.randn(shape, generator=generator) if self.weight is None else self.weight
        module.weight = nn.Parameter(numbers.detach().float())
        return module


@dataclass(frozen=True)
class PerformanceRequirements:
    """Bounds; None for any. seconds: of a product at most; bytes: of the weight at most; sqnr: of
    the product at least, in dB."""

    seconds: float | None = None
    bytes: int | None = None
    sqnr: float | None = None

    def met(self, measurement: "Measured") -> bool:
        """Whether a measurement keeps to all of them."""
        return (
            measurement.seconds <= (math.inf if self.seconds is None else self.seconds)
            and measurement.bytes <= (math.inf if self.bytes is None else self.bytes)
            and measurement.sqnr >= (-math.inf if self.sqnr is None else self.sqnr)
        )


@dataclass(frozen=True)
class Measured:
    """One candidate of a workload. seconds: of one product, here; relative: to float32's; bytes:
    of the weight; sqnr: of the product, in dB; threads: torch's."""

    format: str
    seconds: float
    relative: float
    bytes: int
    sqnr: float
    threads: int


def measure(workload: QuantizationWorkload, threads: Sequence[int] = ()) -> list[Measured]:
    """Every candidate on every number of threads (none: torch's), the fastest first."""
    layer = workload.layer()
    x = workload.example()
    candidates = read(workload.candidates)
    layers = {each.name: _quantized(layer, each) for each in candidates}
    measurements = []
    before = torch.get_num_threads()
    with torch.no_grad():
        y = layer(x)
        quality = {name: _sqnr(y, each(x)) for name, each in layers.items()}
        try:
            for count in threads or (before,):
                torch.set_num_threads(count)
                calls: dict[str, Callable[[], Any]] = {"": lambda: layer(x)}
                calls |= {name: (lambda each=each: each(x)) for name, each in layers.items()}  # type: ignore[misc]
                times = race(calls)
                measurements += [
                    Measured(
                        name, times[name], times[name] / times[""], each.qweight.nbytes,
                        quality[name], count,
                    )
                    for name, each in layers.items()
                ]  # fmt: skip
        finally:
            torch.set_num_threads(before)
    return sorted(measurements, key=lambda each: each.seconds)


def _quantized(layer: nn.Module, candidate: Candidate) -> Any:
    model = nn.Sequential(layer)
    quantize_(model, Recipe(candidate.scheme.weight, input=candidate.scheme.input), strict=True)
    return model[0]


def _sqnr(expected: torch.Tensor, actual: torch.Tensor) -> float:
    sums = Sums()
    sums.add(expected, actual)
    return sums.result().sqnr
