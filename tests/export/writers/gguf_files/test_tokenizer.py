# SPDX-License-Identifier: BSD-3-Clause
"""Which kind of llama.cpp's a tokenizer becomes, and what of it is left out."""

import json
from pathlib import Path

import pytest

from blockscale.export.writers.gguf_files.model import byte_level, tokenizer_keys
from blockscale.export.writers.gguf_files.vocabulary import Vocabulary

QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CUT = {
    "type": "Sequence",
    "pretokenizers": [{"type": "Split", "pattern": {"Regex": QWEN}}, {"type": "ByteLevel"}],
}
CUT["pretokenizers"][1]["use_regex"] = False
MODEL = {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}
ADDED = [
    {"id": 3, "content": "<e>", "special": True},
    {"id": 4, "content": "<u>", "special": False},
]


def folder(path: Path, config: dict | None = None, **changes: object) -> Path:
    data = {"model": MODEL, "added_tokens": ADDED, "pre_tokenizer": CUT} | changes
    (path / "tokenizer.json").write_text(json.dumps(data))
    if config is not None:
        (path / "tokenizer_config.json").write_text(json.dumps(config))
    return path


def test_byte_level_bpe(tmp_path: Path) -> None:
    config = {"eos_token": {"content": "<e>"}, "bos_token": None, "add_bos_token": False,
              "chat_template": "{{ x }}"}  # fmt: skip
    found, told = tokenizer_keys(folder(tmp_path, config), 6)
    values = {key.removeprefix("tokenizer."): value.value for key, value in found.items()}
    assert told == "" and values == {
        "ggml.model": "gpt2", "ggml.pre": "qwen2", "ggml.merges": ["a b"],
        "ggml.tokens": ["a", "b", "ab", "<e>", "<u>", "[PAD5]"],
        "ggml.token_type": [1, 1, 1, 3, 4, 5], "ggml.eos_token_id": 3,
        "ggml.add_bos_token": False, "ggml.add_eos_token": False, "chat_template": "{{ x }}",
    }  # fmt: skip


def test_pairs_and_unknown_cuts(tmp_path: Path) -> None:
    pairs = MODEL | {"merges": [["a", "b"]]}
    found, told = tokenizer_keys(folder(tmp_path, model=pairs, pre_tokenizer=None), 5)
    assert found["tokenizer.ggml.merges"].value == ["a b"]
    assert found["tokenizer.ggml.pre"].value == "default" and "llama.cpp has no name for" in told
    found, told = tokenizer_keys(folder(tmp_path, pre_tokenizer={"type": "ByteLevel"}), 5)
    assert found["tokenizer.ggml.pre"].value == "gpt-2" and told == ""


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({}, "gpt2"),
        ({"model": {"vocab": MODEL["vocab"], "merges": []}}, "gpt2"),  # GPT-2's says no type
        ({"model": MODEL | {"byte_fallback": True}, "pre_tokenizer": None}, "llama"),
        ({"model": MODEL | {"byte_fallback": True}}, "gpt2"),  # bytes leave nothing to fall back
        ({"model": MODEL, "pre_tokenizer": None, "decoder": {"type": "ByteLevel"}}, "gpt2"),
        ({"model": MODEL | {"vocab": {"\u2581a": 0}}, "pre_tokenizer": None}, "llama"),
        ({"model": {"vocab": [["a", 0.0]]}}, "t5"),
        ({"model": {"type": "WordPiece", "vocab": {"a": 0}}}, "bert"),
        ({"model": {"vocab": {"a": 0}, "max_input_chars_per_word": 100}}, "bert"),
        ({"model": MODEL | {"end_of_word_suffix": "</w>"}}, "none"),
        ({"model": {"type": "WordLevel", "vocab": {"a": 0}}}, "none"),
        ({"model": {"type": "WordPiece", "continuing_subword_prefix": "@@"}}, "none"),
        ({"model": None}, "none"),
    ],
)
def test_kinds(changes: dict, kind: str, tmp_path: Path) -> None:
    found, told = tokenizer_keys(folder(tmp_path, **changes), 5)
    assert found["tokenizer.ggml.model"].value == kind
    assert ("none): pass token numbers" in told) == (kind == "none")


