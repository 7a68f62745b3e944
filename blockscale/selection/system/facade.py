# SPDX-License-Identifier: BSD-3-Clause
"""QuantizationSystem: one object that knows a device and has a verb for each thing to do there."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from blockscale.core.format import Format
from blockscale.kernels.hardware import Hardware, hardware
from blockscale.kernels.registry import backends, unavailable
from blockscale.ops.tensor import QTensor
from blockscale.selection.system.operations import (
    FORMATS,
    SHAPE,
    MemoryUsage,
    OperationTime,
    memory_usage,
    operation_times,
    optimal_block_size,
)
from blockscale.selection.system.params import (
    Data,
    ParamsLike,
    QuantizationParams,
    as_tensor,
    calibrated,
    recommended_method,
)
from blockscale.selection.system.workload import (
    Measured,
    PerformanceRequirements,
    QuantizationWorkload,
    measure,
)


@dataclass(frozen=True)
class PerformanceHints:
    """What was the fastest on this machine, of what was tried.

    formats: of weights (and inputs), the fastest first; block_size: of 4-bit integers
    (`optimal_block_size`); rows: {rows at once: seconds a row in the fastest format}; threads: in
    use
    """

    formats: tuple[str, ...]
    block_size: int
    rows: dict[int, float]
    threads: int


class QuantizationSystem:
    """Quantization on one device: what it has, what is fast on it, and the operations themselves.

    Every number that it gives is counted or measured when it is asked for. Times are of the CPU:
    those of CUDA's kernels are told by `blockscale bench`.

    device: as torch has it. Raises RuntimeError for a device that torch does not have.
    """

    def __init__(self, device: str | torch.device = "cpu"):
        self.device = torch.empty(0, device=device).device
        self._hardware: Hardware | None = None

    def hardware_features(self) -> Hardware:
        """`bs.hardware()`, probed once."""
        if self._hardware is None:
            self._hardware = hardware()
        return self._hardware

    def has_acceleration(self) -> bool:
        """Whether kernels run on the device; otherwise everything runs on the reference."""
        kind = self.device.type
        return kind in backends() and unavailable(kind) is None

    def recommendations(
        self,
        workload: QuantizationWorkload,
        requirements: PerformanceRequirements | None = None,
    ) -> list[Measured]:
        """The workload's candidates that keep to the requirements, the fastest first; measured."""
        self._check_device()
        bounds = requirements or PerformanceRequirements()
        return [each for each in measure(workload) if bounds.met(each)]

    def auto_tune(
        self,
        workload: QuantizationWorkload,
        requirements: PerformanceRequirements | None = None,
        threads: Sequence[int] = (),
    ) -> Measured:
        """The fastest candidate for a workload, and its number of threads; measured here.

        workload: the operation and its sizes; requirements: the most seconds and bytes, and the
        least accuracy that are allowed; threads: the numbers to try (None: 1 and all cores).
        Raises ValueError where no candidate keeps to the requirements.
        """
        self._check_device()
        bounds = requirements or PerformanceRequirements()
        cores = self.hardware_features().cores
        every = measure(workload, threads or sorted({1, cores}))
        results = [each for each in every if bounds.met(each)]
        if not results:
            raise ValueError(
                f"none of {len(every)} measurements is within {bounds}: the fastest is {every[0]}; "
                "allow more time or memory, or a lower accuracy"
            )
        return results[0]

    def calibrate_from_samples(
        self, samples: Iterable[Data], fmt: str | Format = "int8", method: str | None = None
    ) -> QuantizationParams:
        """The scale of `fmt` for all samples, by an observer (`bs.observers.names()`).

        samples: tensors [...] or lists of numbers
        method: None tries those of METHODS and takes the one with the least squared error
        Raises ValueError where there is no finite element, and as the observer does.
        """
        own = [as_tensor(each, device=self.device) for each in samples]
        if not own:
            raise ValueError("no samples: a scale needs at least one")
        return calibrated(own, fmt, method or recommended_method(own, fmt)[0])

    def benchmark_operations(
        self, formats: Sequence[str] = FORMATS, shape: tuple[int, int] = SHAPE
    ) -> tuple[OperationTime, ...]:
        """Seconds of quantize, dequantize and fake_quantize, for each of `formats`.

        shape: of the tensor that is quantized
        """
        self._check_device()
        return operation_times(formats, shape)

    def memory_usage(
        self, formats: Sequence[str] = FORMATS, shape: tuple[int, int] = SHAPE
    ) -> tuple[MemoryUsage, ...]:
        """Bytes that quantize, dequantize and fake_quantize take on the CPU, for each of `formats`.

        shape: of the tensor that is quantized; its own bytes do not count
        """
        self._check_device()
        return memory_usage(formats, shape)

    def quantize(self, x: Data, params: ParamsLike) -> QTensor:
        """x [...], a tensor or lists of numbers, on the device, quantized as `params` say.

        params: a format, its name or spelling, or QuantizationParams with a scale. Raises as
        `bs.quantize`.
        """
        return QuantizationParams.of(params).quantize(as_tensor(x, device=self.device))

    def dequantize(self, q: QTensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """The values of q [...] in `dtype`: float32, bfloat16 or float16."""
        return q.dequantize(dtype)

    def qmatmul(self, a: QTensor, b: QTensor, y: ParamsLike | None = None) -> Tensor | QTensor:
        """a [..., m, k] @ b [..., k, n]: float32, or in the format `y`."""
        product = a @ b
        return product if y is None else self.quantize(product, y)

    def create_quantized_tensor(self, shape: Sequence[int], params: ParamsLike) -> QTensor:
        """A tensor of zeros [shape] on the device, in a format or the one of `params`."""
        return self.quantize(torch.zeros(tuple(shape), device=self.device), params)

    def optimal_block_size(self, element: str = "int4", scale: str = "fp16") -> int:
        """The smallest N of groupN whose scales cost a sixteenth of the bytes at most; counted.

        element, scale: by their spellings
        """
        return optimal_block_size(element, scale)

    def performance_hints(self, workload: QuantizationWorkload | None = None) -> PerformanceHints:
        """What is fast here, for a workload (None: 64 rows, 1024 inputs and outputs)."""
        self._check_device()
        request = workload or QuantizationWorkload(64, 1024, 1024)
        result = measure(request)
        best = result[0].format
        rows = {}
        for count in (1, 16, request.rows):
            one = QuantizationWorkload(count, request.inputs, request.outputs, (best,))
            rows[count] = measure(one)[0].seconds / count
        formats = tuple(each.format for each in result)
        return PerformanceHints(formats, self.optimal_block_size(), rows, torch.get_num_threads())

    def _check_device(self) -> None:
        """Raise ValueError for a device whose times this does not measure."""
        if self.device.type != "cpu":
            raise ValueError(
                f"times can be measured only on the CPU here, not on {self.device}: use "
                f"`blockscale bench --device {self.device.type}`"
            )

    def __repr__(self) -> str:
        return f"QuantizationSystem({str(self.device)!r})"


def create_quantization_system(device: str | torch.device = "cpu") -> QuantizationSystem:
    """A QuantizationSystem for a device. Raises RuntimeError where torch does not have it."""
    return QuantizationSystem(device)
