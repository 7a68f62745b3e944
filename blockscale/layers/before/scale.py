# SPDX-License-Identifier: BSD-3-Clause
"""A factor for each feature of a layer's input, taken out of its weight again."""

from collections.abc import Mapping

import torch
from torch import Tensor

from blockscale.layers.before.before import Before, BufferSpecs


class Scale(Before):
    """x' = x * factor, w' = w / factor, for each feature.

    factor [features] float32, finite and above 0. Powers of two change no bit of a float's
    mantissa: then x' and w' are exact, short of overflow and of subnormal numbers.

    Raises ValueError for other factors.
    """

    name = "scale"
    SPELLINGS = "scale"

    factor: Tensor

    def __init__(self, factor: Tensor):
        super().__init__()
        fits = factor.ndim == 1 and factor.numel() and factor.dtype == torch.float32
        if not fits or not bool(((factor > 0) & factor.isfinite()).all()):
            raise ValueError(
                f"expected a factor [features] of finite float32 numbers above 0, found "
                f"{str(factor.dtype).removeprefix('torch.')} {tuple(factor.shape)}: {factor}"
            )
        self.features, self.fmt = factor.shape[0], self.name
        self.register_buffer("factor", factor.detach().clone())

    @classmethod
    def stored_buffers(cls, settings: str | None, features: int) -> BufferSpecs | None:
        return {"factor": (torch.float32, (features,))} if settings is None else None

    @classmethod
    def restore(cls, settings: str | None, features: int, buffers: Mapping[str, Tensor]) -> Before:
        del settings, features
        return cls(buffers["factor"])

    def forward(self, x: Tensor) -> Tensor:
        """x [..., features] -> x * factor, rounded once to x's dtype."""
        return (self._input(x) * self.factor).to(x.dtype)

    def to_weight(self, weight: Tensor) -> Tensor:
        """[n, k] -> weight / factor."""
        return (self._weight(weight) / self.factor).reshape(weight.shape)

    def from_weight(self, weight: Tensor) -> Tensor:
        """[n, k] -> weight * factor."""
        return (self._weight(weight) * self.factor).reshape(weight.shape)
