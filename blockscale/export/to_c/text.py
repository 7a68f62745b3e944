# SPDX-License-Identifier: BSD-3-Clause
"""Pieces of C: loops, arrays of numbers, and the functions that sums end in."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

# Values of an integer graph as C has them: arrays, and where in an array each element lies.
#
# A value that moves have made is a tensor of places, int64 [its shape]: (number of the array << 40)
# +
# index in it; what padding fills in is the number itself, which is far smaller. So every move of
# torch is run, on places, as it is.

_APART = 40
_FILL = 2 ** (_APART - 1)  # numbers below this magnitude stand for themselves

C_TYPES = {
    torch.int8: "int8_t",
    torch.uint8: "uint8_t",
    torch.bool: "uint8_t",
    torch.int16: "int16_t",
    torch.int32: "int32_t",
    torch.int64: "int64_t",
}


@dataclass(eq=False)
class Array:
    """An array of the C file.

    kind: "input", "output", "constant", or "arena" for what the plan of memory places
    first, last: the steps that write it first and read it last
    """

    name: str
    kind: str
    dtype: torch.dtype
    size: int
    number: int
    first: int = 0
    last: int = -1
    offset: int = 0

    @property
    def ctype(self) -> str:
        """What C calls an element."""
        return C_TYPES[self.dtype]

    @property
    def nbytes(self) -> int:
        """Of all elements."""
        return self.size * self.dtype.itemsize

    def places(self, shape: Sequence[int]) -> Tensor:
        """Where the elements of a contiguous value of this shape lie."""
        return (torch.arange(self.size) + (self.number << _APART)).reshape(tuple(shape))


@dataclass(frozen=True)
class Access:
    """Elements of an array at offset + strides · indices; shape: how many there are."""

    array: Array
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def contiguous(self) -> bool:
        """Whether it is the whole array, in order."""
        return self.offset == 0 and self.strides == strides_of(self.shape)

    def at(self, indices: Sequence[str]) -> str:
        """The C expression of an index in the array."""
        terms = [str(self.offset)] if self.offset else []
        for index, stride, size in zip(indices, self.strides, self.shape, strict=True):
            if size > 1 and stride and index != "0":
                simple = index.isidentifier()
                terms.append((index if simple else f"({index})") + f" * {stride}" * (stride != 1))
        return " + ".join(terms) or "0"


def strides_of(shape: Sequence[int]) -> tuple[int, ...]:
    """Of a contiguous array; 0 where there is one element."""
    return tuple(0 if n == 1 else prod(shape[i + 1 :]) for i, n in enumerate(shape))


def numbers(places: Tensor) -> Tensor:
    """The number of each place's array, 0 for what stands for itself."""
    return (places + _FILL) >> _APART


def indices(places: Tensor) -> Tensor:
    """The index of each place in its array."""
    return places - (numbers(places) << _APART)


def affine(places: Tensor) -> tuple[int, tuple[int, ...]] | None:
    """Offset and strides of indices that have some, None for others."""
    offset, strides, expected = int(places.flatten()[0]), [], None
    for dim, size in enumerate(places.shape):
        first = places[(0,) * dim]
        stride = int(first[(1, *[0] * (places.ndim - dim - 1))]) - offset if size > 1 else 0
        strides.append(stride)
        along = (torch.arange(size) * stride).reshape(-1, *[1] * (places.ndim - dim - 1))
        expected = along if expected is None else expected + along
    same = expected is None or torch.equal(offset + expected, places)
    return (offset, tuple(strides)) if same else None


def nested(pairs: Tensor) -> tuple[list[int], list[int], list[list[int]]] | None:
    """Pairs of indices [count, 2] as nested loops -> the first pair, the loops' sizes from the
    outermost, and by how much a turn of each goes on; None where none are found."""
    sizes: list[int] = []
    steps: list[list[int]] = []
    rest = pairs
    while len(rest) > 1:
        step = rest[1] - rest[0]
        same = (rest[1:] - rest[:-1] == step).all(1).tolist()
        count = 1 + (same.index(False) if False in same else len(same))
        if len(rest) % count:
            return None
        rows = rest.reshape(-1, count, 2)
        if not bool((rows[:, 1:] - rows[:, :-1] == step).all()):
            return None
        sizes.insert(0, count)
        steps.insert(0, step.tolist())
        rest = rows[:, 0]
    return rest[0].tolist(), sizes, steps


_WIDTH = 100

_FLOOR = """\
/* floor(x / 2^n), n from 0 to 62: C leaves it open what >> makes of a negative number */
static int64_t floor_shift(int64_t x, int32_t n)
{
    return x >= 0 ? x >> n : ~(~x >> n);
}"""

