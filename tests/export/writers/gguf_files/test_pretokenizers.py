# SPDX-License-Identifier: BSD-3-Clause
"""Names of cuts: how tokenizer.json files write them, and that llama.cpp knows each name."""

import json

import pytest
from tokenizers import Regex, Tokenizer, models
from tokenizers.pre_tokenizers import ByteLevel, Digits, Punctuation, Sequence, Split

from blockscale.export.writers.gguf_files import pretokenizers
from blockscale.export.writers.gguf_files.pretokenizers import flat, known_for, not_normalized

BYTES = ByteLevel(add_prefix_space=False, use_regex=False)
CUTS = ByteLevel(add_prefix_space=False, use_regex=True)
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
START = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
# names that `llama_vocab::impl::load` knows (src/llama-vocab.cpp, llama.cpp b11434)
KNOWN = (
    "gpt-2 smollm llama-bpe smaug-bpe qwen2 ufakzeka laguna qwen35 minicpm5 jais-2 seed-coder "
    "bailingmoe exaone-moe tekken gpt-4o tiny_aya superbpe deepseek-v3 deepseek-llm deepseek-coder "
    "falcon bloom viking"
)


def written(pre: object) -> dict:
    """How `tokenizers` writes cuts into tokenizer.json."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre
    return json.loads(tokenizer.to_str())["pre_tokenizer"]


def split(pattern: str, how: str = "isolated", invert: bool = False) -> Split:
    return Split(Regex(pattern), how, invert)


def names(pre: object) -> list[str]:
    return [known.name for known in known_for(written(pre))]


def test_every_name_is_llama_cpps() -> None:
    found = [known.name for each in pretokenizers._KNOWN.values() for known in each]
    assert sorted(found) == sorted(KNOWN.split())


@pytest.mark.parametrize(
    ("pre", "name"),
    [
        (CUTS, "gpt-2"),
        (Sequence([split(GPT2), BYTES]), "gpt-2"),
        (Sequence([Digits(individual_digits=True), CUTS]), "smollm"),
        (Sequence([split(r"\p{N}"), CUTS]), "smollm"),
        (Sequence([split(START + r"\p{N}{1,3}" + TAIL), BYTES]), "llama-bpe"),
        (Sequence([split(START + r"\p{N}{1,3}" + TAIL, "removed", True), BYTES]), "llama-bpe"),
        (Sequence([split(START + r"\p{N}" + TAIL), BYTES]), "qwen2"),
        (Sequence([Sequence([split(START + r"\p{N}" + TAIL)]), BYTES]), "qwen2"),
        (Sequence([split("[\r\n]"), split(r"\s?\p{L}+"), split(r"\s?\p{P}+"),
                   split("[一-龥ࠀ-一가-퟿]+"), Digits(individual_digits=True), BYTES]),
         "deepseek-coder"),
        (Sequence([Punctuation("contiguous"), CUTS, Digits(individual_digits=False),
                   split("[0-9][0-9][0-9]")]), "falcon"),
        (Sequence([split(r" ?[^(\s|[.,!?…。，、।۔،])]+"), BYTES]), "bloom"),
        (Sequence([split(r" ?[^(\s|[.,!?…。，、।۔،])]+"), Digits(individual_digits=True), BYTES]),
         "viking"),
    ],
)  # fmt: skip
def test_cuts_as_files_have_them(pre: object, name: str) -> None:
    """Structures of the tokenizer.json of GPT-2, SmolLM, Llama 3, Qwen2, DeepSeek-Coder, Falcon,
    BLOOM and Viking."""
    assert names(pre)[0] == name


def test_both_names_of_llama_3s_cuts() -> None:
    """They differ in whether a word that is a token is merged (`ignore_merges`)."""
    found = known_for(written(Sequence([split(START + r"\p{N}{1,3}" + TAIL), BYTES])))
    assert [(known.name, known.whole) for known in found] == [
        ("llama-bpe", True), ("smaug-bpe", False)
    ]  # fmt: skip


@pytest.mark.parametrize(
    "pre",
    [
        Sequence([CUTS, Digits(individual_digits=True)]),  # after bytes were written
        Sequence([Digits(individual_digits=False), CUTS]),
        Sequence([Punctuation("isolated"), CUTS]),
        Sequence([split(START + r"\p{N}" + TAIL)]),  # no bytes
        Sequence([split(START + r"\p{N}" + TAIL, "merged_with_previous"), BYTES]),
        Sequence([split(r"\p{N}", "removed", True), BYTES]),
        Sequence([split(START + r"\p{N}{1,4}" + TAIL), BYTES]),
    ],
)
def test_other_cuts_have_no_name(pre: object) -> None:
    assert names(pre) == []


def test_what_is_no_cut() -> None:
    for pre in (None, 3, {"type": "Whitespace"}, {"type": "Split", "pattern": {"String": " "}}):
        assert known_for(pre) == ()
    sequence = {"type": "Sequence", "pretokenizers": [{"type": "Split"}, {"type": "ByteLevel"}]}
    assert known_for(sequence) == ()


def test_steps_inside_of_each_other() -> None:
    inner = {"normalizers": [{"type": "a"}, {"normalizers": [{"type": "b"}]}, 3]}
    assert [each["type"] for each in flat(inner, "normalizers")] == ["a", "b"]
    assert list(flat({"type": "c"}, "normalizers")) == [{"type": "c"}] and not list(flat(None, "a"))


def test_normalizers_that_llama_cpp_has_not_are_said() -> None:
    data = {"normalizer": {"normalizers": [{"type": "NFC"}, {"type": "Strip", "left": True}]}}
    (note,) = not_normalized(data, {"Strip": lambda step: step["left"]})
    assert "(NFC)" in note and "normalize text first, or it may become" in note
    assert "(NFC, Strip)" in not_normalized(data, {"Strip": lambda step: not step["left"]})[0]
    assert not_normalized({}, {}) == []
