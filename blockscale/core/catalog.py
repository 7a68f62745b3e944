# SPDX-License-Identifier: BSD-3-Clause
"""The named formats. One line adds one: its tests, its documentation and its command follow."""

import difflib
import re

# what spellings are made of, to guess what a wrong one means
WORDS = (
    "tensor", "channel", "token", "group", "tile", "block", "flat",
    "int", "uint", "int8", "int4", "uint8", "uint4", "ternary", "binary", "nf4", "fp4", "iq4_nl",
    "e4m3", "e5m2", "e3m2", "e2m3", "e2m1", "fp32", "fp16", "bf16", "e8m0", "pow2",
    "floor", "ceil", "rceil", "even", "tosa", "nearest", "given", "inv",
    "asym", "full", "half", "signed", "recip", "offset",
    "nearest_even", "nearest_away", "toward_zero", "down", "up", "stochastic",
)  # fmt: skip


def nearest_names(text: str) -> list[str]:
    """The named format that differs from `text` in case, spaces and signs only, or at most three
    that are similar, the nearest first."""
    same = [name for name in CATALOG if _bare(name) == _bare(text)]
    return same or difflib.get_close_matches(text.lower(), CATALOG, 3, 0.4)


def nearest_spellings(text: str) -> list[str]:
    """What a spelling may have been meant to be, likeliest first; none of it need be a format."""
    plain = re.sub(r"\s", "", text).lower()
    whole = re.sub(r"[a-z][a-z_0-9]*", lambda word: _nearest(word[0], ""), plain)
    parted = re.sub(
        r"([a-z][a-z_0-9]*?)([0-9]*)(?![a-z_0-9])", lambda w: _nearest(*w.groups()), plain
    )
    return [each for each in (plain, whole, parted) if each != text]


def _nearest(word: str, number: str) -> str:
    """A word as it is if spellings are made of such, else the nearest one, with its number."""
    if {word + number, word, re.sub(r"[0-9]+$", "", word)} & set(WORDS):
        return word + number
    return next(iter(difflib.get_close_matches(word, WORDS, 1, 0.6)), word) + number


def _bare(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())


CATALOG: dict[str, str] = {
    "int8": "int8:tensor:fp32",
    "int8_channel": "int8:channel0:fp32",
    "int8_token": "int8:token:fp32",
    "int8_pow2": "int8:tensor:pow2/nearest",
    "int16": "int16:tensor:fp32",
    "uint8": "uint8:tensor:fp32:asym",
    "uint16": "uint16:tensor:fp32:asym",
    "int4": "int4:group128:fp32",
    "uint4": "uint4:group128:fp32:asym",
    "int2": "int2:group64:fp32",
    "nf4": "nf4:group64:fp32",
    "ternary": "ternary:channel0:fp32",
    "binary": "binary:channel0:fp32",
    "log4": "log4:channel0:fp32",
    "fp8": "e4m3:tensor:fp32",
    "fp8_e5m2": "e5m2:tensor:fp32",
    "mxfp8": "e4m3:group32:e8m0/floor",
    "mxfp8_e5m2": "e5m2:group32:e8m0/floor",
    "mxfp6": "e3m2:group32:e8m0/floor",
    "mxfp6_e2m3": "e2m3:group32:e8m0/floor",
    "mxfp4": "e2m1:group32:e8m0/floor",
    "mxint8": "int8:group32:e8m0/floor",
    "nvfp4": "e2m1:group16:e4m3",
    "bfp8": "int8:group64:e8m0/floor",
    "bfp16": "int16:group64:e8m0/floor",
}
