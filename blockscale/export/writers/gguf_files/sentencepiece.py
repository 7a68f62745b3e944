# SPDX-License-Identifier: BSD-3-Clause
"""SentencePiece's models as llama.cpp has them: BPE is "llama", unigrams "t5", both with scores.

They are read from tokenizer.json, or from `tokenizer.model`: pieces, and how text is normalized.

Source: google/sentencepiece, src/sentencepiece_model.proto: ModelProto has pieces = 1 (piece = 1,
score = 2, type = 3), trainer_spec = 2 (model_type = 3, unk_id … pad_id = 40 … 43) and
normalizer_spec = 3 (precompiled_charsmap = 2, add_dummy_prefix = 3, remove_extra_whitespaces = 4).
The types of pieces have the numbers that GGUF's have.
"""

import re
import struct
from base64 import b64decode
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from blockscale.core.untrusted import FileError, read_regular
from blockscale.export.auditing.entries import DamagedError, ReadBudget
from blockscale.export.auditing.protobuf import Fields, fields, messages
from blockscale.export.auditing.protobuf import number as whole_number
from blockscale.export.writers.gguf_files.file import MetadataValue
from blockscale.export.writers.gguf_files.pretokenizers import always, flat, not_normalized
from blockscale.export.writers.gguf_files.special_tokens import read_object
from blockscale.export.writers.gguf_files.vocabulary import (
    BYTE,
    NORMAL,
    SPACE,
    UNKNOWN,
    USER,
    Keys,
    Vocabulary,
    added_of,
    joined_besides,
    merges_of,
    order_of,
    tokens_of,
)

MOST = 1 << 28  # bytes
_BYTE = re.compile(r"<0x[0-9A-F]{2}>")
_IDS = {"unknown": (40, 0), "bos": (41, 1), "eos": (42, 2), "padding": (43, -1)}  # field, default
_KINDS = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}


class VocabularyPiece(NamedTuple):
    """text, its score, and its type: 1 normal, 2 unknown, 3 control, 4 user-defined, 6 byte."""

    text: str
    score: float
    kind: int


class Pieces(NamedTuple):
    """A model. kind: unigram, bpe, word or char; prefix: whether a text gets a space in front."""

    kind: str
    pieces: list[VocabularyPiece]
    charsmap: bytes
    prefix: bool
    trims: bool  # whether runs of spaces become one
    ids: dict[str, int]  # of the tokens with a meaning, -1 for those that it has not


def read_pieces(path: Path) -> Pieces:
    """The model of a file. Raises FileError for what is none (Llama 3's are lists of bytes)."""
    budget = ReadBudget()
    try:
        top = fields(memoryview(read_regular(path, MOST)), budget)
        trainer = _part(top, 2, budget)
        normalizer = _part(top, 3, budget)
        results = [_piece(each, budget) for each in messages(top, 1)]
        charsmap = messages(normalizer, 2)
        kind = _KINDS.get(whole_number(trainer, 3, 1), "unknown")
        if not results:
            raise DamagedError("it has no pieces")
    except (DamagedError, UnicodeDecodeError) as error:
        raise FileError(
            f"{path} is not a SentencePiece model: {error}. If the model's tokenizer is "
            "tokenizer.json, remove this file"
        ) from None
    ids = {name: whole_number(trainer, key, n) for name, (key, n) in _IDS.items()}
    prefix, trims = (bool(whole_number(normalizer, key, 1)) for key in (3, 4))
    return Pieces(kind, results, bytes(charsmap[-1]) if charsmap else b"", prefix, trims, ids)


def _part(top: Fields, key: int, budget: ReadBudget) -> Fields:
    result = messages(top, key)
    return fields(result[-1], budget) if result else {}


def _piece(data: memoryview, budget: ReadBudget) -> VocabularyPiece:
    values = fields(data, budget)
    text, score = messages(values, 1), messages(values, 2)
    if not text or (score and len(score[-1]) != 4):
        raise DamagedError("a piece has no text, or a score that is not a float32")
    value = struct.unpack("<f", score[-1])[0] if score else 0.0
    return VocabularyPiece(bytes(text[-1]).decode(), value, whole_number(values, 3, 1))


