# SPDX-License-Identifier: BSD-3-Clause
"""Read a format from its name or spelling (docs/numerics.md, section 1)."""

import difflib
import re
from dataclasses import replace
from functools import lru_cache

from blockscale.core.block import read_block
from blockscale.core.elements import read_element
from blockscale.core.format import Format, Scale
from blockscale.core.rounding import ROUNDINGS
from blockscale.core.scale import FLOAT_SCALES, GIVEN, RULES, FloatScale, PowerOfTwo
from blockscale.core.scales import FOUR_SIX, SHORT_INNER, CodeScale, Offset, TwoLevel
from blockscale.core.untrusted import QUOTED, kind_of, quote, shown

# what spellings are made of, to guess what a wrong one means
WORDS = (
    "tensor", "channel", "token", "group", "tile", "block", "flat",
    "int", "uint", "int8", "int4", "uint8", "uint4", "ternary", "binary", "nf4", "fp4", "iq4_nl",
    "e4m3", "e5m2", "e3m2", "e2m3", "e2m1", "ue5m3", "ue4m3", "fp32", "fp16", "bf16",
    "e8m0", "pow2",
    "floor", "ceil", "rceil", "even", "tosa", "nearest", "given", "inv", "four_six",
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
    with_colons = re.sub(
        r"([a-z][a-z_0-9]*?)([0-9]*)(?![a-z_0-9])", lambda w: _nearest(*w.groups()), plain
    )
    return [each for each in (plain, whole, with_colons) if each != text]


def _nearest(word: str, number: str) -> str:
    """A word as it is if spellings are made of such, else the nearest one, with its number."""
    if {word + number, word, re.sub(r"[0-9]+$", "", word)} & set(WORDS):
        return word + number
    return next(iter(difflib.get_close_matches(word, WORDS, 1, 0.6)), word) + number


def _bare(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())


# The named formats. One line adds one: its tests, its documentation and its command follow.
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
    "nvfp4_token": "e2m1:group16:(e4m3:token:fp32)",
    "nvfp4_e5m3": "e2m1:group16:ue5m3",
    "bfp8": "int8:group64:e8m0/floor",
    "bfp16": "int16:group64:e8m0/floor",
}
_NAMES = {spelling: name for name, spelling in CATALOG.items()}


def display_name(fmt: object) -> str:
    """What people read of a format: `nvfp4` for `e2m1:group16:e4m3`.

    fmt: a format, or a text with spellings in it, as formats write them ("int4:group32:fp32, input
    int8:token:fp32"). Formats that the catalogue does not name stay as they are.
    """
    return re.sub(r"[^\s,]+", lambda word: _NAMES.get(word[0], word[0]), str(fmt))


LONGEST = 10_000  # characters of a spelling: a book of 256 values has half as many
_DEEPEST = 8  # parentheses in each other
_KEPT = 4096  # spellings that are remembered
_HINTED = 200  # characters of a text that is compared with spellings that may have been meant
_GRAMMAR = "element:block:scale[:option...], e.g. e2m1:group32:e8m0/floor"
SPANS = ("full", "half", "signed")
_OPTIONS = ("asym", *SPANS, "recip", "offset", *ROUNDINGS)
# as dmx-compressor writes them: {size} or {size,dimension}, (symmetry and rounding)
_BRACES = r"\{(?P<size>[0-9]{1,10})(?:,(?P<dim>-?[0-9]{1,9}))?\}"
_HARDWARE_BFP = (
    rf"BFP\[(?P<bits>[0-9]{{1,9}})\|(?P<exponent>[0-9]{{1,9}})\]{_BRACES}"
    r"(?:\((?P<span>[SN_]?)(?P<mode>[NUDS])\))?"
)
_HARDWARE_MX = (
    r"MX(?:FP(?P<bits>[0-9]{1,9})\[E(?P<e>[0-9]{1,9})M(?P<m>[0-9]{1,9})\]"
    rf"|INT(?P<integer>[0-9]{{1,9}})){_BRACES}"
)
_HARDWARE_ROUNDINGS = {"N": "nearest_even", "U": "up", "D": "down", "S": "stochastic"}


def parse(text: str | Format) -> Format:
    """The format that `text` names or spells; a Format is returned as it is.

    Raises ValueError that says which part is unknown and what there is, TypeError for no text.
    """
    if isinstance(text, Format):
        return text
    if not isinstance(text, str):
        raise TypeError(f"expected a Format or its spelling, found {kind_of(text)}")
    if len(text) > LONGEST:
        raise ValueError(
            f"the spelling {quote(text)} is too long: at most {LONGEST:,} characters, such as "
            f"{_GRAMMAR}"
        )
    return _constant(text.strip())


