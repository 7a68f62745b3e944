"""What a quantized layer does to its input before it quantizes it, undone in its weight.

A Before maps the input x [..., k] to x' and the weight w [n, k] to w' so that x' @ w'.T is x @ w.T
up to float rounding, and x' and w' quantize better than x and w. A convolution's input has its
channels last for it, and its weight in the stored layout has k channels for each kernel position.
"""

from abc import abstractmethod
from collections.abc import Mapping

import torch
from torch import Tensor

from blockscale.core import philox, reference
from blockscale.layers.store import _Buffers
from blockscale.ops.seed import seed_tensor

Kinds = dict[str, tuple[torch.dtype, tuple[int, ...]]]  # {buffer: its dtype and shape}


class Before(_Buffers):
    """A map of inputs [..., features], and what it asks of weights. All arithmetic is float32.

    fmt: its spelling, which files carry: `scale`, `rotate:SIZE` or `rotate:SIZE:signs`.
    """

    features: int

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """x [..., features] -> x' of the same shape and dtype."""

    @abstractmethod
    def to_weight(self, weight: Tensor) -> Tensor:
        """The weight [n, k] of x, k a multiple of features -> the one of x', in float32."""

    @abstractmethod
    def from_weight(self, weight: Tensor) -> Tensor:
        """What `to_weight` gave -> the weight of x, in float32."""

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


class Scale(Before):
    """x' = x * factor, w' = w / factor, for each feature.

    factor [features] float32, finite and above 0. Powers of two change no bit of a float's
    mantissa: then x' and w' are exact, short of overflow and of subnormal numbers.

    Raises ValueError for other factors.
    """

    factor: Tensor

    def __init__(self, factor: Tensor):
        super().__init__()
        wanted = factor.ndim == 1 and factor.numel() and factor.dtype == torch.float32
        if not wanted or not bool(((factor > 0) & factor.isfinite()).all()):
            raise ValueError(
                f"expected a factor [features] of finite float32 numbers above 0, found "
                f"{str(factor.dtype).removeprefix('torch.')} {tuple(factor.shape)}: {factor}"
            )
        self.features, self.fmt = factor.shape[0], "scale"
        self.register_buffer("factor", factor.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        """x [..., features] -> x * factor, rounded once to x's dtype."""
        return (self._input(x) * self.factor).to(x.dtype)

    def to_weight(self, weight: Tensor) -> Tensor:
        """[n, k] -> weight / factor."""
        return (self._weight(weight) / self.factor).reshape(weight.shape)

    def from_weight(self, weight: Tensor) -> Tensor:
        """[n, k] -> weight * factor."""
        return (self._weight(weight) * self.factor).reshape(weight.shape)


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
        self.fmt = f"rotate:{size}" + ":signs" * (signs is not None)
        self.register_buffer("signs", None if signs is None else signs.clone())

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
    """[features] of +1 and -1 in int8, each as likely, from Philox: the same everywhere."""
    cpu = torch.device("cpu")
    drawn = philox.uniform(torch.Size([features]), seed_tensor(seed, cpu), cpu)
    return torch.where(drawn < 0.5, -1, 1).to(torch.int8)


def kinds(fmt: str, features: int) -> Kinds:
    """{buffer: dtype and shape} of the Before spelled `fmt` for `features` features.

    Raises ValueError for a spelling that there is not, or that does not fit.
    """
    if fmt == "scale":
        return {"factor": (torch.float32, (features,))}
    name, _, rest = fmt.partition(":")
    size, colon, signs = rest.partition(":")
    digits = size.isdecimal() and len(size) < 10 and str(int(size)) == size
    if name != "rotate" or not digits or (colon and signs != "signs"):
        raise ValueError(f"no transform {fmt!r}; there are scale, rotate:SIZE, rotate:SIZE:signs")
    Rotate(features, int(size))  # raises if the size does not fit
    return {"signs": (torch.int8, (features,))} if signs else {}


def restore(fmt: str, features: int, buffers: Mapping[str, Tensor]) -> Before:
    """The Before spelled `fmt` with these buffers. Raises ValueError where they do not fit."""
    kinds(fmt, features)
    if fmt == "scale":
        return Scale(buffers["factor"])
    return Rotate(features, int(fmt.split(":")[1]), buffers.get("signs"))
