# SPDX-License-Identifier: BSD-3-Clause
"""Tokens by number: holes, doubles, added ones, and what is damaged."""

import pytest
from tokenizers import Tokenizer
from tokenizers.models import BPE

from blockscale.export.writers.gguf_files.vocabulary import (
    Vocabulary,
    added_of,
    joined_besides,
    merges_of,
    order_of,
    tokens_of,
    whole_words_differ,
)


def lists(vocabulary: Vocabulary) -> tuple[list, list, list]:
    found = vocabulary.keys(scores=True)
    names = ("tokens", "token_type", "scores")
    return tuple(found[f"tokenizer.ggml.{name}"].value for name in names)


def test_holes_and_doubles_get_texts_of_their_own() -> None:
    """llama.cpp stops the process where two tokens have one text."""
    vocabulary = Vocabulary(5)
    vocabulary.insert(0, "[PAD2]", score=-1.0)
    vocabulary.insert(1, "a", score=-2.0)
    vocabulary.insert(3, "a", score=-3.0)
    texts, types, scores = lists(vocabulary)
    assert texts == ["[PAD2]", "a", "[PAD2]_", "[PAD3]", "[PAD4]"]
    assert types == [1, 1, 5, 5, 5] and scores == [-1.0, -2.0, -1e4, -1e4, -1e4]
    assert "tokenizer.ggml.scores" not in vocabulary.keys(scores=False)


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
    vocabulary.insert(1, "a")
    vocabulary.add(1, "a", special=True)
    vocabulary.insert(2, "b")
    assert vocabulary.excess == 2 and "a" not in vocabulary.numbers and vocabulary.text(1) == ""


def test_what_is_damaged() -> None:
    for vocab in (None, {"a": "0"}, {"a": -1}, ["a"], {"a": True}):
        with pytest.raises(
            ValueError, match="its vocabulary is not an object of texts and numbers"
        ):
            tokens_of(vocab)
    rows = [{"id": 1, "content": "a"}, {"id": -1, "content": "b"}, {"id": 2}, "c", {"id": True}]
    assert list(added_of(rows)) == [(1, "a", False)] and not list(added_of({"id": 1}))


# The order of merges, and where llama.cpp joins what a tokenizer does not.


def test_merges_are_texts_or_pairs() -> None:
    assert merges_of(["a b", ["c", " d"]]) == [("a", "b"), ("c", " d")]
    assert merges_of(None) == []
    for damaged in (["ab"], ["a b c"], [["a"]], [["a", 1]], [3]):
        with pytest.raises(ValueError, match="expected two strings"):
            merges_of(damaged)


def test_order() -> None:
    pairs = [("a", "b"), ("b", "c"), ("ab", "c"), ("a", "bc")]
    assert order_of(pairs) == {"ab": 0.0, "bc": -1.0, "abc": -2.0}
    assert joined_besides("abc", pairs) == 0
    assert joined_besides("abc", pairs[:3]) == 1  # a + bc


@pytest.mark.parametrize(
    ("pairs", "differ"),
    [
        ([("a", "b"), ("ab", "c")], False),
        ([("b", "c"), ("a", "b"), ("ab", "c")], True),  # abc becomes a, bc
        ([("a", "a"), ("aa", "aa")], False),  # both pairs at once
        ([("a", "b")], True),  # abc is no merge
    ],
)
def test_whole_words(pairs: list, differ: bool) -> None:
    """Against tokenizers: whether its BPE makes one token of each token's text."""
    texts = sorted({*"abc", *(x + y for x, y in pairs), "abc" if ("a", "b") in pairs else "aaaa"})
    vocab = {text: i for i, text in enumerate(texts)}
    oracle = Tokenizer(BPE(vocab=vocab, merges=pairs))
    assert whole_words_differ(vocab, pairs) is differ
    assert any(oracle.encode(text).tokens != [text] for text in texts) is differ
