"""Byte-level BPE as llama.cpp has it: the model "gpt2", and the name of how words are cut."""

from collections.abc import Mapping
from typing import Any

from blockscale.export.writers.gguf_files.head import Value
from blockscale.export.writers.gguf_files.merges import Pair, merges_of, whole_words_differ
from blockscale.export.writers.gguf_files.pretokenizers import (
    always,
    flat,
    known_for,
    nearly,
    not_normalized,
)
from blockscale.export.writers.gguf_files.vocabulary import Keys, Vocabulary, added_of, tokens_of


def byte_level(data: Mapping[str, Any], model: Mapping[str, Any], vocabulary: Vocabulary) -> Keys:
    """The keys of a tokenizer.json, and what has to be said. model: the part of that name."""
    vocab, pairs = tokens_of(model.get("vocab")), merges_of(model.get("merges"))
    for text, number in vocab.items():
        vocabulary.put(number, text)
    for each in added_of(data.get("added_tokens")):
        vocabulary.add(*each)
    name, notes = _cut(data, model, vocab, pairs)
    notes += not_normalized(data, {"ByteLevel": always})
    found = {
        "tokenizer.ggml.model": Value("text", "gpt2"),
        "tokenizer.ggml.pre": Value("text", name),
        **vocabulary.keys(scored=False),
        "tokenizer.ggml.merges": Value("text", [_text(pair) for pair in pairs]),
    }
    return found, notes


def _text(pair: Pair) -> str:
    """A merge as one text, a space in a token as the character that its byte has."""
    return " ".join(part.replace(" ", "Ġ") for part in pair)


def _cut(
    data: Mapping[str, Any], model: Mapping[str, Any], vocab: dict[str, int], pairs: list[Pair]
) -> tuple[str, list[str]]:
    """llama.cpp's name for how words are cut, and where it is not quite that."""
    pre, notes = data.get("pre_tokenizer"), []
    known = known_for(pre)
    if not known:
        return "default", [
            "how its tokenizer cuts words is not known to llama.cpp by a name here "
            '(tokenizer.ggml.pre is "default"): numbers, signs and spaces can become other tokens. '
            "Give it token numbers, or compare llama-tokenize with your tokenizer"
        ]
    whole = bool(model.get("ignore_merges"))
    name = known[0].name
    if known[0].whole != whole and whole_words_differ(vocab, pairs):
        same = [each.name for each in known if each.whole == whole]
        name = same[0] if same else name
        if not same:
            ours, theirs = ("takes", "merges") if whole else ("merges", "takes")
            notes.append(
                f"a word that is a token: its tokenizer {ours} it, llama.cpp {theirs} it, and some "
                f"become other tokens"
            )
    if nearly(name):
        notes.append(f"llama.cpp's {name} cuts {nearly(name)} in another way here and there")
    if any(each.get("add_prefix_space") for each in flat(pre, "pretokenizers")):
        notes.append("its tokenizer puts a space before a text, llama.cpp does not: write it")
    return name, notes
