# SPDX-License-Identifier: BSD-3-Clause
"""A rotation of neighbouring features of a layer's input by a Walsh-Hadamard matrix."""

from collections.abc import Mapping

import torch
from torch import Tensor

from blockscale.core.arithmetic import philox
from blockscale.layers.before.before import Before, BufferSpecs
from blockscale.ops.seed import seed_tensor


class Rotate(Before):
    """x' = H (s * x), w' = H (s * w), for each `size` features: H is a Walsh-Hadamard matrix.

    size: a power of two that divides features, at least 2.
    signs: s [features] of +1 and -1 (int8), or None for all +1; see `random_signs`.

    H has the entries ±1 and H H = size. Of that size, x' takes 2^-floor(p/2) and w' 2^-ceil(p/2),
    with size = 2^p, so that scaling rounds nothing. H is orthonormal so for even p, and
    orthonormal times the square root of 2 (1/2 for w') for odd p: a factor that every element of a
    tensor has moves its scales and nothing else. Sums are added in pairs, in one order everywhere.

    Raises ValueError for another size or other signs.
    """

    name = "rotate"
    SPELLINGS = "rotate:SIZE, rotate:SIZE:signs"

    signs: Tensor | None

    def __init__(self, features: int, size: int, signs: Tensor | None = None):
        super().__init__()
        if size < 2 or size & (size - 1) or features < 1 or features % size:
            raise ValueError(
                f"expected a power of two of at least 2 that divides {features} features, found "
                f"{size}"
            )
        if signs is not None and (
            signs.dtype != torch.int8
            or tuple(signs.shape) != (features,)
            or not bool((signs.abs() == 1).all())
        ):
            raise ValueError(f"expected signs [{features}] of +1 and -1 in int8, found {signs}")
        self.features, self.size = features, size
        self.fmt = f"{self.name}:{size}" + ":signs" * (signs is not None)
        self.register_buffer("signs", None if signs is None else signs.clone())

    @classmethod
    def stored_buffers(cls, settings: str | None, features: int) -> BufferSpecs | None:
        size, colon, signs = (settings or "").partition(":")
        digits = size.isdecimal() and len(size) < 10 and str(int(size)) == size
        if not digits or (colon and signs != "signs"):
            return None
        cls(features, int(size))  # raises ValueError if the size does not fit
        return {"signs": (torch.int8, (features,))} if signs else {}

    @classmethod
    def restore(cls, settings: str | None, features: int, buffers: Mapping[str, Tensor]) -> Before:
        return cls(features, int((settings or "").partition(":")[0]), buffers.get("signs"))

    def forward(self, x: Tensor) -> Tensor:
        """x [..., features] -> H (s * x), rounded once to x's dtype."""
        return self._rotated(self._signed(self._input(x)), self._power // 2).to(x.dtype)

    def to_weight(self, weight: Tensor) -> Tensor:
        """[n, k] -> H (s * weight)."""
        signed = self._signed(self._weight(weight))
        return self._rotated(signed, self._power - self._power // 2).reshape(weight.shape)

    def from_weight(self, weight: Tensor) -> Tensor:
        """[n, k] -> s * (H weight)."""
        rotated = self._rotated(self._weight(weight), self._power // 2)
        return self._signed(rotated).reshape(weight.shape)

    @property
    def _power(self) -> int:
        return self.size.bit_length() - 1

    def _signed(self, x: Tensor) -> Tensor:
        return x if self.signs is None else x * self.signs

    def _rotated(self, x: Tensor, halvings: int) -> Tensor:
        return walsh_hadamard(x, self.size) * 2.0**-halvings


def walsh_hadamard(x: Tensor, size: int) -> Tensor:
    """x [..., k] -> H x for each `size` elements of the last dimension, H of +1 and -1, not scaled.

    The fast transform: log2(size) passes, in each the sum and the difference of two elements.
    H is symmetric: H[i, j] is -1 to the number of bits that i and j have in common (Sylvester's).
    """
    half = 1
    while half < size:
        pairs = x.reshape(*x.shape[:-1], x.shape[-1] // (2 * half), 2, half)
        a, b = pairs.unbind(-2)
        x = torch.stack((a + b, a - b), -2).reshape(x.shape)
        half *= 2
    return x


def random_signs(features: int, seed: int) -> Tensor:
    """[features] of +1 and -1 in int8, each as likely, from Philox: the same everywhere.

    Raises TypeError for a seed that is no int.
    """
    cpu = torch.device("cpu")
    numbers = philox.uniform(torch.Size([features]), seed_tensor(seed, cpu), cpu)
    return torch.where(numbers < 0.5, -1, 1).to(torch.int8)
