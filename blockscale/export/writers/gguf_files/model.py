# SPDX-License-Identifier: BSD-3-Clause
"""The metadata of a GGUF file for a model of transformers: its configuration and its tokenizer."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from blockscale.core.untrusted import json_object, read_json
from blockscale.export.writers import PlannedTensor
from blockscale.export.writers.gguf import kind_of
from blockscale.export.writers.gguf_files.architectures import keys, of_config, rope
from blockscale.export.writers.gguf_files.architectures import kind_of as kind_of_positions
from blockscale.export.writers.gguf_files.file import (
    ALIGNMENT,
    MetadataValue,
    encoded,
    rope_factors,
)
from blockscale.export.writers.gguf_files.pretokenizers import (
    always,
    flat,
    known_for,
    nearly,
    not_normalized,
)
from blockscale.export.writers.gguf_files.sentencepiece import (
    from_pieces,
    pieces_of_bpe,
    unigrams,
)
from blockscale.export.writers.gguf_files.special_tokens import special_keys
from blockscale.export.writers.gguf_files.vocabulary import (
    SPACE,
    Keys,
    Pair,
    Vocabulary,
    added_of,
    merges_of,
    tokens_of,
    whole_words_differ,
)

# general.file_type: what most weights are, llama.cpp's llama_ftype
_FILE_TYPES = {
    "F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q5_0": 8, "Q5_1": 9, "Q2_K": 10,
    "Q3_K": 12, "Q4_K": 15, "Q5_K": 17, "Q6_K": 18, "IQ4_NL": 25, "IQ4_XS": 30, "BF16": 32,
    "TQ1_0": 36, "TQ2_0": 37, "MXFP4": 38, "NVFP4": 39, "Q1_0": 40, "Q2_0": 41,
}  # fmt: skip
_FLOATS = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}


@dataclass
class Extra:
    """Tensors that the file has besides. step: general.alignment."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    step: int = ALIGNMENT

    @property
    def plan(self) -> list[PlannedTensor]:
        """As the file is laid out."""
        return [PlannedTensor(n, tuple(t.shape), None, t.dtype) for n, t in self.tensors.items()]


def _most(tensors: Sequence[PlannedTensor]) -> str | None:
    """The type of most matrices: of those that are quantized, if there are any."""
    kinds = Counter(kind_of(t.format) for t in tensors if t.format is not None)
    if not kinds:
        kinds = Counter(_FLOATS.get(t.dtype) for t in tensors if len(t.shape) > 1 and not t.grid)
    return kinds.most_common(1)[0][0] if kinds else None


def metadata_for(
    config: Mapping[str, Any], folder: Path | None, tensors: Sequence[PlannedTensor]
) -> tuple[dict[str, bytes], Extra, tuple[str, ...]]:
    """{key: type and value}, what tensors there are besides, and what has to be said.

    tensors: with their names in GGUF. A model of an architecture that is not known, whose tensors
    keep their names, has no keys but those of any file.
    """
    most = _most(tensors)
    data = {"general.quantization_version": MetadataValue("u32", 2)}
    if most in _FILE_TYPES:
        data["general.file_type"] = MetadataValue("u32", _FILE_TYPES[most])
    extra = Extra()
    notes: list[str] = []
    if any(t.name == "token_embd.weight" for t in tensors):
        info, message = keys(config)
        data, notes = info | data, [*notes, *message]
        arch = of_config(config).arch
        if kind_of_positions(rope(config)) == "llama3":
            positions = rope(config)
            size = data[f"{arch}.rope.dimension_count"].value
            extra.tensors["rope_freqs.weight"] = rope_factors(positions, size)
        vocabulary = next(t.shape[0] for t in tensors if t.name == "token_embd.weight")
        if folder is not None:
            tokens, text = tokenizer_keys(folder, vocabulary)
            data |= tokens
            notes += [text] if text else []
    else:
        data = {
            "general.architecture": MetadataValue("text", str(config.get("model_type", "unknown")))
        } | data
        notes.append("tensors keep their names, which llama.cpp does not know")
    return {key: encoded(value) for key, value in data.items()}, extra, tuple(notes)


_MOST = 1 << 28  # bytes of tokenizer.json
_ENDS = {"gpt2": 11, "llama": 2, "t5": 1}  # llama.cpp's own choice of where text ends


