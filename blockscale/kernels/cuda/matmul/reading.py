# SPDX-License-Identifier: BSD-3-Clause
"""How a quantized weight is read: which codes lie in a word, and where scales go."""

import math
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from blockscale.core.block import WHOLE
from blockscale.core.element import ElementNumbers
from blockscale.core.elements.codebook import Codebook
from blockscale.core.format import Format
from blockscale.core.parse import parse
from blockscale.core.scale import FloatScale, PowerOfTwo
from blockscale.core.scales import TwoLevel
from blockscale.kernels.cuda.matmul import ptx
from blockscale.kernels.cuda.matmul.codebook import CodebookParts, nearest_of, parts_of
from blockscale.kernels.cuda.matmul.ptx_pairs import NO_PAIRS, Pairs, pairs, six
from blockscale.kernels.cuda.spec import Spec, spec
from blockscale.kernels.numbers import lower

WORD = 32
SIGNIFICAND = 8  # bits of a bfloat16's
SMALLEST_TILE = 16  # words along k
SMALLEST_BLOCK = 16  # codes whose sums can have their own scale: what a tensor core takes at once
_SUMS = 64  # units that the op allows sums; of all of k: k / 8 (docs/numerics.md, 7)
_NOT_KNOWN = 256  # bits, more than any number here has


@dataclass(frozen=True)
class Reading:
    """A weight [n, k] as rows of words. Frozen and hashable: Triton compiles once for each.

    planes: codes in a word; the i-th of each is one matrix for the tensor cores. 0 where codes or
        blocks do not lie in words: then the weight is decoded to memory
    fold: how the scales of blocks become bfloat16 factors of the codes, exactly: "bytes" (e8m0),
        "floats" (pow2), "codes" (a minifloat under an outer scale); "" if they do not
    width: codes of a block along k; 0 where a row has one scale, which the sums are multiplied by.
        Without `fold`, the sums of each block are multiplied by its scale
    words: of a block, where it has planes
    height: rows of a block, 0 for all
    zero: whether there are zero points, one for each scale
    decode, registers, decode_scale: PTX (ptx.py) and what it takes
    pairs: the same for few rows (ptx_pairs.py)
    lift: what PTX leaves to multiply the sums by
    further: how the other parts of a table are read, whose products are added (codebook/parts.py)
    multiplier: what the values of the parts are too large by
    """

    spec: Spec
    planes: int
    fold: str
    width: int
    words: int
    height: int
    zero: bool
    decode: str = ""
    registers: str = ""
    decode_scale: str = ""
    pairs: Pairs = NO_PAIRS
    lift: float = 1.0
    further: tuple["Reading", ...] = ()
    multiplier: float = 1.0

    @property
    def element(self) -> ElementNumbers:
        """The numbers of the codes."""
        return self.spec.element

    @property
    def per_block(self) -> bool:
        """Whether the sums of each block get its scale."""
        return bool(self.width) and not self.fold

    @property
    def small_blocks(self) -> bool:
        """Whether the sums of blocks have scales, and blocks are less than what few.py sums up."""
        return self.per_block and self.words < SMALLEST_TILE

    @property
    def six_bits(self) -> bool:
        """Whether codes are 6 bits that kernels read from words: 32 in six words, of one scale."""
        return not self.planes and bool(self.pairs.program)


@cache
def reading(spelling: str, k: int) -> Reading | None:
    """How to read rows of k codes, or None where neither codes nor what their scales make of them
    are bfloat16, or blocks with scales of their own are too small."""
    fmt = parse(spelling)
    numbers = lower(fmt)
    if numbers is None or fmt.offset is not None or fmt.zero is not None:
        return None
    if numbers.element.family == "codebook":
        return _in_parts(fmt, k, parts_of(numbers.element))
    return _reading(fmt, k, spec(spelling)) if is_bfloat16(fmt) else None


@cache
def reading_as_one(spelling: str, k: int) -> Reading | None:
    """How to read rows of k codes of a table as one bfloat16 each, for results that hide what is
    lost; None where it is not hidden."""
    parts = nearest_of(spec(spelling).element, max(_SUMS, k / 8))
    return None if parts is None else _in_parts(parse(spelling), k, parts)


def _in_parts(fmt: Format, k: int, parts: CodebookParts) -> Reading | None:
    """The Reading of a format whose elements are a table: of its first part, with the others."""
    numbers = spec(fmt.spelling)
    each = [replace(numbers, element=replace(numbers.element, values=t)) for t in parts.tables]
    attempts = [_reading(fmt, k, one) for one in each]
    readings = tuple(one for one in attempts if one is not None)
    if len(readings) < len(attempts):
        return None
    return replace(readings[0], further=readings[1:], multiplier=parts.multiplier)


