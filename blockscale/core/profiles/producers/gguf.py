# SPDX-License-Identifier: BSD-3-Clause
"""ggml's quantizers, those of llama.cpp and the gguf package, without an importance matrix.

Source: ggml-quants.c (commit d99724f2), `ggml_quantize_chunk`. Versions are those of gguf. Where a
compiler fuses multiplications and additions (blockscale.core.profiles.encoders), ggml's
own bytes of q2_k to q6_k, iq4_nl and iq4_xs differ from these.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from blockscale.core.elements.codebook import Codebook
from blockscale.core.format import Format
from blockscale.core.parse import parse
from blockscale.core.profiles import ggml
from blockscale.core.profiles.encoders import (
    SUPER,
    EncodedBlocks,
    by_super_block,
    first_largest,
    half,
    nearest_int,
    ordered_sum,
)
from blockscale.core.profiles.ggml import NOTHING, KType, Trials
from blockscale.core.profiles.knobs import Profile
from blockscale.core.reference import QParams, widen
from blockscale.core.rounding import nearest_even
from blockscale.core.scales import TwoLevel

# ggml's IQ4_NL and IQ4_XS: the scale whose codes of a table fit best, of 16 (ggml-quants.c).


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

    def _super_block(self, x: Tensor, fmt: Format) -> EncodedBlocks:
        scales = self._scales(x, fmt).reshape(-1, SUPER // x.shape[0])
        top, _ = first_largest(scales.T)
        d = (-top / 32).unsqueeze(-1)
        scale_codes = nearest_int(_inverse(d) * scales).clamp(-32, 31)
        step = (d * scale_codes).flatten()  # d before its cast to fp16
        return EncodedBlocks(_codes(x, _inverse(step), fmt), scale_codes, half(d))

    def _scales(self, x: Tensor, fmt: Format) -> Tensor:
        """x [n, blocks] -> the best scale of each block [blocks]"""
        element = fmt.element
        assert isinstance(element, Codebook)
        largest, size = first_largest(x)
        nothing = size < NOTHING
        top = torch.where(nothing, 1.0, largest)
        weights = x * x

        def trial(inverse: Tensor) -> tuple[Tensor, Tensor]:
            values = element.decode(_codes(x, inverse, fmt))
            weighted = weights * values
            product, square = ordered_sum(torch.stack([weighted * x, weighted * values], 1))
            return product, square

        first = torch.full_like(top, element.table[0])
        product, square = trial((-top / first).reciprocal())
        scale = torch.where(square > 0, product / square, 0.0)
        best = scale * product
        for k in range(-_TRIALS, _TRIALS + 1):
            product, square = trial((first + k) / top)
            better = (square > 0) & (product * product > best * square)
            scale = torch.where(better, product / square, scale)
            best = torch.where(better, scale * product, best)
        return torch.where(nothing, 0.0, scale)


def _inverse(scales: Tensor) -> Tensor:
    return torch.where(scales == 0, 0.0, scales.reciprocal())


def _codes(x: Tensor, inverse: Tensor, fmt: Format) -> Tensor:
    return fmt.element.encode(x * inverse, nearest_even, None, False)


_VERSION = "0.19.0"
_ROWS = {"q1_0": 128, "q2_0": 64, "tq1_0": 256, "tq2_0": 256, "nvfp4": 64, "iq4_xs": 256} | (
    dict.fromkeys(("q2_k", "q3_k", "q4_k", "q5_k", "q6_k"), 256)
)
# llama-quantize's types for rows that are no whole blocks of 256 (llama-quant.cpp)
_FALLBACKS = {
    "q2_k": "q4_0", "q3_k": "q4_0", "q4_k": "q5_0", "q5_k": "q5_1", "q6_k": "q8_0",
    "tq1_0": "q4_0", "tq2_0": "q4_0", "q2_0": "q4_0", "iq4_xs": "iq4_nl",
}  # fmt: skip
_SIX = "(uint6:group8:fp16):offset(uint6:group8:fp16)"
# name: (format, the largest code of a scale, the search where there are minimums)
_K_TYPES = {
    "q2_k": (
        "uint2:group16:(uint4:group16:fp16):offset(uint4:group16:fp16)",
        15,
        Trials(3, -0.5, 0.1, 15, absolute=True),
    ),
    "q3_k": ("int3:group16:(int6:group16:fp16)", 32, None),
    "q4_k": (f"uint4:group32:{_SIX}", 63, Trials(15, -1.0, 0.1, 20, absolute=False)),
    "q5_k": (f"uint5:group32:{_SIX}", 63, Trials(31, -0.5, 0.1, 15, absolute=False)),
    "q6_k": ("int6:group16:(int8:group16:fp16)", 128, None),
}


_UNROUNDED = {"least": 0.0, "before_cast": True, "reciprocal": True}
_FROM_LARGEST = {"sign": "largest", "search": "half_up_add", **_UNROUNDED}


def _rule_profiles() -> Iterator[Profile]:
    yield _profile(
        "q8_0", "int8:group32:fp16:full", levels=127.0, search="nearest_away", **_UNROUNDED
    )
    yield _profile("q4_0", "int4:group32:fp16:full", levels=-8.0, **_FROM_LARGEST)
    yield _profile("q5_0", "int5:group32:fp16:full", levels=-16.0, **_FROM_LARGEST)
    for name, spelling, encoder in (
        ("q4_1", "uint4:group32:fp16:offset", ggml.with_minimum),
        ("q5_1", "uint5:group32:fp16:offset", ggml.with_minimum),
        ("q1_0", "binary:group128:fp16", ggml.signs),
        ("q2_0", "uint2:group64:fp16:asym", ggml.ternary),
        ("tq1_0", "ternary:group256:fp16", ggml.ternary),
        ("tq2_0", "ternary:group256:fp16", ggml.ternary),
        ("mxfp4", "e2m1:group32:e8m0/given", ggml.mxfp4),
        ("nvfp4", "e2m1:group16:e4m3", ggml.nvfp4),
    ):
        yield _profile(name, spelling, encoder=encoder)


def _search_profiles() -> Iterator[Profile]:
    for name, (spelling, levels, trials) in _K_TYPES.items():
        yield _profile(name, spelling, encoder=KType(levels, trials))
    yield _profile("iq4_nl", "iq4_nl:group32:fp16", encoder=IQ4())
    yield _profile("iq4_xs", "iq4_nl:group32:(int6:group8:fp16)", encoder=IQ4())


def _profile(name: str, spelling: str, **rules: object) -> Profile:
    return Profile(
        name=f"gguf.{name}",
        version=_VERSION,
        format=parse(spelling),
        multiple=_ROWS.get(name, 32),
        fallback=f"gguf.{_FALLBACKS[name]}" if name in _FALLBACKS else "",
        **rules,  # type: ignore[arg-type]
    )


PROFILES = (*_rule_profiles(), *_search_profiles())
