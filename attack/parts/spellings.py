# SPDX-License-Identifier: BSD-3-Clause
"""Spellings of formats: right ones, nearly right ones, and what somebody could hope to break a parser with."""

import random

from attack.part import Case, Found, Part
from blockscale.core.elements import FAMILIES
from blockscale.core.parse import CATALOG, parse

_ELEMENTS = (
    *(name for family in FAMILIES for name in family.EXAMPLES),
    "int1",
    "int99",
    "e9m9",
    "uint0",
)
_BLOCKS = ("tensor", "token", "channel0", "channel-1", "group32", "group16@0", "tile16x16", "group0",
           "group", "tile0x0", "group1@9", "channel99999999999", "group99999999999999999999", "tile1x",
           "group3000000000", "group١٦", "tile2x2@1")  # fmt: skip
_SCALES = ("fp32", "fp16", "bf16", "pow2/floor", "e8m0", "e8m0/even", "e4m3", "e5m2", "pow2", "e8m0/",
           "(uint4:tensor:fp32)", "((int4:group2:e4m3))", "(", ")", "fp64")  # fmt: skip
_OPTIONS = (
    "asym",
    "full",
    "recip",
    "stochastic",
    "nearest_away",
    "offset",
    "zero=fp16",
    "asym",
    "=",
    "",
)
_PIECES = (":", "::", "(", ")", "@", "/", "x", "=", "-", "+", "1e9", "\0", "\n", "\x1b[2J", "[red]", "é",
           "９", " ", "\u202e", "\ud800", "int", "group", "0", "9" * 40, "%s", "{}", "../")  # fmt: skip
_MOST = 2000  # characters of an error


def spelling(rng: random.Random) -> str:
    """Any text that is not far from a spelling."""
    parts = [rng.choice(_ELEMENTS), rng.choice(_BLOCKS), rng.choice(_SCALES)]
    parts += rng.choices(_OPTIONS, k=rng.choice((0, 0, 0, 1, 2)))
    text = ":".join(parts)
    if rng.random() < 0.1:
        text = rng.choice(tuple(CATALOG))
    if rng.random() < 0.05:
        text = f"{parts[0]}:{parts[1]}:({text})"
    for _ in range(rng.choice((0, 0, 1, 1, 2, 5))):
        at = rng.randrange(len(text) + 1)
        cut = at + rng.choice((0, 0, 1, 2, 8))
        text = text[:at] + rng.choice(_PIECES) + text[cut:]
    if rng.random() < 0.0005:
        text = rng.choice(
            ("(" * 5000, "int8:" * 3000, text * 500, "9" * 100_000, f"int8:group{'9' * 5000}:fp32")
        )
    return text


def check(text: str) -> None:
    """A format that is its own spelling's, or an error that a user can read."""
    try:
        fmt = parse(text)
    except ValueError as error:
        said = str(error)
        if len(said) > _MOST:
            raise Found(
                "an error echoes a whole long spelling", f"{len(said)} characters"
            ) from None
        if not said or (type(error) is not ValueError and isinstance(error, UnicodeError)):
            raise Found("an error that is not about the spelling", f"{text!r}: {error!r}") from None
        return
    if parse(fmt.spelling) != fmt:
        raise Found("a format is not what its spelling says", f"{text!r} -> {fmt.spelling!r}")


def case(case: Case) -> None:
    text = spelling(case.random())
    try:
        check(text)
    except Found:
        raise
    except Exception as error:
        error.add_note(f"spelling: {text[:300]!r}")
        raise


PARTS = (Part("spellings", "spellings", 10_000_000, case, share=1.5, memory=2 << 30),)
