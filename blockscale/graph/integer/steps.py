# SPDX-License-Identifier: BSD-3-Clause
"""The steps of an integer model: modules that take and give integers.

Their numbers are buffers, so that an integer model is saved and moved like any other. Exponents and
shifts are int32 that broadcast with the values: one for all, or one a channel.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from blockscale.core.arithmetic.bits import pow2
from blockscale.core.format import Format
from blockscale.graph.integer.arithmetic import (
    add_aligned,
    centered,
    conv_int32,
    linear_int32,
    requantize_shift,
    sum_pool2d,
)
from blockscale.ops.quantize import quantize


class _Step(nn.Module):
    """A module with buffers of integers, set by name."""

    def __init__(self, **buffers: Tensor | None):
        super().__init__()
        for name, buffer in buffers.items():
            self.register_buffer(name, buffer)


class Quantize(_Step):
    """Values [...] float32 -> codes [...] of `fmt`: the one place where floats come in."""

    scale: Tensor

    def __init__(self, fmt: Format, scale: Tensor, zero_point: Tensor | None):
        super().__init__(scale=scale.reshape(-1), zero_point=zero_point)
        self.format = fmt

    def forward(self, x: Tensor) -> Tensor:
        zero_point = self._buffers["zero_point"]
        ones = (1,) * x.ndim
        given = None if zero_point is None else zero_point.reshape(ones)
        return quantize(x, self.format, self.scale.reshape(ones), given).codes

    def extra_repr(self) -> str:
        return f"'{self.format}'"


class Dequantize(_Step):
    """Codes or sums [...] -> values [...] float32: the one place where floats go out."""

    exponent: Tensor

    def __init__(self, exponent: Tensor, zero_point: int):
        super().__init__(exponent=exponent)
        self.zero_point = zero_point

    def forward(self, codes: Tensor) -> Tensor:
        return centered(codes, self.zero_point).to(torch.float32) * pow2(self.exponent)


class Requantize(_Step):
    """Codes or sums [...] -> codes [...] of `fmt` under another exponent, by a shift."""

    shift: Tensor

    def __init__(self, shift: Tensor, fmt: Format, zero_points: tuple[int, int]):
        """zero_points: of what comes in and of what goes out."""
        super().__init__(shift=shift)
        self.format = fmt
        self.zero_points = zero_points

    def forward(self, codes: Tensor) -> Tensor:
        before, after = self.zero_points
        return requantize_shift(centered(codes, before), self.shift, self.format, after)

    def extra_repr(self) -> str:
        low, high = int(self.shift.min()), int(self.shift.max())
        return f"'{self.format}', shift {low if low == high else f'{low} to {high}'}"


class IntegerLinear(_Step):
    """Codes [..., k] -> sums [..., n] int32."""

    weight: Tensor

    def __init__(self, weight: Tensor, bias: Tensor | None, zero_point: int):
        """weight: [n, k] int8 or int16; bias: [n] int32, in units of the sums."""
        super().__init__(weight=weight, bias=bias)
        self.zero_point = zero_point

    def forward(self, codes: Tensor) -> Tensor:
        x = centered(codes, self.zero_point)
        return linear_int32(x, self.weight.to(torch.int32), self._buffers["bias"])

    def extra_repr(self) -> str:
        return f"{self.weight.shape[1]}, {self.weight.shape[0]}"


class ConvSettings(NamedTuple):
    """How a convolution walks over its input, each for one or two dimensions."""

    stride: list[int]
    padding: list[int]
    dilation: list[int]
    groups: int


class IntegerConv(_Step):
    """Codes [batch, channels, *size] -> sums [batch, n, *size] int32."""

    weight: Tensor

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None,
        zero_point: int,
        around: list[int],
        settings: ConvSettings,
    ):
        """weight: [n, channels / groups, *kernel]; bias: [n] int32, in units of the sums.

        around: zeros to pad with beforehand, in F.pad's order.
        """
        super().__init__(weight=weight, bias=bias)
        self.zero_point, self.around, self.settings = zero_point, around, settings

    def forward(self, codes: Tensor) -> Tensor:
        x = centered(codes, self.zero_point)
        if self.around:
            x = F.pad(x, self.around)
        return conv_int32(x, self.weight.to(torch.int32), self._buffers["bias"], *self.settings)

    def extra_repr(self) -> str:
        return f"{tuple(self.weight.shape)}"


class Clamp(_Step):
    """Codes or sums [...] kept between two codes, in their dtype: ReLU and its bounded kin."""

    low: Tensor
    high: Tensor

    def __init__(self, low: Tensor, high: Tensor):
        """low, high: int32, broadcast with the codes."""
        super().__init__(low=low, high=high)

    def forward(self, codes: Tensor) -> Tensor:
        return torch.clamp(codes.to(torch.int32), self.low, self.high).to(codes.dtype)


class Add(_Step):
    """Two of codes or sums [...] -> their sum [...] int32 under the smaller exponent."""

    shift: Tensor
    other_shift: Tensor

    def __init__(self, shifts: tuple[Tensor, Tensor], zero_points: tuple[int, int]):
        super().__init__(shift=shifts[0], other_shift=shifts[1])
        self.zero_points = zero_points

    def forward(self, codes: Tensor, other: Tensor) -> Tensor:
        x, y = (centered(c, z) for c, z in zip((codes, other), self.zero_points, strict=True))
        return add_aligned(x, y, self.shift, self.other_shift)


class Windows(NamedTuple):
    """The windows of a pooling, each for two dimensions."""

    kernel: list[int]
    stride: list[int]
    padding: list[int]


class SumPool(_Step):
    """Codes or sums [..., h, w] -> sums over windows [..., h', w'] int32.

    size: (h, w) if the windows were chosen for it; another size is refused with a ValueError.
    """

    def __init__(self, zero_point: int, windows: Windows, size: tuple[int, int] | None):
        super().__init__()
        self.zero_point, self.windows, self.size = zero_point, windows, size

    def forward(self, codes: Tensor) -> Tensor:
        size = tuple(codes.shape[-2:])
        if self.size is not None and size != self.size:
            raise ValueError(
                f"this integer model was made for inputs of size {self.size}, found {size}"
            )
        return sum_pool2d(centered(codes, self.zero_point), *self.windows)

    def extra_repr(self) -> str:
        kernel, stride, padding = self.windows
        return f"kernel {kernel}, stride {stride}, padding {padding}"