def pieces_of_bpe(
    folder: Path, data: dict[str, Any], model: dict[str, Any], vocabulary: Vocabulary
) -> Keys:
    """SentencePiece's BPE, "llama": with the scores of tokenizer.model, or the merges' order."""
    vocab, pairs = tokens_of(model.get("vocab")), merges_of(model.get("merges"))
    scores = _scores(folder, vocab)
    notes = []
    if not scores:
        scores = order_of(pairs)
        if count := joined_besides(vocab, pairs):
            notes.append(
                f"its tokenizer does not join {count} pairs of tokens that llama.cpp joins, since "
                f"they spell another token: words can become other tokens"
            )
    least = -float(len(pairs) + 1)
    for text, number in vocab.items():
        kind = BYTE if _BYTE.fullmatch(text) else NORMAL
        kind = UNKNOWN if text == model.get("unk_token") else kind
        vocabulary.insert(number, text, kind, scores.get(text, least if kind == NORMAL else 0.0))
    for each in added_of(data.get("added_tokens")):
        vocabulary.add(*each)
    prefix = _prefix(data)
    notes += _spaces_besides(data, prefix)
    notes += not_normalized(data, {"Prepend": _writes_space, "Replace": _writes_space})
    notes += _cuts_besides(data)
    result = _score_settings("llama", vocabulary, prefix != "never")
    if not any(_BYTE.fullmatch(text) for text in vocab):
        notes.append("it has no byte tokens: llama.cpp fails on characters without a token")
    return result, notes


def _score_settings(kind: str, vocabulary: Vocabulary, prefix: bool) -> dict[str, MetadataValue]:
    return {
        "tokenizer.ggml.model": MetadataValue("text", kind),
        "tokenizer.ggml.pre": MetadataValue("text", "default"),
        **vocabulary.keys(scores=True),
        "tokenizer.ggml.add_space_prefix": MetadataValue("bool", prefix),
    }


def _scores(folder: Path, vocab: Mapping[str, int]) -> dict[str, float]:
    """Scores of tokenizer.model, if it is there and has the same tokens."""
    path = folder / "tokenizer.model"
    if not path.is_file():
        return {}
    model = read_pieces(path)
    same = all(vocab.get(piece.text) == i for i, piece in enumerate(model.pieces))
    return {piece.text: piece.score for piece in model.pieces} if same else {}


def _prefix(data: Mapping[str, Any]) -> str:
    """When a space is put before a text: always, first (of the whole text) or never."""
    for each in flat(data.get("normalizer"), "normalizers"):
        if each.get("type") == "Prepend":
            return "always"
    for each in flat(data.get("pre_tokenizer"), "pretokenizers"):
        if each.get("type") == "Metaspace":
            plain = "always" if each.get("add_prefix_space", True) else "never"
            return str(each.get("prepend_scheme") or plain)
    return "never"


def _spaces_besides(data: Mapping[str, Any], prefix: str) -> list[str]:
    """What has to be said of spaces that llama.cpp puts and a tokenizer does not."""
    steps = flat(data.get("pre_tokenizer"), "pretokenizers")
    if prefix == "never" or not any(each.get("type") == "Metaspace" for each in steps):
        return []  # a normalizer puts them as llama.cpp does
    also = " and behind special tokens in a text" if prefix == "first" else ""
    return [
        f"llama.cpp puts a space before a text that begins with a space{also}, and its "
        "tokenizer does not: such text becomes other tokens"
    ]


def _writes_space(step: Mapping[str, Any]) -> bool:
    """Whether a normalizer only writes spaces as SentencePiece does."""
    if step.get("type") == "Prepend":
        return step.get("prepend") == SPACE
    return step.get("pattern") == {"String": " "} and step.get("content") == SPACE


def _cuts_besides(data: Mapping[str, Any]) -> list[str]:
    """What has to be said of cuts that "llama" and "t5" have not."""
    cuts = [
        str(each.get("type"))
        for each in flat(data.get("pre_tokenizer"), "pretokenizers")
        if each.get("type") not in ("Metaspace", "WhitespaceSplit")
        and each.get("pattern") != {"String": " "}
    ]
    if not cuts:
        return []
    names = ", ".join(dict.fromkeys(cuts))
    return [
        f"its tokenizer cuts words ({names}) where llama.cpp does not: some become other tokens"
    ]


