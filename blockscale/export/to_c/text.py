# SPDX-License-Identifier: BSD-3-Clause
"""Pieces of C: loops, arrays of numbers, and the functions that sums end in."""

from collections.abc import Iterable, Sequence

from torch import Tensor

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
    needed: set[str] = set()
    parts = [text]
    while parts:
        part = parts.pop()
        for name, body in _HELPERS.items():
            if name not in needed and f"{name}(" in part:
                needed.add(name)
                parts.append(body)
    return [body for name, body in _HELPERS.items() if name in needed]


def number(value: int) -> str:
    """A C expression of an int64: the lowest has no literal."""
    return "(-9223372036854775807 - 1)" if value == -(2**63) else str(value)


def listed(values: Tensor) -> list[str]:
    """A C initializer's lines."""
    lines, line = [], "   "
    for each in values.flatten().tolist():
        word = f" {number(int(each))},"
        if len(line) + len(word) > _WIDTH:
            lines.append(line)
            line = "   "
        line += word
    return [*lines, line]


def loops(sizes: Sequence[int], prefix: str = "i") -> tuple[list[str], list[str], list[str]]:
    """Nested loops -> the names of their indices ("0" where there is one turn), heads, ends."""
    names = ["0" if n == 1 else f"{prefix}{at}" for at, n in enumerate(sizes)]
    turns = [(name, n) for name, n in zip(names, sizes, strict=True) if n != 1]
    return names, [head(name, n) for name, n in turns], ["}"] * len(turns)


def head(name: str, count: int | str) -> str:
    """A loop's first line."""
    return f"for (int32_t {name} = 0; {name} < {count}; {name}++) {{"


def indented(lines: Iterable[str]) -> list[str]:
    """Lines of a function's body, by their braces."""
    depth, made = 1, []
    for line in lines:
        depth -= line.startswith("}")
        made.append("    " * depth + line)
        depth += line.endswith("{")
    return made
