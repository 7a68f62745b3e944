# SPDX-License-Identifier: BSD-3-Clause
"""Quantized convolutions over one, two and three dimensions, and transposed ones."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from blockscale.core.pack import grouped_layout
from blockscale.core.recipe import Scheme
from blockscale.core.torch_private import ConvTransposeNd
from blockscale.kernels.registry import unavailable
from blockscale.layers.before import Before
from blockscale.layers.layer import QLayer
from blockscale.layers.store import QWeight
from blockscale.ops.conv import conv
from blockscale.ops.conv_transpose import conv_transpose

_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}  # by rank, with the batch


class Convolution(QLayer):
    """What convolutions share, over one to three dimensions, by the rank of their weight."""

    def __init__(self, weight: QWeight, bias: nn.Parameter | None, scheme: Scheme, like: Any):
        super().__init__(weight, bias, scheme)
        self.in_channels, self.out_channels = like.in_channels, like.out_channels
        self.kernel_size, self.stride = like.kernel_size, like.stride
        self.padding, self.padding_mode = like.padding, like.padding_mode
        self.dilation, self.groups = like.dilation, like.groups

    @classmethod
    def from_float(cls, module: Any, weight: QWeight, scheme: Scheme) -> QLayer:
        return cls(weight, module.bias, scheme, module)

    @classmethod
    def features(cls, module: Any) -> int:
        """Its channels: they are what a Before transforms."""
        return int(module.in_channels)

    @classmethod
    def refuses_before(cls, module: Any, before: Before) -> str | None:
        """Why `before` cannot stand before this layer, float or quantized, or None."""
        if module.groups != 1:
            return (
                f"its {module.groups} groups read different channels, which no transform supports"
            )
        return super().refuses_before(module, before)

    def prepare_input(self, x: Tensor) -> Tensor:
        """x through what stands before the layer; it transforms the channels of each position."""
        return x if self.before is None else self.before(x.movedim(1, -1)).movedim(-1, 1)

    def rows_of(self, rank: int) -> int:
        """Images: what a convolution sums over is in one of them."""
        del rank
        return 1

    def batched(self, x: Tensor) -> Tensor:
        """x [batch, in_channels, *size], or without batch, with one. ValueError for others."""
        dims = len(self.kernel_size)
        batch = x[None] if x.ndim == dims + 1 else x
        if batch.ndim != dims + 2 or batch.shape[1] != self.in_channels:
            sizes = ", ".join("dhw"[-dims:])
            raise ValueError(
                f"expected an input [batch, {self.in_channels}, {sizes}], "
                f"found {tuple(batch.shape)}"
            )
        return batch

    def finish_output(self, y: Tensor) -> Tensor:
        """y through the output's quantizer, whose blocks run over the channels."""
        if self.output is None:
            return y
        return super().finish_output(y.movedim(1, -1)).movedim(-1, 1).contiguous()

    def laid_out(self, y: Tensor, x: Tensor) -> Tensor:
        """y with its channels last in memory where those of the input x of the call are; else as it
        is, contiguous."""
        last = _LAST.get(x.ndim)
        if last is None or x.is_contiguous() or not x.is_contiguous(memory_format=last):
            return y
        return y.contiguous(memory_format=last)

    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}"


class QConv(Convolution):
    """A convolution over one, two or three dimensions."""

    layout = "channels_last"

    def __init__(self, weight: QWeight, bias: nn.Parameter | None, scheme: Scheme, like: Any):
        super().__init__(weight, bias, scheme, like)
        self._around, self._inside = _paddings(like)

    @classmethod
    def slow_once(cls, module: Any, input_fmt: str, weight_fmt: str) -> str:
        weight = module.weight
        return _slow(weight, weight.shape, module.groups, input_fmt, weight_fmt)

    def slow(self) -> str:
        weight, input_fmt = self.qweight, "" if self.input is None else self.input.fmt
        return _slow(weight.codes, weight.shape, self.groups, input_fmt, weight.fmt)

    def forward(self, x: Tensor) -> Tensor:
        """x [batch, in_channels, *size] or without batch -> [batch, out_channels, *size]."""
        inputs, single = x, x.ndim == len(self.kernel_size) + 1
        x = self.prepare_input(self.batched(x))
        if self._around:
            mode = "constant" if self.padding_mode == "zeros" else self.padding_mode
            x = F.pad(x, self._around, mode)
        weight, bias = self.qweight, self.added_bias()
        settings = (list(self.stride), self._inside, list(self.dilation), self.groups)
        y = conv(x, weight.operand, bias, list(weight.shape), *settings, self.of_input(x))
        return self.laid_out(self.finish_output(y)[0] if single else self.finish_output(y), inputs)


