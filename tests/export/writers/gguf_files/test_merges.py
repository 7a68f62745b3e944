# SPDX-License-Identifier: BSD-3-Clause
"""The order of merges, and where llama.cpp joins what a tokenizer does not."""

import pytest
from tokenizers import Tokenizer
from tokenizers.models import BPE

from blockscale.export.writers.gguf_files.merges import (
    joined_besides,
    merges_of,
    order_of,
    whole_words_differ,
)


def test_merges_are_texts_or_pairs() -> None:
    assert merges_of(["a b", ["c", " d"]]) == [("a", "b"), ("c", " d")]
    assert merges_of(None) == []
    for damaged in (["ab"], ["a b c"], [["a"]], [["a", 1]], [3]):
        with pytest.raises(ValueError, match="expected two texts"):
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