def test_no_tokenizer_is_none(tmp_path: Path) -> None:
    """llama.cpp refuses a file without tokenizer.ggml.model, and loads one of the kind none."""
    found, told = tokenizer_keys(tmp_path, 5)
    assert {key: value.value for key, value in found.items()} == {"tokenizer.ggml.model": "none"}
    assert "has no tokenizer.json" in told and "save_pretrained" in told


def test_word_piece(tmp_path: Path) -> None:
    """As `BertModel.set_vocab` writes it (conversion/bert.py of llama.cpp b11434)."""
    vocab = {"[UNK]": 0, "[CLS]": 1, "a": 2, "##a": 3, "\u2581": 4}
    added = [{"id": i, "content": t, "special": True} for t, i in list(vocab.items())[:2]]
    added.append({"id": 5, "content": "<u>", "special": False})
    normalizer = {"type": "BertNormalizer", "lowercase": True, "strip_accents": None,
                  "clean_text": True, "handle_chinese_chars": True}  # fmt: skip
    model = {"type": "WordPiece", "vocab": vocab, "continuing_subword_prefix": "##"}
    config = {"cls_token": "[CLS]", "unk_token": "[UNK]"}
    path = folder(tmp_path, config, model=model, added_tokens=added, normalizer=normalizer)
    found, told = tokenizer_keys(path, 6)
    values = {key.removeprefix("tokenizer.ggml."): value.value for key, value in found.items()}
    assert values["tokens"] == ["[UNK]", "[CLS]", "\u2581a", "a", "\u2581\u2581", "<u>"]
    assert values["token_type"] == [3, 3, 1, 1, 1, 4] and values["bos_token_id"] == 1
    assert values["normalizer.lowercase"] and values["normalizer.strip_accents"]
    assert "Hangul" in told
    cased = normalizer | {"lowercase": False, "clean_text": False}
    path = folder(tmp_path, config, model=model, added_tokens=added, normalizer=cased)
    found, told = tokenizer_keys(path, 6)
    assert found["tokenizer.ggml.normalizer.lowercase"].value is False
    assert found["tokenizer.ggml.normalizer.strip_accents"].value is False
    assert "(BertNormalizer)" in told and "Hangul" not in told


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    """Without a key, llama.cpp ends text at token 11 of a "gpt2" (src/llama-vocab.cpp, b11434)."""
    vocab = {chr(97 + i): i for i in range(14)}
    _, told = tokenizer_keys(folder(tmp_path, model=MODEL | {"vocab": vocab, "merges": []}), 12)
    assert "llama.cpp uses token 11 ('l')" in told
    assert "2 of its tokens have no row in the embedding" in told


@pytest.mark.parametrize("vocab", [None, {"a": "0"}, {"a": -1}, ["a"], {"a": True}])
def test_damaged(vocab: object, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="its vocabulary is not an object of texts and numbers"):
        tokenizer_keys(folder(tmp_path, model=MODEL | {"vocab": vocab}), 5)


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
    assert "llama.cpp has no name for" in notes[0] and "Pass token numbers" in notes[0]


def test_what_llama_cpp_does_not_do_is_said() -> None:
    assert of(CUTS | {"add_prefix_space": True})[1] == [
        (
            "its tokenizer puts a space before a text, and llama.cpp does not: write that "
            "space into the prompt"
        )
    ]
    data = {"pre_tokenizer": CUTS, "normalizer": {"type": "NFC"}}
    _, notes = byte_level(data, {"vocab": VOCAB, "merges": MERGED}, Vocabulary(6))
    assert len(notes) == 1 and "(NFC)" in notes[0]
