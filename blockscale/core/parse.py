"""Read a format from its name or spelling (docs/numerics.md, section 1)."""

import difflib
import re
from functools import cache

from blockscale.core.block import read_block
from blockscale.core.catalog import CATALOG
from blockscale.core.elements import read_element
from blockscale.core.format import Format, Scale
from blockscale.core.rounding import ROUNDINGS
from blockscale.core.scale import FLOAT_SCALES, RULES, SHORT_INNER, PowerOfTwo, TwoLevel

_GRAMMAR = "element:block:scale[:option...], e.g. e2m1:group32:e8m0/floor"
_OPTIONS = ("asym", "full", "half", "recip", *ROUNDINGS)
_HARDWARE_ROUNDINGS = {"N": "nearest_even", "U": "up", "D": "down", "S": "stochastic"}


def parse(text: str | Format) -> Format:
    """The format that `text` names or spells; a Format is returned as it is.

    Raises ValueError that says which part is unknown and what there is, TypeError for no text.
    """
    if isinstance(text, Format):
        return text
    if not isinstance(text, str):
        raise TypeError(f"a format is a Format or its spelling, not {type(text).__name__}")
    return _constant(text.strip())


def _constant(text: str) -> Format:
    return _parse(text)


# Dynamo runs it while it traces instead of tracing the parser; torch.compiler's decorator does the
# same, but imports all of torch._dynamo to do it.
_constant._dynamo_marked_constant = True  # type: ignore[attr-defined]


@cache
def _parse(text: str) -> Format:
    if text in CATALOG:
        return spell(CATALOG[text])
    if bfp := re.fullmatch(r"bfp([0-9]+)(?:x([1-9][0-9]*))?", text):
        return _bfp(text, int(bfp[1]), int(bfp[2] or 64))
    if bfp := re.fullmatch(r"BFP\[([0-9]+)\|([0-9]+)\]\{([0-9]+)\}(?:\(([S_])([NUDS])\))?", text):
        return _hardware_bfp(text, *bfp.groups())
    if ":" not in text:
        close = difflib.get_close_matches(text, CATALOG, 3, 0.4)
        hint = f"did you mean {', '.join(close)}? " if close else ""
        raise ValueError(
            f"no format {text!r}: {hint}named formats are {', '.join(CATALOG)}; "
            f"any other is spelled {_GRAMMAR}"
        )
    try:
        return spell(text)
    except ValueError as error:
        reason = str(error).removeprefix(f"{text}: ")
        raise ValueError(f"{text!r}: {reason}") from None


def spell(text: str) -> Format:
    """The format spelled out in full as `text`. Raises ValueError about the part that is wrong."""
    parts = re.findall(r"\([^()]*\)|[^:()]+", text)
    if ":".join(parts) != text or len(parts) < 3:
        raise ValueError(f"a format is spelled {_GRAMMAR}")
    element, block, scale, *options = parts
    for option in options:
        if option not in _OPTIONS:
            raise ValueError(f"no option {option!r}; there are {', '.join(_OPTIONS)}")
    spans = [option for option in options if option in ("full", "half")]
    roundings = [option for option in options if option in ROUNDINGS]
    if len(set(options)) < len(options) or len(spans) > 1 or len(roundings) > 1:
        raise ValueError(f"options {':'.join(options)} repeat or contradict each other")
    return Format(
        read_element(element),
        read_block(block),
        _read_scale(scale),
        "asym" in options,
        spans[0] if spans else "",
        "recip" in options,
        roundings[0] if roundings else "nearest_even",
    )


def _read_scale(text: str) -> Scale:
    if text in FLOAT_SCALES:
        return FLOAT_SCALES[text]
    if text in SHORT_INNER:
        return TwoLevel(spell(f"{text}:tensor:fp32"))
    if text.startswith("("):
        return TwoLevel(spell(text[1:-1]))
    kind, slash, rule = text.partition("/")
    if kind not in ("e8m0", "pow2"):
        kinds = f"{', '.join(FLOAT_SCALES)}, e4m3, e5m2, e8m0[/RULE], pow2/RULE, (FORMAT)"
        raise ValueError(f"no scale {text!r}; there are {kinds}")
    if kind == "e8m0" and not slash:
        rule = "floor"  # OCP MX 1.0, section 6.3
    if rule not in RULES:
        raise ValueError(f"scale {text!r}: no rule {rule!r}; there are {', '.join(RULES)}")
    return PowerOfTwo(rule, kind == "e8m0")


def _bfp(text: str, bits: int, size: int, options: str = "") -> Format:
    if not 2 <= bits <= 16:
        raise ValueError(f"{text!r}: a mantissa has 2 to 16 bits with its sign, not {bits}")
    return spell(f"int{bits}:group{size}:e8m0/floor{options}")


def _hardware_bfp(text: str, bits: str, exponent: str, size: str, span: str, mode: str) -> Format:
    """`BFP[8|8]{64}(SN)`: mantissa bits, exponent bits, block, symmetric or not, rounding."""
    if exponent != "8":
        raise ValueError(f"{text!r}: a shared exponent has 8 bits, not {exponent}")
    if int(size) < 1:
        raise ValueError(f"{text!r}: a block has at least 1 element")
    rounding = _HARDWARE_ROUNDINGS[mode or "N"]
    options = (":full" if span == "_" else "") + (
        "" if rounding == "nearest_even" else f":{rounding}"
    )
    return _bfp(text, int(bits), int(size), options)


def formats() -> dict[str, Format]:
    """The named formats, in the catalogue's order."""
    return {name: spell(text) for name, text in CATALOG.items()}
