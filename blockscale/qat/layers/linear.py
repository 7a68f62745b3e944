# SPDX-License-Identifier: BSD-3-Clause
"""nn.Linear, the transposed Conv1D of GPT-2-style models and nn.Embedding, in training."""

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from blockscale.core.pack import stored_shape
from blockscale.layers.kinds import QEmbedding, QLinear, QTransposedLinear, replacement
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


class QATEmbedding(QATLayer, nn.Embedding):
    """nn.Embedding that trains as QEmbedding."""

    kind = QEmbedding

    @classmethod
    def refuses(cls, module: Any) -> str | None:
        return "its sparse gradients do not pass a fake quantizer" if module.sparse else None

    @classmethod
    def features(cls, module: Any) -> Features:
        return Features(0, module.embedding_dim)

    @property
    def padding_row(self) -> int | None:
        learned = self.weight_quantizer.learned
        alone = learned is not None and len(learned.origin) == len(self.weight)
        return self.padding_idx if alone else None

    def _compute(self, x: Tensor, *more: Any) -> Tensor:
        del more
        rows = self.weight_quantizer(self.weight).to(self.weight.dtype)
        return F.embedding(x, rows, self.padding_idx, scale_grad_by_freq=self.scale_grad_by_freq)


def trained(kind: type) -> type[QATLayer] | None:
    """The class that trains a float layer of this class."""
    own: dict[type, type[QATLayer]] = {nn.Linear: QATLinear, nn.Embedding: QATEmbedding}
    if kind in own:
        return own[kind]
    return QATTransposedLinear if replacement(kind) is QTransposedLinear else None
