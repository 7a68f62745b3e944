# SPDX-License-Identifier: BSD-3-Clause
"""The kinds of quantized layers: which takes the place of which float layer, and those whose weight
is a matrix, for nn.Linear, transformers' Conv1D, nn.Embedding and nn.EmbeddingBag. Convolutions are
in layers.conv, subclasses of all of these in layers.subclasses.
"""

from functools import cache
from types import ModuleType
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from blockscale import layers
from blockscale.core import import_all
from blockscale.core.recipe import Scheme
from blockscale.layers.layer import QLayer, parent_of
from blockscale.layers.store import QWeight
from blockscale.layers.subclasses import quantized_subclass
from blockscale.ops.embedding import embedding
from blockscale.ops.linear import linear


@cache
def _files() -> list[ModuleType]:
    """The files of this folder that hold a kind of layer: they define `replacement`."""
    files = import_all(layers.__name__, layers.__path__)
    return [file for file in files if hasattr(file, "replacement")]


def quantized_class(module: nn.Module) -> type[QLayer] | None:
    """The quantized layer that replaces a float layer: one for its very class, or one that is made
    for a subclass of such a class (layers.subclasses); or None."""
    kind = type(module)
    exact = _exact(kind)
    parent = None if exact is not None else parent_of(kind)
    return exact if parent is None else quantized_subclass(kind, _exact(parent))


_answers: WeakKeyDictionary[type, type[QLayer] | None] = WeakKeyDictionary()


def _exact(kind: type) -> type[QLayer] | None:
    """The quantized layer for float layers of exactly this class, or None."""
    if kind not in _answers:
        request = (file.replacement(kind) for file in _files())
        _answers[kind] = next((each for each in request if each is not None), None)
    return _answers[kind]


def replacement(kind: type) -> type[QLayer] | None:
    """The quantized layer in this file for a float layer of exactly this class, or None."""
    if kind in (nn.Linear, NonDynamicallyQuantizableLinear):  # the latter in MultiheadAttention
        return QLinear
    tables: dict[type, type[QLayer]] = {nn.Embedding: QEmbedding, nn.EmbeddingBag: QEmbeddingBag}
    return QTransposedLinear if _is_conv1d(kind) else tables.get(kind)


# Products with a matrix.


class QLinear(QLayer):
    """y = x @ weight.T + bias with weight [out_features, in_features]."""

    def __init__(self, weight: QWeight, bias: nn.Parameter | None, scheme: Scheme):
        super().__init__(weight, bias, scheme)
        self.out_features, self.in_features = weight.shape

    def forward(self, x: Tensor) -> Tensor:
        """x [..., in_features] -> [..., out_features]."""
        if x.shape[-1] != self.in_features:
            raise ValueError(f"expected an input [..., {self.in_features}], found {tuple(x.shape)}")
        x = self.prepare_input(x)
        weight: Any = self._modules["weight"]  # as an attribute it is looked for in four places
        y = linear(x, weight.operand, self.added_bias(), self.of_input(x))
        return self.finish_output(y)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}"


class QTransposedLinear(QLinear):
    """In place of transformers' Conv1D, whose weight is [in_features, out_features].

    The codes lie as in QLinear, [out_features, in_features], so that blocks run along the sum.
    """

    layout = "transposed"

    def __init__(self, weight: QWeight, bias: nn.Parameter | None, scheme: Scheme):
        super().__init__(weight, bias, scheme)
        self.in_features, self.out_features = weight.shape
        self.nx, self.nf = weight.shape  # Conv1D's own names


class Conv1D(nn.Module):
    """What transformers calls Conv1D: y = x @ weight + bias with weight [inputs, outputs]. For
    programs, whose readers need not have transformers; the parameters are set afterwards."""

    weight: Tensor
    bias: Tensor | None

    def __init__(self, outputs: int, inputs: int):
        super().__init__()
        self.nf, self.nx = outputs, inputs
        self.register_parameter("weight", None)
        self.register_parameter("bias", None)

    def forward(self, x: Tensor) -> Tensor:
        """x [..., inputs] -> [..., outputs]."""
        rows, bias = x.reshape(-1, self.nx), self.bias
        y = rows @ self.weight if bias is None else torch.addmm(bias, rows, self.weight)
        return y.reshape(*x.shape[:-1], self.nf)

    def extra_repr(self) -> str:
        return f"nf={self.nf}, nx={self.nx}"


def _is_conv1d(kind: type) -> bool:
    """Transformers' Conv1D, without importing transformers, or the one of programs."""
    is_transformers = kind.__name__ == "Conv1D" and kind.__module__.startswith("transformers.")
    return is_transformers or kind is Conv1D


# Rows of a matrix, which is a table.


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
        return self.finish_output(embedding(weight.operand, indices, weight.dtype))

    def extra_repr(self) -> str:
        return f"{self.num_embeddings}, {self.embedding_dim}"


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
        return self.finish_output(y)

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
