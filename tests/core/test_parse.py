# SPDX-License-Identifier: BSD-3-Clause
"""One spelling for each format, which reads back; errors say what was found and what there is."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blockscale.core import elements
from blockscale.core import parse as parsing
from blockscale.core.parse import CATALOG, display_name, formats, parse
from blockscale.core.recipe import Recipe
from tests.support.exact import ROUNDINGS, RULES
from tests.support.oracle import split
from tests.support.strategies import spellings

QUICK = settings(max_examples=120, derandomize=True, deadline=None)

# DESIGN.md, section 1: what the names mean does not change.
NAMED = {
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
    "bfp8": "int8:group64:e8m0/floor",
}


@pytest.mark.parametrize("name", NAMED)
def test_named_formats(name: str) -> None:
    assert str(parse(name)) == NAMED[name]
    assert formats()[name] == parse(NAMED[name])


@pytest.mark.parametrize("name", CATALOG)
def test_the_catalogue_reads_back(name: str) -> None:
    fmt = parse(name)
    assert parse(str(fmt)) == fmt
    assert parse(fmt) is fmt
    assert str(fmt) == CATALOG[name]  # the catalogue itself is written canonically
    assert repr(fmt) == f"Format('{fmt}')"
    assert hash(parse(str(fmt))) == hash(fmt)


@pytest.mark.slow
@QUICK
@given(st.integers(0, 4).flatmap(spellings))
def test_canonical_spellings_read_back(spelling: str) -> None:
    fmt = parse(spelling)
    assert str(fmt) == spelling
    assert parse(str(fmt)) == fmt


@pytest.mark.slow
@QUICK
@given(st.integers(0, 4).flatmap(spellings), st.randoms(use_true_random=False))
def test_options_come_in_any_order(spelling: str, random) -> None:
    head, options = split(spelling)[:3], split(spelling)[3:]
    if not set(options) & set(ROUNDINGS) and not spelling.startswith("binary"):
        options.append("nearest_even")
    random.shuffle(options)
    assert str(parse(":".join([*head, *options]))) == spelling


@pytest.mark.parametrize(
    ("spelled", "canonical"),
    [
        (" mxfp4 ", "e2m1:group32:e8m0/floor"),
        ("e2m1:group32:e8m0", "e2m1:group32:e8m0/floor"),
        ("e4m3r1:tensor:fp32", "e4m3:tensor:fp32"),
        ("e5m2r4:tensor:fp32", "e5m2:tensor:fp32"),
        ("e2m1r0:tensor:fp32", "e2m1:tensor:fp32"),
        ("e4m3r0:tensor:fp32", "e4m3r0:tensor:fp32"),
        ("e2m1:group16@-1:e4m3", "e2m1:group16:e4m3"),
        ("e2m1:group16:(e4m3:tensor:fp32)", "e2m1:group16:e4m3"),
        ("e2m1:group16:(e5m2r4:tensor:fp32)", "e2m1:group16:e5m2"),
        ("e2m1:group16:(e4m3:group4:fp32)", "e2m1:group16:(e4m3:group4:fp32)"),
        ("int4:group32:(uint4:channel0:fp32)", "int4:group32:(uint4:channel0:fp32)"),
        ("int8:tensor:fp32:up:recip:half", "int8:tensor:fp32:half:recip:up"),
        ("uint8:channel-1:bf16:stochastic:asym", "uint8:channel-1:bf16:asym:stochastic"),
    ],
)
def test_canonical_form(spelled: str, canonical: str) -> None:
    assert str(parse(spelled)) == canonical
    assert parse(spelled) == parse(canonical)


@pytest.mark.parametrize(
    ("spelled", "canonical"),
    [
        ("bfp8", "int8:group64:e8m0/floor"),
        ("bfp4x16", "int4:group16:e8m0/floor"),
        ("bfp2", "int2:group64:e8m0/floor"),
        ("bfp16x8", "int16:group8:e8m0/floor"),
        ("BFP[8|8]{64}(SN)", "int8:group64:e8m0/floor"),
        ("BFP[8|8]{64}", "int8:group64:e8m0/floor"),
        ("BFP[4|8]{16}(SU)", "int4:group16:e8m0/floor:up"),
        ("BFP[4|8]{16}(SD)", "int4:group16:e8m0/floor:down"),
        ("BFP[4|8]{16}(SS)", "int4:group16:e8m0/floor:stochastic"),
        ("BFP[8|8]{64}(_N)", "int8:group64:e8m0/floor:full"),
        ("BFP[8|8]{64}(_S)", "int8:group64:e8m0/floor:full:stochastic"),
        ("BFP[8|8]{128}(NU)", "int8:group128:e8m0/floor:full:up"),
        ("BFP[8|8]{128}(N)", "int8:group128:e8m0/floor"),
        ("BFP[8|8]{64,-1}(SN)", "int8:group64:e8m0/floor"),
        ("BFP[8|8]{64,1}(SN)", "int8:group64@1:e8m0/floor"),
        ("MXFP8[E4M3]{32}", "e4m3:group32:e8m0/floor"),
        ("MXFP6[E2M3]{16,1}", "e2m3:group16@1:e8m0/floor"),
        ("MXINT8{32}", "int8:group32:e8m0/floor"),
    ],
)
def test_block_floating_point_shorthands(spelled: str, canonical: str) -> None:
    assert str(parse(spelled)) == canonical


GRAMMAR = "a format is spelled element:block:scale[:option...], e.g. e2m1:group32:e8m0/floor"
ELEMENTS = ("binary", "int2 … int16", "uint1 … uint16", "log2 … log8", "eXmY", "ternary")
BLOCKS = ("tensor", "channelA", "token", "groupN", "groupN@A", "tileRxC")
SCALES = ("fp32, fp16, bf16", "e4m3, e5m2", "e8m0[/RULE]", "pow2/RULE", "(FORMAT)")
PLAIN = "must be plain with an fp32"

# What is wrong -> what the message says besides the spelling itself.
WRONG = {
    "int8:tensor": (GRAMMAR,),
    ":::": (GRAMMAR,),
    "int8::fp32": (GRAMMAR,),
    "int8:tensor:fp32:": (GRAMMAR,),
    "int8:tensor:fp32(x)": ("unknown scale 'fp32(x)'",),
    "int8:tensor:fp32)": ("unbalanced parenthesis, closed and not opened",),
    "int8:tensor:(uint8:tensor:fp32": ("unbalanced parenthesis, opened and not closed",),
    "int8:tensor:(fp32)": (GRAMMAR,),
    "e4m3:tensor:((uint8:tensor:fp32):tensor:fp32)": ("unknown element '(uint8:tensor:fp32)'",),
    "e4m3:tensor:(uint8:tensor:(uint8:tensor:fp32))": (PLAIN, "got uint8:tensor:"),
    "int17:tensor:fp32": ("unknown element 'int17'", *ELEMENTS),
    "int1:tensor:fp32": ("unknown element 'int1'", *ELEMENTS),
    "uint0:tensor:fp32": ("unknown element 'uint0'", *ELEMENTS),
    "int08:tensor:fp32": ("unknown element 'int08'", *ELEMENTS),
    "e4m4:tensor:fp32": ("unknown element 'e4m4'", *ELEMENTS),
    "e1m0:tensor:fp32": ("unknown element 'e1m0'", *ELEMENTS),  # its step of 2 halves subnormals
    "e0m3:tensor:fp32": ("unknown element 'e0m3'", *ELEMENTS),
    "e8m0:tensor:fp32": ("unknown element 'e8m0'", *ELEMENTS),
    "e2m1r7:tensor:fp32": ("unknown element 'e2m1r7'", *ELEMENTS),  # only 0 would remain
    "log9:tensor:fp32": ("unknown element 'log9'", *ELEMENTS),
    "int8:row:fp32": ("unknown block 'row'", *BLOCKS),
    "int8:tensor:fp64": ("unknown scale 'fp64'", *SCALES),
    "int8:tensor:fp32/floor": ("unknown scale 'fp32/floor'", *SCALES),
    "int8:tensor:pow2": ("scale 'pow2': unknown rule ''", *RULES),
    "int8:tensor:e8m0/": ("scale 'e8m0/': unknown rule ''", *RULES),
    "int8:tensor:e8m0/round": ("unknown rule 'round'", *RULES),
    "int8:tensor:fp32:rne": (
        "unknown option 'rne'",
        "asym, full, half, signed, recip",
        *ROUNDINGS,
    ),
    "int8:tensor:fp32:full:half": ("options full:half repeat or contradict",),
    "int8:tensor:fp32:asym:asym": ("options asym:asym repeat or contradict",),
    "int8:tensor:fp32:up:down": ("options up:down repeat or contradict",),
    "int8:tensor:fp32:asym:full": ("full needs a signed integer element without asym",),
    "uint8:tensor:fp32:half": ("half needs a signed integer element without asym",),
    "e4m3:tensor:fp32:full": ("full needs a signed integer element without asym",),
    "ternary:tensor:fp32:full": ("full needs a signed integer element without asym",),
    "e4m3:tensor:fp32:asym": ("asym (a zero point) needs an integer element",),
    "ternary:tensor:fp32:asym": ("asym (a zero point) needs an integer element",),
    "int8:tensor:pow2/floor:half": ("half needs an fp32, fp16 or bf16 scale",),
    "int8:group4:e4m3:half": ("half needs an fp32, fp16 or bf16 scale",),
    "int8:tensor:e8m0:recip": ("recip changes nothing under a power-of-two scale: leave it out",),
    "binary:tensor:fp32:up": ("binary takes the sign, so it takes no rounding: leave that out",),
    "e4m3:tensor:(binary:tensor:fp32)": ("cannot be binary, whose scale is a mean",),
    "e4m3:tensor:(int9:tensor:fp32)": ("at most 8 bits, got 9",),
    "e4m3:tensor:(uint9:tensor:fp32)": ("at most 8 bits, got 9",),
    "e4m3:tensor:(uint8:tensor:pow2/ceil)": (PLAIN, "got uint8:tensor:pow2/ceil"),
    "int8:tensor:fp32:offset(fp8)": ("unknown type 'fp8'; choose from fp32, fp16, bf16",),
    "int8:tensor:fp32:offset()": ("a type is missing between the parentheses",),
    "int8:tensor:fp32:asym:offset": ("replaces the zero point",),
    "int8:tensor:fp32:full:offset": ("replaces the zero point",),
    "binary:tensor:fp32:offset": ("so it takes no offset: leave that out",),
    "int8:tensor:fp32:recip(fp16)": ("unknown option 'recip(fp16)'",),
    "e4m3:tensor:fp32:asym(fp16)": ("asym (a zero point) needs an integer element",),
    "int8:tensor:e8m0/floor:signed": ("signed needs an fp32, fp16 or bf16 scale",),
    "int8:tensor:fp32:offset(uint4:tensor:fp32:asym)": ("the offset's own format must be plain",),
    "int8:tensor:e8m0/inv": ("unknown rule 'inv'",),
    "int8:flat0:fp32": ("unknown block 'flat0'",),
    "int8:block3x0:fp32": ("unknown block 'block3x0'",),
    "e4m3:tensor:(uint8:tensor:fp32:asym)": (PLAIN, "got uint8:tensor:fp32:asym"),
    "e4m3:tensor:(uint8:tensor:e4m3)": (PLAIN, "got uint8:tensor:e4m3"),
    "bfp1": ("a mantissa must have 2 to 16 bits with its sign, got 1",),
    "bfp17x4": ("a mantissa must have 2 to 16 bits with its sign, got 17",),
    "BFP[8|7]{64}(SN)": ("a shared exponent must have 8 bits, got 7",),
    "MXFP8[E4M2]{32}": ("make 7 bits, got 8",),
    "MXFP8[E4M3]{0}": ("at least 1 element",),
    "BFP[8|8]{0}(SN)": ("a block must have at least 1 element",),
    "BFP[1|8]{64}": ("a mantissa must have 2 to 16 bits with its sign, got 1",),
}


@pytest.mark.parametrize("text", WRONG)
def test_errors(text: str) -> None:
    with pytest.raises(ValueError) as refused:
        parse(text)
    message = str(refused.value)
    assert message.startswith(f"{text!r}: ")
    missing = [part for part in WRONG[text] if part not in message]
    assert not missing, message


@pytest.mark.parametrize(
    ("text", "meant"), [("fp4", "mxfp4"), ("mxfp", "mxfp8"), ("int_8", "int8")]
)
def test_an_unknown_name_gets_close_ones(text: str, meant: str) -> None:
    with pytest.raises(
        ValueError, match=rf"^unknown format '{text}': did you mean .*\b{meant}\b.*\? "
    ) as no:
        parse(text)
    assert all(name in str(no.value) for name in CATALOG)
    assert "others are spelled element:block:scale" in str(no.value)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("MXFP4", "mxfp4"),
        ("mx_fp4", "mxfp4"),
        ("int 8", "int8"),
        ("fp4 ", "nvfp4, mxfp4, nf4"),
        ("INT8_TOKEN", "int8_token"),
        ("NVFP-4", "nvfp4"),
    ],
)
def test_case_spaces_and_signs_do_not_hide_a_name(text: str, meant: str) -> None:
    start = re.escape(
        f"unknown format {text.strip()!r}: did you mean {meant}? named formats are int8,"
    )
    for read in (parse, Recipe, lambda text: Recipe(input=text), Recipe.read):
        with pytest.raises(ValueError, match=f"^{start}"):
            read(text)
    with pytest.raises(ValueError, match=f"^bias: {start}"):
        Recipe("int8", bias=text)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("E2M1:group32:e8m0", "e2m1:group32:e8m0"),
        ("int8 : Token : FP32", "int8:token:fp32"),
        ("int8:tokens:fp32", "int8:token:fp32"),
        ("int8:token:fp23", "int8:token:fp32"),
        ("int4:groups128:fp16:assym", "int4:group128:fp16:asym"),
        ("e2m1:gruop32:e8m0/flor", "e2m1:group32:e8m0/floor"),
        ("uint4:group32:(uint8:chanel0:fp16)", "uint4:group32:(uint8:channel0:fp16)"),
    ],
)
def test_a_slip_in_a_spelling_gets_what_was_meant(text: str, meant: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(f'{text!r}: did you mean {meant}? ')}"):
        parse(text)
    assert parse(meant)


@pytest.mark.parametrize("text", ["int17:tensor:fp32", "e9m0:tensor:fp32"])
def test_what_cannot_be_guessed_gets_no_guess(text: str) -> None:
    with pytest.raises(ValueError) as refused:
        parse(text)
    assert "did you mean" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("", ""),
        ("BFP[8|8]{64}(XX)", "did you mean bfp8? "),
        ("bfp8x0", "did you mean bfp8, fp8, mxfp8? "),
    ],
)
def test_a_name_like_no_other(text: str, hint: str) -> None:
    start = f"unknown format {text!r}: {hint}named formats are int8, int8_channel, int8_token,"
    with pytest.raises(
        ValueError, match=f"^{re.escape(start)} .*; others are spelled element:block:scale"
    ):
        parse(text)


@pytest.mark.parametrize(("value", "kind"), [(3, "an int"), (None, "None"), (b"int8", "a bytes")])
def test_not_text(value: object, kind: str) -> None:
    with pytest.raises(TypeError, match=rf"^expected a Format or its spelling, found {kind}$"):
        parse(value)


HUGE = {
    "10 MB": ("x" * 10_000_000, "is too long: at most 10,000 characters"),
    "parentheses": ("int4:tensor:" + "(" * 4000 + ")" * 4000, "more than 8 nested parentheses:"),
    "formats in formats": ("int4:tensor:(" * 300 + "fp32" + ")" * 300, "more than 8 nested paren"),
    "a book": ("book(" + "1," * 4000 + "2):tensor:fp32", "2 to 256 values, got 4001"),
    "a book of words": ("book(" + "a," * 4000 + "b):tensor:fp32", "codebook is written as numbers"),
    "options": ("int8:tensor:fp32" + ":asym" * 1500, "repeat or contradict"),
    "colons": (":" * 9999, "a format is spelled"),
    "an element": ("x" * 9000 + ":tensor:fp32", "unknown element"),
    "a scale": ("int8:tensor:" + "x" * 9000, "unknown scale"),
    "digits": ("bfp" + "9" * 5000, "unknown format"),
    "not printable": ("\x1b[2J" * 2000, "unknown format"),
    "a rule of a long format": (
        "book(" + ",".join(str(i) for i in range(256)) + "):tensor:fp32:asym", "needs an integer"
    ),
}  # fmt: skip


@pytest.mark.parametrize(("text", "words"), HUGE.values(), ids=HUGE)
def test_huge_spellings_are_refused_in_a_few_lines(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        parse(text)
    assert len(str(caught.value)) < 800 and str(caught.value).isprintable()


def test_a_long_book_is_a_format() -> None:
    values = ",".join(f"{i / 3:.9}" for i in range(256))
    assert parse(f"book({values}):group16:e4m3").bits == 8


@pytest.mark.slow
def test_spellings_are_not_remembered_for_ever() -> None:
    for size in range(1, 5000):
        parse(f"int8:group{size}:fp32")
    assert parsing._parse.cache_info().currsize <= 4096
    assert elements.read_element.cache_info().maxsize == 4096


# The named formats: names that a user can type, and spellings that read back.


def test_names_are_no_spellings() -> None:
    """A name has no colon, so that no name and no spelling are the same text."""
    assert all(re.fullmatch(r"[a-z][a-z0-9_]*", name) for name in CATALOG)


def test_every_name_is_a_format_of_its_own() -> None:
    assert len(set(CATALOG.values())) == len(CATALOG)


def test_people_read_names() -> None:
    for name, spelling in CATALOG.items():
        assert spelling == str(parse(name)), "a spelling of the catalogue is as formats write it"
        assert display_name(parse(name)) == display_name(spelling) == display_name(name) == name
    assert display_name("int4:group32:fp32, input int8:token:fp32") == (
        "int4:group32:fp32, input int8_token"
    )
    assert display_name("e2m1:group16:e4m3/given") == "e2m1:group16:e4m3/given"
    assert display_name("") == "" and display_name("float32") == "float32"


@pytest.mark.parametrize("name", CATALOG)
def test_a_named_format_is_quantized_with(name: str) -> None:
    """It fits a matrix, and what is stored of an element has fewer bits than float32."""
    fmt = parse(name)
    assert fmt == formats()[name]
    assert fmt.bits_per_element((256, 256)) < 32
