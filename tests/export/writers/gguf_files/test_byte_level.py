"""Byte-level BPE: its lists, which of two names it gets, and what is said."""

import pytest

from blockscale.export.writers.gguf_files.byte_level import byte_level
from blockscale.export.writers.gguf_files.vocabulary import Vocabulary

BYTES = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
CUTS = BYTES | {"use_regex": True}
REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + REST
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
VOCAB = {"a": 0, "b": 1, "c": 2, "ab": 3, "bc": 4, "abc": 5}
MERGED = ["a b", "b c", "ab c"]  # each token's text becomes that token
ALONE = ["b c", "a b", "ab c"]  # abc becomes a, bc


def of(pre: object, merges: list = MERGED, **more: object) -> tuple[dict, list[str]]:
    model = {"vocab": VOCAB, "merges": merges} | more
    found, notes = byte_level({"pre_tokenizer": pre}, model, Vocabulary(6))
    return {k.removeprefix("tokenizer.ggml."): v.value for k, v in found.items()}, notes


def split(pattern: str) -> dict:
    cut = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [cut, BYTES]}


def test_lists() -> None:
    found, notes = of(CUTS, [["a", "b"], ["b", " c"]])
    assert found == {
        "model": "gpt2", "pre": "gpt-2", "tokens": list(VOCAB), "token_type": [1] * 6,
        "merges": ["a b", "b Ġc"],
    }  # fmt: skip
    assert notes == []


@pytest.mark.parametrize(
    ("pattern", "merges", "whole", "name", "says"),
    [
        (LLAMA3, MERGED, True, "llama-bpe", ""),
        (LLAMA3, MERGED, False, "llama-bpe", ""),  # no word on which the two differ
        (LLAMA3, ALONE, True, "llama-bpe", ""),
        (LLAMA3, ALONE, False, "smaug-bpe", ""),
        (TEKKEN, MERGED, False, "tekken", "combining marks"),
        (TEKKEN, ALONE, False, "tekken", "its tokenizer merges it, llama.cpp takes it"),
    ],
)
def test_words_that_are_tokens(
    pattern: str, merges: list, whole: bool, name: str, says: str
) -> None:
    """`ignore_merges` is llama.cpp's by the name (src/llama-vocab.cpp, b11434: llama-bpe and tekken
    set it, smaug-bpe does not)."""
    found, notes = of(split(pattern), merges, ignore_merges=whole)
    assert found["pre"] == name and (says in "; ".join(notes) if says else notes == [])


def test_cuts_without_a_name_are_said() -> None:
    found, notes = of(split("x"))
    assert found["pre"] == "default"
    assert "not known to llama.cpp" in notes[0] and "Give it token numbers" in notes[0]


def test_what_llama_cpp_does_not_do_is_said() -> None:
    assert of(CUTS | {"add_prefix_space": True})[1] == [
        "its tokenizer puts a space before a text, llama.cpp does not: write it"
    ]
    data = {"pre_tokenizer": CUTS, "normalizer": {"type": "NFC"}}
    _, notes = byte_level(data, {"vocab": VOCAB, "merges": MERGED}, Vocabulary(6))
    assert len(notes) == 1 and "(NFC)" in notes[0]
