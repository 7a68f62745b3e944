# SPDX-License-Identifier: BSD-3-Clause
"""Batch norms that the convolution before them includes."""

import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


class _Folded(_BatchNorm):
    """Parameters and statistics stay here, under their names. The convolution has applied them, so
    calling this passes x on. No setting is changed."""

    def forward(self, x: Tensor) -> Tensor:
        """x, which is normalized already."""
        return x

    def normalize(self, x: Tensor, frozen: bool = False) -> Tensor:
        """The batch norm of x; `frozen`: by the running statistics, in training too."""
        if frozen:
            mean, variance = self.running_mean, self.running_var
            return F.batch_norm(x, mean, variance, self.weight, self.bias, False, 0.0, self.eps)
        y: Tensor = _BatchNorm.forward(self, x)
        return y


class FoldedBatchNorm1d(_Folded, nn.BatchNorm1d):
    """nn.BatchNorm1d after a convolution over one dimension."""


class FoldedBatchNorm2d(_Folded, nn.BatchNorm2d):
    """nn.BatchNorm2d after a convolution over two dimensions."""


class FoldedBatchNorm3d(_Folded, nn.BatchNorm3d):
    """nn.BatchNorm3d after a convolution over three dimensions."""


FOLDED: dict[type[nn.Module], type[_Folded]] = {
    nn.BatchNorm1d: FoldedBatchNorm1d,
    nn.BatchNorm2d: FoldedBatchNorm2d,
    nn.BatchNorm3d: FoldedBatchNorm3d,
}