def _constant(text: str) -> Format:
    return _parse(text)


# Dynamo runs it while it traces instead of tracing the parser; torch.compiler's decorator does the
# same, but imports all of torch._dynamo to do it.
_constant._dynamo_marked_constant = True  # type: ignore[attr-defined]


@lru_cache(maxsize=_KEPT)
def _parse(text: str) -> Format:
    if text in CATALOG:
        return spell(CATALOG[text])
    if bfp := re.fullmatch(r"bfp([0-9]{1,9})(?:x([1-9][0-9]{0,9}))?", text):
        return _bfp(text, int(bfp[1]), int(bfp[2] or 64))
    for pattern, read in ((_HARDWARE_BFP, _hardware_bfp), (_HARDWARE_MX, _hardware_mx)):
        if match := re.fullmatch(pattern, text):
            return read(match)
    if ":" not in text:
        close = nearest_names(text) if len(text) <= _HINTED else []
        hint = f"did you mean {', '.join(close)}? " if close else ""
        raise ValueError(
            f"unknown format {quote(text)}: {hint}named formats are {', '.join(CATALOG)}; "
            f"others are spelled {_GRAMMAR}"
        )
    try:
        return spell(text)
    except ValueError as error:
        reason = str(error).removeprefix(f"{text}: ")
        near = nearest_spellings(text) if len(text) <= _HINTED else []
        nearest = next(filter(is_spelling, near), "")
        hint = f"did you mean {nearest}? " if nearest else ""
        raise ValueError(f"{quote(text)}: {hint}{reason}") from None


def is_spelling(text: str) -> bool:
    """Whether it names or spells a format."""
    try:
        return text in CATALOG or bool(spell(text))
    except ValueError:
        return False


def spell(text: str) -> Format:
    """The format spelled out in full as `text`. Raises ValueError about the part that is wrong."""
    parts = _split(text)
    if len(parts) < 3 or not all(map(_well_formed, parts)):
        raise ValueError(f"a format is spelled {_GRAMMAR}")
    element, block, scale, *options = parts
    by_name = dict(_option(option) for option in options)
    spans = [option for option in by_name if option in SPANS]
    roundings = [option for option in by_name if option in ROUNDINGS]
    if len(by_name) < len(options) or len(spans) > 1 or len(roundings) > 1:
        raise ValueError(
            f"options {shown(':'.join(options), QUOTED)} repeat or contradict each other"
        )
    without = Format(
        read_element(element),
        read_block(block),
        _read_scale(scale),
        "asym" in by_name,
        spans[0] if spans else "",
        "recip" in by_name,
        roundings[0] if roundings else "nearest_even",
        _float_type(by_name["asym"]) if by_name.get("asym") else None,
    )
    if "offset" not in by_name:
        return without
    return replace(without, offset=_read_offset(by_name["offset"], without))


def _split(text: str) -> list[str]:
    """The parts of a spelling: between colons that are not inside of parentheses."""
    parts, depth = [""], 0
    for character in text:
        depth += (character == "(") - (character == ")")
        if depth < 0:
            raise ValueError(f"unbalanced parenthesis, closed and not opened: {quote(text)}")
        if depth > _DEEPEST:
            raise ValueError(f"more than {_DEEPEST} nested parentheses: {quote(text)}")
        if character == ":" and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    if depth:
        raise ValueError(f"unbalanced parenthesis, opened and not closed: {quote(text)}")
    return parts


def _well_formed(part: str) -> bool:
    """Whether there are parentheses around all of a part, or around what follows its name."""
    return bool(re.fullmatch(r"[^()]+|[^()]*\(.*\)(/[a-z_]+)*", part))


def _option(text: str) -> tuple[str, str]:
    """An option, and what stands in parentheses behind it."""
    name, parenthesis, inside = text.partition("(")
    if name not in _OPTIONS or (
        parenthesis and (name not in ("asym", "offset") or inside[-1:] != ")")
    ):
        raise ValueError(f"unknown option {quote(text)}; choose from {', '.join(_OPTIONS)}")
    if parenthesis and inside == ")":
        raise ValueError(f"option {quote(text)}: a type is missing between the parentheses")
    return name, inside[:-1]


