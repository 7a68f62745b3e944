# SPDX-License-Identifier: BSD-3-Clause
"""Transposed convolutions in training, alone or with the batch norm that follows them folded in."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from blockscale.layers.conv import QConvTranspose, added_sizes
from blockscale.qat.layers.conv import QATConv
from blockscale.qat.layers.layer import QATLayer

_RUN: dict[int, Any] = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
Sizes = Sequence[int] | None


class QATConvTranspose(QATConv):
    """A transposed convolution; with a batch norm, both of them, as QATConv has it. Its outputs
    are dimension 1 of its weight [in, out / groups, *kernel], group after group."""

    kind = QConvTranspose

    def forward(self, x: Tensor, output_size: Sizes = None, *more: Any) -> Tensor:
        """As the float layer's, in the same shapes; output_size as it takes it."""
        if output_size is not None:
            added_sizes(self, x, output_size)  # raises ValueError for sizes that cannot be
            output_size = output_size[-len(self.kernel_size) :]  # also without a batch
        return super().forward(x, output_size, *more)

    def _times(self, factor: Tensor) -> Tensor:
        weight, groups = self.weight.to(torch.float32), self.groups
        apart = weight.unflatten(0, (groups, -1))  # [groups, in / groups, out / groups, *kernel]
        by_output = factor.reshape(groups, 1, -1, *[1] * (weight.ndim - 2))
        return (apart * by_output).flatten(0, 1)

    def _run(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, padding: list[int], *more: Any
    ) -> Tensor:
        output_padding = added_sizes(self, x, *more)
        settings = self.stride, padding, output_padding, self.groups, self.dilation
        y: Tensor = _RUN[len(self.kernel_size)](x, weight, bias, *settings)
        return y


class QATConvTranspose1d(QATConvTranspose, nn.ConvTranspose1d):
    """nn.ConvTranspose1d that trains as QConvTranspose."""


class QATConvTranspose2d(QATConvTranspose, nn.ConvTranspose2d):
    """nn.ConvTranspose2d that trains as QConvTranspose."""


class QATConvTranspose3d(QATConvTranspose, nn.ConvTranspose3d):
    """nn.ConvTranspose3d that trains as QConvTranspose."""


_TRAINED: dict[type, type[QATLayer]] = {
    nn.ConvTranspose1d: QATConvTranspose1d,
    nn.ConvTranspose2d: QATConvTranspose2d,
    nn.ConvTranspose3d: QATConvTranspose3d,
}


def trained(kind: type) -> type[QATLayer] | None:
    """The class that trains a float layer of this class."""
    return _TRAINED.get(kind)
