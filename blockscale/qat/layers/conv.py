# SPDX-License-Identifier: BSD-3-Clause
"""Convolutions in training, alone or with the batch norm that follows them folded in."""

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from blockscale.core.pack import from_stored
from blockscale.core.torch_private import BatchNorm
from blockscale.layers.conv import QConv, _paddings
from blockscale.layers.layer import QLayer
from blockscale.layers.store import QWeight
from blockscale.qat.layers.layer import Features, QATLayer
from blockscale.qat.quantizers import in_backward

# Batch norms that the convolution before them includes.


class _Folded(BatchNorm):
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
        y: Tensor = BatchNorm.forward(self, x)
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

_CONV: dict[int, Any] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


class QATConv(QATLayer):
    """A convolution; with a batch norm, both of them: the quantized weight is the folded one,
    weight * gamma / sqrt(variance + eps), as it will be in the quantized model.

    While the batch norm uses the batch's statistics, the convolution of the folded weight is
    scaled back to what the batch norm expects, which then normalizes as ever, and its running
    statistics are those of the quantized convolution (Jacob et al. 2018, arXiv 1712.05877,
    section 3.2; Krishnamoorthi 2018, arXiv 1806.08342, section 3.2.2). Once it is frozen or in
    evaluation, the running statistics are folded into weight and bias.
    """

    kind: ClassVar[type[QLayer]] = QConv
    kernel_size: tuple[int, ...]
    stride: Any
    padding_mode: Any
    dilation: Any
    groups: Any

    @classmethod
    def features(cls, module: Any) -> Features:
        return Features(module.in_channels, module.out_channels)

    @property
    def norm(self) -> Any:
        """The batch norm that this convolution includes, or None."""
        return vars(self).get("_norm", (None,))[0]

    def fold(self, norm: nn.Module) -> None:
        """Include the batch norm that follows, which from now on passes on what it is given."""
        self._norm = (norm,)  # in a tuple, so that it is no child: it stays where it was
        norm.__class__ = FOLDED[type(norm)]

    @property
    def uses_batch(self) -> bool:
        """Whether the batch norm normalizes by the batch at hand."""
        return self.norm is not None and self.norm.training and not self.norm_frozen

    @property
    def deployable(self) -> bool:
        return super().deployable and not self.uses_batch

    def folded(self) -> tuple[Tensor, Tensor | None]:
        """The float weight and bias of the convolution with the batch norm's running statistics."""
        norm, bias = self.norm, self.bias
        if norm is None:
            return self.weight, bias
        factor = _gamma(norm) * torch.rsqrt(norm.running_var.to(torch.float32) + norm.eps)
        shift = -norm.running_mean.to(torch.float32)
        if bias is not None:
            shift = bias.to(torch.float32) + shift
        if norm.bias is None:
            return self._times(factor), shift * factor
        return self._times(factor), norm.bias.to(torch.float32) + shift * factor

    def _times(self, factor: Tensor) -> Tensor:
        """The float weight, each output's times its entry of factor [n], float32."""
        return self.weight.to(torch.float32) * factor.reshape(-1, *[1] * (self.weight.ndim - 1))

    def _compute(self, x: Tensor, *more: Any) -> Tensor:
        if self.uses_batch:
            return self._normalized(x, *more)
        return self._like(self._convolve(x, *self.folded(), *more), x)

    def _normalized(self, x: Tensor, *more: Any) -> Tensor:
        """The batch norm of the convolution, whose weight is quantized as folded."""
        norm = self.norm
        if not in_backward():  # computed again, the same factor: running_var has moved on
            gamma = _gamma(norm).detach()
            self._factor = torch.where(gamma == 0, 1.0, gamma) * torch.rsqrt(
                norm.running_var.to(torch.float32) + norm.eps
            )
        y = self._convolve(x, self._times(self._factor), None, *more)
        plain = y / self._by_channel(self._factor)
        if self.bias is not None:
            plain = plain + self._by_channel(self.bias.to(torch.float32))
        dtype = self._like(y, x).dtype
        normalized: Tensor = norm.normalize(plain.to(dtype))
        if self.bias_quantizer is None:
            return normalized
        if not in_backward():
            self._error = self._bias_error()
        return normalized + self._by_channel(self._error).to(dtype)

    def _by_channel(self, values: Tensor) -> Tensor:
        """values [n] in a shape that broadcasts with the convolution's output."""
        return values.reshape(-1, *[1] * len(self.kernel_size))

    @torch.no_grad()
    def _bias_error(self) -> Tensor:
        """What quantizing adds to the folded bias [n] now, by the running statistics."""
        weight, bias = self.folded()
        assert bias is not None
        values = self._bias_values(bias, weight, fixed=True)
        assert values is not None
        return values - bias.to(torch.float32)

    def _convolve(self, x: Tensor, weight: Tensor, bias: Tensor | None, *more: Any) -> Tensor:
        """The convolution of the quantized input and the quantized weight."""
        single = x.ndim == len(self.kernel_size) + 1
        x = x[None] if single else x
        around, inside = _paddings(self)
        if around:
            x = F.pad(x, around, "constant" if self.padding_mode == "zeros" else self.padding_mode)
        values = self._input(x.movedim(1, -1))
        if self.input_quantizer is not None:
            values = values.contiguous()  # as the quantized layer's: torch's sums depend on it
        values = values.movedim(-1, 1)
        stored = self.weight_quantizer(weight)
        dense = from_stored(stored, self.weight_quantizer.layout, weight.shape)
        y = self._run(values, dense, self._bias_values(bias, weight), inside, *more)
        return (y[0] if single else y).contiguous()

    def _run(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, padding: list[int], *more: Any
    ) -> Tensor:
        """The float convolution of x [batch, channels, *size], padded as it says by itself."""
        del more
        run, settings = _CONV[len(self.kernel_size)], (self.stride, padding, self.dilation)
        y: Tensor = run(x, weight, bias, *settings, self.groups)
        return y

    def _float(self, x: Tensor, *more: Any) -> Tensor:
        y = super()._float(x, *more)
        return y if self.norm is None else self.norm.normalize(y, self.norm_frozen)

    def _features_last(self, x: Tensor) -> Tensor:
        return x.movedim(-1 - len(self.kernel_size), -1)

    def _features_back(self, x: Tensor) -> Tensor:
        return x.movedim(-1, -1 - len(self.kernel_size)).contiguous()

    def float_weight(self) -> Tensor:
        return self.folded()[0]

    def with_float_bias(self, weight: QWeight | None = None) -> QLayer:
        """As QATLayer's, with the folded bias: a plain tensor, as a graph can make no parameter."""
        layer = super().with_float_bias(weight)
        if self.norm is not None:
            bias = self.folded()[1]
            assert bias is not None
            layer._parameters["bias"] = bias.detach()  # type: ignore[assignment]
        return layer


class QATConv1d(QATConv, nn.Conv1d):
    """nn.Conv1d that trains as QConv."""


class QATConv2d(QATConv, nn.Conv2d):
    """nn.Conv2d that trains as QConv."""


class QATConv3d(QATConv, nn.Conv3d):
    """nn.Conv3d that trains as QConv."""


_TRAINED: dict[type, type[QATLayer]] = {
    nn.Conv1d: QATConv1d,
    nn.Conv2d: QATConv2d,
    nn.Conv3d: QATConv3d,
}


def _gamma(norm: Any) -> Tensor:
    """The batch norm's factors [channels] float32: ones if it has none."""
    if norm.weight is None:
        return torch.ones_like(norm.running_var, dtype=torch.float32)
    gamma: Tensor = norm.weight.to(torch.float32)
    return gamma


def trained(kind: type) -> type[QATLayer] | None:
    """The class that trains a float layer of this class."""
    return _TRAINED.get(kind)