def from_pieces(path: Path, vocabulary: Vocabulary) -> Keys | None:
    """The keys of SentencePiece's file; None for models of words and characters."""
    model = read_pieces(path)
    if model.kind not in ("bpe", "unigram"):
        return None
    for i, (text, score, kind) in enumerate(model.pieces):
        vocabulary.insert(i, text.replace(SPACE, " ") if kind == USER else text, kind, score)
        vocabulary.numbers[text] = i
    _more_tokens(path.parent, vocabulary)
    result = _score_settings("llama" if model.kind == "bpe" else "t5", vocabulary, model.prefix)
    for name, i in model.ids.items():
        if 0 <= i < min(len(model.pieces), vocabulary.size):
            result[f"tokenizer.ggml.{name}_token_id"] = MetadataValue("u32", i)
    if model.kind == "unigram":
        result |= _of_unigrams(model.trims, model.charsmap)
    return result, _normalized_pieces(model)


def _normalized_pieces(model: Pieces) -> list[str]:
    """SentencePiece's BPE may normalize text, which llama.cpp does for unigrams only."""
    if model.kind == "bpe" and (model.charsmap or model.trims):
        what = "normalizes text" if model.charsmap else "joins several spaces into one"
        return [f"its tokenizer {what}, and llama.cpp does not: such text becomes other tokens"]
    return []


def _more_tokens(folder: Path, vocabulary: Vocabulary) -> None:
    """Tokens that were added to SentencePiece's (added_tokens.json, tokenizer_config.json)."""
    for text, number in read_object(folder / "added_tokens.json").items():
        if type(number) is int and number >= 0:
            vocabulary.add(number, text, False)
    decoder = read_object(folder / "tokenizer_config.json").get("added_tokens_decoder")
    for key, each in decoder.items() if isinstance(decoder, dict) else ():
        if key.isdigit() and isinstance(each, dict) and isinstance(each.get("content"), str):
            vocabulary.add(int(key), each["content"], bool(each.get("special")))


def unigrams(data: dict[str, Any], model: dict[str, Any], vocabulary: Vocabulary) -> Keys:
    """Unigrams, "t5"."""
    rows = model.get("vocab")
    if not isinstance(rows, list) or not all(_is_row(row) for row in rows):
        raise ValueError("tokenizer.json: its vocabulary is not a list of texts and scores")
    for i, (text, score) in enumerate(rows):
        vocabulary.insert(i, text, UNKNOWN if i == model.get("unk_id") else NORMAL, float(score))
    for number, text, special in added_of(data.get("added_tokens")):
        if number != model.get("unk_id"):  # which llama.cpp must find by its type
            vocabulary.add(number, text, special)
    steps = list(flat(data.get("normalizer"), "normalizers"))
    map_ = next(
        (s.get("precompiled_charsmap") for s in steps if s.get("type") == "Precompiled"), ""
    )
    pre = [each.get("type") for each in flat(data.get("pre_tokenizer"), "pretokenizers")]
    trims = "WhitespaceSplit" in pre or any(_one_space(each) for each in steps)
    table = {"Precompiled": always, "Strip": always, "Replace": _one_space}
    notes = not_normalized(data, table) + _cuts_besides(data)
    if "WhitespaceSplit" in pre and not map_:
        notes.append(
            "line breaks and tabs separate words in its tokenizer, and only spaces do in llama.cpp"
        )
    if model.get("byte_fallback"):
        notes.append(
            "characters without a token become bytes in its tokenizer, and one unknown token "
            "in llama.cpp")  # fmt: skip
    result = _score_settings("t5", vocabulary, _prefix(data) != "never")
    if isinstance(model.get("unk_id"), int):
        result["tokenizer.ggml.unknown_token_id"] = MetadataValue("u32", model["unk_id"])
    return result | _of_unigrams(trims, b64decode(map_ or "")), notes


def _is_row(row: Any) -> bool:
    return (
        isinstance(row, list)
        and len(row) == 2
        and isinstance(row[0], str)
        and type(row[1]) in (int, float)
    )


def _one_space(step: Mapping[str, Any]) -> bool:
    """Whether a normalizer makes one space of several."""
    pattern = step.get("pattern")
    several = isinstance(pattern, dict) and pattern.get("Regex") in (
        " {2,}",
        r"\s{2,}",
        " +",
        "  +",
    )
    return step.get("type") == "Replace" and several and step.get("content") in (" ", SPACE)


def _of_unigrams(trims: bool, charsmap: bytes) -> dict[str, MetadataValue]:
    data = {"tokenizer.ggml.remove_extra_whitespaces": MetadataValue("bool", trims)}
    if charsmap:
        data["tokenizer.ggml.precompiled_charsmap"] = MetadataValue("u8", list(charsmap))
    return data
