# SPDX-License-Identifier: BSD-3-Clause
"""nn.Linear and the transposed Conv1D of GPT-2-style models, in training."""

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from blockscale.core.pack import stored_shape
from blockscale.layers.kinds import QLinear, QTransposedLinear, replacement
from blockscale.qat.layers.layer import Features, QATLayer


class _TrainedLinear(QATLayer):
    """y = x @ weight.T + bias, the weight in its stored layout."""

    @classmethod
    def features(cls, module: Any) -> Features:
        outputs, inputs = stored_shape(module.weight.shape, cls.kind.layout)
        return Features(inputs, outputs)

    def _compute(self, x: Tensor, *more: Any) -> Tensor:
        del more
        values = self._input(x)
        weight, bias = self.weight_quantizer(self.weight), self._bias_values(self.bias, self.weight)
        return self._like(F.linear(values, weight, bias), x)


class QATLinear(_TrainedLinear, nn.Linear):
    """nn.Linear that trains as QLinear."""

    kind = QLinear


class QATTransposedLinear(_TrainedLinear):
    """Transformers' Conv1D that trains as QTransposedLinear."""

    kind = QTransposedLinear


def trained(kind: type) -> type[QATLayer] | None:
    """The class that trains a float layer of this class."""
    if kind is nn.Linear:
        return QATLinear
    return QATTransposedLinear if replacement(kind) is QTransposedLinear else None