# The tokenizer, in the keys that llama.cpp tokenizes by.
#
# As its own converter writes them (ggml-org/llama.cpp b11434, conversion/base.py:
# `_set_vocab_gpt2`, `_set_vocab_sentencepiece`, conversion/t5.py and bert.py): byte-level BPE is
# "gpt2" with the name of how words are cut, SentencePiece's BPE "llama" with scores, its unigrams
# "t5", WordPiece "bert". What llama.cpp computes otherwise than the tokenizer, and what it has no
# kind for, is said.


def tokenizer_keys(folder: Path, size: int) -> tuple[dict[str, MetadataValue], str]:
    """The keys of a directory's tokenizer, and what has to be said of it.

    size: of the vocabulary; rows of the embedding without a token become unused ones. A directory
    whose tokenizer llama.cpp has no kind for gives a file without one, which takes token numbers.
    Raises ValueError for damaged files.
    """
    path, vocabulary = folder / "tokenizer.json", Vocabulary(size)
    data = json_object(read_json(path, most=_MOST), path) if path.is_file() else None
    if data is None:
        result, notes = _without_json(folder, vocabulary)
    else:
        result, notes = _from_json(folder, data, vocabulary)
    kind = result["tokenizer.ggml.model"].value
    if kind == "none":
        return result, "; ".join(notes)
    special, info = special_keys(folder, vocabulary, data)
    result |= special
    notes += info
    end = _ENDS.get(kind, size)
    if "tokenizer.ggml.eos_token_id" not in result and end < size:
        notes.append(
            "neither its tokenizer nor its configuration names the end-of-text token "
            f"(eos_token): llama.cpp uses token {end} ({vocabulary.text(end)!r})"
        )
    if vocabulary.excess:
        notes.append(f"{vocabulary.excess} of its tokens have no row in the embedding: left out")
    return result, "; ".join(notes)


def _none(why: str) -> Keys:
    """No tokenizer: llama.cpp loads such a file (and refuses one without the key)."""
    return {"tokenizer.ggml.model": MetadataValue("text", "none")}, [
        f"{why}: the file has no tokenizer (model none): pass token numbers to llama.cpp"
    ]


def _from_json(folder: Path, data: dict[str, Any], vocabulary: Vocabulary) -> Keys:
    """The keys of a tokenizer.json, by the kind of its model."""
    model = data.get("model")
    model = model if isinstance(model, dict) else {}
    kind = _kind(model)
    if kind == "BPE" and not model.get("end_of_word_suffix"):
        if _writes_bytes(data):
            return byte_level(data, model, vocabulary)
        has_spaces = any(SPACE in text for text in tokens_of(model.get("vocab")))
        if model.get("byte_fallback") or has_spaces:
            return pieces_of_bpe(folder, data, model, vocabulary)
        return byte_level(data, model, vocabulary)  # with what has to be said of its cuts
    if kind == "Unigram":
        return unigrams(data, model, vocabulary)
    if kind == "WordPiece" and model.get("continuing_subword_prefix", "##") == "##":
        return _word_piece(data, model, vocabulary)
    kind_name = kind or "unknown kind"
    return _none(f"its tokenizer is a {kind_name} which llama.cpp does not support")


def _kind(model: Mapping[str, Any]) -> str:
    """The type of a model; old files do not say it."""
    if model.get("type"):
        return str(model["type"])
    if "merges" in model:
        return "BPE"
    if isinstance(model.get("vocab"), list):
        return "Unigram"
    return "WordPiece" if "max_input_chars_per_word" in model else ""


def _writes_bytes(data: Mapping[str, Any]) -> bool:
    """Whether its tokens are texts of bytes: it cuts so, or it has no cuts and is read back so."""
    pre = list(flat(data.get("pre_tokenizer"), "pretokenizers"))
    back = flat(data.get("decoder"), "decoders") if not pre else iter(())
    return any(each.get("type") == "ByteLevel" for each in (*pre, *back))


def _without_json(folder: Path, vocabulary: Vocabulary) -> Keys:
    """The keys of a directory that has no tokenizer.json: SentencePiece's file, or none."""
    names = ("tokenizer.model", "spiece.model")
    path = next((folder / name for name in names if (folder / name).is_file()), None)
    if path is None:
        return _none(
            f"{folder} has no tokenizer.json (AutoTokenizer.from_pretrained(…).save_pretrained "
            f"writes one) and no tokenizer.model"
        )
    keys = from_pieces(path, vocabulary)
    return keys or _none(
        f"{path.name} is a model of words or characters, which llama.cpp does not support"
    )