def _float_type(text: str) -> FloatScale:
    if text not in FLOAT_SCALES:
        raise ValueError(f"unknown type {quote(text)}; choose from {', '.join(FLOAT_SCALES)}")
    return FLOAT_SCALES[text]


def _read_offset(text: str, fmt: Format) -> Offset[Format]:
    """`offset`, `offset(TYPE)`, `offset(BLOCK:TYPE)` or `offset(FORMAT)`."""
    parts = _split(text)
    if len(parts) > 2:
        return Offset(spell(text))
    block = read_block(parts[0]) if len(parts) == 2 else None
    return Offset(_float_type(parts[-1]) if text else fmt.own_type, block)


def _read_scale(text: str) -> Scale:
    if text in FLOAT_SCALES:
        return FLOAT_SCALES[text]
    levels = text.removesuffix(f"/{GIVEN}")
    is_given, without_rule = levels != text, levels.removesuffix(f"/{FOUR_SIX}")
    rule, levels = FOUR_SIX if without_rule != levels else "", without_rule.removesuffix("/inv")
    inverse = levels != without_rule
    if levels in SHORT_INNER:
        return TwoLevel(spell(f"{levels}:tensor:fp32"), inverse, is_given, rule)
    if levels.startswith("(") and levels.endswith(")"):
        return TwoLevel(spell(levels[1:-1]), inverse, is_given, rule)
    if re.fullmatch(r"ue[0-9]+m[0-9]+(?:r[0-9]+)?", text):
        return CodeScale(read_element(text))
    kind, slash, rule = text.partition("/")
    if kind not in ("e8m0", "pow2"):
        kinds = (
            f"{', '.join(FLOAT_SCALES)}, e4m3, e5m2, ueXmY, e8m0[/RULE], pow2/RULE, "
            "(FORMAT)[/inv][/four_six][/given]"
        )
        raise ValueError(f"unknown scale {quote(text)}; choose from {kinds}")
    if kind == "e8m0" and not slash:
        rule = "floor"  # OCP MX 1.0, section 6.3
    if rule not in (*RULES, GIVEN):
        choices = ", ".join((*RULES, GIVEN))
        raise ValueError(f"scale {quote(text)}: unknown rule {quote(rule)}; choose from {choices}")
    return PowerOfTwo(rule, kind == "e8m0")


def _check_mantissa(text: str, bits: int) -> None:
    if not 2 <= bits <= 16:
        raise ValueError(
            f"{quote(text)}: a mantissa must have 2 to 16 bits with its sign, got {bits}"
        )


def _bfp(text: str, bits: int, size: int) -> Format:
    _check_mantissa(text, bits)
    return spell(f"int{bits}:group{size}:e8m0/floor")


def _hardware_bfp(match: re.Match[str]) -> Format:
    """`BFP[8|8]{64,-1}(SN)`: mantissa bits, exponent bits, block and its dimension, symmetric (S)
    or not (_ or N), rounding."""
    text = match[0]
    if match["exponent"] != "8":
        raise ValueError(
            f"{quote(text)}: a shared exponent must have 8 bits, got {match['exponent']}"
        )
    rounding = _HARDWARE_ROUNDINGS[match["mode"] or "N"]
    options = ":full" * (match["span"] in ("_", "N"))
    options += f":{rounding}" * (rounding != "nearest_even")
    _check_mantissa(text, int(match["bits"]))
    return spell(f"int{match['bits']}:{_hardware_block(match)}:e8m0/floor{options}")


def _hardware_mx(match: re.Match[str]) -> Format:
    """`MXFP8[E4M3]{32}` and `MXINT8{32}`: bits, exponent and mantissa bits, block."""
    text, e, m = match[0], match["e"], match["m"]
    if match["integer"]:
        return spell(f"int{match['integer']}:{_hardware_block(match)}:e8m0/floor")
    bits = 1 + int(e) + int(m)
    if bits != int(match["bits"]):
        raise ValueError(
            f"{quote(text)}: a sign, {e} exponent and {m} mantissa bits make {bits} bits, "
            f"got {match['bits']}"
        )
    return spell(f"e{e}m{m}:{_hardware_block(match)}:e8m0/floor")


def _hardware_block(match: re.Match[str]) -> str:
    if int(match["size"]) < 1:
        raise ValueError(f"{quote(match[0])}: a block must have at least 1 element")
    return f"group{int(match['size'])}" + (f"@{match['dim']}" if match["dim"] else "")


def formats() -> dict[str, Format]:
    """The named formats, in the catalogue's order."""
    return {name: spell(text) for name, text in CATALOG.items()}
