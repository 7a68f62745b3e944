# SPDX-License-Identifier: BSD-3-Clause
"""Tokens by number: holes, doubles, added ones, and what is damaged."""

import pytest

from blockscale.export.writers.gguf_files.vocabulary import Vocabulary, added_of, tokens_of


def lists(vocabulary: Vocabulary) -> tuple[list, list, list]:
    found = vocabulary.keys(scored=True)
    names = ("tokens", "token_type", "scores")
    return tuple(found[f"tokenizer.ggml.{name}"].value for name in names)


def test_holes_and_doubles_get_texts_of_their_own() -> None:
    """llama.cpp stops the process where two tokens have one text."""
    vocabulary = Vocabulary(5)
    vocabulary.put(0, "[PAD2]", score=-1.0)
    vocabulary.put(1, "a", score=-2.0)
    vocabulary.put(3, "a", score=-3.0)
    texts, types, scores = lists(vocabulary)
    assert texts == ["[PAD2]", "a", "[PAD2]_", "[PAD3]", "[PAD4]"]
    assert types == [1, 1, 5, 5, 5] and scores == [-1.0, -2.0, -1e4, -1e4, -1e4]
    assert "tokenizer.ggml.scores" not in vocabulary.keys(scored=False)


def test_added_tokens() -> None:
    """Types and texts as conversion/base.py of llama.cpp b11434 has them (`get_vocab_base`,
    `does_token_look_special`)."""
    added = ["<e>", "<u>", "<|x|>", "<unused7>", "<pad>", "\u2581\u2581b", "<｜x｜>"]
    vocabulary = Vocabulary(len(added))
    for i, text in enumerate(added):
        vocabulary.add(i, text, special=text == "<e>")
    texts, types, scores = lists(vocabulary)
    assert texts == ["<e>", "<u>", "<|x|>", "<unused7>", "<pad>", "  b", "<｜x｜>"]
    assert types == [3, 4, 3, 3, 3, 4, 3] and set(scores) == {-1000.0}
    assert vocabulary.numbers["\u2581\u2581b"] == 5


def test_tokens_beyond_the_embedding_are_counted_once() -> None:
    vocabulary = Vocabulary(1)
    vocabulary.put(1, "a")
    vocabulary.add(1, "a", special=True)
    vocabulary.put(2, "b")
    assert vocabulary.lost == 2 and "a" not in vocabulary.numbers and vocabulary.text(1) == ""


def test_what_is_damaged() -> None:
    for vocab in (None, {"a": "0"}, {"a": -1}, ["a"], {"a": True}):
        with pytest.raises(ValueError, match="its vocabulary is not an object of texts and numbers"):
            tokens_of(vocab)
    rows = [{"id": 1, "content": "a"}, {"id": -1, "content": "b"}, {"id": 2}, "c", {"id": True}]
    assert list(added_of(rows)) == [(1, "a", False)] and not list(added_of({"id": 1}))
