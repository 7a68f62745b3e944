# SPDX-License-Identifier: BSD-3-Clause
"""The one reader of JSON: what it refuses, it refuses by name and in time."""

import json

import pytest

from blockscale.core.untrusted.files import FileError
from blockscale.core.untrusted.json_text import (
    DEEPEST,
    json_object,
    parse_json,
    read_json,
    set_aside,
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "Expecting value"),
        ("[" * 100_000, "too deep"),
        ('{"a":' * 100_000, "too deep"),
        ("[" * (DEEPEST + 1) + "]" * (DEEPEST + 1), "too deep"),
        ('{"a": 1, "b": 2, "a": 3}', "the key 'a' is there twice"),
        ("[NaN]", "NaN is no number"),
        ("[-Infinity]", "-Infinity is no number"),
        ("[1e999]", "'1e999' is too large"),
        ("9" * 5000, "Exceeds the limit"),
        ('["\\ud800"]', "surrogates not allowed"),
        ('{"\\udfff": 1}', "surrogates not allowed"),
        ('"a\nb"', "Invalid control character"),
        (b"\xff", "can't decode byte"),
        ("{}".encode("utf-16"), "can't decode byte"),
        ("\ufeff{}", "BOM"),
        ("[1] [2]", "Extra data"),
        (" " * 101, "has 101 characters, of at most 100"),
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
    assert parse_json(text, "it", once=False, finite=False) == {"a": [0.0, float("inf")], "b": 2}


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
