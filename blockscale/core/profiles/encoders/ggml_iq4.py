"""ggml's IQ4_NL and IQ4_XS: the scale whose codes of a table fit best, of 16 (ggml-quants.c)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from blockscale.core.elements.codebook import Codebook
from blockscale.core.format import Format
from blockscale.core.profiles.encoders.compiled import nearest_int, ordered_sum
from blockscale.core.profiles.encoders.ggml_search import NOTHING
from blockscale.core.profiles.encoders.largest import first_largest
from blockscale.core.profiles.encoders.super_blocks import SUPER, Parts, by_super_block, half
from blockscale.core.reference import QParams, widen
from blockscale.core.rounding import nearest_even
from blockscale.core.scales.two_level import TwoLevel

_TRIALS = 7  # on either side


@dataclass(frozen=True)
class IQ4:
    """An encoder of x [..., n] for iq4_nl under an fp16 scale, or under one of 6 bits."""

    def __call__(self, x: Tensor, fmt: Format) -> tuple[Tensor, QParams]:
        if isinstance(fmt.scale, TwoLevel):
            return by_super_block(x, fmt, self._super_block)
        [(_, size)] = fmt.block.sizes
        numbers = widen(x).reshape(-1, size).T.contiguous()
        scales = self._scales(numbers, fmt)
        codes = _codes(numbers, _inverse(scales), fmt)
        shape = fmt.stored(x.shape)["scale"][1]
        return codes.T.reshape(x.shape), QParams(half(scales).reshape(shape))

    def _super_block(self, x: Tensor, fmt: Format) -> Parts:
        scales = self._scales(x, fmt).reshape(-1, SUPER // x.shape[0])
        top, _ = first_largest(scales.T)
        d = (-top / 32).unsqueeze(-1)
        scale_codes = nearest_int(_inverse(d) * scales).clamp(-32, 31)
        step = (d * scale_codes).flatten()  # d before its cast to fp16
        return Parts(_codes(x, _inverse(step), fmt), scale_codes, half(d))

    def _scales(self, x: Tensor, fmt: Format) -> Tensor:
        """x [n, blocks] -> the best scale of each block [blocks]"""
        element = fmt.element
        assert isinstance(element, Codebook)
        largest, size = first_largest(x)
        nothing = size < NOTHING
        top = torch.where(nothing, 1.0, largest)
        weights = x * x

        def tried(inverse: Tensor) -> tuple[Tensor, Tensor]:
            values = element.decode(_codes(x, inverse, fmt))
            weighted = weights * values
            product, square = ordered_sum(torch.stack([weighted * x, weighted * values], 1))
            return product, square

        first = torch.full_like(top, element.table[0])
        product, square = tried((-top / first).reciprocal())
        scale = torch.where(square > 0, product / square, 0.0)
        best = scale * product
        for k in range(-_TRIALS, _TRIALS + 1):
            product, square = tried((first + k) / top)
            better = (square > 0) & (product * product > best * square)
            scale = torch.where(better, product / square, scale)
            best = torch.where(better, scale * product, best)
        return torch.where(nothing, 0.0, scale)


def _inverse(scales: Tensor) -> Tensor:
    return torch.where(scales == 0, 0.0, scales.reciprocal())


def _codes(x: Tensor, inverse: Tensor, fmt: Format) -> Tensor:
    return fmt.element.encode(x * inverse, nearest_even, None, False)
