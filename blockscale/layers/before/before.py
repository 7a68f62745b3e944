# SPDX-License-Identifier: BSD-3-Clause
"""What every Before shares: a change of a layer's input that is undone in its weight."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from blockscale.core import reference
from blockscale.layers.buffers import Buffers

BufferSpecs = dict[str, tuple[torch.dtype, tuple[int, ...]]]  # {buffer: its dtype and shape}


class Before(Buffers):
    """A map of inputs [..., features], and what it asks of weights. All arithmetic is float32.

    It takes the input x [..., k] to x' and the weight w [n, k] to w' so that x' @ w'.T is x @ w.T
    up to float rounding, and x' and w' quantize better than x and w. A convolution's input has its
    channels last for it, and its weight in the stored layout has k channels for each kernel
    position.

    name: the kind, which is the name of its file.
    SPELLINGS: how its kinds are spelled, as error messages tell it.
    fmt: the spelling of one, which files carry: its name, or its name, a colon and its settings.
    """

    name: ClassVar[str]
    SPELLINGS: ClassVar[str]

    features: int

    @classmethod
    @abstractmethod
    def stored_buffers(cls, settings: str | None, features: int) -> BufferSpecs | None:
        """{buffer: dtype and shape} of the one with these settings, for `features` features.

        settings: what stands behind `name:` in the spelling; None for the name alone.

        None for settings that this kind does not have. Raises ValueError for settings that do not
        fit the number of features.
        """

    @classmethod
    @abstractmethod
    def restore(
        cls, settings: str | None, features: int, buffers: Mapping[str, Tensor]
    ) -> "Before":
        """The one with these settings and buffers, which are as `stored_buffers` says.

        Raises ValueError for values that do not fit.
        """

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """x [..., features] -> x' of the same shape and dtype.

        Raises ValueError for another last dimension, TypeError unless x is float32, bfloat16 or
        float16.
        """

    @abstractmethod
    def to_weight(self, weight: Tensor) -> Tensor:
        """The weight [n, k] of x, k a multiple of features -> the one of x', in float32.

        Raises ValueError for another shape.
        """

    @abstractmethod
    def from_weight(self, weight: Tensor) -> Tensor:
        """What `to_weight` gave -> the weight of x, in float32. Raises as that."""

    @property
    def nbytes(self) -> int:
        """Bytes of the buffers."""
        return sum(buffer.nbytes for buffer in self.buffers())

    def _input(self, x: Tensor) -> Tensor:
        """x in float32. Raises ValueError for another last dimension, TypeError for a dtype."""
        if x.ndim == 0 or x.shape[-1] != self.features:
            raise ValueError(f"expected an input [..., {self.features}], found {tuple(x.shape)}")
        return reference.widen(x)

    def _weight(self, weight: Tensor) -> Tensor:
        """[n, k] -> [n, k / features, features] in float32."""
        if weight.ndim != 2 or weight.shape[-1] % self.features:
            raise ValueError(
                f"expected a weight [n, k] with k a multiple of {self.features}, found "
                f"{tuple(weight.shape)}"
            )
        count = weight.shape[-1] // self.features
        return reference.widen(weight).reshape(weight.shape[0], count, self.features)

    def extra_repr(self) -> str:
        return f"'{self.fmt}', features={self.features}"