def _reading(fmt: Format, k: int, numbers: Spec) -> Reading | None:
    """The Reading of a format whose elements are these bfloat16."""
    height, width = fmt.block.sizes_for(2)
    width = 0 if width == WHOLE or width >= k else width
    fold = _fold(fmt, numbers) if width else ""
    if fmt.bits > WORD // 4 or not k or not (fold or _whole_rows(fmt, width)):
        return None
    planes = WORD // fmt.bits if _in_words(fmt, k, width, fold) else 0
    return Reading(
        spec=numbers,
        planes=planes,
        fold=fold,
        width=width,
        words=width // planes if planes else 0,
        height=0 if height == WHOLE else height,
        zero=fmt.asym,
        **(_programs(fold, numbers, _zeros(fmt, width)) if planes else _six(fmt, k, fold, numbers)),
    )


def through_memory(r: Reading) -> Reading:
    """The same for codes that do not lie in words: they are decoded to memory."""
    return replace(r, planes=0, further=tuple(map(through_memory, r.further)))


def _whole_rows(fmt: Format, width: int) -> bool:
    """Whether scales can meet the sums of codes: of rows, or of blocks that are large enough."""
    return not width or (isinstance(fmt.scale, FloatScale) and width % SMALLEST_BLOCK == 0)


def _in_words(fmt: Format, k: int, width: int, fold: str) -> bool:
    """Whether rows and blocks are whole words, and blocks fill tiles or divide them."""
    bits, table = fmt.bits, isinstance(fmt.element, Codebook)
    if bits not in ((4,) if table else (1, 2, 4, 8)) or k * bits % WORD or width * bits % WORD:
        return False
    words = width * bits // WORD
    return not words & (words - 1) and not (fmt.asym and fold)


def _fold(fmt: Format, numbers: Spec) -> str:
    scale = fmt.scale
    if isinstance(scale, PowerOfTwo):
        return "bytes" if scale.byte else "floats"
    if isinstance(scale, TwoLevel):
        assert numbers.inner is not None
        small = significand(numbers.element) + significand(numbers.inner)
        if fmt.asym:
            return ""
        last = scale.inner.block.name in ("tensor", "token")  # it meets the sums of a row
        last = last and numbers.inner.family == "minifloat"
        return "codes" if last and scale.inner.bits == WORD // 4 and small <= SIGNIFICAND else ""
    return ""


def is_bfloat16(fmt: Format) -> bool:
    """Whether every value of the format's element is a bfloat16, as far as is known here."""
    numbers = lower(fmt)
    return numbers is not None and significand(numbers.element) <= SIGNIFICAND


def significand(element: ElementNumbers) -> int:
    """Bits of the largest odd factor of a value; too many, of a family that is not known."""
    if element.family == "integer":
        return int(max(-element.low, element.high) - 1).bit_length()
    if element.family in ("minifloat", "binary"):
        return element.mbits + 1
    return _NOT_KNOWN


def _six(fmt: Format, k: int, fold: str, numbers: Spec) -> dict[str, Any]:
    """The PTX of a Reading of 6-bit codes that few rows can read: whole words, 32 to a scale."""
    width = fmt.block.sizes_for(2)[1]
    by_rows = width == WHOLE or width >= k
    powers = fold in ("bytes", "floats") and width % 32 == 0
    plain = not (fmt.asym or isinstance(fmt.element, Codebook))
    if fmt.bits != 6 or k % 16 or not plain or not (by_rows or powers):
        return {}
    scale = ptx.decode_exponents(numbers.fraction_bits) if fold == "bytes" else ""
    return {"pairs": six(numbers.element, powers), "decode_scale": scale}


def _zeros(fmt: Format, width: int) -> str:
    """How few rows take zero points: of small blocks, as they are."""
    small = 0 < width * fmt.bits < SMALLEST_TILE * WORD and fmt.bits < WORD // 4
    return ("zero" if small else "offset") if fmt.asym else ""


def _programs(fold: str, numbers: Spec, zeros: str) -> dict[str, Any]:
    """The PTX of a Reading. Where small floats can leave their bias to the scale, they do: it
    costs a multiplication for each block then, not for each element."""
    e = numbers.element
    gap = 127 - e.bias
    programs: dict[str, Any] = {"registers": ptx.constraints(WORD // e.bits, 2)}
    small = e.family == "minifloat" and e.bits < WORD // 4 and gap > 0
    if fold == "codes":
        assert numbers.inner is not None
        down = math.frexp(numbers.inner.high)[1] if small else 0  # or 2^gap would be too large
        lift = gap - down if small else 0
        return programs | {
            "decode": ptx.decode_words(e, 0 if small else None),
            "pairs": pairs(e, 0 if small else None, "scale", False),
            "decode_scale": ptx.decode_bytes(numbers.inner, lift),
            "lift": 2.0**down,
        }
    last = "scale" if fold else zeros
    programs["decode"] = ptx.decode_words(e)
    programs["pairs"] = pairs(e, None, last, fold == "bytes")
    if fold == "bytes":
        programs["decode_scale"] = ptx.decode_exponents(numbers.fraction_bits)
    return programs
