# SPDX-License-Identifier: BSD-3-Clause
"""Quantized nn.Embedding."""

from typing import Any, ClassVar

from torch import Tensor, nn

from blockscale.core.recipe import Scheme
from blockscale.layers.layer import QLayer
from blockscale.layers.store import QWeight
from blockscale.ops.embedding import embedding


class QEmbedding(QLayer):
    """Rows of a quantized table [num_embeddings, embedding_dim]."""

    takes_input = False

    # nn.Embedding's own settings, for code that looks a table up by itself, with these
    max_norm: ClassVar[float | None] = None
    norm_type: ClassVar[float] = 2.0
    scale_grad_by_freq: ClassVar[bool] = False
    sparse: ClassVar[bool] = False

    def __init__(self, weight: QWeight, scheme: Scheme, padding_idx: int | None):
        super().__init__(weight, None, scheme)
        self.num_embeddings, self.embedding_dim = weight.shape
        self.padding_idx = padding_idx

    @classmethod
    def refuses(cls, module: Any) -> str | None:
        return "its max_norm changes the weight at every call" if module.max_norm else None

    @classmethod
    def from_float(cls, module: Any, weight: QWeight, scheme: Scheme) -> QLayer:
        return cls(weight, scheme, module.padding_idx)

    def forward(self, indices: Tensor) -> Tensor:
        """indices [...] of rows -> [..., embedding_dim] in the dtype the weight had."""
        weight = self.qweight
        return self.finished(embedding(weight.operand, indices, weight.dtype))

    def extra_repr(self) -> str:
        return f"{self.num_embeddings}, {self.embedding_dim}"


def replacement(kind: type) -> type[QLayer] | None:
    """The quantized layer for a float layer of this class."""
    return QEmbedding if kind is nn.Embedding else None