def _word_piece(data: dict[str, Any], model: dict[str, Any], vocabulary: Vocabulary) -> Keys:
    """WordPiece, "bert": tokens that begin a word get a space, others lose their ##."""
    for text, number in tokens_of(model.get("vocab")).items():
        within = text.startswith("##")
        vocabulary.insert(number, text[2:] if within else SPACE + text)
        vocabulary.numbers[text] = number
    for number, text, special in added_of(data.get("added_tokens")):
        vocabulary.add(number, text, special)
    steps = list(flat(data.get("normalizer"), "normalizers"))
    bert = next((each for each in steps if each.get("type") == "BertNormalizer"), {})
    lower = bool(bert.get("lowercase", True)) if bert else _has(steps, "Lowercase")
    strip = bert.get("strip_accents")
    strip = strip if isinstance(strip, bool) else lower if bert else _has(steps, "StripAccents")
    names = dict.fromkeys(("Lowercase", "StripAccents", "NFD"), always) | {"BertNormalizer": _usual}
    by_name = {
        "tokenizer.ggml.model": MetadataValue("text", "bert"),
        "tokenizer.ggml.pre": MetadataValue("text", "default"),
        **vocabulary.keys(scores=False),
        "tokenizer.ggml.normalizer.lowercase": MetadataValue("bool", lower),
        "tokenizer.ggml.normalizer.strip_accents": MetadataValue("bool", strip),
    }
    notes = not_normalized(data, names)
    if strip:
        notes.append(
            "llama.cpp strips accents in its own way: Hangul and scripts with spacing marks "
            "(Devanagari) can become other tokens"
        )
    return by_name, notes


def _usual(step: Mapping[str, Any]) -> bool:
    """Whether a BertNormalizer does with control and Chinese characters what llama.cpp does."""
    return all(step.get(key, True) for key in ("clean_text", "handle_chinese_chars"))


def _has(steps: list[Mapping[str, Any]], kind: str) -> bool:
    return any(each.get("type") == kind for each in steps)


# Byte-level BPE as llama.cpp has it: the model "gpt2", and the name of how words are cut.


def byte_level(data: Mapping[str, Any], model: Mapping[str, Any], vocabulary: Vocabulary) -> Keys:
    """The keys of a tokenizer.json, and what has to be said. model: the part of that name."""
    vocab, pairs = tokens_of(model.get("vocab")), merges_of(model.get("merges"))
    for text, number in vocab.items():
        vocabulary.insert(number, text)
    for each in added_of(data.get("added_tokens")):
        vocabulary.add(*each)
    name, notes = _pretokenizer(data, model, vocab, pairs)
    notes += not_normalized(data, {"ByteLevel": always})
    by_name = {
        "tokenizer.ggml.model": MetadataValue("text", "gpt2"),
        "tokenizer.ggml.pre": MetadataValue("text", name),
        **vocabulary.keys(scores=False),
        "tokenizer.ggml.merges": MetadataValue("text", [_text(pair) for pair in pairs]),
    }
    return by_name, notes


def _text(pair: Pair) -> str:
    """A merge as one text, a space in a token as the character that its byte has."""
    return " ".join(part.replace(" ", "Ġ") for part in pair)


def _pretokenizer(
    data: Mapping[str, Any], model: Mapping[str, Any], vocab: dict[str, int], pairs: list[Pair]
) -> tuple[str, list[str]]:
    """llama.cpp's name for how words are cut, and where it is not quite that."""
    pre, notes = data.get("pre_tokenizer"), []
    facts = known_for(pre)
    if not facts:
        return "default", [
            "llama.cpp has no name for the way its tokenizer cuts words (tokenizer.ggml.pre "
            'is "default"): numbers, signs and spaces can become other tokens. Pass token '
            "numbers, or compare llama-tokenize with your tokenizer"
        ]
    whole = bool(model.get("ignore_merges"))
    name = facts[0].name
    if facts[0].whole != whole and whole_words_differ(vocab, pairs):
        same = [each.name for each in facts if each.whole == whole]
        name = same[0] if same else name
        if not same:
            ours, theirs = ("takes", "merges") if whole else ("merges", "takes")
            notes.append(
                f"a word that is a token: its tokenizer {ours} it, llama.cpp {theirs} it, and "
                "some words become other tokens"
            )
    if nearly(name):
        notes.append(f"llama.cpp's {name} sometimes cuts {nearly(name)} differently")
    if any(each.get("add_prefix_space") for each in flat(pre, "pretokenizers")):
        notes.append(
            "its tokenizer puts a space before a text, and llama.cpp does not: write that "
            "space into the prompt"
        )
    return name, notes
