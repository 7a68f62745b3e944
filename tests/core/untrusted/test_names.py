# SPDX-License-Identifier: BSD-3-Clause
"""Names from files as people see them: nothing in them reaches the terminal as a command."""

import unicodedata

import pytest

from blockscale.core.untrusted.names import SHOWN, quoted, shown, shown_lines


@pytest.mark.parametrize("name", ["model.layers.0.q_proj.weight", "", "ü 名[/red]", "a" * SHOWN])
def test_usual_names_stay(name):
    assert shown(name) == shown_lines(name) == name


def test_no_character_that_is_not_seen_is_left():
    odd = [chr(c) for c in range(0x30000) if unicodedata.category(chr(c))[0] in "CZ"]
    assert len(odd) > 50_000 and {"\x1b", "\n", "\u202e", "\u2028", "\u200b", "\ud800"} < {*odd}
    for text in (shown("".join(odd[:90])), *(shown(f"a{c}b") for c in odd if c != " ")):
        assert text.isprintable() and text.isascii()
    assert shown("a\x1b[31m\u202e\n") == r"a\x1b[31m\u202e\n"
    assert shown_lines("one\ntwo\x1b[2J\r") == "one\ntwo\\x1b[2J\\r"


def test_long_names_are_cut_in_the_middle():
    text = shown("a\n" * 10**6 + "end")
    assert len(text) < 2 * SHOWN and "(2,000,003 characters)" in text
    assert text.startswith("a\\na") and text.endswith("end")
    assert shown("abcdefgh", 4) == "ab … (8 characters) … gh"


def test_quotes():
    assert quoted("a'b") == '"a\'b"' and quoted("ü") == "'ü'"
    assert quoted("\x1b") == r"'\x1b'" and quoted(5) == "5"
    assert len(quoted("\x00" * 10**6)) < 300 and len(quoted([1] * 10**5)) < 100
