# SPDX-License-Identifier: BSD-3-Clause
"""Only regular files are read, and only so much of them: a pipe in their place keeps nobody
waiting, and a device fills no memory.
"""

import json
import os
import socket
import unicodedata

import pytest

from blockscale.core.untrusted import (
    DEEPEST,
    SHOWN,
    FileError,
    json_object,
    kind_of,
    open_regular,
    parse_json,
    quote,
    read_json,
    read_regular,
    set_aside,
    shown,
    shown_lines,
    with_article,
)


def test_a_file_and_a_link_to_it(tmp_path):
    (tmp_path / "a").write_bytes(b"12345")
    (tmp_path / "b").symlink_to("a")
    assert read_regular(tmp_path / "b", 5) == b"12345"
    with pytest.raises(FileError, match="has 5 bytes, at most 4"):
        read_regular(tmp_path / "a", 4)


def test_pipes_devices_folders_and_nothing(tmp_path):
    os.mkfifo(tmp_path / "pipe")  # opening it waits for a writer that never comes
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        for path in (tmp_path / "pipe", "/dev/zero", "/dev/tty", tmp_path):
            if os.path.lexists(path):
                with pytest.raises(
                    (FileError, OSError), match=r"not a regular file|No such device"
                ):
                    read_regular(path, 10)
        with pytest.raises(OSError, match="No such device"):
            read_regular(tmp_path / "socket", 10)
    for path in (tmp_path / "no", tmp_path / "pipe" / "no", "a\0b"):
        with pytest.raises(FileError, match=r"does not exist|is not a file name"):
            open_regular(path)


def test_a_file_that_says_it_is_empty():
    """/proc tells sizes of 0: what was read counts."""
    with pytest.raises(FileError, match="at most 10"):
        read_regular("/proc/self/status", 10)


def test_messages_are_printable():
    text = str(FileError("\x1b[2J" + "a" * 10**6))
    assert text.isprintable() and len(text) < 5000
    assert isinstance(FileError("a"), ValueError) and str(FileError("a: é")) == "a: é"


# Names from files as people see them: nothing in them reaches the terminal as a command.


@pytest.mark.parametrize("name", ["model.layers.0.q_proj.weight", "", "ü 名[/red]", "a" * SHOWN])
def test_usual_names_stay(name):
    assert shown(name) == shown_lines(name) == name


@pytest.mark.slow
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


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (3, "an int"),
        (2.5, "a float"),
        ([], "a list"),
        (object(), "an object"),
        (None, "None"),
        ("", "a str"),
        (AssertionError(), "an AssertionError"),
    ],
)
def test_a_kind_has_its_article(value, told):
    assert kind_of(value) == told


@pytest.mark.parametrize(
    "told",
    ["an LSTM", "a GRU", "an RNNCell", "a QTensor", "a UNet", "an Embedding", "a Linear", "an x"],
)
def test_articles_as_they_are_spoken(told):
    assert with_article(told.partition(" ")[2]) == told


def test_quotes():
    assert quote("a'b") == '"a\'b"' and quote("ü") == "'ü'"
    assert quote("\x1b") == r"'\x1b'" and quote(5) == "5"
    assert len(quote("\x00" * 10**6)) < 300 and len(quote([1] * 10**5)) < 100


# The one reader of JSON: what it refuses, it refuses by name and in time.


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "Expecting value"),
        ("[" * 100_000, "too deep"),
        ('{"a":' * 100_000, "too deep"),
        ("[" * (DEEPEST + 1) + "]" * (DEEPEST + 1), "too deep"),
        ('{"a": 1, "b": 2, "a": 3}', "the key 'a' appears twice"),
        ("[NaN]", "NaN is not a JSON number"),
        ("[-Infinity]", "-Infinity is not a JSON number"),
        ("[1e999]", "'1e999' is too large"),
        ("9" * 5000, "Exceeds the limit"),
        ('["\\ud800"]', "surrogates not allowed"),
        ('{"\\udfff": 1}', "surrogates not allowed"),
        ('"a\nb"', "Invalid control character"),
        (b"\xff", "can't decode byte"),
        ("{}".encode("utf-16"), "can't decode byte"),
        ("\ufeff{}", "BOM"),
        ("[1] [2]", "Extra data"),
        (" " * 101, "has 101 characters, at most 100"),
    ],
)
def test_what_is_refused(text, words):
    most = 100 if text[:1] == " " else 10**7
    with pytest.raises(FileError, match=rf"^the recipe .*{words}"):
        parse_json(text, "the recipe", most=most)


def test_what_json_says_is_read():
    value = {"a": [1, -2.5, True, None, "ü\U0001f600\\"], "b": {"c": {}}, "": 10**30}
    for text in (json.dumps(value), json.dumps(value, ensure_ascii=False).encode()):
        assert parse_json(text, "it") == value
    deep = "[" * DEEPEST + "]" * DEEPEST
    assert json.dumps(parse_json(deep, "it")) == deep
    assert parse_json('[1e-999, "\\ud83d\\ude00"]', "it") == [0.0, "\U0001f600"]


def test_what_configs_may_have():
    """As transformers takes them: Mamba's config has an infinity."""
    text = '{"a": [0.0, Infinity], "b": 1, "b": 2}'
    assert parse_json(text, "it", unique_keys=False, finite=False) == {
        "a": [0.0, float("inf")],
        "b": 2,
    }


def test_files(tmp_path):
    path = tmp_path / "a.json"
    path.write_text('["é"]', encoding="utf-8")
    assert read_json(path) == ["é"]
    with pytest.raises(FileError, match=r"a\.json has 6 bytes"):
        read_json(path, most=5)
    with pytest.raises(FileError, match="holds a list, expected a JSON object"):
        json_object(read_json(path), path)
    with pytest.raises(FileError, match="not a regular file"):
        read_json("/dev/zero")


def test_damaged_files_are_set_aside(tmp_path):
    for number in (1, 2):
        path = tmp_path / "journal"
        path.write_text(str(number))
        assert set_aside(path).read_text() == str(number)
        assert not path.exists()
    assert len([*tmp_path.iterdir()]) == 2
