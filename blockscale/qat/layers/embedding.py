# SPDX-License-Identifier: BSD-3-Clause
"""nn.Embedding in training."""

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from blockscale.layers.kinds import QEmbedding
from blockscale.qat.layers.layer import Features, QATLayer


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
    return QATEmbedding if kind is nn.Embedding else None
