# SPDX-License-Identifier: BSD-3-Clause
"""Patterns of strangers: what they match is what `re.fullmatch` says, and no match takes long."""

import math
import random
import re
import warnings
from re import _parser as parser

import pytest

from blockscale.core.untrusted_patterns import LONGEST, SHORT, _Name, compiled, full_match, ways

ENDS = ("*", "+", "?", "*?", "+?", "{2}", "{1,3}", "{0,2}?", "{2,}")


def drawn(r: random.Random, depth: int = 0) -> str:
    """Any pattern, of few characters."""

    def inner() -> str:
        return drawn(r, depth + 1)

    look = r.choice(["a", "ab", "[ab].", "a|b", "", "^", r"\b."])
    kinds = [
        lambda: r.choice("aab.\n_1"),
        lambda: r.choice(["[ab]", "[^a]", "[a-c1]", r"\d", r"\w", r"\S", r"[\d.]", r"[^\W_]", "é"]),
        lambda: r.choice([".", ".*", ".+", r"\.", "[A-B]*"]),
        lambda: r.choice(["^", "$", r"\b", r"\B", r"\A", r"\Z", ""]),
        lambda: inner() + inner(),
        lambda: inner() + inner(),
        lambda: f"({inner()}|{inner()})",
        lambda: f"(?:{inner()}){r.choice(ENDS)}",
        lambda: f"(?={inner()})",
        lambda: f"(?!{inner()})",
        lambda: f"(?<={look})",
        lambda: f"(?<!{look})",
        lambda: f"(?{r.choice(['i', 's', 'm', '-i', 'a', 'is-m'])}:{inner()})",
    ]
    return r.choice(kinds if depth < 4 else kinds[:4])()


@pytest.mark.parametrize("count", [400, pytest.param(20_000, marks=pytest.mark.slow)])
def test_as_python_matches(count):
    r, matched = random.Random(count), 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # odd sets such as [[a]
        for _ in range(count):
            pattern = drawn(r)
            name = "".join(r.choice("aabAB.1_\né") for _ in range(r.randrange(9)))
            expected = re.fullmatch(pattern, name) is not None
            assert full_match(pattern, name) is expected, (pattern, name)
            by_hand = compiled(pattern).move(_Name(name), 1) >> len(name) & 1
            assert bool(by_hand) is expected, (pattern, name)
            matched += expected
    assert count // 30 < matched < count // 2


def test_patterns_of_recipes():
    name = "model.layers.11.self_attn.q_proj"
    for pattern in (
        r".*\.(q|k|v)_proj", r"model\.layers\.\d+\..*", r"(?!.*head).*", r".*(?<!k)_proj",
        r"(?i)MODEL.*", r"(?x) model .* # all", r"model\.layers\.(?:[0-9]|1[0-5])\..+",
    ):  # fmt: skip
        assert full_match(pattern, name) and not full_match(pattern, "lm_head.k")


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("(a+)+b", "a" * 4000),
        ("(a|a)*b", "a" * 4000),
        ("(.*)*.*(.*)+x", "a" * 4000),
        ("(((a*)*)*)*b", "a" * 4000),
        ("(?:a{0,1000}){0,1000}b", "a" * 4000),
        ("a?" * 60 + "a" * 60 + "b", "a" * 90),
        (r"(\w+\.?)+\d", "layer." * 600),
    ],
)
def test_catastrophes_of_backtracking_take_no_time(pattern, name):
    """`re` would take longer than the universe is old."""
    assert not full_match(pattern, name)


def test_what_takes_too_many_steps_is_refused():
    with pytest.raises(ValueError, match=r"pattern 're:\.\*.* takes more than 200,000 steps"):
        full_match(".*(?=.*(?=.*a)b)", "a" * 4000)


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("(", r"pattern 're:\(' is not a regular expression"),
        (r"(a)\1", "a reference to a group"),
        ("(a)?b(?(1)c|d)", "a condition"),
        ("(?>a)", "an atomic group"),
        ("a++", "a possessive repeat"),
        ("(" * 3000 + ")" * 3000, "too many nested groups"),
        ("a" * (LONGEST + 1), r"is too long: at most 10,000 characters"),
        ("a{99999999999999999999}", "is not a regular expression"),
    ],
)
def test_what_is_refused(pattern, words):
    with pytest.raises(ValueError, match=words) as caught:
        compiled(pattern)
    assert len(str(caught.value)) < 300


def test_names_have_an_end():
    with pytest.raises(ValueError, match="too long for patterns"):
        full_match(".*", "a" * 5000)


@pytest.mark.parametrize(
    ("pattern", "count"),
    [
        ("abc[d-f].", 1),
        (".*", SHORT + 1),
        ("(a|bb|c)d(ee|f)", 6),
        (r".*\.(qq|k|v)", 3 * (SHORT + 1)),
        ("(q|k|v)", 1),  # Python makes a set of them,
        ("a?b?", 4),
        ("a{3}(bc){2,4}", 3),
        ("(?=.*a).*", (SHORT + 1) ** 2),
        ("((aa|b)c)?", 3),
        ("(a+)+", math.inf),
        ("(?:(?:aa|b)c)*", math.inf),
        ("(?:.*){2}", math.inf),
    ],
)
def test_choices_multiply(pattern, count):
    assert ways(parser.parse(pattern)) == count
