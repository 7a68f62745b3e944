"""How the tile kernel reads a quantized weight: which codes lie in a word, and where scales go."""

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

from blockscale.core.block import WHOLE
from blockscale.core.element import Element
from blockscale.core.elements.integer import Integer
from blockscale.core.elements.minifloat import Minifloat
from blockscale.core.format import Format
from blockscale.core.parse import parse
from blockscale.core.scale import FloatScale, PowerOfTwo, TwoLevel
from blockscale.kernels.cuda import linear_asm
from blockscale.kernels.cuda.spec import ElementNumbers, Spec, spec

WORD = 32
SIGNIFICAND = 8  # bits of a bfloat16's
SMALLEST_TILE = 16  # words along k: what a tensor core takes at once


@dataclass(frozen=True)
class Reading:
    """A weight [n, k] as rows of words. Frozen and hashable: Triton compiles once for each.

    planes: codes in a word; the i-th of each is one matrix for the tensor cores
    fold: how the scales of blocks become bfloat16 factors of the codes, exactly: "bytes" (e8m0),
        "floats" (pow2), "codes" (a minifloat under an outer scale); "" if they do not
    words: of a block along k; 0 where a row has one scale, which the sums are multiplied by.
        Without `fold`, the sums of each block are multiplied by its scale
    height: rows of a block, 0 for all
    zero: whether there are zero points, one for each scale
    decode, registers, decode_scale: PTX (linear_asm) and what it takes
    lift: what PTX leaves to multiply the sums by
    """

    spec: Spec
    planes: int
    fold: str
    words: int
    height: int
    zero: bool
    decode: str
    registers: str
    decode_scale: str
    lift: float = 1.0

    @property
    def element(self) -> ElementNumbers:
        """The numbers of the codes."""
        return self.spec.element

    @property
    def per_block(self) -> bool:
        """Whether the sums of each block get its scale."""
        return bool(self.words) and not self.fold


@cache
def reading(spelling: str, k: int) -> Reading | None:
    """How to read rows of k codes, or None where words, scales or values do not allow it."""
    fmt = parse(spelling)
    bits = fmt.bits
    if bits not in (1, 2, 4, 8) or k * bits % WORD or not k:
        return None
    height, width = fmt.block.sizes_for(2)
    rowwise = width == WHOLE or width >= k
    words = 0 if rowwise else width * bits // WORD
    if not rowwise and not _whole_tiles(fmt, words):
        return None
    fold = _fold(fmt) if words else ""
    numbers = spec(spelling)
    return Reading(
        spec=numbers,
        planes=WORD // bits,
        fold=fold,
        words=words,
        height=0 if height == WHOLE else height,
        zero=fmt.asym,
        registers=linear_asm.constraints(WORD // bits, 2),
        **_programs(fold, numbers),
    )


def _whole_tiles(fmt: Format, words: int) -> bool:
    """Whether blocks are whole words, and fill tiles or divide them."""
    width = fmt.block.sizes_for(2)[1]
    if width * fmt.bits % WORD or words & (words - 1):
        return False
    if _fold(fmt):
        return not fmt.asym
    return isinstance(fmt.scale, FloatScale) and words >= SMALLEST_TILE


def _fold(fmt: Format) -> str:
    scale = fmt.scale
    if isinstance(scale, PowerOfTwo):
        return "bytes" if scale.byte else "floats"
    if isinstance(scale, TwoLevel):
        inner = scale.inner
        small = significand(fmt.element, fmt.wide) + significand(inner.element, False)
        one = inner.block.name == "tensor" and isinstance(inner.element, Minifloat)
        return "codes" if one and inner.bits == WORD // 4 and small <= SIGNIFICAND else ""
    return ""


def significand(element: Element, wide: bool) -> int:
    """Bits of the largest odd factor of a value."""
    if isinstance(element, Minifloat):
        return element.mbits + 1
    if isinstance(element, Integer):
        return int(max(abs(v) for v in element.limits(wide)) - 1).bit_length()
    return 1


def _programs(fold: str, numbers: Spec) -> dict[str, Any]:
    """The PTX of a Reading. Where small floats can leave their bias to the scale, they do: it
    costs a multiplication for each block then, not for each element."""
    e = numbers.element
    gap = 127 - e.bias
    small = e.family == "minifloat" and e.bits < WORD // 4 and gap > 0
    if fold == "codes":
        assert numbers.inner is not None
        down = math.frexp(numbers.inner.high)[1] if small else 0  # or 2^gap would be too large
        lift = gap - down if small else 0
        return {
            "decode": linear_asm.decode_words(e, 0 if small else None),
            "decode_scale": linear_asm.decode_bytes(numbers.inner, lift),
            "lift": 2.0**down,
        }
    found: dict[str, Any] = {"decode": linear_asm.decode_words(e), "decode_scale": ""}
    if fold == "bytes":
        found["decode_scale"] = linear_asm.decode_exponents(numbers.fraction_bits)
    return found
