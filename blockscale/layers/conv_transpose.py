# SPDX-License-Identifier: BSD-3-Clause
"""Quantized nn.ConvTranspose1d, nn.ConvTranspose2d and nn.ConvTranspose3d."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from blockscale.core.pack import grouped_layout
from blockscale.core.recipe import Scheme
from blockscale.core.torch_private import ConvTransposeNd
from blockscale.layers.conv import Convolution
from blockscale.layers.layer import QLayer
from blockscale.layers.store import QWeight
from blockscale.ops.conv_transpose import conv_transpose

Sizes = Sequence[int]
_KINDS = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


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
        added = added_sizes(self, x, output_size)
        given, single = x, x.ndim == len(self.kernel_size) + 1
        x = self.prepared(self.batched(x))
        weight, bias = self.qweight, self.added_bias()
        settings = (list(self.stride), list(self.padding), added, list(self.dilation), self.groups)
        y = conv_transpose(x, weight.operand, bias, list(weight.shape), *settings, self.of_input(x))
        return self.laid_out(self.finished(y)[0] if single else self.finished(y), given)

    def like(self, x: Tensor, y: Tensor) -> Tensor:
        """As QLayer's, with y's size, which the call may have asked for."""
        return self.forward(x, y.shape[-len(self.kernel_size) :])


def added_sizes(like: Any, x: Tensor, output_size: Sizes | None) -> list[int]:
    """The output padding [dimensions] for an input x, as PyTorch has it (nn.ConvTransposeNd).

    like: the layer, float or quantized.
    """
    asked = None if output_size is None else list(output_size)
    settings = like.stride, like.padding, like.kernel_size, len(like.kernel_size), like.dilation
    return list(ConvTransposeNd._output_padding(like, x, asked, *settings))


def replacement(kind: type) -> type[QLayer] | None:
    """The quantized layer for a float layer of this class."""
    return QConvTranspose if kind in _KINDS else None