_WITHIN = """\
static int64_t within(int64_t x, int64_t low, int64_t high)
{
    return x < low ? low : x > high ? high : x;
}"""

_LEFT = """\
/* x * 2^-shift for shifts of at most 0 */
static int64_t shifted_left(int64_t x, int32_t shift)
{
    return x * ((int64_t)1 << (shift < -31 ? 31 : -shift));
}"""

_NEAR = """\
/* sums that are shifted left saturate any code from 2^17 on */
static int64_t near_codes(int64_t x, int32_t shift)
{
    return shift < 0 ? within(x, -131072, 131072) : x;
}"""

_ROUNDED = """\
/* x * 2^-shift, rounded: {rounding} */
static int64_t rounded_{rounding}(int64_t x, int32_t shift)
{{
    int64_t down, rest, half;
    if (shift <= 0) {{
        return shifted_left(x, shift);
    }}
    shift = shift > 62 ? 62 : shift;
    down = floor_shift(x, shift);
    rest = x - down * ((int64_t)1 << shift);
    half = ((int64_t)1 << shift) >> 1;
    (void)half;
    return down + ({up});
}}"""

_DIVIDED = """\
/* x / half, rounded: {rounding}; half > 0 */
static int64_t divided_{rounding}(int64_t x, int64_t half)
{{
    int64_t down = x / half - (x % half < 0), rest = 2 * (x - down * half);
    return down + ({up});
}}"""

_UP = {
    "nearest_even": "rest > half || (rest == half && down % 2 != 0)",
    "nearest_away": "rest > half || (rest == half && down >= 0)",
    "half_up": "rest >= half",
    "toward_zero": "rest > 0 && down < 0",
    "down": "rest < 0",
    "up": "rest > 0",
}

_ROOT = """\
/* floor(sqrt(x)), x below 2^62 */
static int64_t square_root(int64_t x)
{
    int64_t root = 0, tried;
    int32_t bit;
    for (bit = 30; bit >= 0; bit--) {
        tried = root + ((int64_t)1 << bit);
        root = tried * tried <= x ? tried : root;
    }
    return root;
}"""

_BITS = """\
static int32_t bit_length(int64_t x)
{
    int32_t n = 0;
    for (; x > 0; x >>= 1) {
        n++;
    }
    return n;
}"""

_HELPERS = {
    "floor_shift": _FLOOR,
    "within": _WITHIN,
    "shifted_left": _LEFT,
    "near_codes": _NEAR,
    **{f"rounded_{r}": _ROUNDED.format(rounding=r, up=up) for r, up in _UP.items()},
    **{f"divided_{r}": _DIVIDED.format(rounding=r, up=up) for r, up in _UP.items()},
    "square_root": _ROOT,
    "bit_length": _BITS,
}


def helpers(text: str) -> list[str]:
    """The functions that a text calls, and those that they call, in the order of definitions."""
    names: set[str] = set()
    parts = [text]
    while parts:
        part = parts.pop()
        for name, body in _HELPERS.items():
            if name not in names and f"{name}(" in part:
                names.add(name)
                parts.append(body)
    return [body for name, body in _HELPERS.items() if name in names]


_LOWEST = -(2**63)


def number(value: int) -> str:
    """A C expression of an int64: the lowest has no literal."""
    return "(-9223372036854775807 - 1)" if value == _LOWEST else str(value)


def initializer_lines(values: Tensor) -> list[str]:
    """A C initializer's lines, each as long as it may be."""
    whole = values.flatten().to(torch.int64).tolist()
    text = f" {repr(whole)[1:-1]}," if whole else ""
    text = text.replace(str(_LOWEST), number(_LOWEST))
    lines, at = [], 0
    while len(text) - at > _WIDTH - 3:
        end = text.rindex(",", at, at + _WIDTH - 3) + 1
        lines.append(f"   {text[at:end]}")
        at = end
    return [*lines, f"   {text[at:]}"]


def loops(sizes: Sequence[int], prefix: str = "i") -> tuple[list[str], list[str], list[str]]:
    """Nested loops -> the names of their indices ("0" where there is one turn), heads, ends."""
    names = ["0" if n == 1 else f"{prefix}{at}" for at, n in enumerate(sizes)]
    turns = [(name, n) for name, n in zip(names, sizes, strict=True) if n != 1]
    return names, [head(name, n) for name, n in turns], ["}"] * len(turns)


def head(name: str, count: int | str) -> str:
    """A loop's first line."""
    return f"for (int32_t {name} = 0; {name} < {count}; {name}++) {{"


def indent(lines: Iterable[str]) -> list[str]:
    """Lines of a function's body, by their braces."""
    depth, results = 1, []
    for line in lines:
        depth -= line.startswith("}")
        results.append("    " * depth + line)
        depth += line.endswith("{")
    return results