def _slow(place: Tensor, shape: Sequence[int], groups: int, input_fmt: str, weight_fmt: str) -> str:
    """As `QLayer.slow`, of a weight [n, channels, *kernel] that lies where `place` does."""
    if not place.is_cpu or unavailable("cpu") is not None:
        return ""
    from blockscale.kernels.cpu import _native  # not where there is no native library
    from blockscale.kernels.cpu.conv_way import describe_conv

    slow = describe_conv(
        list(shape), groups, input_fmt, weight_fmt, _native.isa(), channels_last=False
    ).slow
    return f"on this CPU {slow}" if slow else ""


def _paddings(like: Any) -> tuple[list[int], list[int]]:
    """(F.pad's padding around the input, the convolution's own padding): one of them is empty."""
    plain = like.padding_mode == "zeros"
    if plain and not isinstance(like.padding, str):
        return [], list(like.padding)
    # PyTorch keeps what string and non-zero modes mean in this attribute, in F.pad's order
    around = list(like._reversed_padding_repeated_twice)
    return (around if any(around) else []), [0] * len(like.kernel_size)


def replacement(kind: type) -> type[QLayer] | None:
    """The quantized layer for a float layer of this class."""
    if kind in (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d):
        return QConvTranspose
    return QConv if kind in (nn.Conv1d, nn.Conv2d, nn.Conv3d) else None


# Transposed convolutions.


Sizes = Sequence[int]


class QConvTranspose(Convolution):
    """A transposed convolution over one, two or three dimensions.

    The codes lie as a convolution's, a row for each output, so that blocks run along the sum.
    """

    layout = "transposed_channels_last"

    def __init__(self, weight: QWeight, bias: nn.Parameter | None, scheme: Scheme, like: Any):
        super().__init__(weight, bias, scheme, like)
        self.output_padding = like.output_padding

    @classmethod
    def layout_of(cls, module: Any) -> str:
        """That of as many groups as it has."""
        return grouped_layout(module.groups)

    def forward(self, x: Tensor, output_size: Sizes | None = None) -> Tensor:
        """x [batch, in_channels, *size] or without batch -> [batch, out_channels, *size].

        output_size: the size of the result, with or without batch and channels, of the several
            that a stride leaves open; without it `output_padding` decides. Raises ValueError for
            others.
        """
        extra = added_sizes(self, x, output_size)
        inputs, single = x, x.ndim == len(self.kernel_size) + 1
        x = self.prepare_input(self.batched(x))
        weight, bias = self.qweight, self.added_bias()
        settings = (list(self.stride), list(self.padding), extra, list(self.dilation), self.groups)
        y = conv_transpose(x, weight.operand, bias, list(weight.shape), *settings, self.of_input(x))
        return self.laid_out(self.finish_output(y)[0] if single else self.finish_output(y), inputs)

    def like(self, x: Tensor, y: Tensor) -> Tensor:
        """As QLayer's, with y's size, which the call may have asked for."""
        return self.forward(x, y.shape[-len(self.kernel_size) :])


def added_sizes(like: Any, x: Tensor, output_size: Sizes | None) -> list[int]:
    """The output padding [dimensions] for an input x, as PyTorch has it (nn.ConvTransposeNd).

    like: the layer, float or quantized.
    """
    request = None if output_size is None else list(output_size)
    settings = like.stride, like.padding, like.kernel_size, len(like.kernel_size), like.dilation
    return list(ConvTransposeNd._output_padding(like, x, request, *settings))
