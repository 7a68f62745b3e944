# SPDX-License-Identifier: BSD-3-Clause
"""Quantized nn.Embedding and nn.EmbeddingBag."""

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
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
    if kind is nn.EmbeddingBag:
        return QEmbeddingBag
    return QEmbedding if kind is nn.Embedding else None


class QEmbeddingBag(QLayer):
    """Sums, means or maxima of rows of a quantized table [num_embeddings, embedding_dim]."""

    takes_input = False

    def __init__(self, weight: QWeight, scheme: Scheme, like: Any):
        super().__init__(weight, None, scheme)
        self.num_embeddings, self.embedding_dim = weight.shape
        self.mode, self.padding_idx = like.mode, like.padding_idx
        self.include_last_offset = like.include_last_offset

    @classmethod
    def refuses(cls, module: Any) -> str | None:
        return "its max_norm changes the weight at every call" if module.max_norm else None

    @classmethod
    def from_float(cls, module: Any, weight: QWeight, scheme: Scheme) -> QLayer:
        return cls(weight, scheme, module)

    def forward(
        self,
        input: Tensor,
        offsets: Tensor | None = None,
        per_sample_weights: Tensor | None = None,
    ) -> Tensor:
        """As nn.EmbeddingBag's: indices [bags, each], or [all] with offsets [bags], and weights of
        the rows for sums -> [bags, embedding_dim] in the dtype the weight had."""
        table, indices, padding = self._rows(input)
        y = F.embedding_bag(
            indices, table, offsets,
            mode=self.mode,
            per_sample_weights=per_sample_weights,
            include_last_offset=self.include_last_offset,
            padding_idx=padding,
        )  # fmt: skip
        return self.finished(y)

    def _rows(self, indices: Tensor) -> tuple[Tensor, Tensor, int | None]:
        """A table of the rows that are asked for, or of all if those are fewer, the indices of rows
        of it, and the one among them that is left out."""
        weight: Any = self._modules["weight"]
        count = indices.numel()
        if not torch.compiler.is_compiling() and count >= self.num_embeddings:
            return weight.dequantize(), indices, self.padding_idx
        flat = indices.reshape(-1)
        table = embedding(weight.operand, flat, weight.dtype)
        places = torch.arange(count, dtype=indices.dtype, device=indices.device)
        padding = None
        if self.padding_idx is not None:  # a row of its own, after the last
            padding = count
            table = F.pad(table, (0, 0, 0, 1))
            places = torch.where(flat == self.padding_idx, padding, places)
        return table, places.reshape(indices.shape), padding

    def extra_repr(self) -> str:
        return f"{self.num_embeddings}, {self.embedding_dim}, mode='{self.mode}'"
